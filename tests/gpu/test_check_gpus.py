"""check_gpus.py on the GPU of this machine, where there is one; elsewhere it says what it misses."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent / "check_gpus.py"


@pytest.mark.slow
def test_check_gpus(python):
    if subprocess.run([python, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]).returncode == 0:
        subprocess.run([python, SCRIPT, "--mpi", "mpicxx.mpich", "mpirun.mpich"], check=True)
        return
    done = subprocess.run([python, SCRIPT], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "expected a GPU that this PyTorch" in done.stderr, done.stderr
