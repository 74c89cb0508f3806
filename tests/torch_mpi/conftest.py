"""A PyTorch, and torch_mpi built for each of the MPIs. TEST_TORCH=2.15.0 in the environment: with that PyTorch."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mpis import CACHE, MPIS, TORCH, Installed, environment, install, make_venv


@pytest.fixture(scope="session")
def python():
    """A Python with PyTorch: the one that runs the tests when it has it, else that of a venv kept between runs."""
    probe = "import torch, sys; sys.exit(torch.__version__.split('+')[0] != %r)" % TORCH
    kept = CACHE / ("venv-%s" % TORCH)
    for candidate in (sys.executable, str(kept / "bin" / "python")):
        if Path(candidate).exists() and subprocess.run([candidate, "-c", probe], stderr=subprocess.DEVNULL,
                                                       env=environment()).returncode == 0:
            return candidate
    shutil.rmtree(kept, ignore_errors=True)
    return make_venv(kept, TORCH)


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
