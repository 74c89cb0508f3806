"""PyTorch's own distributed test class: whatever passes on gloo passes here, on real MPI processes."""

import concurrent.futures

import pytest
from mpi_installation import MPIS, Installed, environment, mpi_program, mpirun
from programs import upstream_suite

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def summaries(python, builds, tmp_path_factory):
    """"gloo" or an MPI → the results there. All at once, as many of the tests wait for a timeout."""
    there = [mpi for mpi in MPIS if mpi_program("mpicxx", mpi)]
    environments = {mpi: Installed(mpi, python, builds[mpi].result()).environment() for mpi in there}
    environments["gloo"] = environment()
    running = {}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for where in environments:
            start = mpirun(there[0] if where == "gloo" else where) + ["-n", "2"]
            running[where] = pool.submit(
                upstream_suite.run_all, start, "gloo" if where == "gloo" else "mpi",
                str(tmp_path_factory.mktemp(where)), ["test_*"], timeout=600, python=python,
                environment=environments[where])
        return {where: one.result() for where, one in running.items()}


@pytest.mark.nightly
def test_some_of_upstream_class(installed, tmp_path):
    """Without waiting for all: a few of its tests are found, run on two ranks, and pass."""
    few = ["test_all_reduce_sum", "test_barrier", "test_send_recv", "test_broadcast"]
    found = upstream_suite.run_all(installed.mpirun + ["-n", "2"], "mpi", str(tmp_path), few, timeout=300,
                                   python=installed.python, environment=installed.environment())
    assert {name: one["status"] for name, one in found.items()} == dict.fromkeys(few, upstream_suite.PASSED), found


@pytest.mark.nightly
@pytest.mark.parametrize("mpi", sorted(MPIS))
def test_upstream_class(builds, summaries, mpi):
    builds[mpi].result()
    assert not upstream_suite.lost(summaries["gloo"], summaries[mpi])
    passed = [name for name, one in summaries[mpi].items() if one["status"] == upstream_suite.PASSED]
    assert len(passed) > 95, sorted(passed)
