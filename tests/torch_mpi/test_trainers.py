"""accelerate's and transformers' programs run unchanged with torch_mpi installed, whoever starts them."""

import subprocess

import pytest
from mpi_installation import PROGRAMS, Installed, kept_venv, make_venv_of_trainers

pytestmark = pytest.mark.slow

# Who starts it, the MPI that torch_mpi is for → the words before the program, and what it is to train on.
LAUNCHERS = {
    ("mpiexec", "mpich"): (["mpiexec.mpich", "-n", "2", "PYTHON"], "2 on mpi"),
    ("mpiexec", "openmpi"): (["mpiexec.openmpi", "--oversubscribe", "--bind-to", "none", "-n", "2", "PYTHON"],
                             "2 on mpi"),
    ("torchrun", "openmpi"): (["PYTHON", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
                              "2 on gloo"),
    ("python", "mpich"): (["PYTHON"], "1 on nothing"),
}


@pytest.mark.parametrize("launcher, mpi", LAUNCHERS)
def test_trainers(builds, launcher, mpi, tmp_path):
    python = kept_venv("trainers", make_venv_of_trainers)
    installed = Installed(mpi, python, builds[mpi].result())
    words, expected = LAUNCHERS[launcher, mpi]
    command = [python if word == "PYTHON" else word for word in words] + [PROGRAMS / "trainers.py", tmp_path]
    done = subprocess.run(command, env=installed.environment(HF_HUB_OFFLINE="1"), timeout=1200, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-6000:]
    for what in ("accelerate", "transformers"):
        assert done.stdout.count("%s: trained by %s\n" % (what, expected)) == int(expected[0]), done.stdout[-6000:]
