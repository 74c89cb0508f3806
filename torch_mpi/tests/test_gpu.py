"""GPU tensors, on an imitated device (fake_cuda.cpp): handed over as they are, or copied through pinned memory."""

import subprocess

import pytest
from mpi_installation import CCACHE, HERE, PROJECT, environment

pytestmark = pytest.mark.slow

FLAGS = """
import sysconfig, torch
from torch.utils import cpp_extension as extension
print(*["-isystem" + path for path in [*extension.include_paths(), sysconfig.get_paths()["include"]]],
      "-D_GLIBCXX_USE_CXX11_ABI=%d" % torch._C._GLIBCXX_USE_CXX11_ABI,
      *[option + path for path in extension.library_paths() for option in ("-L", "-Wl,-rpath,")], sep="\\n")
"""


@pytest.fixture(scope="session")
def fake_cuda(python, tmp_path_factory):
    """The directory with the module fake_cuda."""
    directory = tmp_path_factory.mktemp("fake_cuda")
    flags = subprocess.run([python, "-c", FLAGS], env=environment(TORCH_DEVICE_BACKEND_AUTOLOAD="0"), check=True,
                           stdout=subprocess.PIPE, text=True).stdout.split("\n")[:-1]
    includes, libraries = [[flag for flag in flags if flag[:2] in kind] for kind in (("-i", "-D"), ("-L", "-W"))]
    # the headers of few operators, as torch_mpi itself is compiled
    few = ["-I%s/src/less" % PROJECT, "-DAT_PER_OPERATOR_HEADERS=1"]
    for words in (["-std=c++17", "-Wall", "-Werror", "-fPIC", "-fvisibility=hidden", "-c", str(HERE / "fake_cuda.cpp"),
                   "-o", "fake_cuda.o", *few, *includes],
                  ["-shared", "fake_cuda.o", "-o", "fake_cuda.so", *libraries, "-lc10", "-ltorch",
                   "-ltorch_cpu", "-ltorch_python"]):
        subprocess.run(["g++", *words], cwd=directory, env=environment(**CCACHE), check=True)
    return directory


@pytest.mark.parametrize("memory, aware", [
    pytest.param("open", True, marks=pytest.mark.nightly), ("closed", False)])
def test_gpu_tensors(installed, fake_cuda, memory, aware):
    """A GPU-aware MPI gets their addresses, another one copies; both at the right time, whichever stream is used.

    Open MPI is never handed such an address in a collective: it would crash.
    """
    output = installed.run(2, "gpu_tensors.py", FAKE_CUDA=memory, TORCH_MPI_GPU_AWARE=str(int(aware)),
                           PYTHONPATH="%s:%s" % (installed.site, fake_cuda))
    collectives = not aware or installed.mpi == "openmpi"
    assert output.count("right; copied through pinned memory: collectives %s, messages %s" % (
        collectives, not aware)) == 2, output
    assert output.count("are copied through pinned host memory") == collectives, output


@pytest.mark.nightly
def test_the_device_is_closed(python, fake_cuda):
    """So that an MPI which cannot take GPU memory would be noticed to get it."""
    code = ("import fake_cuda, torch, ctypes; torch.cuda._lazy_init = lambda: None\n"
            "ctypes.string_at(torch.zeros(4, device='cuda').data_ptr(), 4)")
    found = [subprocess.run([python, "-c", code], stderr=subprocess.DEVNULL, env=environment(
        FAKE_CUDA=memory, PYTHONPATH=str(fake_cuda), TORCH_DEVICE_BACKEND_AUTOLOAD="0")).returncode
        for memory in ("open", "closed")]
    assert found[0] == 0 and found[1] < 0
