"""What the installed PyTorch tells of itself, compared with what was asked for."""
import pytest

from hpc_pytorch import UsersProblem
from hpc_pytorch.source import contract

# shortened from what official wheels and a build with MPI print
SHOW = """PyTorch built with:
  - GCC 11.2
  - CPU capability usage: AVX2
  - Build settings: BLAS_INFO=mkl, BUILD_TYPE=Release, CUDA_FLAGS= -Xfatbin -compress-all -gencode \
arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -Xcudafe --diag_suppress=cc_clobber_ignored,\
--diag_suppress=field, CXX_COMPILER=/opt/cray/pe/craype/2.7.19/bin/CC, CXX_FLAGS= -Wall -Wextra -Werror=format, \
LAPACK_INFO=mkl, TORCH_VERSION=1.13.1, USE_CUDA=1, USE_CUDNN=ON, USE_GLOO=ON, USE_MKL=ON, USE_MPI=ON, USE_NCCL=ON,
"""
ASKED = {'USE_MPI': '1', 'USE_GLOO': '1', 'USE_NCCL': '1', 'BLAS': 'MKL', 'CXX': 'CC', 'CC': 'cc', 'USE_CUDA': '1',
         'TORCH_CUDA_ARCH_LIST': '8.0;9.0', 'CMAKE_BUILD_TYPE': 'Release', 'USE_ROCM': '0', 'MKL_THREADING': 'SEQ'}
BACKENDS = {'mpi': True, 'gloo': True, 'nccl': True}
LDD = """\tlinux-vdso.so.1 (0x0)
\tlibmpi_gnu_91.so.12 => /opt/cray/pe/lib64/libmpi_gnu_91.so.12 (0x0)
\tlibm.so.6 => /lib64/libm.so.6 (0x0)
"""


def differences(show=SHOW, backends=BACKENDS, ldd=LDD, **asked):
    """The options that differ."""
    return [item.option for item in contract.compare_installed(dict(ASKED, **asked), show, backends, ldd)]


def test_all_there():
    """Nothing differs; what the installed PyTorch does not tell is no difference."""
    assert not differences()
    assert not differences(show='PyTorch built with:\n  - GCC 11.2\n')
    assert contract.resolved(LDD, 'libmpi') == ['/opt/cray/pe/lib64/libmpi_gnu_91.so.12']


def test_settings():
    """Each setting that is another one than was asked for."""
    assert differences(show=SHOW.replace('USE_MPI=ON', 'USE_MPI=OFF')) == ['USE_MPI']
    assert differences(show=SHOW.replace('BLAS_INFO=mkl', 'BLAS_INFO=open')) == ['BLAS']
    assert not differences(show=SHOW.replace('BLAS_INFO=mkl', 'BLAS_INFO=open'), BLAS='OpenBLAS')
    assert differences(TORCH_CUDA_ARCH_LIST='8.0') == ['TORCH_CUDA_ARCH_LIST']
    assert differences(CXX='g++') == ['CXX']
    assert differences(CMAKE_BUILD_TYPE='Debug') == ['CMAKE_BUILD_TYPE']


def test_backends():
    """A backend that is missing, or that has no library here."""
    assert differences(backends=dict(BACKENDS, mpi=False)) == ['USE_MPI']
    assert differences(backends=dict(BACKENDS, gloo=False, nccl=False)) == ['USE_GLOO', 'USE_NCCL']
    assert differences(ldd='') == ['USE_MPI']
    assert differences(ldd='\tlibmpi.so.12 => not found\n') == ['USE_MPI']
    assert not differences(ldd='', backends=dict(BACKENDS, mpi=False), USE_MPI='0',
                           show=SHOW.replace('USE_MPI=ON', 'USE_MPI=OFF'))


def test_device_code():
    """Machine code for each architecture that was asked for; more may be there, as MAGMA's."""
    def differ(asked, *found):
        return contract.compare_device_code(asked, set(found), ['/lib/libtorch_cuda.so'])
    assert not differ('8.0;9.0', '8.0', '9.0', '9.0a') and not differ('8.0 9.0+PTX', '8.0', '9.0')
    difference, = differ('8.0;9.0', '8.0', '7.0')
    assert (difference.option, difference.asked, difference.found) == ('TORCH_CUDA_ARCH_LIST', '8.0;9.0', '7.0;8.0')
    assert 'no device code' in contract.table(differ('8.0')) and 'cuobjdump /lib' in contract.table(differ('8.0'))


