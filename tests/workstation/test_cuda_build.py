"""
The workstation's own build of PyTorch for GPUs: the real tree of 2.6.0, with the CUDA that it was released with.

As in test_source_build.py, configured without a network; besides, some of its files are compiled. No GPU is used here.
"""
import hashlib
import re
import shutil
import subprocess
import sys

import pytest
from common import CACHE, CHECKOUT, EB, clean_environment
from source import cuda_toolkit, pytorch_sources
from source.pytorch_sources import EASYCONFIG, OFFLINE, OPTIONS, SUBMODULES
from source.pytorch_sources import TREE as VERSION


from hpc_pytorch import UsersProblem
from hpc_pytorch.packages.known_errors import excerpt
from hpc_pytorch.source import contract

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

# what CMake and the compiled files want of further submodules
FOR_CUDA = {'cutlass/include/none.h': '', 'cutlass/tools/util/include/none.h': '', 'cudnn_frontend/include/none.h': ''}
# attention is made of cutlass, which Debian 12 does not have
WITHOUT = ['USE_%s=0' % name for name in ('FLASH_ATTENTION', 'MEM_EFF_ATTENTION', 'CUSPARSELT', 'CUFILE')]
# kernels that take seconds; many take minutes
KERNELS = ('CrossKernel', 'LegacyThrustHelpers', 'RenormKernel', 'SpectralOps')
FILES = ['torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp', 'aten/src/ATen/cuda/Sleep.cu'] + [
    'aten/src/ATen/native/cuda/%s.cu' % name for name in KERNELS]


class Build:
    """The easyconfig for two GPUs, and ./eb with the toolkit on the path, without a network."""

    def __init__(self, directory, toolkit):
        self.directory = directory
        self.toolkit = toolkit
        self.eb = EB(directory / 'prefix', OFFLINE + [CHECKOUT / 'eb'])
        self.eb.sources = '%s:%s' % (CACHE / 'sources', directory / 'sources')
        self.env = {'PATH': '/usr/lib/ccache:%s:%s' % (toolkit / 'bin', clean_environment()['PATH'])}
        self.easyconfig = directory / EASYCONFIG.replace('2.9.1', VERSION)

    def write(self, tarball, checksum):
        """The easyconfig, for this tree."""
        link = self.directory / 'sources' / 'p' / 'PyTorch' / tarball.name
        link.parent.mkdir(parents=True)
        link.symlink_to(tarball)
        nccl = ['USE_NCCL=1', 'USE_SYSTEM_NCCL=1', 'NCCL_INCLUDE_DIR=%s/include' % self.toolkit,
                'NCCL_LIB_DIR=%s/lib' % self.toolkit, 'USE_CUDNN=1']
        text = (CHECKOUT / 'easyconfigs/p/PyTorch' / EASYCONFIG).read_text()
        self.easyconfig.write_text(re.sub(r'PyTorch-%\(version\)s(-\S+lock)', r'PyTorch-2.9.1\1', text).replace(
            "version = '2.9.1'", "version = '%s'" % VERSION)
            + "cuda_compute_capabilities = ['8.0', '9.0']\nsources = ['%s']\npatches = []\nchecksums = ['%s']\n"
            "custom_opts += %r\n" % (tarball.name, checksum, OPTIONS + WITHOUT + nccl))

    def __call__(self, *arguments, status=0):
        """./eb; what it prints."""
        return self.eb(self.easyconfig, *arguments, env=self.env, status=status).stdout


@pytest.fixture(scope='module')
def toolkit():
    """CUDA, cuDNN and NCCL, in the layout of NVIDIA's installer."""
    return cuda_toolkit.place()


@pytest.fixture
def build(tmp_path, toolkit):
    """A build of the test's own."""
    return Build(tmp_path, toolkit)


