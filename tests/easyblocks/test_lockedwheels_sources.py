"""Wheels as sources of an easyconfig: installed, and refused where something is wrong with them."""
import os
import sys
import tarfile

import pytest
from common import EB, nightly
from small_software import make_wheel, sha256

pytestmark = pytest.mark.slow

EASYCONFIG = """easyblock = 'LockedWheels'
name = 'toy'
version = '1.0'
homepage = 'https://example.org'
description = 'a toy'
toolchain = SYSTEM
source_urls = ['https://localhost:9/wheels']
sources = ['%s']
checksums = [%r]
lock_files = ['toy.lock']
python_versions = ['%d.%d']
sanity_check_commands = ['python -c "import toy, other"']
moduleclass = 'ai'
"""
# a package of C that is built with what the lock file for building has, and with a variable of the easyconfig
SETUP = """import os
import other
from setuptools import Extension, setup
assert os.environ['TORCH_CUDA_ARCH_LIST'] == '8.0;9.0' and os.environ['CUDA_HOME'] == os.environ['TOOLKIT']
# Debian's Python looks into a directory where another MPI may lie
assert os.environ['LDFLAGS'].split() == ['-L/of/the/mpi', '-L/of/the/user']
setup(name='toy', version='1.0', ext_modules=[Extension('toy', ['toy.c'])] if os.environ['WITH_C'] == 'yes' else [])
"""
MODULE = """#include <Python.h>
static struct PyModuleDef toy = {PyModuleDef_HEAD_INIT, "toy"};
PyMODINIT_FUNC PyInit_toy(void) { return PyModule_Create(&toy); }
"""


class Toy:
    """A software of two wheels, one a source, one locked."""

    def __init__(self, folder):
        self.folder = folder
        self.eb = EB(folder / 'prefix')
        self.eb.sources = folder / 'sources'
        self.place = self.eb.sources / 't' / 'toy'
        self.place.mkdir(parents=True)
        (folder / 'index').mkdir()
        self.wheel = make_wheel(self.place, 'toy', '1.0+rocm5.7')
        locked = make_wheel(folder / 'index', 'other', '2.0+here')
        (folder / 'toy.lock').write_text('# made by the test\nother==2.0+here --hash=sha256:%s\n' % sha256(locked))

    def install(self, checksum=None, *arguments, more='', **options):
        """Install it with this checksum, and more lines, in the easyconfig."""
        easyconfig = self.folder / 'toy-1.0.eb'
        easyconfig.write_text(EASYCONFIG % (self.wheel.name, checksum, *sys.version_info[:2]) + more)
        env = dict({'PIP_NO_INDEX': '1', 'PIP_FIND_LINKS': str(self.folder / 'index')}, **dict(options.pop('env', ())))
        return self.eb(easyconfig, *arguments, env=env, **options)

    def refused(self, says, checksum=None):
        """It is refused with these words, and nothing is installed."""
        done = self.install(checksum, status=None)
        assert done.returncode != 0
        assert says in done.stdout, done.stdout
        assert not list(self.eb.modules.glob('toy/*')) and not (self.eb.prefix / 'software/toy/1.0/bin').exists()


@pytest.fixture
def toy(tmp_path):
    """See Toy."""
    return Toy(tmp_path)


def test_installed(toy, lmod):
    """With the checksum that --inject-checksums wrote into the easyconfig."""
    toy.install()
    done = toy.eb(toy.folder / 'toy-1.0.eb', '--inject-checksums', '--force')
    assert done.returncode == 0
    assert sha256(toy.wheel) in (toy.folder / 'toy-1.0.eb').read_text()
    toy.eb(toy.folder / 'toy-1.0.eb', '--rebuild',
           env={'PIP_NO_INDEX': '1', 'PIP_FIND_LINKS': str(toy.folder / 'index')})
    assert str(toy.eb.prefix) in lmod.run("module use %s; module load toy; python -c 'import toy; print(toy.here)'"
                                          % toy.eb.modules)


def test_check_that_fails_for_a_known_reason(toy):
    """What to do is said where the installation ends, too, not by --job-status alone."""
    command = "echo \"OMPI was not built with SLURM's PMI support\"; exit 1"
    done = toy.install(sha256(toy.wheel), status=None, more="sanity_check_commands = [%r]\n" % command)
    assert done.returncode and "likely cause: Slurm's srun does not start" in done.stdout, done.stdout
    assert 'what to do:   if srun --mpi=list has pmix, export SLURM_MPI_TYPE=pmix; otherwise' in done.stdout


def test_another_file(toy):
    """A wheel with another checksum than the easyconfig's."""
    toy.refused('Checksum verification', checksum='f' * 64)


