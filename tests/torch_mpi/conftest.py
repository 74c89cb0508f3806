"""A PyTorch, the MPIs of this machine, and torch_mpi built for each of them as a user builds it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mpis import CACHE, CHECKOUT, HERE, MPIS, TORCH, environment


@pytest.fixture(scope="session")
def python():
    """A Python with PyTorch: the one that runs the tests when it has it, else that of a venv kept between runs."""
    probe = "import torch, sys; sys.exit(torch.__version__.split('+')[0] != %r)" % TORCH
    kept = CACHE / ("venv-%s" % TORCH) / "bin" / "python"
    for candidate in (sys.executable, kept):
        if Path(candidate).exists() and subprocess.run([candidate, "-c", probe], stderr=subprocess.DEVNULL,
                                                       env=environment()).returncode == 0:
            return str(candidate)
    shutil.rmtree(kept.parent.parent, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", kept.parent.parent], check=True)
    subprocess.run([kept, "-m", "pip", "install", "-q", "torch==" + TORCH, "numpy", "expecttest", "setuptools",
                    "wheel"], check=True, env=environment())
    return str(kept)


class Installed:
    """torch_mpi for one MPI, in a prefix of its own."""

    def __init__(self, mpi, python, prefix):
        self.mpi, self.python, self.prefix = mpi, python, prefix
        self.mpirun = ["mpirun." + mpi] + MPIS[mpi]
        self.site = next(prefix.glob("**/torch_mpi/__init__.py")).parent.parent

    def run(self, ranks, program, *arguments, timeout=240, options=(), status=0, **variables):
        """Run a program of this directory on so many ranks; returns its output. `status` None: any."""
        command = self.mpirun + list(options) + ["-n", str(ranks), self.python, str(HERE / program),
                                                 *map(str, arguments)]
        variables.setdefault("PYTHONPATH", str(self.site))
        done = subprocess.run(command, env=environment(**variables), timeout=timeout,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert status is None or done.returncode == status, done.stdout[-6000:]
        return done.stdout

    def alone(self, code, status=0, **variables):
        """Run Python code without mpirun."""
        done = subprocess.run([self.python, "-c", code], timeout=120, stdin=subprocess.DEVNULL, text=True,
                              env=environment(**dict({"PYTHONPATH": str(self.site)}, **variables)),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert status is None or done.returncode == status, done.stdout
        return done.stdout


def install(compiler, python, prefix):
    """As the README says: with pip, into a prefix, offline. From a copy, to leave no build folder in the checkout."""
    source = prefix.parent / "source"
    shutil.copytree(CHECKOUT / "torch_mpi", source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    done = subprocess.run(
        [python, "-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", "--prefix", prefix, source],
        env=environment(MPICXX=str(compiler)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.fixture(scope="session", params=sorted(MPIS))
def installed(request, python, tmp_path_factory):
    """torch_mpi, once for each MPI."""
    for program in ("mpicxx.", "mpirun."):
        assert shutil.which(program + request.param), (
            "expected %s%s, found none: apt-get install mpich libmpich-dev openmpi-bin libopenmpi-dev"
            % (program, request.param))
    prefix = tmp_path_factory.mktemp("torch_mpi_" + request.param) / "prefix"
    install("mpicxx." + request.param, python, prefix)
    return Installed(request.param, python, prefix)


@pytest.fixture
def results(tmp_path):
    """Reads what a program wrote as JSON."""
    def read(name):
        with open(tmp_path / name) as file:
            return json.load(file)
    return read
