"""LockedWheels through ./eb, with small packages that the test makes: what is installed, and what is refused."""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from common import CHECKOUT, clean_environment, slow
from small_software import VERSION, make_wheel, sha256

from ramgate.processes import descendants, read


def store(eb):
    """Where the fetched files are."""
    return eb.sources / 't' / 'toy' / 'toy-1.0-wheels'


def nothing_installed(eb):
    """No module, and no file where the module would point."""
    return not list(eb.modules.glob('toy/*')) and not (eb.prefix / 'software' / 'toy' / '1.0' / 'bin').exists()


@pytest.mark.slow
def test_install_use_and_reinstall_without_network(eb, toy, modules_tool):
    """Fetched on the login node, installed without a network, loaded and unloaded."""
    with zipfile.ZipFile(toy.wheels[0], 'a') as wheel:
        wheel.writestr('toy-1.0.data/data/share/man/man1/toy.1', 'a page of the manual')
    toy.write()
    eb(toy.easyconfig, '--fetch', env=toy.online)
    assert sorted(path.name for path in store(eb).iterdir()) == sorted(path.name for path in toy.wheels)
    assert nothing_installed(eb)
    output = eb(toy.easyconfig, env=dict(toy.offline, **modules_tool.for_easybuild)).stdout
    assert 'module load toy/1.0' in output
    output = modules_tool.run("""
        export PYTHONPATH=/users/own
        module use %s
        unset MANPATH; module load toy; echo "manual <${MANPATH-}>"; module unload toy
        export MANPATH=/users/man:
        module load toy
        python -c 'import toy, sys; print("imported", toy.here); print("user site", sys.flags.no_user_site)'
        echo "loaded $PYTHONPATH"
        module unload toy
        echo "unloaded $PYTHONPATH [$PYTHONNOUSERSITE] <$MANPATH>"
    """ % eb.modules)
    assert 'imported %s' % (eb.prefix / 'software/toy/1.0/lib') in output
    assert 'user site 1' in output
    assert 'loaded %s/software/toy/1.0/lib/python%s/site-packages\n' % (eb.prefix, VERSION) in output
    # a $MANPATH of ours alone would hide the system's pages; Lmod adds a colon to one that ends in a colon
    assert (eb.prefix / 'software/toy/1.0/share/man/man1/toy.1').exists() and 'manual <>' in output
    assert 'unloaded /users/own [] </users/man:>' in output
    eb(toy.easyconfig, '--rebuild', env=dict(toy.offline, **modules_tool.for_easybuild))
    eb(toy.easyconfig, '--sanity-check-only', env=dict(toy.offline, **modules_tool.for_easybuild))


@pytest.mark.slow
def test_package_for_another_version(eb, toy):
    """--overrides allows it, and importing it shows nothing, as if a package is not there; vLLM's are on purpose."""
    toy.wheels[0] = make_wheel(toy.index, 'toy', requires=['other<2', 'absent', 'torchcodec'])
    toy.write()
    output = eb(toy.easyconfig, env=toy.online).stdout
    assert re.search(r'WARNING: toy 1.0 requires absent, which is not installed\n'
                     r'toy 1.0 has requirement other<2, but you have other 2.0.\nIf they fail: ', output), output
    assert 'torchcodec' not in output


