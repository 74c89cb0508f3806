"""The stand-ins: every module of the systems' metadata, the compiler wrappers, and the script that makes them."""
import configparser
import hashlib
import os
import pwd
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from common import CHECKOUT, clean_environment, nightly

pytestmark = pytest.mark.slow

STAND_INS = CHECKOUT / 'hpc_pytorch/stand_ins'
# name of the stand-in -> its description
DESCRIPTIONS = {path.parent.name + path.stem[len('stand_in'):]: path
                for path in sorted(CHECKOUT.glob('systems/*/stand_in*.cfg'))}
WITH_MODULES = [name for name, path in DESCRIPTIONS.items() if (path.parent / 'external_modules.cfg').exists()]
MAKE = STAND_INS / 'make.py'
MPI_PROGRAM = """
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    int rank, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    rank += 1;
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("sum %d\\n", sum);
    MPI_Finalize();
    return 0;
}
"""
FORTRAN_PROGRAM = """
program main
  use mpi
  integer :: rank, total, ierror
  call MPI_Init(ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  rank = rank + 1
  call MPI_Allreduce(rank, total, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierror)
  print '(a, i0)', 'sum ', total
  call MPI_Finalize(ierror)
end program
"""


def metadata_of(system):
    """What EasyBuild is told of the system's modules, on the stand-in: of those that this state of the system has."""
    metadata = configparser.ConfigParser(interpolation=None)
    metadata.read([str(DESCRIPTIONS[system].parent / 'external_modules.cfg'),
                   str(CHECKOUT / '.local' / 'stand_ins' / system / 'external_modules.cfg')])
    for name in metadata.sections():
        full = name if '/' in name else '%s/%s' % (name, metadata[name].get('version', ''))
        if not any(module == name or module.startswith(full) for module in described(system)):
            metadata.remove_section(name)
    return metadata


def described(system):
    """The modules of a stand-in: {name: its keys}."""
    description = configparser.ConfigParser(delimiters=('=',), interpolation=None)
    description.read(str(DESCRIPTIONS[system]))
    return {section.split()[1]: description[section] for section in description.sections()
            if section.startswith('module ')}


def openers_of(system, name):
    """What must be loaded before a module can be seen, in this order."""
    modules = described(system)
    full = next((one for one in modules if one == name or one.startswith(name + '/')), name)
    opener = modules.get(full, {}).get('opened_by', '').split()[:1]
    return openers_of(system, opener[0]) + opener if opener else []


