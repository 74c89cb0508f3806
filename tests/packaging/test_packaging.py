"""The wheel and the sdist are complete, and after either is installed, plain `eb` installs with every easyblock."""
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from packaging.specifiers import SpecifierSet
from common import CHECKOUT, EB, ModulesTool, clean_environment
from containers.images import FOR_ROOT
from easyblocks.small_builds import SmallTorch
from lumi.lumi_site import EASYCONFIG as CONTAINER
from lumi.lumi_site import LMOD
from test_style import tracked
from torch_mpi.tests.mpi_installation import kept_venv

pytestmark = pytest.mark.slow

# Directory of the checkout -> where the wheel has it; all that an installed collection can need.
INSTALLED = {
    'hpc_pytorch/job_backends': 'easybuild/tools/job',
    'hooks': 'hpc_pytorch/hooks',
    'systems': 'hpc_pytorch/systems',
    'torch_mpi': 'hpc_pytorch/torch_mpi',
    'ramgate': 'hpc_pytorch/ramgate',
    'easyblocks': 'easybuild/easyblocks',
    'easyconfigs': 'easybuild/easyconfigs',
    'hpc_pytorch': 'hpc_pytorch',
}
# what only a checkout needs
NOT_INSTALLED = re.compile(r'(ramgate|torch_mpi)/(tests|benchmarks)/|hpc_pytorch/environments/|.*/\.gitignore$')

LOCKED = """easyblock = 'LockedWheels'
name = 'toy'
version = '1.0'
versionsuffix = '-workstation'
homepage = 'https://example.org/'
description = "a toy, and the collection's own package for it"
toolchain = SYSTEM
lock_files = ['toy.lock']
python_versions = ['%d.%d']
collection_packages = ['torch_mpi']
scripts = ['pytorch-check']
example_files = ['train.py']
features = ['mpi']
sanity_check_commands = ['python -c "import toy; import torch_mpi; print(torch_mpi.library_version())"']
moduleclass = 'ai'
"""
# a wrapper that says what it is, and compiles nothing
ASKED_ONLY = """#!/bin/sh
case " $* " in *" -show "*|*" -E "*) exec %s.%s "$@";; esac
exit 1
"""


def run(*command, **options):
    """Run a command; what it prints."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT, **dict({'env': clean_environment()}, **options))
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope='module')
def built(tmp_path_factory):
    """The sdist, and the wheel that is built from it, by the names 'sdist' and 'wheel'."""
    directory = tmp_path_factory.mktemp('built')
    for path in tracked():
        copy = directory / 'source' / path.relative_to(CHECKOUT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy, follow_symlinks=False)
    run(sys.executable, '-m', 'build', '--no-isolation', '--outdir', directory / 'dist', directory / 'source')
    (sdist,), (wheel,) = (directory / 'dist').glob('*.tar.gz'), (directory / 'dist').glob('*.whl')
    return {'sdist': sdist, 'wheel': wheel}


@pytest.fixture(scope='module')
def unpacked(built, tmp_path_factory):
    """The sdist as its reader unpacks it."""
    directory = tmp_path_factory.mktemp('unpacked')
    with tarfile.open(built['sdist']) as archive:
        archive.extractall(directory)
    top, = directory.iterdir()
    return top


def test_the_wheel_is_complete(built):
    """Every file that an installed collection can need is in it, as it is in the checkout."""
    with zipfile.ZipFile(built['wheel']) as archive:
        there = {name: archive.read(name) for name in archive.namelist()}
    wanted = {}
    for path in tracked():
        name = str(path.relative_to(CHECKOUT))
        place = next((place for place in INSTALLED if name.startswith(place + '/')), None)
        if place and not NOT_INSTALLED.match(name):
            wanted[INSTALLED[place] + name[len(place):]] = path.read_bytes()
    assert sorted(set(wanted) - set(there)) == []
    assert [name for name, content in wanted.items() if there[name] != content] == []
    assert [name for name in there if name not in wanted and '.dist-info/' not in name] == []


def test_the_metadata(built):
    """EasyBuild comes with an extra, for those who have none: the version that ./eb has."""
    with zipfile.ZipFile(built['wheel']) as archive:
        name, = (name for name in archive.namelist() if name.endswith('.dist-info/METADATA'))
        metadata = archive.read(name).decode()
    locked = (CHECKOUT / 'hpc_pytorch/environments/eb.txt').read_text()
    for package in ('easybuild-framework', 'easybuild-easyblocks'):
        wanted = re.search(r"^Requires-Dist: %s(\S+); extra == 'easybuild'$" % package, metadata, re.M).group(1)
        assert SpecifierSet(wanted).contains(re.search('^%s==(\\S+)' % package, locked, re.M).group(1))
    assert 'License-Expression: GPL-2.0-only' in metadata


def test_the_sdist_is_complete(unpacked):
    """Every file that git knows is in it, and can be executed where it could be."""
    names = [path.relative_to(CHECKOUT) for path in tracked()]
    assert [name for name in names if not os.path.lexists(unpacked / name)] == []
    changed = [str(name) for name in names if (unpacked / name).read_bytes() != (CHECKOUT / name).read_bytes()]
    assert changed == []
    assert [name for name in names
            if (unpacked / name).stat().st_mode & 0o100 != (CHECKOUT / name).stat().st_mode & 0o100] == []


def test_the_sdist_works_as_a_checkout(unpacked):
    """./eb starts, and ./test finds every test; their environments are the checkout's, to save minutes."""
    shutil.copytree(CHECKOUT / '.venv', unpacked / '.venv', symlinks=True)
    (unpacked / '.venv-test').symlink_to(CHECKOUT / '.venv-test')
    assert 'This is EasyBuild' in run('./eb', '--version', cwd=unpacked)
    found = run('./test', '--co', '-q', cwd=unpacked)
    assert 'tests/packaging/test_packaging.py::test_the_sdist_works_as_a_checkout' in found


