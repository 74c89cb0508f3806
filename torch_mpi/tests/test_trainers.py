"""Frameworks train as with gloo; accelerate's and transformers' programs run unchanged, whoever starts them."""

import functools
import json
import subprocess

import pytest
from mpi_installation import PROGRAMS, TRAINERS, Installed, kept_venv, make_venv_of_trainers, mpirun

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
# DeepSpeed has only a source, which imports torch
FRAMEWORKS = ["--no-build-isolation", "deepspeed==0.19.8", "lightning==2.6.6", *TRAINERS]

# Who starts it, the MPI that torch_mpi is for → the words before the program, and what it is to train on.
STARTED_BY = {
    ("mpirun", "mpich"): (["MPIRUN", "-n", "2", "PYTHON"], "2 on mpi"),
    ("mpirun again", "openmpi"): (["MPIRUN", "-n", "2", "PYTHON"], "2 on mpi"),
    ("torchrun", "mpich"): (["PYTHON", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
                              "2 on gloo"),
    ("python", "mpich"): (["PYTHON"], "1 on nothing"),
}


@pytest.mark.parametrize("starter, mpi", STARTED_BY)
def test_trainers(builds, starter, mpi, tmp_path):
    python = kept_venv("trainers", make_venv_of_trainers)
    installed = Installed(mpi, python, builds[mpi].result())
    words, expected = STARTED_BY[starter, mpi]
    meaning = {"PYTHON": [python], "MPIRUN": mpirun(mpi)}
    command = [part for word in words for part in meaning.get(word, [word])] + [PROGRAMS / "trainers.py", tmp_path]
    done = subprocess.run(command, env=installed.environment(HF_HUB_OFFLINE="1"), timeout=1200, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-6000:]
    for what in ("accelerate", "transformers"):
        assert done.stdout.count("%s: trained by %s\n" % (what, expected)) == int(expected[0]), done.stdout[-6000:]


@pytest.mark.parametrize("framework, mpi", [("zero1", "mpich"), ("zero2", "openmpi"), ("lightning", "mpich"),
                                            ("transformers", "openmpi")])
def test_frameworks(builds, framework, mpi, tmp_path):
    """Each loss of a small training is that with gloo."""
    python = kept_venv("frameworks", functools.partial(make_venv_of_trainers, packages=FRAMEWORKS))
    installed = Installed(mpi, python, builds[mpi].result())
    losses = {}
    for backend in ("mpi", "gloo"):
        # gloo's threads sometimes abort the process at its very end, after the results are written
        installed.run(2, "frameworks.py", framework, backend, tmp_path / backend, HF_HUB_OFFLINE="1",
                      status=0 if backend == "mpi" else None)
        losses[backend] = json.loads((tmp_path / backend).read_text())
    assert losses["mpi"] == losses["gloo"] and len(losses["mpi"]) == 8