@pytest.mark.slow
def test_killed_while_it_compiles(eb, toy):
    """As the kernel kills without memory: compileall's workers live on, and kept the pipe open that was read."""
    with zipfile.ZipFile(toy.wheels[0], 'a') as wheel:
        for number in range(3000):
            wheel.writestr('many/m%d.py' % number, 'numbers = [%s]\n' % ', '.join(map(str, range(300))))
    toy.write()
    with tempfile.TemporaryFile() as output:
        call = eb.call([toy.easyconfig], toy.online, toy.folder)
        process = subprocess.Popen(**dict(call, stdout=output, start_new_session=True))
        killed = None
        while process.poll() is None and not killed:
            for pid in descendants(process.pid):
                if b'compileall' in read(pid, 'cmdline') and descendants(pid):
                    os.kill(pid, signal.SIGKILL)
                    killed = pid
        try:
            assert process.wait(timeout=60) == 0 and killed
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_package_in_place_of_one_below(eb, toy):
    """A list's own packages count, which come before those of the module below: they may break that one."""
    toy.wheels[0] = make_wheel(toy.index, 'toy', requires=['other>=2'])
    toy.write()
    text = toy.easyconfig.read_text().replace("'toy", "'top") + "dependencies = [('toy', '1.0')]\n"
    eb(toy.easyconfig, env=toy.online)
    toy.wheels = [make_wheel(toy.index, 'top', requires=['other<2']), make_wheel(toy.index, 'other', '1.0')]
    toy.write()
    (toy.folder / 'toy.lock').rename(toy.folder / 'top.lock')
    (toy.folder / 'top-1.0.eb').write_text(re.sub("'%s'" % VERSION, "'3.99'", text))
    refused = eb(toy.folder / 'top-1.0.eb', env=toy.online, status=1).stdout
    assert re.search('below has its packages in .*/python%s/.*, and top is for Python 3.99' % VERSION, refused), refused
    (toy.folder / 'top-1.0.eb').write_text(text)
    # the rest of a package that somebody has removed
    (next(eb.prefix.glob('software/toy/1.0/lib/python3*/site-packages')) / 'left.dist-info').mkdir()
    output = eb(toy.folder / 'top-1.0.eb', env=toy.online).stdout
    assert 'WARNING: toy 1.0 has requirement other>=2, but you have other 1.0.\n' in output, output
    assert 'top 1.0 has requirement' not in output
    assert 'WARNING: It hides other versions, of modules below: other 1.0 (2.0). To keep those: ' in output, output


@pytest.mark.slow
def test_check_is_killed(eb, toy):
    """As the kernel kills without memory: a check that could say nothing had passed."""
    toy.wheels[0] = make_wheel(toy.index, 'toy', text="""import os, signal
if b'pytorch-check' in open('/proc/%d/cmdline' % os.getppid(), 'rb').read():
    os.kill(os.getppid(), signal.SIGKILL)
""")
    toy.write()
    toy.easyconfig.write_text(toy.easyconfig.read_text() + "scripts = ['pytorch-check']\n")
    output = eb(toy.easyconfig, env=toy.online, status=None).stdout
    assert 'the import of its packages was killed' in output, output


@pytest.mark.slow
def test_users_python_does_not_enter(eb, toy, lmod, tmp_path):
    """A module of the user's, in $PYTHONPATH or below $HOME, neither shadows nor breaks an installed one."""
    leak = tmp_path / 'leak'
    leak.mkdir()
    (leak / 'toy.py').write_text("raise SystemExit('the user\\'s file was imported')")
    (leak / 'sitecustomize.py').write_text("raise SystemExit('the user\\'s file was imported')")
    eb(toy.easyconfig, env=dict(toy.online, PYTHONPATH=str(leak)))
    home = tmp_path / 'home'
    user_site = home / '.local' / 'lib' / ('python' + VERSION) / 'site-packages'
    user_site.mkdir(parents=True)
    (user_site / 'other.py').write_text("raise SystemExit('the user\\'s file was imported')")
    (user_site / 'usercustomize.py').write_text("raise SystemExit('the user\\'s file was imported')")
    lmod.run("module use %s; module load toy; python -c 'import toy, other'" % eb.modules,
             env={'PYTHONPATH': str(leak), 'HOME': str(home)})