# --- what CMake decided -----------------------------------------------------------------------------------------------

def test_switch_that_no_table_has():
    """Whoever asks for a switch by name gets it, or is told; settings of setup.py are in no cache."""
    asked = {'USE_OPENMP': '1', 'USE_MPI': '1', 'BUILD_TEST': '0', 'USE_PRIORITIZED_TEXT_FOR_LD': '1'}
    cache = {'USE_OPENMP': 'OFF', 'BUILD_TEST': 'OFF', 'USE_MPI': 'ON'}
    assert not contract.compare(asked, cache, {})
    difference, = contract.compare(asked, cache, {}, named=asked)
    assert (difference.option, difference.asked, difference.found) == ('USE_OPENMP', 'ON', 'OFF')
    assert not contract.compare(asked, cache, {'USE_OPENMP': 'ON'}, named=asked)


def test_switches_in_cache(tmp_path):
    """As CMake 3.31 writes PyTorch 2.6.0's, asked for USE_MPI and USE_FLASH_ATTENTION without what they depend on."""
    cache = tmp_path / 'CMakeCache.txt'
    cache.write_text('//Use distributed\nUSE_DISTRIBUTED:BOOL=0\n\nUSE_MPI:INTERNAL=1\nUSE_FLASH_ATTENTION:INTERNAL=1\n'
                     '//No help, variable specified on the command line.\nUSE_CUPTI_SO:UNINITIALIZED=1\n'
                     'CMAKE_PREFIX_PATH:UNINITIALIZED=/opt\nCMAKE_CACHE_MAJOR_VERSION:INTERNAL=3\n')
    asked = {'USE_MPI': '1', 'USE_FLASH_ATTENTION': '1', 'USE_CUPTI_SO': '1'}
    found = contract.read_cache(cache)
    assert found['CMAKE_PREFIX_PATH'] == '/opt' and found['CMAKE_CACHE_MAJOR_VERSION'] == '3'
    assert [item.option for item in contract.compare(asked, found, {}, named=asked)] == ['USE_MPI',
                                                                                         'USE_FLASH_ATTENTION']


def test_python_itself(tmp_path):
    """Nobody asks for it by name, and CMake goes on without Python's headers; an old tree may not know the switch."""
    (tmp_path / 'build').mkdir()
    cache = tmp_path / 'build' / 'CMakeCache.txt'
    cache.write_text('BUILD_PYTHON:BOOL=OFF\n')
    with pytest.raises(UsersProblem, match='(?s)BUILD_PYTHON.*python3-devel'):
        contract.check(str(tmp_path), '-- Not compiling with python\n', {}, {})
    cache.write_text('BUILD_PYTHON:BOOL=True\n')
    contract.check(str(tmp_path), '', {}, {})
    cache.write_text('CMAKE_C_COMPILER:STRING=gcc\n')
    contract.check(str(tmp_path), '', {}, {})


def test_another_cudnn():
    """The module's is asked for, and the toolkit's is found; links may lead to the module's."""
    asked = {'USE_CUDNN': '1', 'CUDNN_ROOT': '/opt/cudnn/8.8'}
    cache = {'USE_CUDNN': '1', 'CUDNN_LIBRARY_PATH': '/usr/local/cuda/lib64/libcudnn.so'}
    assert [item.option for item in contract.compare(asked, cache, {})] == ['CUDNN_ROOT']
    assert not contract.compare(asked, dict(cache, CUDNN_LIBRARY_PATH='/opt/cudnn/8.8/lib/libcudnn.so'), {})
    assert not contract.compare(dict(asked, USE_CUDNN='0'), dict(cache, USE_CUDNN='0'), {})


def test_downloads():
    """In CMake's own words."""
    assert not contract.downloads("-- Downloading six\n-- done\n")
    assert contract.downloads("CMake Error: error: downloading 'https://example.org/six' failed\n") == [
        'https://example.org/six']
    assert contract.downloads("-- Downloading six to /build/six\n-- done\n") == ['six']
    assert contract.downloads("  Each download failed!\n") == ['something']


def test_blas_in_cmakes_words():
    """PyTorch's summary calls OpenBLAS "open", whatever it was asked for as."""
    cache = {'BLAS': 'OpenBLAS'}
    assert not contract.compare({'BLAS': 'OpenBLAS'}, cache, {'BLAS': 'open'})
    difference, = contract.compare({'BLAS': 'OpenBLAS'}, cache, {'BLAS': 'mkl'})
    assert difference.found == 'mkl'
