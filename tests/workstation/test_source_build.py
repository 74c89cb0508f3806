"""
The workstation's own build of PyTorch, with the real tree of 2.6.0, configured by the easyblock without a network.

The tree is Debian's, which has no submodules: Debian's libraries take their place, and what has none is left out. The
configured tree is kept for all tests of this file. Compiling all of it takes hours and is not done here.
"""
import hashlib
import os
import re
import shutil
import subprocess
import tarfile

import pytest
from common import CACHE, CCACHE, CHECKOUT, EB, TEMPORARY, kept
from source import pytorch_sources

from hpc_pytorch.source import contract

pytestmark = pytest.mark.slow

VERSION = '2.6.0'
EASYCONFIG = 'PyTorch-2.9.1-workstation-source.eb'
# What CMake wants to find of submodules that Debian's libraries do not replace.
SUBMODULES = {
    'fmt/CMakeLists.txt': 'add_library(fmt-header-only INTERFACE)\n'
                          'add_library(fmt::fmt-header-only ALIAS fmt-header-only)\n',
    'pocketfft/pocketfft_hdronly.h': '',
    'opentelemetry-cpp/api/include/none.h': '',
}
SYSTEM = ('GLOO', 'CPUINFO', 'SLEEF', 'FP16', 'FXDIV', 'PSIMD', 'PTHREADPOOL', 'ONNX', 'PYBIND11', 'EIGEN_INSTALL',
          'BENCHMARK')
WITHOUT = ('TENSORPIPE', 'NNPACK', 'QNNPACK', 'PYTORCH_QNNPACK', 'XNNPACK', 'FBGEMM', 'KINETO', 'MKLDNN', 'ITT')
# setup.py looks for submodules unless this is in the environment, whatever it says
OPTIONS = (['USE_SYSTEM_LIBS=0', 'BUILD_CUSTOM_PROTOBUF=OFF', 'USE_NUMA=1'] + ['USE_SYSTEM_%s=ON' % name for name in SYSTEM]
           + ['USE_%s=0' % name for name in WITHOUT])
# Open MPI's compiler prints a warning where not even the loopback interface is up, which CMake takes for a directory
OFFLINE = ['unshare', '--net', 'sh', '-c', 'ip link set lo up; exec "$@"', 'sh']
# Compiled for real: the MPI backend, and what needs little of the rest.
BACKEND = 'caffe2/CMakeFiles/torch_cpu.dir/__/torch/csrc/distributed/c10d/ProcessGroupMPI.cpp.o'


@pytest.fixture(scope='module')
def tarball():
    """The tree with what CMake wants of the submodules."""
    def make(partial):
        tree = partial.with_name('tree')
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir(parents=True)
        pytorch_sources.fetch(VERSION, tree / 'archive')
        with tarfile.open(tree / 'archive') as packed:
            packed.extractall(tree)
        top, = (path for path in tree.iterdir() if path.is_dir())
        for name, text in SUBMODULES.items():
            (top / 'third_party' / name).parent.mkdir(parents=True, exist_ok=True)
            (top / 'third_party' / name).write_text(text)
        with tarfile.open(partial, 'w') as packed:
            packed.add(top, 'pytorch-' + VERSION)
        shutil.rmtree(tree)
    return kept(CACHE / 'pytorch-sources' / ('pytorch-v%s.tar' % VERSION), make)


@pytest.fixture(scope='module')
def configured(tarball, tmp_path_factory):
    """What ./eb said, and the directory in which CMake left its decisions."""
    place = tmp_path_factory.mktemp('source')
    eb = EB(place / 'prefix', OFFLINE + [CHECKOUT / 'eb'])
    link = place / 'sources' / 'p' / 'PyTorch' / tarball.name
    link.parent.mkdir(parents=True)
    link.symlink_to(tarball)
    eb.sources = '%s:%s' % (place / 'sources', CACHE / 'small-torch')
    text = (CHECKOUT / 'easyconfigs/p/PyTorch' / EASYCONFIG).read_text()
    easyconfig = place / EASYCONFIG.replace('2.9.1', VERSION)
    easyconfig.write_text(re.sub(r'PyTorch-%\(version\)s(-\S+lock)', r'PyTorch-2.9.1\1', text).replace(
        "version = '2.9.1'", "version = '%s'" % VERSION) + "sources = ['%s']\nchecksums = ['%s']\ncustom_opts += %r\n" % (
            tarball.name, hashlib.sha256(tarball.read_bytes()).hexdigest(), OPTIONS))
    online = EB(place / 'prefix')
    online.sources = eb.sources
    online.fetch(easyconfig)
    output = eb(easyconfig, '--stop=configure').stdout
    yield output, next((eb.prefix / 'build').rglob('CMakeCache.txt')).parent
    shutil.rmtree(place)


def test_contract_holds(configured):
    """CMake decides what was asked for, without a network: the machine's MPI and OpenBLAS, and the lock's CMake."""
    output, build = configured
    assert "CMake's decisions are what was asked for" in output
    cache = contract.read_cache(build / 'CMakeCache.txt')
    assert cache['USE_MPI'] == '1' and 'openblas' in cache['OpenBLAS_LIB']
    assert '/tools/' in cache['CMAKE_COMMAND']


def test_twenty_files(configured):
    """The MPI backend and nineteen others compile, with what the build generates for them."""
    _, build = configured
    rules = subprocess.run(['ninja', '-t', 'targets', 'all'], cwd=build, stdout=subprocess.PIPE, text=True, check=True)
    files = [line.partition(':')[0] for line in rules.stdout.splitlines()
             if line.startswith('c10/CMakeFiles/c10.dir/') and '.cpp.o:' in line][:19] + [BACKEND]
    assert len(files) == 20
    environment = dict(os.environ, CCACHE_BASEDIR=str(build.parent), TMPDIR=TEMPORARY, **CCACHE)
    subprocess.run(OFFLINE + ['ninja', '-j2'] + files, cwd=build, check=True, env=environment)
    symbols = subprocess.run(['nm', '-C', BACKEND], cwd=build, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert ' U MPI_Allreduce' in symbols and 'T c10d::ProcessGroupMPI::createProcessGroupMPI' in symbols
