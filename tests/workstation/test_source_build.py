"""
The workstation's own build of PyTorch, with the real tree of 2.6.0: configured by the easyblock without a network,
some of its files compiled as CMake configured them, and each part that it is asked for hidden once. Compiling all
takes hours and is not done here.
"""
import os
import shutil
import subprocess
import sys

import pytest
from common import CCACHE, CHECKOUT
from source import pytorch_sources

from hpc_pytorch import UsersProblem
from hpc_pytorch.packages import known_errors
from hpc_pytorch.source import build_options, contract

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

# without optimising; what this is about is whether files compile
OPTIONS = ['CMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG']
# Files of every kind, and for what was asked for a function of its library that the object must want.
FILES = {
    # C
    'third_party/miniz-3.0.2/miniz.c': None,
    'torch/csrc/empty.c': None,
    'csrc/dynamo/eval_frame.c': None,
    'functorch.dir/csrc/dim/dim_opcode.c': None,
    # c10, which knows nothing of what is generated
    'c10.dir/util/Exception.cpp': None,
    'c10.dir/util/numa.cpp': 'numa_bind',
    'c10.dir/core/TensorImpl.cpp': None,
    # tensors; generated code; code for one kind of processor each
    'ATen/core/Dict.cpp': None,
    'ATen/core/TensorMethods.cpp': None,
    'ATen/UfuncCPU_add.cpp': None,
    'ATen/native/CPUBlas.cpp': 'sgemm_',
    'ATen/native/BlasKernel.cpp': 'cblas_cdotu_sub',
    'native/cpu/int4mm_kernel.cpp.AVX2.cpp': None,
    'native/cpu/FillKernel.cpp.AVX512.cpp': None,
    'Caffe2_perfkernels_avx2.dir/embedding_lookup_idx_avx2.cc': None,
    'torch_cpu.dir/serialize/inline_container.cc': None,
    # torch/csrc
    'csrc/distributed/c10d/ProcessGroupMPI.cpp': 'MPI_Allreduce',
    'csrc/distributed/c10d/GlooDeviceFactory.cpp': 'gloo::transport::tcp::CreateDevice',
    'csrc/autograd/saved_variable.cpp': None,
    'csrc/jit/frontend/lexer.cpp': None,
    # Python
    'torch_python.dir/csrc/utils/tensor_numpy.cpp': '_Py_Dealloc',
}
# What a machine lacks that has the programs and not the packages to build with, and what is asked for in vain then.
LIBRARIES = '/usr/lib/x86_64-linux-gnu/'
HIDDEN = {
    'USE_MPI': ['/usr/bin/mpi*', LIBRARIES + 'openmpi/include/mpi.h', LIBRARIES + 'mpich/include/mpi.h'],
    'BLAS': [LIBRARIES + 'libopenblas.*'],
    'USE_NUMA': ['/usr/include/numa.h'],
    'USE_OPENMP': ['/usr/lib/gcc/x86_64-linux-gnu/*/libgomp.*'],
    'USE_SYSTEM_EIGEN_INSTALL': ['/usr/share/eigen3'],
}


@pytest.fixture(scope='module')
def configured(tmp_path_factory):
    """The configured tree, whose MPI backend has the change for GPUs."""
    directory = tmp_path_factory.mktemp('real')
    yield pytorch_sources.Configured(directory, OPTIONS, 'gpu_aware_mpi = True\n')
    shutil.rmtree(directory)


@pytest.fixture
def again(configured, tmp_path):
    """CMake once more in the same tree: what it says with other options, on a machine without some files."""
    cache = configured.build / 'CMakeCache.txt'
    before = cache.read_text()
    tools = configured.build.parent.parent / 'tools'

    def configure(options, forget=(), without=(), path=()):
        words = ['-D' + option for option in options] + [word for name in forget for word in ('-U', name)]
        return subprocess.run(
            pytorch_sources.machine(without) + [tools / 'bin' / 'cmake', *words, '.'], cwd=configured.build,
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, [*path, tools]))), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    yield configure
    cache.write_text(before)


