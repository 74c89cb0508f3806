"""
The workstation's own build of PyTorch, with the real tree of 2.6.0: configured by the easyblock without a network, and
twenty of its files compiled as CMake configured them. Compiling all takes hours and is not done here.
"""
import os
import shutil
import subprocess
import sys

import pytest
from common import CCACHE, CHECKOUT
from source import pytorch_sources

from hpc_pytorch.source import contract

pytestmark = pytest.mark.slow

# without optimising; what this is about is whether files compile
OPTIONS = ['USE_NUMA=1', 'CMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG']
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


@pytest.fixture(scope='module')
def configured(tmp_path_factory):
    """The configured tree, whose MPI backend has the change for GPUs."""
    directory = tmp_path_factory.mktemp('real')
    yield pytorch_sources.Configured(directory, OPTIONS, 'gpu_aware_mpi = True\n')
    shutil.rmtree(directory)


def test_contract_holds(configured):
    """CMake decides what was asked for, without a network: the machine's MPI and OpenBLAS, and the lock's CMake."""
    assert "CMake's decisions are what was asked for" in configured.output
    cache = contract.read_cache(configured.build / 'CMakeCache.txt')
    assert cache['USE_MPI'] == '1' and 'openblas' in cache['OpenBLAS_LIB']
    assert '/tools/' in cache['CMAKE_COMMAND']


def test_files_compile(configured):
    """With the flags as configured, under ramgate; the objects call the libraries that were asked for."""
    build, tools = configured.build, configured.build.parent.parent / 'tools'
    # what was compiled in an earlier run, in another directory, is found again
    environment = dict(os.environ, **CCACHE, CCACHE_BASEDIR=str(build.parent),
                       PATH=os.pathsep.join([str(tools / 'bin'), os.environ['PATH']]),
                       PYTHONPATH=os.pathsep.join([str(tools), str(CHECKOUT)]))

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