def test_cut_short(toy):
    """A wheel without a known checksum that a full disk or a broken connection cut short."""
    toy.wheel.write_bytes(toy.wheel.read_bytes()[:-50])
    done = toy.install(status=None)
    assert "Wheel 'toy' located at" in done.stdout and not list(toy.eb.modules.glob('toy/*'))


def test_no_wheel(toy):
    """A source of another kind was once left out without a word."""
    toy.wheel = toy.wheel.rename(toy.wheel.with_name('toy-1.0.zip'))
    toy.refused('toy-1.0.zip is not named as a wheel is')


def test_not_there(toy):
    """Neither fetched nor to be fetched."""
    toy.wheel.unlink()
    toy.refused("Couldn't find file %s anywhere, and downloading it didn't work" % toy.wheel.name)


def test_dry_run(toy):
    """A source without a checksum is no reason to warn of a file that nobody has promised."""
    (toy.folder / 'toy-1.0.eb').write_text(EASYCONFIG % (toy.wheel.name, None, *sys.version_info[:2]))
    output = toy.eb(toy.folder / 'toy-1.0.eb', '-x').stdout
    assert 'checksums.json' not in output and 'ignoring error' not in output


def test_package_built_here(toy):
    """The source of a package, with the easyconfig's variables, for its GPUs, and within the memory."""
    top = toy.folder / 'toy-1.0'
    top.mkdir()
    (top / 'setup.py').write_text(SETUP)
    (top / 'toy.c').write_text(MODULE)
    toy.wheel = toy.wheel.with_name('toy-1.0.tar.gz')
    with tarfile.open(toy.wheel, 'w:gz') as packed:
        packed.add(top, top.name)
    nvcc = toy.folder / 'cuda' / 'bin' / 'nvcc'
    nvcc.parent.mkdir(parents=True)
    nvcc.touch(0o755)
    for name in ('mpicc', 'mpicxx'):
        (nvcc.parent / name).write_text('#!/bin/sh\necho gcc -I/of/the/mpi -L/of/the/mpi -lmpi\n')
        (nvcc.parent / name).chmod(0o755)
    env = {'PIP_NO_INDEX': '0', 'PATH': '%s:%s' % (nvcc.parent, os.environ['PATH']), 'CUDA_HOME': '',
           'LDFLAGS': '-L/of/the/user'}
    output = toy.install(sha256(toy.wheel), env=env, more="""
build_lock_files = ['toy.lock', 'on-top-build.lock']
build_environment = {'WITH_C': 'yes', 'CC': 'gcc', 'MPICC': 'mpicc -shared', 'TOOLKIT': %r}
cuda_compute_capabilities = ['8.0', '9.0']
ramgate = True
""" % str(nvcc.parent.parent)).stdout
    assert 'building toy, which takes minutes' in output
    assert '== ramgate: 2 compilers in ' in output, output
    assert list(toy.eb.prefix.glob('software/toy/1.0/lib/python*/site-packages/toy.cpython-*.so'))


@pytest.mark.parametrize('compiler, own, expected', [
    ('gcc', '', '-O2 -fwrapv -fno-tree-pta'), nightly('gcc', '-O1', '-O1'), ('nvc', '', 'none')])
def test_mpi4py_takes_a_third_of_the_time(toy, compiler, own, expected):
    """With options of GCC, which other compilers refuse; with the user's if there are some."""
    top = toy.folder / 'mpi4py-1.0'
    top.mkdir()
    (top / 'setup.py').write_text("""import os
from setuptools import setup
open('toy.py', 'w').write('# ' + (os.environ['CFLAGS'] or 'none'))
setup(name='mpi4py', version='1.0', py_modules=['toy'])
""")
    toy.wheel = toy.wheel.with_name('mpi4py-1.0.tar.gz')
    with tarfile.open(toy.wheel, 'w:gz') as packed:
        packed.add(top, top.name)
    for name in ('mpicc', 'mpicxx'):
        (toy.folder / name).write_text('#!/bin/sh\necho %s -I/of/the/mpi -lmpi\n' % compiler)
        (toy.folder / name).chmod(0o755)
    env = dict(CFLAGS=own, PIP_NO_INDEX='0', PATH='%s:%s' % (toy.folder, os.environ['PATH']))
    toy.install(sha256(toy.wheel), env=env, more="build_lock_files = ['toy.lock', 'on-top-build.lock']\n")
    built = next(toy.eb.prefix.glob('software/toy/1.0/lib/python*/site-packages/toy.py'))
    assert built.read_text() == '# ' + expected
