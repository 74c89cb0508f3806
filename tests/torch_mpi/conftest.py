"""A PyTorch, and torch_mpi built for each of the MPIs. TEST_TORCH=2.15.0 in the environment: with that PyTorch."""

import concurrent.futures
import shutil

import pytest
from mpi_installation import MPIS, Installed, build, kept_venv

# What the compiler is told beyond what everyone's is.
VARIANTS = {
    "mpich": "",
    "openmpi": "",
    "mpich-memory": "-O0 -g1 -fsanitize=address,undefined",
    "mpich-threads": "-O0 -g1 -fsanitize=thread",
}


@pytest.fixture(scope="session")
def python():
    """A Python with PyTorch."""
    return kept_venv()


@pytest.fixture(scope="session")
def builds(request, python):
    """Variant → the future of its prefix. All that this session needs begin at once: each keeps one core busy."""
    for program in ("mpicxx.", "mpirun."):
        for mpi in MPIS:
            assert shutil.which(program + mpi), (
                "expected %s%s, found none: apt-get install mpich libmpich-dev openmpi-bin libopenmpi-dev"
                % (program, mpi))
    chosen = [item.callspec.params.get(fixture) for item in request.session.items if hasattr(item, "callspec")
              for fixture in ("installed", "sanitized", "mpi")]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield {variant: pool.submit(build, variant, flags, python) for variant, flags in VARIANTS.items()
               if variant in chosen}


@pytest.fixture(scope="session", params=sorted(MPIS))
def installed(request, python, builds):
    """torch_mpi, once for each MPI."""
    return Installed(request.param, python, builds[request.param].result())
