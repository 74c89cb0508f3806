"""pytorch-bandwidth: two ranks on this machine, with each backend, and what it makes of NCCL's log."""
import importlib.machinery
import importlib.util

import pytest
from common import SCRIPTS, nightly

from torch_mpi.tests.mpi_installation import VARIANTS, Installed, build, kept_venv

SCRIPT = SCRIPTS / "pytorch-bandwidth"


@pytest.fixture(scope="session", params=["mpich", nightly("openmpi")])
def installed(request):
    """torch_mpi, once for each MPI."""
    python = kept_venv()
    return Installed(request.param, python, build(request.param, VARIANTS[request.param], python))


@pytest.fixture(scope="module")
def script():
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("pytorch_bandwidth", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("pytorch_bandwidth", loader))
    loader.exec_module(module)
    return module


@pytest.mark.slow
def test_two_ranks(installed):
    """Every line is right."""
    output = installed.run(2, SCRIPT, "--to", "1K", "--seconds", "0.01")
    lines = [line.split() for line in output.splitlines() if line.split()[1:2] in (["all_reduce"], ["broadcast"])]
    assert [line[:2] for line in lines[::5]] == [
        [backend, operation] for backend in ("mpi", "gloo") for operation in ("all_reduce", "broadcast")]
    assert [line[4] for line in lines] == ["4", "16", "64", "256", "1024"] * 4
    for line in lines:
        assert line[-1] == "yes" and line[2] == "2" and float(line[5]) > 0
    assert "nccl was left out: it needs GPUs" in output


@pytest.mark.slow
def test_wrong_result(installed, tmp_path):
    """A sum that is wrong is told, and the exit status says so."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import os, sys, runpy, torch.distributed as dist\n"
                     # as below pytorch-srun, which would start the script without this
                     "names = 'PMI_RANK', 'OMPI_COMM_WORLD_RANK'\n"
                     "os.environ['RANK'] = next(os.environ[name] for name in names if name in os.environ)\n"
                     "dist.all_reduce.__globals__['dist_all_reduce'] = dist.all_reduce\n"
                     "dist.all_reduce = lambda tensor: None\n"
                     "sys.argv.pop(0)\nrunpy.run_path(sys.argv[0], run_name='__main__')\n")
    output = installed.run(2, wrong, SCRIPT, "mpi", "--to", "4", "--seconds", "0.01", status=None)
    assert " NO\n" in output


@pytest.mark.parametrize("log, transport", [
    ("nid1:1 [0] NCCL INFO NET/OFI Selected Provider is cxi (found 4 nics)\nnid1:1 [0] NCCL INFO Using network "
     "AWS Libfabric\n", "OFI plugin (provider cxi)"),
    ("nid1:1 [0] NCCL INFO Using network Libfabric\n", "OFI plugin"),
    ("nid1:1 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation\n"
     "nid1:1 [0] NCCL INFO NET/Socket : Using [0]hsn0:10.0.0.1<0>\nnid1:1 [0] NCCL INFO Using network Socket\n",
     "sockets (slow: load the module of the OFI plugin): No plugin found"),
    ("nid1:1 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so)\nnid1:1 [0] NCCL INFO Using network IB\n",
     "InfiniBand"),
    ("nid1:1 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v9 symbol.\nnid1:1 [0] NCCL INFO Using network "
     "Libfabric\n", "OFI plugin"),
    ("", "its log does not say; on one node it uses none"),
])
def test_transport(script, log, transport):
    """What NCCL says in its log."""
    assert script.transport_of(log) == transport
