"""What happens when a rank fails, is late, is killed or does something wrong: an error that says so, never a hang."""

import time

import pytest

pytestmark = pytest.mark.slow

# Case → ranks, what its output must contain, how often.
SURVIVED = {
    "received": (2, [("recv of rank 0: Timed out after 1 s", 1), ("sum 2", 2)]),
    "monitored": (3, [("Rank 2 failed to pass monitoredBarrier in 1000 ms", 1), ("sum 3", 3),
                      ("successfully reached monitoredBarrier", 2)]),
    "threads": (2, [("threads agree", 2)]),
    "dropped": (2, [("all arrived", 2)]),
    "subset": (2, [("timed out creating a process group", 1)]),
    "leftover": (2, [("nothing left over", 2), ("[Rank 0]: Rank 1 failed to pass", 5),
                     ("[Rank 1]: Rank 1 successfully reached", 5)]),
    "contradicted": (2, [("rank and size come from MPI", 2), ("rank=5 was given", 2)]),
}
ENDS_ALL = {
    "absent": (2, [("all_reduce of rank 0: Timed out after 2 s [", 1), ("has failed before", 1)]),
    "notice": (3, [("rank 0: DistBackendError: torch_mpi: all_reduce of rank 0: Timed out after 2 s", 1),
                   ("the process group failed: rank 0: all_reduce of rank 0: Timed out", 2)]),
    "asynchronous": (2, [("rank 0: DistBackendError: torch_mpi: all_reduce of rank 0: Timed out", 1)]),
    "raised": (3, [("ValueError: something is wrong here", 1), ("rank 1 ends by an error, so all ranks are ended", 1)]),
    "unheard": (2, [("ValueError: something is wrong here", 1), ("rank 1 ends by an error", 1)]),
    "aborted": (3, [("the process group failed: rank 1: the process group was aborted", 2)]),
    "inherited": (3, [("nothing inherited", 3)]),
    "truncated": (2, [("runcate", 2)]),
}


def contains(output, expected):
    """Each text appears so often."""
    for text, times in expected:
        assert output.count(text) >= times, (text, output[-5000:])


@pytest.mark.parametrize("case", sorted(SURVIVED))
def test_survived(installed, case, tmp_path):
    ranks, expected = SURVIVED[case]
    contains(installed.run(ranks, "faults.py", case, timeout=60, FLAG_FILE=str(tmp_path / "flag")), expected)


@pytest.mark.parametrize("case", sorted(ENDS_ALL))
def test_ends_all(installed, case, tmp_path):
    ranks, expected = ENDS_ALL[case]
    output = installed.run(ranks, "faults.py", case, timeout=60, status=None, FLAG_FILE=str(tmp_path / "flag"))
    contains(output, expected)


def test_messages_arrive_though_the_sender_makes_no_further_call(installed, tmp_path):
    output = installed.run(2, "faults.py", "delivered", timeout=90, FLAG_FILE=str(tmp_path / "flag"))
    contains(output, [("delivered", 2)])


def test_killed_rank_ends_the_others_within_the_timeout(installed):
    # mpirun itself must not do it: that is what a batch system without such a service looks like
    options = {"mpich": ["-disable-auto-cleanup"], "openmpi": ["--mca", "orte_abort_on_non_zero_status", "0",
                                                               "--mca", "orte_enable_recovery", "1"]}
    begin = time.monotonic()
    output = installed.run(3, "faults.py", "killed", options=options[installed.mpi], timeout=90, status=None)
    assert output.count("started") == 3, output
    assert time.monotonic() - begin < 60, output