def make(*arguments, script=MAKE, **options):
    """Run the script that makes stand-ins."""
    return subprocess.run([sys.executable, '-I', str(script), *map(str, arguments)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=3000, **options)


class StandIns:
    """Where the stand-ins of the checkout are; each is made when it is first asked for."""

    def __init__(self):
        self.made = {}

    def __getitem__(self, name):
        """The module directory of a system."""
        if name not in self.made:
            done = make(name)
            assert done.returncode == 0, done.stderr
            self.made[name] = Path(done.stdout.strip())
        return self.made[name]


@pytest.fixture(scope='session')
def stand_ins():
    """Module directories by the name of the system."""
    return StandIns()


# -- modules

@pytest.mark.parametrize('system, modules_tool', [
    *((system, 'Lmod') for system in WITH_MODULES), ('archer2', 'Environment Modules'),
    *(nightly(system, 'Environment Modules') for system in WITH_MODULES if system != 'archer2')],
    indirect=['modules_tool'])
def test_every_module_of_the_metadata(stand_ins, modules_tool, system):
    """It loads, has the version and the prefix that the metadata says, and unloading leaves nothing."""
    modules, metadata = stand_ins[system], metadata_of(system)
    script = ['module use %s' % modules]
    # all but what the tools remember for themselves
    variables = 'env | grep -vE "^(_|__?LMOD|__MODULES|_LMFILES_|_ModuleTable|LMOD_|LOADEDMODULES)" | sort'
    for name in metadata.sections():
        openers = openers_of(system, name)
        script += ['(', 'module load %s' % ' '.join(openers) if openers else ':',
                   'before="$(%s)"' % variables,
                   'module load %s || echo FAILED %s' % (name, name),
                   'echo "@loaded %s $LOADEDMODULES"' % name]
        prefix = metadata[name].get('prefix', '')
        if prefix and not prefix.startswith('/'):
            script.append('echo "@prefix %s ${%s-}"' % (name, prefix))
        # a sticky one wants to be asked twice
        script += ['module --force unload %s' % name,
                   'after="$(%s)"' % variables,
                   'diff <(echo "$before") <(echo "$after") && echo "@clean %s"' % name, ') || true']
    # an empty path, so that what modules prepend to and Lmod tidies up makes no difference
    out = modules_tool.run('\n'.join(script), env={'PATH': '/usr/bin:/bin'})
    answers = {}
    for line in out.splitlines():
        if line.startswith('@'):
            kind, name, *rest = line.split()
            answers[kind, name] = rest
    for name in metadata.sections():
        entry = metadata[name]
        assert answers.get(('@clean', name)) == [], out
        loaded = answers['@loaded', name][0].split(':')
        assert name in loaded or any(one.startswith(name + '/') for one in loaded), out
        if 'version' in entry and '/' not in name:
            # the unversioned name brings the version that the metadata says
            assert '%s/%s' % (name, entry['version']) in loaded
        prefix = entry.get('prefix')
        if prefix:
            path = Path(prefix if prefix.startswith('/') else answers['@prefix', name][0])
            assert path.is_dir() and path.parent == modules.parent / 'parts', (name, path)


def test_nothing_is_said_of_other_modules():
    """Each state of a system has some of the modules in its metadata; together they have all."""
    for system in {DESCRIPTIONS[name].parent.name for name in WITH_MODULES}:
        told = configparser.ConfigParser(interpolation=None)
        told.read(str(CHECKOUT / 'systems' / system / 'external_modules.cfg'))
        states = [name for name in WITH_MODULES if DESCRIPTIONS[name].parent.name == system]
        assert {name for state in states for name in metadata_of(state).sections()} >= set(told.sections()), system


@pytest.mark.parametrize('system', DESCRIPTIONS)
def test_module_files_are_only_those_described(stand_ins, system):
    modules, opened = stand_ins[system], stand_ins[system].parent / 'opened'
    there = [str(path.relative_to(modules)) for path in modules.rglob('*') if path.is_file()]
    for opener in described(system):
        there += [name for name, module in described(system).items() if opener in module.get('opened_by', '').split()
                  and (opened / opener / name).is_file()]
    assert set(there) == set(described(system))


@pytest.mark.parametrize('system', DESCRIPTIONS)
def test_stand_in_says_how_it_differs(system):
    text = (DESCRIPTIONS[system].parent / 'stand_in.rst').read_text()
    assert len(text) > 100


def test_modules_are_seen_only_after_those_that_open_them(stand_ins, modules_tool):
    out = modules_tool.run('module use %s; module load partition/container; echo "<$LUMI_STACK_PARTITION>"'
                           % stand_ins['lumi'])
    assert '<>' in out
    out = modules_tool.run('module use %s; module load LUMI partition/container; echo "<$LUMI_STACK_PARTITION>"'
                           % stand_ins['lumi'])
    assert '<container>' in out


def test_login_as_on_derecho(stand_ins, lmod):
    """A default environment of which one module is sticky, and another compiler takes its place."""
    out = lmod.run('''source %s/login
echo "login $LOADEDMODULES"
module load gcc/12.2.0 && echo "swapped $LOADEDMODULES"
module purge; echo "purged $LOADEDMODULES"
HPC_LOGIN=bare; module --force purge; source %s/login; echo "bare <$LOADEDMODULES>"''' % (
        stand_ins['derecho-2024'].parent, stand_ins['derecho-2024'].parent))
    said = dict(line.split(' ', 1) for line in out.splitlines()
                if line.startswith(('login ', 'swapped ', 'purged ', 'bare ')))
    assert 'intel/2023.2.1' in said['login'] and 'cray-mpich/8.1.27' in said['login']
    assert 'intel' not in said['swapped'] and 'gcc/12.2.0' in said['swapped'] and 'cray-mpich/8.1.27' in said['swapped']
    assert said['purged'] == 'ncarenv/23.09' and said['bare'] == '<>'


@pytest.mark.parametrize('system', WITH_MODULES)
def test_easybuild_knows_the_modules(stand_ins, eb, tmp_path, system):
    """Through EasyBuild itself: $EBROOT… and $EBVERSION… of every module that has a name."""
    modules, metadata = stand_ins[system], metadata_of(system)
    names = [name for name in metadata.sections() if name + '/' not in ''.join(metadata.sections())]
    # compilers before what they open
    names.sort(key=lambda name: (len(openers_of(system, name)), bool(openers_of(system, name)), name != 'gcc/12.2.0'))
    names = [opener for name in names for opener in openers_of(system, name) if opener not in names] + names
    path = tmp_path / 'probe-1.0.eb'
    path.write_text("easyblock = 'Tarball'\nname = 'probe'\nversion = '1.0'\nhomepage = 'https://example.org'\n"
                    "description = 'Probe'\ntoolchain = SYSTEM\nsources = []\nmoduleclass = 'devel'\n"
                    "dependencies = [%s]\n"
                    % ', '.join("('%s', EXTERNAL_MODULE)" % name for name in names))
    files = [CHECKOUT / 'systems' / DESCRIPTIONS[system].parent.name / 'external_modules.cfg',
             modules.parent / 'external_modules.cfg']
    done = eb('--system=%s' % DESCRIPTIONS[system].parent.name, '--rehearse', path, '-x',
              env={'EASYBUILD_EXTERNAL_MODULES_METADATA': ','.join(map(str, files))})
    for name in names:
        if name not in metadata:
            continue
        entry = metadata[name]
        software = entry['name'].upper().replace('-', 'MIN')
        assert 'module load %s' % name in done.stdout
        if 'version' in entry:
            assert "EBVERSION%s='%s'" % (software, entry['version']) in done.stdout
        if 'prefix' in entry:
            assert "EBROOT%s='%s/parts/" % (software, modules.parent) in done.stdout


# -- ARCHER2: what its users see

def archer2(stand_ins, script, tool, **options):
    """Run a script with the modules that the page loads."""
    return tool.run('set -e\nmodule use %s\nmodule load PrgEnv-gnu cray-fftw mkl/2023.0.0 cmake/3.21.3 cray-python\n%s'
                    % (stand_ins['archer2-2023'], script), **options)


@pytest.mark.parametrize('compiler, suffix, program', [
    ('cc', 'c', MPI_PROGRAM), ('CC', 'cpp', MPI_PROGRAM), ('ftn', 'f90', FORTRAN_PROGRAM)])
def test_wrappers_compile_mpi(stand_ins, lmod, tmp_path, compiler, suffix, program):
    (tmp_path / ('program.' + suffix)).write_text(program)
    out = archer2(stand_ins, '%s -o program program.%s\nldd program\nmpiexec -n 2 ./program' % (compiler, suffix), lmod,
                  cwd=tmp_path)
    assert 'libmpich.so.12' in out and out.count('sum 3') == 2


def test_wrapper_keeps_other_mpis_out(stand_ins, lmod, tmp_path):
    """mpi4py's way to link: -lmpi after a system directory, in which Open MPI's library has this name."""
    (tmp_path / 'program.c').write_text(MPI_PROGRAM)
    out = archer2(stand_ins, '''
other=/usr/lib/$(uname -m)-linux-gnu; ls "$other/libmpi.so"
cc -fPIC -c program.c; cc -shared program.o -L"$other" -lmpi -o program.so; ldd program.so''', lmod, cwd=tmp_path)
    assert 'libmpich.so' in out and 'libmpi.so.40' not in out


def test_wrapper_is_a_gnu_compiler_to_those_who_ask(stand_ins, modules_tool):
    out = archer2(stand_ins, 'cc --version; CC --version; ftn --version; cc -dumpmachine; cc -v', modules_tool)
    assert 'gcc (' in out and 'g++ (' in out and 'GNU Fortran' in out and '-linux-gnu' in out
    assert 'Free Software Foundation' in out and 'undefined reference' not in out


def test_wrapper_links_only_programs(stand_ins, lmod, tmp_path):
    (tmp_path / 'a b.c').write_text('#include <mpi.h>\nint main(void) { return 0; }\n')
    archer2(stand_ins, 'cc "a b.c" -o prog && ./prog; cc -c "a b.c"', lmod, cwd=tmp_path)
    assert (tmp_path / 'prog').exists() and (tmp_path / 'a b.o').exists()


def test_wrapper_outside_its_environment(stand_ins, lmod):
    """A missing PrgEnv is an error that helps."""
    out = lmod.run('module use %s; module load craype; cc --version' % stand_ins['archer2-2023'], status=1)
    assert 'Load PrgEnv-gnu' in out and 'rror' not in out.replace('ERROR', '')


def test_wrapper_passes_arguments_and_status(stand_ins, lmod, tmp_path):
    (tmp_path / 'bad.c').write_text('int main(void) { return missing; }\n')
    out = archer2(stand_ins, r'''
set +e
cc -c bad.c; echo "status $?"
echo 'const char *x = X;' | cc -DX='"a b $HOME \"q\" *"' -E -x c - | tail -1''', lmod, cwd=tmp_path)
    assert 'status 1' in out and r'const char *x = "a b $HOME \"q\" *";' in out


def test_page_variables_of_archer2(stand_ins, modules_tool):
    out = archer2(stand_ins, '''
echo "PE_ENV=$PE_ENV CRAYPE=$CRAYPE_VERSION MPICH=$CRAY_MPICH_VERSION"
ls -d "$CRAY_MPICH_DIR/include/mpi.h" "$MPICH_DIR/lib/libmpi.so" "$FFTW_INC/fftw3.h" "$FFTW_DIR/libfftw3.so"
ls -d "$MKLROOT/include/mkl.h" "$MKLROOT/lib/intel64/libmkl_sequential.so"
cmake --version
python -c 'import sys; print("PYTHON", sys.prefix, "%d.%d.%d" % sys.version_info[:3])'
python -c 'import numpy, packaging, setuptools, wheel; print("numpy", numpy.__version__)'
echo "LEVEL $CRAY_PYTHON_PREFIX $CRAY_PYTHON_LEVEL"
ls -d "$CRAY_PYTHON_PREFIX/lib/python$(echo "$CRAY_PYTHON_LEVEL" | cut -d. -f1-2)/site-packages"''', modules_tool)
    assert 'PE_ENV=GNU CRAYPE=2.7.23 MPICH=8.1.27' in out and 'cmake version 3.21.3' in out
    lines = dict(line.split(None, 1) for line in out.splitlines() if line.startswith(('PYTHON', 'LEVEL')))
    assert lines['PYTHON'] == lines['LEVEL']


def test_mkl_works_sequentially(stand_ins, lmod, tmp_path):
    """What PyTorch is linked with on ARCHER2; the version is the page's."""
    (tmp_path / 'prog.c').write_text('''
#include <mkl.h>
#include <stdio.h>
int main(void)
{
    double a[4] = {1, 2, 3, 4}, c[4];
    MKLVersion version;
    mkl_get_version(&version);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 2, 2, 2, 1.0, a, 2, a, 2, 0.0, c, 2);
    printf("MKL %d.%d: %g %g %g %g\\n", version.MajorVersion, version.UpdateVersion, c[0], c[1], c[2], c[3]);
    return 0;
}
''')
    out = archer2(stand_ins, 'cc prog.c -o prog -lmkl_intel_lp64 -lmkl_sequential -lmkl_core -lm -ldl\n./prog', lmod,
                  cwd=tmp_path)
    assert 'MKL 2023.0: 7 10 15 22' in out


def test_fftw_and_blas_come_with_the_wrapper(stand_ins, lmod, tmp_path):
    (tmp_path / 'prog.c').write_text('''
#include <fftw3.h>
#include <stdio.h>
double ddot_(int *, double *, int *, double *, int *);
int main(void)
{
    int n = 2, one = 1;
    double x[2] = {3, 4};
    fftw_complex data[2] = {{1, 0}, {1, 0}};
    fftw_plan plan = fftw_plan_dft_1d(2, data, data, FFTW_FORWARD, FFTW_ESTIMATE);
    fftw_execute(plan);
    printf("%g %g\\n", ddot_(&n, x, &one, x, &one), data[0][0]);
    return 0;
}
''')
    assert '25 2' in archer2(stand_ins, 'cc prog.c -o prog\n./prog', lmod, cwd=tmp_path)


# -- the other systems

def test_derecho_compilers_add_what_modules_offer(stand_ins, lmod, tmp_path):
    (tmp_path / 'prog.c').write_text('#include <cuda_runtime.h>\n' + MPI_PROGRAM)
    out = lmod.run('''set -e
module use %s
module load ncarenv/23.09 gcc/12.2.0 ncarcompilers cray-mpich/8.1.27 cuda/12.2.1
module load mkl/2024.0.0 conda/latest cudnn/8.8.1.3-12
mpicc prog.c -o prog
mpiexec -n 2 -ppn 2 ./prog
readelf -d prog | grep -i -E 'r(un)?path'
echo "$NCAR_BUILD_ENV $CUDA_HOME $NCAR_ROOT_CUDNN"
printf '#include <mpi.h>\\n' | NCAR_INC_X=/some/where gcc -E -v -x c - 2>&1 | grep /some/where
gcc --version | head -1
nvcc --version; python --version''' % stand_ins['derecho-2024'], cwd=tmp_path)
    parts = stand_ins['derecho-2024'].parent / 'parts'
    assert out.count('sum 3') == 2 and '%s/mkl-2024.0/lib/intel64' % parts in out
    assert 'derecho-gcc-12.2.0-cray-mpich-8.1.27 %s/cuda %s/nothing' % (parts, parts) in out
    assert '/some/where' in out and 'gcc (' in out and 'release' in out and 'Python 3' in out


@pytest.mark.parametrize('system, modules, architecture', [
    ('derecho-2024', 'ncarenv/23.09 gcc/12.2.0 cuda/12.2.1', 'sm_80'), ('bede', 'gcc/12.2 cuda/12.3.2', 'sm_90')])
def test_nvcc_compiles(stand_ins, lmod, tmp_path, system, modules, architecture):
    (tmp_path / 'kernel.cu').write_text('__global__ void twice(float *x) { x[threadIdx.x] *= 2; }\n'
                                        'int main() { return cudaSuccess; }\n')
    out = lmod.run('set -e\nmodule use %s\nmodule load %s\nnvcc -arch=%s -o prog kernel.cu\necho "$CUDA_HOME"; ls prog'
                   % (stand_ins[system], modules, architecture), cwd=tmp_path)
    assert 'prog' in out


def test_bede_builds_with_open_mpi_and_openblas(stand_ins, lmod, tmp_path):
    (tmp_path / 'prog.c').write_text('#include <cblas.h>\n' + MPI_PROGRAM)
    out = lmod.run('''set -e
module use %s
module load gcc/12.2 openmpi/4.1.6 cuda/12.3.2 nsight-systems/2023.4.1 openblas/0.3.26
mpicc prog.c -o prog -lopenblas
mpirun --oversubscribe -n 2 ./prog
ls -d "$OPENBLAS_HOME/include/cblas.h" "$OPENMPI_HOME/include/mpi.h" "$GCC_HOME/bin/gcc"''' % stand_ins['bede'],
                   cwd=tmp_path, env={'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
                                      'OMPI_MCA_btl_vader_single_copy_mechanism': 'none'})
    assert out.count('sum 3') == 2


def test_frontier_modules_of_the_page(stand_ins, lmod, tmp_path):
    (tmp_path / 'prog.c').write_text('#define __HIP_PLATFORM_AMD__\n#include <hip/hip_runtime_api.h>\n'
                                     '#include <rdma/fabric.h>\n' + MPI_PROGRAM)
    out = lmod.run('''set -e
module use %s
module load PrgEnv-gnu/8.5.0 miniforge3/23.11.0-0 rocm/5.7.1 craype-accel-amd-gfx90a
module load gcc-native/12.3 cray-mpich/8.1.28 libtool
cc prog.c -o prog -I"$(pkg-config --variable=includedir libfabric)" -L"$ROCM_PATH/lib" -lamdhip64
mpiexec -n 2 ./prog
libtool --version
echo "$CRAY_ACCEL_TARGET $CONDA_PREFIX"
python -c 'import sys; print(sys.prefix)' ''' % stand_ins['frontier-2024'], cwd=tmp_path)
    parts = stand_ins['frontier-2024'].parent / 'parts'
    assert out.count('sum 3') == 2 and 'GNU libtool' in out
    assert 'amd_gfx90a %s/python\n%s/python' % (parts, parts) in out


# -- the script

def tree(directory):
    """What a stand-in consists of: links, small files, and the names of all others."""
    found = {}
    for path in sorted(directory.rglob('*')):
        name = str(path.relative_to(directory))
        if '__pycache__' in name or '.dist-info' in name:
            continue
        if path.is_symlink():
            found[name] = os.readlink(str(path))
        elif path.is_file() and path.stat().st_size < 10000:
            found[name] = path.read_text(errors='replace').replace(str(directory), '')
        else:
            found[name] = path.is_dir()
    return found


@pytest.fixture
def small(tmp_path):
    """A copy of the script with a system of its own, whose parts are links into the test's directory and a script."""
    stand_ins = tmp_path / 'check out' / 'hpc_pytorch' / 'stand_ins'
    (stand_ins / 'scripts').mkdir(parents=True)
    shutil.copy(str(MAKE), str(stand_ins))
    for name in ('module.txt', 'sticky.txt', 'login.txt'):
        shutil.copy(str(MAKE.parent / name), str(stand_ins))
    shutil.copytree(str(CHECKOUT / 'ramgate' / 'ramgate'), str(tmp_path / 'check out' / 'ramgate' / 'ramgate'))
    shutil.copy(str(CHECKOUT / 'hpc_pytorch/__init__.py'), str(stand_ins.parent))
    shutil.copytree(str(CHECKOUT / 'hpc_pytorch' / 'machine'), str(stand_ins.parent / 'machine'))
    (tmp_path / 'tool').write_text('tool\n')
    (stand_ins / 'scripts' / 'hello').write_text('#!/bin/sh\necho hello\n')
    (stand_ins / 'scripts' / 'hello').chmod(0o755)
    (stand_ins / 'parts.cfg').write_text('[part tool]\nabout = tool\nlinks =\n    bin/tool %s\nscripts =\n'
                                         '    bin/hello scripts/hello\nset =\n    TOOL {prefix}\n'
                                         '[part other]\nabout = other\n' % (tmp_path / 'tool'))
    here = tmp_path / 'check out' / 'systems' / 'here'
    here.mkdir(parents=True)
    (here / 'stand_in.cfg').write_text('[module tool/1]\npart = tool\nset =\n    VERSION {version}\n')
    return stand_ins / 'make.py'


def test_script_makes_what_is_described(small, tmp_path, lmod):
    done = make('here', '--into', tmp_path / 'there', script=small)
    assert done.returncode == 0 and done.stdout == '%s\n' % (tmp_path / 'there' / 'modules')
    assert done.stderr.count('making') == 1 and not (tmp_path / 'there' / 'parts' / 'other').exists()
    out = lmod.run('module use "%s"; module load tool; echo "<$TOOL> <$VERSION>"; "$TOOL/bin/hello"'
                   % done.stdout.strip())
    assert '<%s> <1>\nhello' % (tmp_path / 'there' / 'parts' / 'tool') in out
    again = make('here', '--into', tmp_path / 'there', script=small)
    assert again.returncode == 0 and again.stderr == ''


def test_modules_in_one_category(small, tmp_path):
    """Environment Modules took `conflict Core` for all modules below Core."""
    (small.parents[2] / 'systems/here/stand_in.cfg').write_text(
        '[module Core/tool/1]\npart = tool\nset =\n    VERSION {version}\n[module Core/other/latest]\npart = other\n')
    assert make('here', '--into', tmp_path / 'into', script=small).returncode == 0
    tool, other = [(tmp_path / 'into/modules/Core' / name).read_text() for name in ('tool/1', 'other/latest')]
    assert '\nconflict Core/tool\n' in tool and 'setenv VERSION {1}' in tool and '\nconflict Core/other\n' in other


def test_script_follows_its_description(small, tmp_path):
    """A changed part, a changed script and a vanished link are made again; a module that is not described goes."""
    into = tmp_path / 'into'
    assert make('here', '--into', into, script=small).returncode == 0
    parts = small.parent / 'parts.cfg'
    for change in (lambda: parts.write_text(parts.read_text().replace('bin/tool', 'bin/new')),
                   lambda: (small.parent / 'scripts' / 'hello').write_text('#!/bin/sh\necho changed\n')):
        change()
        done = make('here', '--into', into, script=small)
        assert done.returncode == 0 and 'making tool' in done.stderr
    assert sorted(path.name for path in (into / 'parts' / 'tool' / 'bin').iterdir()) == ['hello', 'new']
    (tmp_path / 'tool').unlink()
    done = make('here', '--into', into, script=small)
    assert done.returncode == 1 and 'does not exist' in done.stderr and 'Traceback' not in done.stderr
    (tmp_path / 'tool').write_text('back\n')
    assert 'making tool' in make('here', '--into', into, script=small).stderr
    # only the module's text changes: nothing is made again
    parts.write_text(parts.read_text().replace('TOOL {prefix}', 'TOOLS {prefix}'))
    assert make('here', '--into', into, script=small).stderr == ''
    assert 'setenv TOOLS' in (into / 'modules' / 'tool' / '1').read_text()
    (small.parents[2] / 'systems' / 'here' / 'stand_in.cfg').write_text('[module other/2]\npart = other\n')
    assert make('here', '--into', into, script=small).returncode == 0
    assert [path.name for path in (into / 'modules').rglob('*') if path.is_file()] == ['2']


def test_systems_share_their_parts(small):
    """What two stand-ins of a checkout have in common is made once; parts of an earlier version give way."""
    systems, made = small.parents[2] / 'systems', small.parents[2] / '.local' / 'stand_ins'
    shutil.copytree(str(systems / 'here'), str(systems / 'there'))
    (made / 'there' / 'parts' / 'tool').mkdir(parents=True)
    assert make('here', script=small).stderr.count('making') == 1
    done = make('there', script=small)
    assert done.returncode == 0 and done.stderr == ''
    tool = made / 'there' / 'parts' / 'tool'
    assert (tool / 'bin' / 'hello').exists() and 'setenv TOOL {%s}' % tool in (
        made / 'there' / 'modules' / 'tool' / '1').read_text()


@pytest.mark.parametrize('name, text, words', [
    ('parts.cfg', '[part tool]\nlink = a b\n', ["'link'", '[part tool]', 'known keys: debian, pypi, inside, links']),
    ('parts.cfg', '[prat tool]\nlinks = a b\n', ['[prat tool]']),
    ('../../systems/here/stand_in.cfg', '[module a/1]\npart = misspelt\n', ['module a/1', "'misspelt'"]),
    ('../../systems/here/stand_in.cfg', '[module a/1]\nset =\n    HOME_OF_A\n', ['module a/1', '`VARIABLE VALUE`']),
    ('../../systems/here/stand_in.cfg', '[module a/1]\nset =\n    A {root}\n', ['module a/1', "found: 'root'"]),
    ('parts.cfg', '[part tool]\nabout = a\nlinks =\n    a /no/such/file\n', ['/no/such/file']),
])
def test_mistakes_in_descriptions(small, tmp_path, name, text, words):
    (small.parent / name).write_text(text)
    done = make('here', '--into', tmp_path / 'into', script=small)
    assert done.returncode == 1 and 'Traceback' not in done.stderr and done.stdout == ''
    assert all(word in done.stderr for word in words), done.stderr


def test_unknown_system():
    done = make('archer3')
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert 'archer3' in done.stderr and 'archer2' in done.stderr


def test_place_that_cannot_be_written(tmp_path):
    (tmp_path / 'file').write_text('')
    done = make('lumi', '--into', tmp_path / 'file' / 'below')
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and str(tmp_path / 'file') in done.stderr


def test_missing_package_without_being_root(small, tmp_path):
    """The one line to type."""
    with open(str(small.parent / 'parts.cfg'), 'a') as handle:
        handle.write('debian = no-such-package-anywhere\n')
    (small.parents[2] / 'systems' / 'here' / 'stand_in.cfg').write_text('[module other/2]\npart = other\n')
    options = {}
    into = tmp_path / 'into'
    into.mkdir()
    if os.geteuid() == 0:
        options = {'user': 'nobody', 'group': 'nogroup', 'extra_groups': []}
        os.chown(str(into), pwd.getpwnam('nobody').pw_uid, -1)
        for directory in (tmp_path, *tmp_path.parents):
            if directory.name.startswith(('pytest-', 'popen-', 'test_')):
                directory.chmod(0o755)
    done = subprocess.run(['/usr/bin/python3', '-I', str(small), 'here', '--into', str(into)], cwd='/', text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={'PATH': '/usr/bin:/bin'}, **options)
    assert done.returncode == 1 and 'install no-such-package-anywhere' in done.stdout
    assert 'Traceback' not in done.stdout


@pytest.fixture
def links(small):
    """The script with a system whose parts are links to this machine's files, and scripts: wheels would take long."""
    shutil.copy(str(STAND_INS / 'parts.cfg'), str(small.parent))
    shutil.copytree(str(STAND_INS / 'scripts'), str(small.parent / 'scripts'), dirs_exist_ok=True)
    parts = ('gcc', 'craype', 'cray-mpich', 'cray-libsci', 'cray-fftw', 'libfabric', 'openmpi', 'openblas', 'nothing')
    text = ''.join('[module %s/1]\npart = %s\n' % (part, part) for part in parts)
    (small.parents[2] / 'systems' / 'here' / 'stand_in.cfg').write_text(text)
    return small


@pytest.mark.parametrize('seed', [0, *map(nightly, range(1, 10))])
def test_killed_at_any_moment(links, tmp_path, seed):
    """kill -9, then again: the same as undisturbed."""
    assert make('here', '--into', tmp_path / 'undisturbed', script=links).returncode == 0
    into = tmp_path / 'into'
    process = subprocess.Popen([sys.executable, '-I', str(links), 'here', '--into', str(into)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    # when, not whether, is random: the longest wait is about what an undisturbed run takes
    time.sleep(random.Random(seed).uniform(0.02, 0.4))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = make('here', '--into', into, script=links)
    assert done.returncode == 0, done.stderr
    assert tree(into) == tree(tmp_path / 'undisturbed')


@pytest.mark.nightly
def test_killed_while_python_is_made(tmp_path):
    """The longest step, with other programs running: what was left is not taken for a Python."""
    into = tmp_path / 'into'
    process = subprocess.Popen([sys.executable, '-I', str(MAKE), 'frontier-2024', '--into', str(into)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while 'making python' not in process.stderr.readline():
        assert process.poll() is None
    deadline = time.monotonic() + 600
    while not (into / 'parts' / 'python' / 'bin').exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    assert not (into / 'parts' / 'python' / '.complete').exists()
    # the lock of a killed run is no lock
    home = tmp_path / 'home'
    home.mkdir()
    cache = subprocess.run([sys.executable, '-m', 'pip', 'cache', 'dir'], stdout=subprocess.PIPE, text=True,
                           check=True)
    # PATH: pip asks every Rust compiler for its version, and rustup's writes into $HOME
    environment = dict(clean_environment(), HOME=str(home), TMPDIR=str(home), PIP_CACHE_DIR=cache.stdout.strip(),
                       PATH='/usr/bin:/bin')
    done = make('frontier-2024', '--into', into, env=environment, cwd=str(home))
    assert done.returncode == 0, done.stderr
    assert 'making python' in done.stderr and 'making gcc' not in done.stderr
    python = into / 'parts' / 'python' / 'bin' / 'python'
    subprocess.run([str(python), '-c', 'import numpy, setuptools'], check=True)
    # and nothing was written beside the target
    assert list(home.iterdir()) == [] and not (into / 'tmp').exists()


def test_two_at_once(links, tmp_path):
    into = tmp_path / 'into'
    both = [subprocess.Popen([sys.executable, '-I', str(links), 'here', '--into', str(into)], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    # one of them made it, the other waited
    assert sum(errors.count('making gcc') for _, errors in outputs) == 1
    assert make('here', '--into', tmp_path / 'undisturbed', script=links).returncode == 0
    assert tree(into) == tree(tmp_path / 'undisturbed')


def test_nothing_to_do_does_nothing(stand_ins):
    """The second run changes no file and starts no other program."""
    target = stand_ins['archer2-2023'].parent

    def times():
        paths = [*target.rglob('*'), *(target / 'parts' / 'python').rglob('*')]
        return {str(one): one.lstat().st_mtime_ns for one in paths}

    before = times()
    done = make('archer2-2023', env={'PATH': ''})
    assert done.returncode == 0 and done.stderr == ''
    assert times() == before


def test_locks_have_only_hashes():
    """Every line of every lock names a version, and has its hashes."""
    # the others are what modules are made of
    locks = {path.name for path in STAND_INS.glob('*.txt')} - {'login.txt', 'module.txt', 'sticky.txt'}
    assert 'python.txt' in locks
    for path in map(STAND_INS.joinpath, locks):
        requirements = [line for line in path.read_text().replace('\\\n', ' ').splitlines()
                        if line.strip() and not line.startswith('#')]
        assert requirements
        for line in requirements:
            assert '==' in line and '--hash=sha256:' in line, (path, line)


def test_mark_of_completeness(stand_ins):
    mark = (stand_ins['archer2'].parent / 'parts' / 'gcc' / '.complete').read_text()
    assert len(mark) == 64


# -- wheels

@pytest.fixture
def with_wheel(small, tmp_path):
    """The small system with a part from a wheel in a directory; the environment that lets pip find it there."""
    wheels = tmp_path / 'wheels'
    wheels.mkdir()
    wheel = wheels / 'demo-1-py3-none-any.whl'
    with zipfile.ZipFile(str(wheel), 'w') as archive:
        archive.writestr('demo/data/bin/tool', 'from a wheel\n')
        archive.writestr('demo-1.dist-info/METADATA', 'Metadata-Version: 2.1\nName: demo\nVersion: 1\n')
        archive.writestr('demo-1.dist-info/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        archive.writestr('demo-1.dist-info/RECORD', '')
    lock = small.parent / 'demo.txt'
    lock.write_text('demo==1 --hash=sha256:%s\n' % hashlib.sha256(wheel.read_bytes()).hexdigest())
    with open(str(small.parent / 'parts.cfg'), 'a') as handle:
        handle.write('[part demo]\nabout = demo\npypi = demo.txt\ninside = demo/data\n'
                     'links =\n    bin/again bin/tool\n')
    (small.parents[2] / 'systems' / 'here' / 'stand_in.cfg').write_text('[module demo/1]\npart = demo\n')
    environment = {name: value for name, value in clean_environment().items() if not name.startswith('PIP_')}
    return small, lock, dict(environment, PIP_CONFIG_FILE='/dev/null', PIP_NO_INDEX='1', PIP_FIND_LINKS=str(wheels))


def test_part_inside_a_wheel(with_wheel, tmp_path):
    script, _, environment = with_wheel
    done = make('here', '--into', tmp_path / 'into', script=script, env=environment)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / 'into' / 'parts' / 'demo').iterdir()) == ['.complete', 'bin']
    assert (tmp_path / 'into' / 'parts' / 'demo' / 'bin' / 'again').read_text() == 'from a wheel\n'


@pytest.mark.parametrize('change, words', [
    ('hash', ['HASH', 'demo']), nightly('index', ['demo==1']), nightly('no hash', ['--require-hashes'])])
def test_wheel_that_cannot_be_had(with_wheel, tmp_path, change, words):
    """One line, and nothing that the next run takes for whole."""
    script, lock, environment = with_wheel
    good = lock.read_text()
    if change == 'hash':
        lock.write_text('demo==1 --hash=sha256:%s\n' % ('f' * 64))
    elif change == 'no hash':
        lock.write_text('demo==1\n')
    else:
        shutil.rmtree(environment['PIP_FIND_LINKS'])
        os.mkdir(environment['PIP_FIND_LINKS'])
    done = make('here', '--into', tmp_path / 'into', script=script, env=environment)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith('ERROR: ') and 'Traceback' not in done.stderr
    assert all(word in last for word in words), last
    assert not (tmp_path / 'into' / 'parts' / 'demo' / '.complete').exists()
    if change != 'index':
        lock.write_text(good)
        assert make('here', '--into', tmp_path / 'into', script=script, env=environment).returncode == 0
