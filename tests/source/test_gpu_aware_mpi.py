"""The change to PyTorch's MPI backend: real sources, compiled and run with the real MPICH and the real Open MPI."""
import re
import subprocess

import pytest
from common import CHECKOUT, clean_environment

from source import pytorch_sources

from hpc_pytorch import UsersProblem
from hpc_pytorch.source import gpu_aware_mpi

pytestmark = pytest.mark.slow

VERSIONS = sorted(pytorch_sources.TARBALLS)
COMPILERS = {'mpich': 'mpicxx.mpich', 'openmpi': 'mpicxx.openmpi'}

# What stands around the decision in PyTorch, as small as it can be; the decision and its caller are the real ones.
PROGRAM = r'''
#include <mpi.h>
#include <cstdio>
#include <sstream>
#include <stdexcept>
template <class... Words> std::string joined(const Words&... words) {
  std::ostringstream text;
  int all[] = {(text << words, 0)...};
  (void)all;
  return text.str();
}
#define TORCH_CHECK(condition, ...) if (!(condition)) throw std::runtime_error(joined(__VA_ARGS__))
namespace at {
struct Tensor {
  bool is_contiguous() const { return true; }
  bool is_sparse() const { return false; }
  bool is_cuda() const { return true; }
};
}
#include "%(decision)s"
%(code)s
int main(int argc, char** argv) {
  if (argc < 2) MPI_Init(nullptr, nullptr);
  try {
    checkSingleTensorHelper(at::Tensor());
    puts("yes");
  } catch (const std::runtime_error& error) {
    printf("no: %%s\n", error.what());
  }
  if (argc < 2) MPI_Finalize();
}
'''
# An MPI that says it takes GPU memory, and one that says it is Cray's: put in front of the real one.
SAYS_YES = r'''
extern "C" int MPIX_GPU_query_support(int, int* flag) { *flag = 1; return 0; }
extern "C" int MPIX_Query_cuda_support(void) { return 1; }
'''
SAYS_CRAY = r'''
#include <cstring>
extern "C" int MPI_Get_library_version(char* version, int* length) {
  strcpy(version, "MPI VERSION    : CRAY MPICH version 8.1.27.26 (ANL base 3.4a2)");
  *length = strlen(version);
  return 0;
}
'''


def changed(version, directory):
    """A tree of this version with the change."""
    backend = directory / version / gpu_aware_mpi.BACKEND
    backend.parent.mkdir(parents=True)
    backend.write_text((pytorch_sources.tree(version) / pytorch_sources.BACKEND).read_text())
    gpu_aware_mpi.apply(str(directory / version))
    return backend


