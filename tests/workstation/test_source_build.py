"""
The workstation's own build of PyTorch, with the real tree of 2.6.0, configured by the easyblock without a network.

The tree is Debian's, which has no submodules: Debian's libraries take their place, and what has none is left out.
Compiling it takes hours and is not done here.
"""
import hashlib
import re
import shutil

import pytest
from common import CACHE, CHECKOUT, EB
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
    'opentelemetry-cpp/api/include/none.h': '', 'cpp-httplib/none.h': '', 'nlohmann/include/none.h': '',
}
SYSTEM = ('GLOO', 'CPUINFO', 'SLEEF', 'FP16', 'FXDIV', 'PSIMD', 'PTHREADPOOL', 'ONNX', 'PYBIND11', 'EIGEN_INSTALL',
          'BENCHMARK')
WITHOUT = ('TENSORPIPE', 'NNPACK', 'PYTORCH_QNNPACK', 'XNNPACK', 'FBGEMM', 'KINETO', 'MKLDNN', 'ITT')
# setup.py looks for submodules unless this is in the environment, whatever it says
OPTIONS = (['USE_SYSTEM_LIBS=0', 'BUILD_CUSTOM_PROTOBUF=OFF', 'USE_NUMA=1']
           + ['USE_SYSTEM_%s=ON' % name for name in SYSTEM] + ['USE_%s=0' % name for name in WITHOUT])
# Open MPI's compiler prints a warning where not even the loopback interface is up, which CMake takes for a directory
OFFLINE = ['unshare', '--net', 'sh', '-c', 'ip link set lo up; exec "$@"', 'sh']


@pytest.fixture(scope='module')
def tarball():
    """The tree with what CMake wants of the submodules."""
    return pytorch_sources.tarball(VERSION, SUBMODULES)


@pytest.fixture
def configured(tarball, tmp_path):
    """What ./eb said, and the directory in which CMake left its decisions."""
    eb = EB(tmp_path / 'prefix', OFFLINE + [CHECKOUT / 'eb'])
    link = tmp_path / 'sources' / 'p' / 'PyTorch' / tarball.name
    link.parent.mkdir(parents=True)
    link.symlink_to(tarball)
    eb.sources = '%s:%s' % (CACHE / 'sources', tmp_path / 'sources')
    text = (CHECKOUT / 'easyconfigs/p/PyTorch' / EASYCONFIG).read_text()
    easyconfig = tmp_path / EASYCONFIG.replace('2.9.1', VERSION)
    easyconfig.write_text(re.sub(r'PyTorch-%\(version\)s(-\S+lock)', r'PyTorch-2.9.1\1', text).replace(
        "version = '2.9.1'", "version = '%s'" % VERSION)
        + "sources = ['%s']\nchecksums = ['%s']\ncustom_opts += %r\n" % (
            tarball.name, hashlib.sha256(tarball.read_bytes()).hexdigest(), OPTIONS))
    online = EB(tmp_path / 'prefix')
    online.sources = eb.sources
    online.fetch(easyconfig)
    output = eb(easyconfig, '--stop=configure').stdout
    yield output, next((eb.prefix / 'build').rglob('CMakeCache.txt')).parent
    shutil.rmtree(tmp_path)


def test_contract_holds(configured):
    """CMake decides what was asked for, without a network: the machine's MPI and OpenBLAS, and the lock's CMake."""
    output, build = configured
    assert "CMake's decisions are what was asked for" in output
    cache = contract.read_cache(build / 'CMakeCache.txt')
    assert cache['USE_MPI'] == '1' and 'openblas' in cache['OpenBLAS_LIB']
    assert '/tools/' in cache['CMAKE_COMMAND']
