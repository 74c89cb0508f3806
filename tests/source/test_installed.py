"""What the installed PyTorch tells of itself, compared with what was asked for."""
from hpc_pytorch.source import installed, libraries

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
    return [item.option for item in installed.compare_installed(dict(ASKED, **asked), show, backends, ldd)]


def test_all_there():
    """Nothing differs; what the installed PyTorch does not tell is no difference."""
    assert not differences()
    assert not differences(show='PyTorch built with:\n  - GCC 11.2\n')
    assert libraries.resolved(LDD, 'libmpi') == ['/opt/cray/pe/lib64/libmpi_gnu_91.so.12']


def test_settings():
    """Each setting that is another one than was asked for."""
    assert differences(show=SHOW.replace('USE_MPI=ON', 'USE_MPI=OFF')) == ['USE_MPI']
    assert differences(show=SHOW.replace('BLAS_INFO=mkl', 'BLAS_INFO=open')) == ['BLAS']
    assert not differences(show=SHOW.replace('BLAS_INFO=mkl', 'BLAS_INFO=open'), BLAS='OpenBLAS')
    assert not differences(show=SHOW.replace('BLAS_INFO=mkl', 'BLAS_INFO=open'), BLAS='Eigen', WITH_BLAS='open')
    assert differences(BLAS='Eigen', WITH_BLAS='open') == ['BLAS']
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
