"""pytorch-bandwidth: two ranks on this machine, with each backend, and what it makes of NCCL's log."""
import csv
import importlib.machinery
import importlib.util

import pytest
from common import SCRIPTS

from torch_mpi.tests.mpi_installation import MPIS, Installed, build, kept_venv

SCRIPT = SCRIPTS / "pytorch-bandwidth"


@pytest.fixture(scope="session", params=sorted(MPIS))
def installed(request):
    """torch_mpi, once for each MPI."""
    python = kept_venv()
    return Installed(request.param, python, build(request.param, "", python))


@pytest.fixture(scope="module")
def script():
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("pytorch_bandwidth", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("pytorch_bandwidth", loader))
    loader.exec_module(module)
    return module


@pytest.mark.slow
def test_two_ranks(installed, tmp_path):
    """Every line is right, and the file has what the table has."""
    file = tmp_path / "bandwidth.csv"
    output = installed.run(2, SCRIPT, "--csv", file, "--to", "1K", "--seconds", "0.01")
    with open(file, newline="") as handle:
        lines = list(csv.DictReader(handle))
    assert {(line["backend"], line["operation"]) for line in lines} == {
        (backend, operation) for backend in ("mpi", "gloo") for operation in ("all_reduce", "broadcast")}
    assert [line["bytes"] for line in lines[:5]] == ["4", "16", "64", "256", "1024"]
    for line in lines:
        assert line["right"] == "yes" and line["ranks"] == "2" and float(line["microseconds"]) > 0
    assert output.count("all_reduce") == 10 and "nccl was left out: it needs GPUs" in output


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


@pytest.mark.parametrize("log, transport, slow", [
    ("nid1:1 [0] NCCL INFO NET/OFI Selected Provider is cxi (found 4 nics)\nnid1:1 [0] NCCL INFO Using network "
     "AWS Libfabric\n", "OFI plugin (provider cxi)", False),
    ("nid1:1 [0] NCCL INFO Using network Libfabric\n", "OFI plugin", False),
    ("nid1:1 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation\n"
     "nid1:1 [0] NCCL INFO NET/Socket : Using [0]hsn0:10.0.0.1<0>\nnid1:1 [0] NCCL INFO Using network Socket\n",
     "sockets", True),
    ("nid1:1 [0] NCCL INFO Using network IB\n", "InfiniBand", False),
    ("", None, False),
])
def test_transport(script, log, transport, slow):
    """What NCCL says in its log."""
    assert script.transport_of(log) == (transport, slow)


def test_slow_one_is_warned_of(script, capsys):
    """Sockets on a machine with a better network."""
    given = type("Given", (), {"csv": None})
    line = dict(zip(script.COLUMNS, ["nccl", "all_reduce", 8, "cuda", 4, "9.0", "0.1", "0.2", "yes"]))
    script.report(given, [line], {}, "sockets", True)
    assert "WARNING: NCCL talks over sockets" in capsys.readouterr().out