@pytest.fixture
def ramgate_alone(tmp_path):
    """Its folder, as somebody who takes nothing else has it."""
    for path in tracked():
        if path.is_relative_to(CHECKOUT / 'ramgate'):
            copy = tmp_path / 'alone' / path.relative_to(CHECKOUT / 'ramgate')
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
    return tmp_path / 'alone'


def test_ramgate_alone(ramgate_alone, tmp_path):
    """It installs with pip anywhere, has its data and its program, runs a build there, and has its tests."""
    environment = dict(clean_environment(), PYTHONPATH=str(tmp_path / 'there'))
    run(sys.executable, '-m', 'pip', 'install', '--no-index', '--no-build-isolation', '--no-deps', '--target',
        tmp_path / 'there', ramgate_alone)
    wanted = {path.relative_to(CHECKOUT / 'ramgate') for path in tracked()
              if path.is_relative_to(CHECKOUT / 'ramgate/ramgate')}
    assert [path for path in wanted if not (tmp_path / 'there' / path).exists()] == []
    done = run(tmp_path / 'there' / 'bin' / 'ramgate', 'run', '--report', tmp_path / 'report', '--', 'sh', '-c',
               '"$CMAKE_C_COMPILER_LAUNCHER" true', env=environment)
    assert '1 by launcher' in done and (tmp_path / 'report' / 'report.html').exists()
    run(sys.executable, '-m', 'pytest', 'tests/test_main.py', 'tests/test_schedule.py', cwd=ramgate_alone)


def test_one_version():
    """The collection and its two programs have one version, which all that is written about it names."""
    def found(file, pattern):
        return re.search(pattern, (CHECKOUT / file).read_text(), re.M).group(1)

    version = found('hpc_pytorch/__init__.py', r"^VERSION = '(.*)'")
    assert found('torch_mpi/pyproject.toml', r'^version = "(.*)"') == version
    assert found('docs/changelog.rst', r'^(\d\S*) ') == version
    assert run(sys.executable, '-m', 'ramgate', '--version', cwd=CHECKOUT / 'ramgate') == 'ramgate %s\n' % version
    shown = run(CHECKOUT / 'eb', '--version')
    assert 'This is hpc-pytorch %s\n' % version in shown and 'This is EasyBuild' in shown


# --- installed --------------------------------------------------------------------------------------------------------

@pytest.fixture(scope='module')
def installed(built, tmp_path_factory):
    """
    EasyBuild in an environment of its own (a copy of the one of ./eb, to save minutes), and the collection from the
    wheel, which was built from the sdist.
    """
    environment = shutil.copytree(CHECKOUT / '.venv', tmp_path_factory.mktemp('environment') / 'venv', symlinks=True)
    # the checkout's collection must not stand in for what the wheel lacks
    next(environment.rglob('collection.pth')).unlink()
    run(environment / 'bin' / 'python', '-m', 'pip', '--disable-pip-version-check', 'install', '--no-index',
        built['wheel'])
    return environment