def test_contract_holds(configured):
    """CMake decides what was asked for, without a network: the machine's MPI and OpenBLAS, and the lock's CMake."""
    assert "CMake enabled all requested options" in configured.output
    cache = contract.read_cache(configured.build / 'CMakeCache.txt')
    assert cache['USE_MPI'] == '1' and 'openblas' in cache['BLAS_openblas_LIBRARY']
    # CMake looked how it returns complex numbers: dot products of them were 0
    header = (configured.build.parent / 'aten/src/ATen/Config.h').read_text()
    assert cache['BLAS_USE_CBLAS_DOT'] == '1' and '#define AT_BLAS_USE_CBLAS_DOT() 1\n' in header
    assert '/tools/' in cache['CMAKE_COMMAND']


def test_files_compile(configured):
    """With the flags as configured, under ramgate; the objects call the libraries that were asked for."""
    build, tools = configured.build, configured.build.parent.parent / 'tools'
    # what was compiled in an earlier run, in another directory, is found again
    environment = dict(os.environ, **CCACHE, CCACHE_BASEDIR=str(tools.parent),
                       PATH=os.pathsep.join([str(tools / 'bin'), os.environ['PATH']]),
                       PYTHONPATH=os.pathsep.join([str(tools), str(CHECKOUT / 'ramgate')]))

    def said(*command):
        done = subprocess.run(command, cwd=build, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        return done.stdout
    targets = [line.partition(':')[0] for line in said('ninja', '-t', 'targets', 'all').splitlines()]
    objects = {name: [target for target in targets if target.endswith(name + '.o')] for name in FILES}
    assert all(len(found) == 1 for found in objects.values()), objects
    said(sys.executable, '-m', 'ramgate', 'run', '--', 'ninja', *(found for found, in objects.values()))
    for name, function in FILES.items():
        wanted = said('nm', '--demangle', '--undefined-only', *objects[name])
        assert (function or '') in wanted, (name, wanted)


# --- each part hidden once --------------------------------------------------------------------------------------------

def test_hidden_from_the_easyblock(tmp_path):
    """What CMake goes on without: it stops after CMake, names every option, where CMake looked, and the reason."""
    without = [path for paths in HIDDEN.values() for path in paths]
    output = pytorch_sources.Configured(tmp_path, OPTIONS + ['USE_OPENMP=1'], on=pytorch_sources.machine(without),
                                        status=None).output
    shutil.rmtree(tmp_path)
    assert 'CMake did not enable the requested options (%s); build stopped' % ', '.join(HIDDEN) in output
    assert 'MPI_CXX_COMPILER=MPI_CXX_COMPILER-NOTFOUND' in output
    assert "the MPI's module is not loaded" in output and 'libnuma-dev' in output


def test_hidden_from_python(configured, again, tmp_path):
    """NumPy; and what depends on a switch that is off, which CMake's cache shows as it was asked for."""
    (tmp_path / 'numpy.py').write_text("raise ImportError('hidden')\n")
    options = ['USE_DISTRIBUTED=0', 'USE_MPI=1', 'USE_NUMPY=1', 'USE_FLASH_ATTENTION=1']
    done = again(options, ['Python_NumPy*', '_Python*'], path=[tmp_path])
    assert done.returncode == 0, done.stdout
    asked = build_options.as_dict(options)
    with pytest.raises(UsersProblem, match='(?s)USE_MPI, USE_NUMPY, USE_FLASH_ATTENTION.*NumPy is not installed'):
        contract.check(str(configured.build.parent), done.stdout, asked, asked)


@pytest.mark.parametrize('options, forget, files, error', [
    (['BLAS=OpenBLAS'], 'OpenBLAS*', [LIBRARIES + 'libopenblas.*'], 'Could not find OpenBLAS'),
    # which this machine never had
    (['BLAS=MKL'], 'MKL*', [], 'MKL library not found'),
    ([], 'Gloo*', ['/usr/lib/libgloo.so'], 'Cannot find gloo'),
])
def test_hidden_from_cmake(again, options, forget, files, error):
    """What CMake does not go on without: its error is shown, and what to do."""
    done = again(options, [forget], files)
    assert done.returncode and error in known_errors.excerpt(done.stdout), done.stdout
    assert 'install it with its headers' in known_errors.explain(done.stdout)
