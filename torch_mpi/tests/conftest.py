"""A PyTorch, and torch_mpi built for each of the MPIs. TEST_TORCH=2.15.0 in the environment: with that PyTorch."""

import concurrent.futures

import pytest
from mpi_installation import MPIS, VARIANTS, Installed, build, mpi_program, python_with_torch


@pytest.fixture(scope="session")
def python():
    """A Python with PyTorch."""
    return python_with_torch()


class Builds(dict):
    """Variant → the future of its prefix. A test is skipped where its MPI is missing and the other one is there."""

    def __missing__(self, variant):
        pytest.skip("no mpicxx for %s" % variant)


@pytest.fixture(scope="session")
def builds(request, python):
    """All that this session needs begin at once: each keeps one core busy."""
    there = [mpi for mpi in MPIS if mpi_program("mpicxx", mpi)]
    assert there, "expected mpicxx and mpirun of MPICH or Open MPI on PATH, found none"
    chosen = [item.callspec.params.get(fixture) for item in request.session.items if hasattr(item, "callspec")
              for fixture in ("installed", "sanitized", "mpi")]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield Builds((variant, pool.submit(build, variant, flags, python)) for variant, flags in VARIANTS.items()
                     if variant in chosen and variant.split("-")[0] in there)


# One build is enough for most tests; `./test nightly` runs all of them with the other MPI, too.
FIRST, *OTHERS = [mpi for mpi in MPIS if mpi_program("mpicxx", mpi)] or list(MPIS)


@pytest.fixture(scope="session", params=[FIRST, *(pytest.param(mpi, marks=pytest.mark.nightly) for mpi in OTHERS)])
def installed(request, python, builds):
    """torch_mpi; every night once for each MPI."""
    return Installed(request.param, python, builds[request.param].result())