class Program:
    """The decision of one version, compiled for one MPI."""

    def __init__(self, version, mpi, directory, options=()):
        self.directory, self.mpi = directory, mpi
        backend = changed(version, directory)
        code = re.search(r'^bool cudaAwareMpiCheck.*?^\}\n.*?^void checkSingleTensorHelper.*?^\}\n',
                         backend.read_text(), re.M | re.S).group()
        source = directory / 'program.cpp'
        source.write_text(PROGRAM % {'decision': backend.parent / gpu_aware_mpi.DECISION, 'code': code})
        self.path = directory / 'program'
        self.compile(source, self.path, *options)

    def compile(self, source, target, *options):
        """With this MPI's compiler."""
        subprocess.run([COMPILERS[self.mpi], '-std=c++17', '-Wall', '-Werror', *options, str(source),
                        '-o', str(target)], check=True)

    def __call__(self, *arguments, stub=None, **environment):
        """What it says."""
        if stub:
            source, library = self.directory / 'stub.cpp', self.directory / 'stub.so'
            source.write_text(stub)
            self.compile(source, library, '-shared', '-fPIC')
            environment['LD_PRELOAD'] = str(library)
        done = subprocess.run([str(self.path), *arguments], env=dict(clean_environment(), **environment), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        assert done.returncode == 0, done.stdout
        return done.stdout.strip()


@pytest.fixture(params=sorted(COMPILERS))
def mpi(request):
    """Each of the two MPIs."""
    return request.param


@pytest.mark.parametrize('version', VERSIONS)
def test_answers(version, mpi, tmp_path):
    """Debian's MPIs take no GPU memory; the variable overrules both ways; an MPI that says yes is believed."""
    program = Program(version, mpi, tmp_path)
    answer = program()
    assert answer.startswith('no: ')
    assert 'MPICH_GPU_SUPPORT_ENABLED=1' in answer and 'TORCH_MPI_GPU_AWARE=1' in answer
    assert program(TORCH_MPI_GPU_AWARE='1') == 'yes'
    assert program(stub=SAYS_YES) == 'yes'
    assert program(stub=SAYS_YES, TORCH_MPI_GPU_AWARE='0').startswith('no: ')
    # MPICH would end the process if it were asked before it is initialised
    assert program('not initialised').startswith('no: ')


@pytest.mark.parametrize('version', VERSIONS)
def test_cray(version, tmp_path):
    """Cray's library is known at run time, whatever was compiled with; its variable decides."""
    program = Program(version, 'mpich', tmp_path)
    assert program(stub=SAYS_CRAY).startswith('no: ')
    assert program(stub=SAYS_CRAY, MPICH_GPU_SUPPORT_ENABLED='0').startswith('no: ')
    assert program(stub=SAYS_CRAY, MPICH_GPU_SUPPORT_ENABLED='1') == 'yes'


@pytest.mark.parametrize('version', VERSIONS)
def test_rocm(version, mpi, tmp_path):
    """On ROCm MPI is asked for HIP: an Open MPI that takes CUDA's memory is no help."""
    program = Program(version, mpi, tmp_path, ['-DUSE_ROCM'])
    assert program().startswith('no: ')
    assert (program(stub=SAYS_YES) == 'yes') == (mpi == 'mpich')
    assert program(TORCH_MPI_GPU_AWARE='1') == 'yes'


@pytest.mark.nightly
@pytest.mark.parametrize('mpi', ['mpich', 'openmpi'])
def test_whole_file_compiles(mpi, tmp_path):
    """The real file of 1.13.1 with the change, against the real headers."""
    backend = changed('1.13.1', tmp_path)
    headers = pytorch_sources.headers()
    subprocess.run([COMPILERS[mpi], '-std=c++17', '-fsyntax-only', '-w', '-DUSE_C10D_MPI', '-DUSE_DISTRIBUTED',
                    '-I%s' % headers, '-I%s' % (headers / 'torch/csrc/api/include'), str(backend)], check=True)


def test_twice(tmp_path):
    """A tree that has the change keeps it; a build that goes on applies it again."""
    backend = changed('2.6.0', tmp_path)
    text = backend.read_text()
    gpu_aware_mpi.apply(str(tmp_path / '2.6.0'))
    assert backend.read_text() == text


def newer(text):
    """The decision as newer versions have it: longer, and with Cray MPICH in it."""
    return text.replace('#else // !defined(MPIX_CUDA_AWARE_SUPPORT)', '''#elif defined(MPIX_GPU_SUPPORT_CUDA)
  const char* enabled = std::getenv("MPICH_GPU_SUPPORT_ENABLED");
  if (enabled) {
    return true;
  }
  return false;
#else''')


def test_newer_decision(tmp_path):
    """What the function says does not matter: it is replaced as a whole."""
    text = (pytorch_sources.tree('2.6.0') / pytorch_sources.BACKEND).read_text()
    assert newer(text) != text
    assert gpu_aware_mpi.patched(newer(text)) == gpu_aware_mpi.patched(text)


@pytest.mark.parametrize('old, new, place', [
    ('bool cudaAwareMpiCheck() {', 'bool gpuAwareMpiCheck() {', "'bool cudaAwareMpiCheck() {'"),
    ('#ifdef USE_C10D_MPI\n', '#if defined(USE_C10D_MPI)\n', "'#ifdef USE_C10D_MPI'"),
    ('tensor.is_cuda() && !cudaAware', 'tensor.is_xpu() && !cudaAware', 'tensor.is_cuda()'),
    ('void checkSameSizeAndType(', 'bool other = cudaAwareMpiCheck();\nvoid checkSameSizeAndType(', 'and no other'),
    (None, None, 'there is no file'),
])
def test_place_not_found(tmp_path, old, new, place):
    """It says which place it did not find, and changes nothing."""
    backend = tmp_path / gpu_aware_mpi.BACKEND
    if old:
        backend.parent.mkdir(parents=True)
        text = (pytorch_sources.tree('2.6.0') / pytorch_sources.BACKEND).read_text()
        assert old in text
        backend.write_text(text.replace(old, new))
    before = [(path, path.read_text()) for path in tmp_path.rglob('*') if path.is_file()]
    with pytest.raises(UsersProblem, match=re.escape(place)):
        gpu_aware_mpi.apply(str(tmp_path))
    assert [(path, path.read_text()) for path in tmp_path.rglob('*') if path.is_file()] == before


def test_same_decision_as_torch_mpi():
    """One home: what goes into PyTorch is the file that torch_mpi is compiled with."""
    assert gpu_aware_mpi.DECISION_PATH == str(CHECKOUT / 'torch_mpi' / 'src' / 'gpu_aware.h')