@pytest.mark.slow
def test_jobs_without_features(eb, toy):
    """pytorch-run needs the description of the system, whatever the module uses; no PyTorch, no check of it."""
    toy.easyconfig.write_text(toy.easyconfig.read_text() + "scripts = ['pytorch-run', 'pytorch-check']\n")
    output = eb(toy.easyconfig, env=toy.online).stdout
    assert re.search(r'module load toy/1.0\n +pytorch-check packages\n', output), output
    subprocess.run([next(eb.prefix.glob('software/toy/1.0/bin/pytorch-run')), '--help'], check=True,
                   stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_module_only_and_other_modes(eb, toy):
    """--module-only describes what is installed, or says that nothing is; -x shows what would be done."""
    refused = eb(toy.easyconfig, '--module-only', env=toy.online, status=None)
    assert refused.returncode != 0 and 'nothing is installed' in refused.stdout
    assert 'toy 1.0' in eb(toy.easyconfig, '-x', env=toy.online).stdout
    eb(toy.easyconfig, env=toy.online)
    module = next(eb.modules.glob('toy/1.0*'))
    before = module.read_text()
    module.unlink()
    eb(toy.easyconfig, '--module-only', env=toy.offline)
    assert next(eb.modules.glob('toy/1.0*')).read_text() == before


@pytest.mark.slow
def test_python_of_a_home(eb, toy, tmp_path):
    """What is installed for everybody with a Python that only its owner can enter: a warning, none for oneself."""
    python = tmp_path / 'home/bin/python3'
    python.parent.mkdir(parents=True)
    shutil.copy(os.path.realpath(sys.executable), python)
    python.parent.chmod(0o700)
    environment = dict(toy.online, PATH='%s:%s' % (python.parent, os.environ['PATH']))
    says = 'Other users cannot run it: its Python is in /'
    assert says not in eb(toy.easyconfig, '--fetch', env=environment).stdout
    with tempfile.TemporaryDirectory(dir='/tmp') as shared:
        os.chmod(shared, 0o755)
        eb.prefix = Path(shared) / 'sw'
        assert says in eb(toy.easyconfig, '--fetch', env=environment).stdout


@pytest.mark.slow
def test_unknown_feature(eb, toy):
    """Its settings would be left out without a word."""
    text = toy.easyconfig.read_text()
    toy.easyconfig.write_text(text + "features = ['GPU', 'nccl']\n")
    output = eb('-x', toy.easyconfig, env=toy.online, status=1).stdout
    assert 'unknown features: GPU; known ones: gpu cpu nccl' in output


@pytest.mark.slow
def test_nodes_with_another_processor(eb, toy, on_arm):
    """A login node of another kind would fetch and install wheels that no compute node can use."""
    bede = ['--system=bede', toy.easyconfig]
    for more in ([], ['--fetch']):
        said = eb(*bede, *more, env=toy.online, status=1).stdout
        assert 'the nodes of bede are aarch64, this is %s' % os.uname().machine in said
        assert nothing_installed(eb) and not store(eb).exists()
    assert 'the nodes of bede' in eb(*bede, '-x', env=toy.online).stdout
    eb(*bede, '--fetch', env=dict(toy.online, **on_arm))
    # the test environment is made of this machine's parts
    eb(*bede, env=dict(toy.online, HPC_PYTORCH_REHEARSAL='bede'))


@pytest.mark.slow
def test_another_file_than_the_locked_one(eb, toy):
    """The index serves something else under the same name: refused, nothing installed."""
    make_wheel(toy.index, 'other', '2.0', text='evil = True\n')
    output = eb(toy.easyconfig, env=toy.online, status=None)
    assert output.returncode != 0
    assert 'The file differs from the locked one' in output.stdout
    assert nothing_installed(eb)


@pytest.mark.slow
def test_damaged_file_in_the_store(eb, toy):
    """A file cut short is fetched again; without a network that is said."""
    eb(toy.easyconfig, '--fetch', env=toy.online)
    damaged = store(eb) / toy.wheels[1].name
    damaged.write_bytes(damaged.read_bytes()[:100])
    output = eb(toy.easyconfig, '--fetch', env=toy.offline, status=None)
    assert output.returncode != 0
    assert damaged.name in output.stdout and 'other' in output.stdout
    eb(toy.easyconfig, env=toy.online)
    assert sha256(damaged) == sha256(toy.wheels[1])


@pytest.mark.slow
def test_other_files_in_the_store_stay(eb, toy):
    """What another easyconfig of the same name fetched into the same place is none of this one's business."""
    eb(toy.easyconfig, '--fetch', env=toy.online)
    other = make_wheel(store(eb), 'somebody_elses')
    eb(toy.easyconfig, env=toy.offline)
    assert other.exists()


@pytest.mark.slow
def test_wheel_that_does_not_fit(eb, toy):
    """What a wheel for another Python and another processor is for, and what is here."""
    eb(toy.easyconfig, '--fetch', env=toy.online)
    toy.wheels[1].unlink()
    toy.wheels[1] = make_wheel(toy.index, 'other', '2.0', 'cp38-cp38-linux_s390x')
    toy.write()
    store(eb).joinpath(toy.wheels[1].name).write_bytes(toy.wheels[1].read_bytes())
    output = eb(toy.easyconfig, env=toy.online, status=None)
    assert output.returncode != 0
    assert 'is for Python cp38 (cp38) on linux_s390x; ' in output.stdout
    assert ' is cpython %s on %s' % (VERSION, os.uname().machine) in output.stdout
    assert nothing_installed(eb)


@pytest.mark.slow
def test_wheel_without_code_for_the_gpu(eb, toy):
    """Of the GPU that the system has, or that the user named: refused when it is installed, in one sentence."""
    toy.wheels.append(make_wheel(toy.index, 'torch', '2.6.0', text="""
__version__ = '2.6.0+cu124'
class _C:
    _cuda_getArchFlags = staticmethod(lambda: 'sm_75 sm_86 compute_86')
"""))
    toy.write()
    output = eb('--system=derecho', toy.easyconfig, env=toy.online, status=None)
    assert output.returncode != 0
    assert 'torch 2.6.0+cu124 has no code for the GPU 8.0: it has code for sm_75 sm_86 compute_86.' in output.stdout
    assert not list(eb.modules.glob('toy/*'))
    eb('--system=derecho', toy.easyconfig, '--cuda-compute-capabilities=8.6,12.0', env=toy.online)


@pytest.mark.slow
def test_wheel_for_processors_alone(eb, toy):
    """Refused where the user named GPUs, and on a system that has some, unless the easyconfig says so."""
    toy.wheels.append(make_wheel(toy.index, 'torch', '2.6.0', text="""
__version__ = '2.6.0+cpu'
class version:
    cuda = hip = None
class _C:
    pass
"""))
    toy.write()
    output = eb('--system=derecho', toy.easyconfig, '--cuda-compute-capabilities=8.0', env=toy.online, status=None)
    assert output.returncode != 0 and 'torch 2.6.0+cpu has no code for the GPU 8.0' in output.stdout
    output = eb('--system=derecho', toy.easyconfig, env=toy.online, status=None)
    assert output.returncode != 0 and "the nodes of derecho have GPUs" in output.stdout
    assert "features = ['cpu']" in output.stdout and not list(eb.modules.glob('toy/*'))
    text = toy.easyconfig.read_text()
    toy.easyconfig.write_text(text + "features = ['cpu']\n")
    eb('--system=derecho', toy.easyconfig, env=toy.online)
    # what keeps this PyTorch, where users install on top; other packages are theirs to choose
    assert (eb.prefix / 'software/toy/1.0/share/constraints.txt').read_text() == 'torch==2.6.0\n'


def test_dry_run_without_lock(eb, toy):
    """A lock file that does not exist is named in the last lines, once."""
    (toy.folder / 'toy.lock').unlink()
    output = eb('-x', toy.easyconfig, env=toy.online).stdout
    assert output[output.index('[SUCCESS]'):].count('toy.lock, which toy-1.0.eb names, is missing') == 1


@pytest.mark.parametrize('system, package, says', [
    ('derecho', 'nvidia-cuda-runtime==13.0.96', 'bring CUDA 13, and the driver of derecho takes 12'),
    slow('derecho', 'nvidia-cuda-nvcc==13.5.37', 'bring CUDA 13, and the driver of derecho takes 12'),
    slow('derecho', 'nvidia-cuda-runtime-cu12==12.6.77', None),
    slow('frontier', 'nvidia-cuda-nvcc==13.5.37',
         "for NVIDIA's GPUs (CUDA 13), and those of frontier are AMD's (gfx90a)"),
    slow('workstation', 'nvidia-cuda-nvcc==13.5.37', None),
])
def test_cuda_of_locks(eb, toy, system, package, says):
    """A CUDA that the system's driver does not take is refused before anything is fetched."""
    with open(toy.folder / 'toy.lock', 'a') as lock:
        lock.write('%s --hash=sha256:%s\n' % (package, 64 * 'f'))
    output = eb('--system=' + system, '-x', toy.easyconfig, env=toy.online).stdout
    assert ("Installing would stop:" in output) == bool(says) and (says or '') in output


@pytest.mark.parametrize('module, refused', [
    ('rocm/6.4.1', True), slow('ROCm/6.4.1', True), ('devel/rocm/6.4.1', True), ('devel/rocm/7.1.1', False)])
def test_rocm_of_locks(eb, toy, module, refused):
    """Another ROCm than the module's is refused, whatever the module is called."""
    with open(toy.folder / 'toy.lock', 'a') as lock:
        lock.write('torch==2.10.0+rocm7.1 --hash=sha256:%s\n' % (64 * 'f'))
    with open(toy.easyconfig, 'a') as easyconfig:
        easyconfig.write("dependencies = [('%s', EXTERNAL_MODULE)]\n" % module)
    version = module.rpartition('/')[2]
    (toy.folder / module).parent.mkdir(parents=True)
    (toy.folder / module).write_text('#%Module1.0\n')
    (toy.folder / 'external.cfg').write_text('[%s]\nname = ROCm\nversion = %s\n' % (module, version))
    environment = dict(toy.online, MODULEPATH=str(toy.folder),
                       EASYBUILD_EXTERNAL_MODULES_METADATA=str(toy.folder / 'external.cfg'))
    output = eb('--system=frontier', '-x', toy.easyconfig, env=environment).stdout
    assert refused == ('ROCm %s is loaded: one process would load both' % version in output), output


@pytest.mark.parametrize('system, version, marker, refused', [
    ('bede', '2.10.0', '', True), slow('bede', '2.9.1+cpu', '', True), slow('bede', '2.11.0', '', False),
    slow('bede', '2.6.0+cu126', '', False), slow('bede', '2.10.0', " ; platform_machine == 'x86_64'", False),
    slow('derecho', '2.10.0', '', False), slow('derecho', '2.15.0+cpu', '', True),
    slow('archer2', '2.15.0+cpu', '', False),
])
def test_lock_for_processors_alone(eb, toy, system, version, marker, refused):
    """PyPI's wheels for Arm had no CUDA before 2.11: known from the lock file, before anything is fetched."""
    with open(toy.folder / 'toy.lock', 'a') as lock:
        lock.write('torch==%s%s --hash=sha256:%s\n' % (version, marker, 64 * 'f'))
    output = eb('--system=' + system, '-x', toy.easyconfig, env=toy.online).stdout
    assert refused == ("Installing would stop:" in output)
    assert refused == ('torch %s is for processors alone' % version in output)
    if refused:
        assert "Take wheels with CUDA or ROCm: PyPI's (" in output  # the advice is also for x86_64
        assert "features = ['cpu']" in output[output.index('[SUCCESS]'):]
        output = eb('--system=' + system, toy.easyconfig, env=toy.online, status=None)
        assert output.returncode and 'torch %s is for processors alone' % version in output.stdout


@pytest.mark.slow
def test_no_network(eb, toy):
    """Nothing fetched, no index reached: said, with what to do."""
    output = eb(toy.easyconfig, env=toy.offline, status=None)
    assert output.returncode != 0
    assert 'could be reached:\n  127.0.0.1:9: it refuses connections' in output.stdout
    assert nothing_installed(eb)


@pytest.mark.slow
def test_no_python_that_fits(eb, toy):
    """Which Pythons would do, and which are there."""
    toy.write(python='2.9')
    output = eb(toy.easyconfig, env=toy.online, status=None)
    assert output.returncode != 0
    assert 'needs Python 2.9; found: ' in output.stdout
    # the collection's own, which nobody needs to add where it is a dependency
    toy.write(python='3.12')
    output = eb('--fetch', toy.easyconfig, env=toy.online, status=None).stdout
    # on a machine that has one of its own nothing is missing
    assert 'install Python-3.12.14-standalone.eb' in output or 'needs Python' not in output, output


def of_another_version(tmp_path, name, old, new):
    """A copy of an easyconfig in which somebody has changed the version, and nothing else."""
    path = tmp_path / name.replace(old, new)
    text, = (CHECKOUT / 'easyconfigs').glob('*/*/' + name)
    path.write_text(text.read_text().replace("version = '%s'" % old, "version = '%s'" % new))
    return path


def test_no_compiler(eb, toy, tmp_path):
    """Said before anything is fetched, with the package to install."""
    others = ('g++', 'c++', 'apt-get', 'dpkg-query', 'dnf', 'zypper')
    (tmp_path / 'bin').mkdir()
    for name in set(os.listdir('/usr/bin')) - set(others):
        (tmp_path / 'bin' / name).symlink_to('/usr/bin/' + name)
    toy.easyconfig.write_text(toy.easyconfig.read_text() + "build_from_source = ['toy']\n")
    output = eb(toy.easyconfig, '--fetch', env=dict(toy.online, PATH=str(tmp_path / 'bin')), status=1).stdout
    assert 'Building toy needs a C++ compiler' in output and 'Install by hand: g++' in output
    # for who may not install packages
    assert "or of ('Python', '3.12.14', '-standalone') in the dependencies" in output
    assert 'fetching 1' not in output


def test_no_mpi(eb, toy):
    """What is built for an MPI is refused before anything is fetched, where no module brings one: cc is a Cray's."""
    toy.easyconfig.write_text(toy.easyconfig.read_text() + "collection_packages = ['torch_mpi']\n")
    output = eb('--system=archer2', toy.easyconfig, '--fetch', env=toy.online, status=1).stdout
    assert "toy is built for an MPI, and its compilers were not found. Add the MPI's module" in output
    assert 'fetching 1' not in output


@pytest.mark.parametrize('name, banner, option', [
    ('CC', '8.5.0 20210514 (Red Hat 8.5.0-28)', '-x'), ('CC', '8.5.0', '--fetch'),
    # which the locked MPI calls
    ('c++', '8.5.0', '-x')])
def test_old_gcc(eb, toy, tmp_path, name, banner, option):
    """PyTorch's headers refuse it; said before anything is fetched, also in a dry run. Others state no number."""
    compiler = tmp_path / 'bin' / name
    compiler.parent.mkdir()
    (compiler.parent / 'cc').symlink_to('/bin/true')
    lock = toy.folder / 'toy.lock'
    lock.write_text(lock.read_text() + 'torch==2.7.1+cu126 --hash=sha256:%s\n' % ('a' * 64))
    toy.easyconfig.write_text(toy.easyconfig.read_text() + "collection_packages = ['torch_mpi']\n")
    environment = dict(toy.online, PATH='%s:%s' % (compiler.parent, os.environ['PATH']))
    for words in (banner, 'Clang ' + banner):
        compiler.write_text('#!/bin/sh\n[ $1 = -dM ] && echo \'#define __VERSION__ "%s"\'\n' % words)
        compiler.chmod(0o755)
        said = eb('--system=archer2', toy.easyconfig, option, env=environment, status=None).stdout
        assert ('%s is GCC 8.5.0, but torch_mpi needs GCC 9 or newer' % compiler in said) is (words == banner), said
        assert ('Installing would stop:' in said) is (words == banner and option == '-x')
        assert words != banner or not store(eb).exists()


@pytest.mark.slow
def test_mpi_of_a_hierarchy(eb, toy, tmp_path):
    """It is found before anything is fetched, though its module is visible only after the compiler's."""
    (tmp_path / 'top/gcc').mkdir(parents=True)
    (tmp_path / 'top/gcc/14').write_text('#%%Module1.0\nmodule use %s/opened\n' % tmp_path)
    (tmp_path / 'opened/mpi').mkdir(parents=True)
    (tmp_path / 'opened/mpi/5').write_text('#%%Module1.0\nprepend-path PATH %s/bin\n' % tmp_path)
    (tmp_path / 'bin').mkdir()
    for name in ('cc', 'CC'):
        (tmp_path / 'bin' / name).symlink_to('/usr/bin/gcc')
    modules = "dependencies = [('gcc/14', EXTERNAL_MODULE), ('mpi/5', EXTERNAL_MODULE)]\n"
    toy.easyconfig.write_text(toy.easyconfig.read_text() + modules + "collection_packages = ['torch_mpi']\n")
    output = eb('--system=archer2', toy.easyconfig, '--fetch', env=dict(toy.online, MODULEPATH=str(tmp_path / 'top')))
    assert 'MPI: %s/bin/cc' % tmp_path in output.stdout


def test_lock_of_another_version(eb, tmp_path):
    """The old version is not installed under a new name."""
    output = eb(of_another_version(tmp_path, 'PyTorch-2.13.0-workstation.eb', '2.13.0', '2.14.0'), status=None)
    assert output.returncode != 0
    assert 'The lock file has torch 2.13.0+cpu, the easyconfig says 2.14.0' in output.stdout


def test_second_torch(eb, toy):
    """A list with a package that needs PyTorch locks another one, which would hide the module's, and its MPI."""
    lock = toy.folder / 'toy.lock'
    lock.write_text(lock.read_text() + 'torch==2.15.0 --hash=sha256:%s\n' % ('a' * 64))
    module = "dependencies = [('PyTorch', '2.13.0', '-workstation')]\n"
    toy.easyconfig.write_text(toy.easyconfig.read_text() + module)
    output = eb(toy.easyconfig, '-x', '--robot').stdout.partition('Installing would stop:')[2]
    assert 'has torch 2.15.0, which would hide that of the modules below (PyTorch/2.13.0-workstation): ' in output


@pytest.mark.slow
def test_module_on_a_module_on_a_module(eb, toy, lmod):
    """A group's list on Transformers, which is on PyTorch: it sees both, and may not bring another torchvision.

    It still sees them after those below it are loaded once more, as job scripts do: Lmod loads them again."""
    toy.wheels += [make_wheel(toy.index, name, version) for name, version in [
        ('torch', '2.10.0+rocm7.1'), ('torchvision', '0.25.0+rocm7.1'), ('middle', '1.0'), ('top', '1.0')]]
    toy.write()
    lines = (toy.folder / 'toy.lock').read_text().splitlines()[1:]
    text = toy.easyconfig.read_text()
    (toy.folder / 'toy.lock').write_text('\n'.join(lines[:4]))
    for name, below, wheel in [('middle', 'toy', lines[4]), ('top', 'middle', lines[5])]:
        (toy.folder / (name + '.lock')).write_text(wheel)
        (toy.folder / (name + '-1.0.eb')).write_text(text.replace("'toy", "'" + name) + (
            'dependencies = [("%s", "1.0")]\n' % below))
    top = toy.folder / 'top-1.0.eb'
    top.write_text(top.read_text().replace('import toy, other', 'import toy, other, middle, top'))
    eb(toy.easyconfig, toy.folder / 'middle-1.0.eb', env=toy.online)
    for more, says in [('torch==2.10.0+rocm7.1', r'torch 2.10.0\+rocm7.1, which would hide .* \(2.10.0\+rocm7'),
                       ('torchvision==0.25.0', r'torchvision 0.25.0, which would hide .* \(0.25.0\+rocm7'),
                       ('torchvision==0.25.1+rocm7.1', None)]:
        (toy.folder / 'top.lock').write_text('%s\n%s --hash=sha256:%s\n' % (lines[5], more, 'a' * 64))
        stops = eb('-x', top).stdout.partition('Installing would stop:')[2]
        assert re.search(says, stops) if says else not stops
    (toy.folder / 'top.lock').write_text(lines[5])
    eb(top, env=toy.online)
    output = lmod.run("""
        module use %s
        export PYTHONPATH=/users/own
        module load top toy; python -c 'import toy, other, middle, top'; echo "first $?"
        module load middle; module load toy; python -c 'import toy, other, middle, top'; echo "second $?"
        module unload top; python -c 'import toy, other, middle'; echo "below $?"; python -c 'import top'
        module purge; echo "purged $PYTHONPATH"
    """ % eb.modules)
    assert re.findall(r'^\w+ 0$', output, re.M) == ['first 0', 'second 0', 'below 0'] and "named 'top'" in output
    assert 'purged /users/own\n' in output


@pytest.mark.slow
def test_example_that_is_gone(eb, toy):
    """Of an easyconfig for an earlier collection: found out before anything is fetched."""
    toy.easyconfig.write_text(toy.easyconfig.read_text() + "example_files = ['finetune_accelerate.py']\n")
    output = eb(toy.easyconfig, '--fetch', env=toy.online, status=1).stdout
    assert 'finetune_accelerate.py, which %s names, is missing' % toy.easyconfig.name in output
    assert 'fetching 1' not in output


@pytest.mark.slow
def test_no_lock_for_another_version(eb, tmp_path):
    """Before gigabytes of source are fetched: nobody has locked what goes with this version."""
    easyconfig = of_another_version(tmp_path, 'PyTorch-1.13.1-ARCHER2.eb', '1.13.1', '2.6.0')
    output = eb('--rehearse', easyconfig, '--fetch', status=None)
    assert output.returncode != 0
    assert 'torch-2.6.0-vision.lock, which PyTorch-2.6.0-ARCHER2.eb names, is missing' in output.stdout
    assert "Couldn't find file" not in output.stdout


@pytest.mark.slow
def test_lock_of_a_running_installation_is_kept(eb, toy):
    """A lock whose owner runs, or is unknown, stops the second installation, with what to do."""
    lock = eb.prefix / 'software' / '.locks' / (str(eb.prefix / 'software/toy/1.0').replace('/', '_') + '.lock')
    lock.mkdir(parents=True)
    output = eb(toy.easyconfig, env=toy.online, status=None)
    assert output.returncode != 0
    assert 'owner unknown' in output.stdout and str(lock) in output.stdout
    assert lock.is_dir()
    started = Path('/proc/self/stat').read_text().rsplit(')', 1)[1].split()[19]
    Path('%s.owner=%s=%d=%s=' % (lock, os.uname().nodename, os.getpid(), started)).touch()
    owner = '(process %d on %s)' % (os.getpid(), os.uname().nodename)
    assert owner in eb(toy.easyconfig, env=toy.online, status=None).stdout


@pytest.mark.slow
def test_lock_of_a_dead_installation_goes(eb, toy):
    """A lock whose owner is known to be gone does not stop anybody."""
    lock = eb.prefix / 'software' / '.locks' / (str(eb.prefix / 'software/toy/1.0').replace('/', '_') + '.lock')
    lock.mkdir(parents=True)
    gone = subprocess.Popen(['true'])
    gone.wait()
    Path('%s.owner=%s=%d=1=' % (lock, os.uname().nodename, gone.pid)).touch()
    assert 'removing the stale lock' in eb(toy.easyconfig, env=toy.online).stdout


@pytest.mark.slow
@pytest.mark.parametrize('size, kind', [('cols 120 rows 40', 'xterm-256color'), ('cols 40 rows 20', 'dumb'),
                                        ('cols 0 rows 0', 'xterm')])
def test_on_a_terminal(eb, toy, size, kind):
    """Plain lines to the end, no path folded; one without columns, as cron's and `script`'s, once made pip silent."""
    command = "stty %s; %s %s --prefix=%s --sourcepath=%s" % (
        size, CHECKOUT / 'eb', toy.easyconfig, eb.prefix, eb.sources)
    done = subprocess.run(['script', '-qec', command, '/dev/null'], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          env=dict(clean_environment(), TERM=kind, **toy.online), text=True)
    assert done.returncode == 0, done.stdout
    assert '[SUCCESS] toy/1.0' in done.stdout and 'module load toy/1.0' in done.stdout
    assert '\x1b' not in done.stdout
    assert '%s/software/toy/1.0/easybuild/easybuild-toy-1.0' % eb.prefix in done.stdout
    assert not nothing_installed(eb)


def test_list_that_was_changed(eb, toy):
    """The package would not be installed, in silence."""
    (toy.folder / 'toy.in').write_text('toy==1.0\nadded\n')
    assert 'toy.in lists added, which its lock file lacks: ./eb --renew EASYCONFIG' in eb(toy.easyconfig, '-x').stdout
    (toy.folder / 'toy.in').write_text('# uv pip compile --python-version 3.20 toy.in\n')
    assert 'toy.lock is for Python 3.20 and newer, and python_versions has' in eb(toy.easyconfig, '-x').stdout
    (toy.folder / 'toy.in').write_text("# uv pip compile --overrides <(printf '%s\\n' torch numpy) toy.in\n")
    alone = 'toy.in leaves out PyTorch and its packages, such as NumPy, and no module in dependencies has them'
    assert alone in eb(toy.easyconfig, '-x').stdout
    with toy.easyconfig.open('a') as file:
        file.write("dependencies = [('PyTorch', '2.13.0', '-workstation')]\n")
    assert alone not in eb(toy.easyconfig, '-x', '--robot').stdout
