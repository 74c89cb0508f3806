"""PyTorch's own distributed test class: whatever passes on gloo passes here, on real MPI processes."""

import concurrent.futures

import pytest
from mpi_installation import MPIS, Installed, environment, mpirun
from programs import upstream_suite

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def summaries(python, builds, tmp_path_factory):
    """"gloo" or an MPI → the results there. All at once, as many of the tests wait for a timeout."""
    around = {mpi: Installed(mpi, python, builds[mpi].result()).environment() for mpi in MPIS}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = {where: pool.submit(
            upstream_suite.launch, mpirun(where if where in MPIS else "mpich") + ["-n", "2"],
            "mpi" if where in MPIS else "gloo", str(tmp_path_factory.mktemp(where)), ["test_*"], timeout=600,
            python=python, environment=around.get(where, environment())) for where in ["gloo", *MPIS]}
        return {where: one.result() for where, one in running.items()}


@pytest.mark.parametrize("mpi", sorted(MPIS))
def test_upstream_class(summaries, mpi):
    assert not upstream_suite.lost(summaries["gloo"], summaries[mpi])
    passed = [name for name, one in summaries[mpi].items() if one["status"] == upstream_suite.PASSED]
    assert len(passed) > 95, sorted(passed)