@pytest.fixture(scope='module')
def configured(tmp_path_factory, toolkit):
    """The build after CMake, what ./eb said, and the directory in which CMake left its decisions."""
    build = Build(tmp_path_factory.mktemp('cuda'), toolkit)
    tarball = pytorch_sources.tarball(VERSION, dict(SUBMODULES, **FOR_CUDA))
    build.write(tarball, hashlib.sha256(tarball.read_bytes()).hexdigest())
    online = EB(build.eb.prefix)
    online.sources = build.eb.sources
    online.fetch(build.easyconfig, env=build.env)
    build.output = build('--stop=configure')
    build.tree = next((build.eb.prefix / 'build').rglob('CMakeCache.txt')).parent
    tools = build.tree.parent.parent / 'tools'
    build.env = dict(clean_environment(), PYTHONPATH='%s:%s' % (CHECKOUT / 'ramgate', tools),
                     PATH='%s:%s' % (tools / 'bin', build.env['PATH']))
    yield build
    shutil.rmtree(build.directory)


def test_contract_holds(configured):
    """CMake decides what was asked for: both GPUs, cuDNN, the toolkit's NCCL and the machine's MPI."""
    assert "CMake enabled all requested options" in configured.output
    cache = contract.read_cache(configured.tree / 'CMakeCache.txt')
    assert cache['CMAKE_CUDA_COMPILER'] == str(configured.toolkit / 'bin' / 'nvcc')
    assert cache['NCCL_LIBRARIES'].startswith(str(configured.toolkit)) and cache['USE_MPI'] == '1'


def test_device_code(configured):
    """Kernels and the NCCL backend, compiled under ramgate, as the build does it: code for the two GPUs alone."""
    objects = ['caffe2/CMakeFiles/torch_cuda.dir/__/%s.o' % name for name in FILES]
    done = subprocess.run(
        [sys.executable, '-m', 'ramgate', 'run', '--report', configured.directory / 'report', '--', 'ninja'] + objects,
        cwd=configured.tree, env=configured.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    for path in objects:
        found = subprocess.run([configured.toolkit / 'bin' / 'cuobjdump', '--list-elf', configured.tree / path],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout
        expected = {'sm_80', 'sm_90'} if path.endswith('.cu.o') else set()
        assert set(re.findall(r'\.(sm_\w+)\.cubin', found)) == expected, path


@pytest.mark.parametrize('package, option', [('CUDA', 'USE_CUDA'), ('CUDNN', 'USE_CUDNN'), ('NCCL', 'NCCL_LIB_DIR')])
def test_hidden(configured, package, option):
    """Each part that CMake does not find is named; without NCCL it stops by itself."""
    cache = configured.tree / 'CMakeCache.txt'
    kept = cache.read_text()
    done = subprocess.run(['cmake', '-DCMAKE_DISABLE_FIND_PACKAGE_%s=TRUE' % package, '-UNCCL_LIBRARIES', '.'],
                          cwd=configured.tree, env=configured.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    asked = {'USE_CUDA': '1', 'USE_CUDNN': '1', 'USE_NCCL': '1', 'TORCH_CUDA_ARCH_LIST': '8.0;9.0',
             'NCCL_LIB_DIR': str(configured.toolkit / 'lib')}
    try:
        with pytest.raises(UsersProblem) as refused:
            contract.check(str(configured.tree.parent), done.stdout, asked, asked)
        assert '  %s\n    asked for:     %s\n' % (option, contract.plain(asked[option])) in str(refused.value)
        assert (done.returncode != 0) == (package == 'NCCL') == ('cmake/External/nccl.cmake' in excerpt(done.stdout))
    finally:
        cache.write_text(kept)


def test_unknown_architecture(build):
    """One that this nvcc does not know: refused before anything is fetched, with those that it knows."""
    build.write(build.directory / 'not-there.tar', checksum='f' * 64)
    output = build('--cuda-compute-capabilities=8.0,12.0', status=None)
    assert 'nvcc cannot compile for 12.0. It knows: compute_50' in output and 'compute_90' in output
    assert 'fetching' not in output.partition('cannot compile')[2]
