"""
The real tree of PyTorch 1.13.1, configured by the easyblock on the stand-in of ARCHER2.

The tree is Debian's, which has no submodules: Debian's libraries take their place. Compiling it takes hours and is not
done here.
"""
import hashlib
import shutil
import subprocess
import tarfile

import pytest
from common import CACHE, CHECKOUT, FETCHED, kept

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

PACKAGE, ARCHIVE = 'pytorch=1.13.1+dfsg-4', 'pytorch_1.13.1+dfsg.orig.tar.xz'
# What CMake wants to find of submodules that Debian's libraries do not replace.
SUBMODULES = {
    'fmt/CMakeLists.txt': 'add_library(fmt-header-only INTERFACE)\n'
                          'add_library(fmt::fmt-header-only ALIAS fmt-header-only)\n',
    'foxi/CMakeLists.txt': 'file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/foxi.c "")\n'
                           'add_library(foxi_loader STATIC ${CMAKE_CURRENT_BINARY_DIR}/foxi.c)\n',
    'pocketfft/pocketfft_hdronly.h': '',
}
OPTIONS = """
    'USE_MPI=1', 'USE_ROCM=0', 'USE_MKL=1', 'MKL_THREADING=SEQ', 'USE_SYSTEM_LIBS=1', 'USE_SYSTEM_GLOO=ON',
    'USE_SYSTEM_CPUINFO=ON', 'USE_SYSTEM_SLEEF=ON', 'USE_SYSTEM_FP16=ON', 'USE_SYSTEM_FXDIV=ON', 'USE_SYSTEM_PSIMD=ON',
    'USE_SYSTEM_PTHREADPOOL=ON', 'USE_SYSTEM_ONNX=ON', 'USE_SYSTEM_PYBIND11=ON', 'USE_SYSTEM_EIGEN_INSTALL=ON',
    'USE_SYSTEM_BENCHMARK=ON', 'USE_SYSTEM_XNNPACK=ON', 'BUILD_CUSTOM_PROTOBUF=OFF', 'USE_TENSORPIPE=0', 'USE_NNPACK=0',
    'USE_QNNPACK=0', 'USE_PYTORCH_QNNPACK=0', 'USE_XNNPACK=0', 'USE_FBGEMM=0', 'USE_KINETO=0', 'USE_MKLDNN=0',
    'USE_ITT=0',
"""
ABI = ("'_GLIBCXX_USE_CXX11_ABI=0'", "'CXXFLAGS=-D_GLIBCXX_USE_CXX11_ABI=0'")


@pytest.fixture(scope='module')
def archive():
    """The tree with what CMake wants of the submodules, as a tarball."""
    return kept(FETCHED / 'archives' / ARCHIVE, lambda partial: subprocess.run(
        [CHECKOUT / 'tests/source/fetch-debian-source', PACKAGE, ARCHIVE, partial], check=True))


@pytest.fixture
def real(archive, eb, tmp_path):
    """The real easyconfig of ARCHER2 for this tree, in a directory of the test's own: a function that writes it."""
    eb.sources = '%s:%s' % (tmp_path / 'sources', CACHE / 'small-torch')
    tarball = tmp_path / 'sources' / 'p' / 'PyTorch' / 'pytorch-v1.13.1.tar'
    tarball.parent.mkdir(parents=True)
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / 'tree')
    tree = tmp_path / 'tree' / 'pytorch-1.13.1'

    def write(edit=None):
        for name, text in SUBMODULES.items():
            (tree / 'third_party' / name).parent.mkdir(exist_ok=True)
            (tree / 'third_party' / name).write_text(text)
        if edit:
            edit(tree)
        with tarfile.open(tarball, 'w') as packed:
            packed.add(tree, 'pytorch-1.13.1')
        text = (CHECKOUT / 'easyconfigs/p/PyTorch/PyTorch-1.13.1-ARCHER2.eb').read_text()
        assert all(option in text for option in ABI)
        checksum = hashlib.sha256(tarball.read_bytes()).hexdigest()
        easyconfig = tmp_path / 'PyTorch-1.13.1-ARCHER2.eb'
        easyconfig.write_text(text + "sources = ['%s']\npatches = []\nchecksums = ['%s']\ncustom_opts = [%s]\n"
                              "lock_files = ['PyTorch-1.13.1-build.lock']\nbuild_from_source = []\n"
                              % (tarball.name, checksum, OPTIONS + ', '.join(ABI)))
        return easyconfig
    yield write
    shutil.rmtree(tmp_path / 'tree')


def test_contract_holds(real, eb):
    """CMake decides what was asked for: MPI from the wrappers, MKL, gloo, distributed, the compilers, the C++ ABI."""
    output = eb('--rehearse', real(), '--stop=configure').stdout
    assert "CMake enabled all requested options" in output
    build = next((eb.prefix / 'build').rglob('build.ninja')).parent
    compiled = 'c10/CMakeFiles/c10.dir/util/Exception.cpp.o'
    commands = subprocess.run(['ninja', '-t', 'commands', compiled], cwd=build, stdout=subprocess.PIPE, text=True,
                              check=True).stdout
    # with the flags alone: ramgate and the wrapper's modules are there while it builds
    flags = commands.splitlines()[-1].partition('/bin/CC ')[2]
    subprocess.run(['sh', '-c', 'g++ ' + flags], cwd=build, check=True)
    symbols = subprocess.run(['nm', compiled], cwd=build, stdout=subprocess.PIPE, text=True, check=True).stdout
    # what torchtext's wheel wants
    assert ' _ZN3c105ErrorC1ESsSsPKv\n' in symbols


def test_mpi_is_hidden(real, eb):
    """It stops after CMake, before anything is compiled, and names MPI and what to do."""
    def hide(tree):
        path = tree / 'cmake' / 'Dependencies.cmake'
        path.write_text(path.read_text().replace('find_package(MPI)', 'set(CMAKE_DISABLE_FIND_PACKAGE_MPI ON)'))
    easyconfig = real(hide)
    done = eb('--rehearse', easyconfig, status=None)
    assert done.returncode and 'building...' not in done.stdout
    assert 'CMake did not enable the requested options (USE_MPI)' in done.stdout
    assert "the MPI's module is not loaded" in done.stdout