def test_ramgate_beside_the_collection(installed, ramgate_alone, tmp_path):
    """Each has files of its own: installing and removing ramgate leaves the collection as it was."""
    def own(*words):
        return run(installed / 'bin' / 'python', *words, cwd=tmp_path)

    def files():
        return {path: path.read_bytes() for path in installed.rglob('*')
                if path.is_file() and path.suffix != '.pyc'}

    which = "import hpc_pytorch, ramgate.limits; print(ramgate.__file__, ramgate.limits.size('1G'))"
    before = files()
    assert installed / 'bin' / 'ramgate' not in before
    run(sys.executable, '-m', 'pip', 'wheel', '--no-index', '--no-build-isolation', '--no-deps', '-w', tmp_path,
        ramgate_alone)
    own('-m', 'pip', '--disable-pip-version-check', 'install', '--no-index', next(tmp_path.glob('ramgate-*.whl')))
    assert 'ramgate ' in run(installed / 'bin' / 'ramgate', '--version')
    assert 'hpc_pytorch/ramgate/ramgate/' in own('-c', which)
    own('-m', 'pip', '--disable-pip-version-check', 'uninstall', '--yes', 'ramgate')
    assert files() == before
    assert 'hpc_pytorch/ramgate/ramgate/' in own('-c', which)


@pytest.fixture
def plain(installed, tmp_path):
    """The environment's own `eb`, as a site configures it: hooks, and a system with two configuration files."""
    collection, = installed.glob('lib/python3*/site-packages/hpc_pytorch')
    where = tmp_path / 'where.cfg'
    where.write_text('[DEFAULT]\nCOLLECTION = %s\n' % collection)
    eb = EB(tmp_path / 'prefix', [installed / 'bin' / 'eb'])
    eb.sources = tmp_path / 'sources'

    def install(system, *arguments, status=0, **variables):
        files = [collection / 'systems' / system / 'easybuild.cfg', where]
        root = {'EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES': '1'} if os.geteuid() == 0 else {}
        return eb(*arguments, cwd=tmp_path, status=status, env=dict(
            root, HPC_SYSTEM=system, EB_PYTHON=str(installed / 'bin' / 'python'), EASYBUILD_MODULES_TOOL='Lmod',
            LMOD_CMD=LMOD, EASYBUILD_HOOKS=str(collection / 'hooks' / 'hpc_pytorch_hooks.py'),
            EASYBUILD_CONFIGFILES=','.join(map(str, files)), **variables)).stdout
    install.eb = eb
    return install


def loaded(plain, module, script, path='', **options):
    """What a script prints after it has loaded the module."""
    load = 'module use %s %s\nmodule load %s || exit\n' % (path, plain.eb.modules, module)
    return ModulesTool('Lmod').run(load + script, **options)


def make_wheel(directory, name, version, files):
    """A small wheel; returns its line for a lock file."""
    path = directory / ('%s-%s-py3-none-any.whl' % (name, version))
    info = '%s-%s.dist-info/' % (name, version)
    with zipfile.ZipFile(path, 'w') as archive:
        for file, text in dict(files, **{
                info + 'METADATA': 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' % (name, version),
                info + 'WHEEL': 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
                info + 'RECORD': ''}).items():
            archive.writestr(file, text)
    return '%s==%s --hash=sha256:%s\n' % (name, version, hashlib.sha256(path.read_bytes()).hexdigest())


def test_locked_wheels(plain, tmp_path):
    """A toy wheel, with a script and an example of the collection."""
    (tmp_path / 'toy.lock').write_text(make_wheel(tmp_path, 'toy', '1.0', {'toy.py': ''}))
    easyconfig = tmp_path / 'toy-1.0-workstation.eb'
    easyconfig.write_text(re.sub("collection_packages .*\n|; import torch_mpi.*?(?=\"')", '',
                                 LOCKED % sys.version_info[:2]))
    plain('workstation', easyconfig, PIP_CONFIG_FILE=os.devnull, PIP_NO_INDEX='1', PIP_FIND_LINKS=str(tmp_path))
    lines = loaded(plain, 'toy', 'python -c "import toy"; type -P pytorch-check; ls $EBROOTTOY/examples').splitlines()
    assert str(plain.eb.prefix / 'software/toy/1.0-workstation/bin/pytorch-check') in lines and 'train.py' in lines


@pytest.mark.nightly
def test_locked_wheels_and_torch_mpi(plain, tmp_path):
    """A toy wheel, and torch_mpi built for the real PyTorch that another toy leads to."""
    python = kept_venv()
    site = run(python, '-c', 'import sysconfig; print(sysconfig.get_paths()["purelib"])').strip()
    version = run(python, '-c', 'import torch; print(torch.__version__.split("+")[0])').strip()
    index = tmp_path / 'index'
    index.mkdir()
    (tmp_path / 'toy.lock').write_text(make_wheel(index, 'toy', '1.0', {'toy.py': ''})
                                       + make_wheel(index, 'torch', version, {'elsewhere.pth': site + '\n'}))
    easyconfig = tmp_path / 'toy-1.0-workstation.eb'
    easyconfig.write_text(LOCKED % sys.version_info[:2])
    toys = {'PIP_CONFIG_FILE': os.devnull, 'PIP_NO_INDEX': '1', 'PIP_FIND_LINKS': str(index)}
    plain('workstation', easyconfig, **toys)
    root = plain.eb.prefix / 'software' / 'toy' / '1.0-workstation'
    lines = loaded(plain, 'toy', """
        python -c 'import toy, torch_mpi; print(torch_mpi.library_version()); print(torch_mpi.__file__)'
        type -P pytorch-check; ls $EBROOTTOY/examples $EBROOTTOY/share""").splitlines()
    assert any('MPI' in line for line in lines) and any(line.startswith(str(root / 'lib')) for line in lines)
    assert str(root / 'bin' / 'pytorch-check') in lines and 'train.py' in lines and 'system.cfg' in lines
    other = 'mpich' if 'openmpi' in run('mpicxx', '-show') else 'openmpi'
    (tmp_path / 'bin').mkdir()
    for name in ('mpicc', 'mpicxx'):
        (tmp_path / 'bin' / name).write_text(ASKED_ONLY % (name, other))
        (tmp_path / 'bin' / name).chmod(0o755)
    path = '%s:%s' % (tmp_path / 'bin', os.environ['PATH'])
    said = plain('workstation', easyconfig, '--rebuild', status=1, PATH=path)
    assert 'building torch_mpi' in said and 'Building torch_mpi of this collection failed' in said, said


def test_singularity_container(plain, small_image, tmp_path):
    """A small image, with the run scripts."""
    shutil.copy(small_image, tmp_path / 'tool.sif')
    easyconfig = tmp_path / 'Tool-1.0.eb'
    easyconfig.write_text(CONTAINER.format(name='Tool', image='tool.sif', checksum=None, more="wrappers = ['sort']"))
    plain('lumi', easyconfig, **FOR_ROOT)
    output = loaded(plain, 'Tool', 'type -P sort; printf "b\\na\\n" | sort; ls $RUNSCRIPTS', env=FOR_ROOT).splitlines()
    assert output[0] == str(plain.eb.prefix / 'software/Tool/1.0/bin/sort')
    assert 'get-master' in output and output.index('a') < output.index('b')


def test_system_settings(plain):
    """An easyconfig of the collection, by its name."""
    plain('frontier', 'proxy-1.0-Frontier.eb')
    assert 'proxy.ccs.ornl.gov' in loaded(plain, 'proxy', 'echo $https_proxy')


def test_pytorch_hpc(plain, tmp_path):
    """A small tree with PyTorch's build interface, from source, with the lock files and a script of the collection."""
    modules = run(CHECKOUT / 'hpc_pytorch/stand_ins' / 'make.py', 'archer2-2023').splitlines()[-1]
    small = SmallTorch('PyTorch-1.13.1-ARCHER2.eb', tmp_path, plain.eb.sources)
    easyconfig = small.write(scripts=['extend-venv-activate'],
                             build_lock_files=['PyTorch-1.13.1-build.lock'])
    assert 'ramgate: ' in plain('archer2', easyconfig, MODULEPATH=modules)
    ranks = loaded(plain, 'PyTorch', "mpiexec -n 2 python -c 'import torch; print(torch.rank_sum())'", path=modules)
    assert ranks.count('(2, 3)') == 2
    assert os.access(plain.eb.prefix / 'software/PyTorch/1.13.1-ARCHER2-small/bin/extend-venv-activate', os.X_OK)
