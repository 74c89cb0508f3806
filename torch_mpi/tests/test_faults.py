"""What happens when a rank fails, is late, is killed or does something wrong: an error that says so, never a hang."""

import re
import subprocess
import time

import pytest
from mpi_installation import HERE, mpi_program

pytestmark = pytest.mark.slow

# Case → ranks, what its output must contain, how often.
SURVIVED = {
    "received": (2, [("recv of rank 0: Timed out after 1 s", 1), ("sum 2", 2)]),
    "monitored": (3, [("Rank 2 failed to pass monitoredBarrier in 1000 ms", 1), ("sum 3", 3),
                      ("successfully reached monitoredBarrier", 2)]),
    "threads": (2, [("threads agree", 2)]),
    "dropped": (2, [("all arrived", 2)]),
    "leftover": (2, [("nothing left over", 2), ("[Rank 0]: Rank 1 failed to pass", 5),
                     ("[Rank 1]: Rank 1 successfully reached", 5)]),
    "contradicted": (2, [("rank and size come from MPI", 2), ("rank=5 was given", 2), ("leave that out", 2)]),
    "late_first": (2, [("timed out creating a process group", 2), ("the next group has 2", 2)]),
    "handled": (2, [("all is well", 2)]),
    "forked": (2, [("stuck 0", 2)]),
    "interrupted": (2, [("rank 0: interrupted [", 1), ("rank 0: interrupted again [", 1)]),
    "arrived_meanwhile": (2, [("rank 0: no error [1.0, 1.0, 1.0]", 1)]),
    # the last one, as the ranks no longer agree on how many groups there were
    "subset": (2, [("timed out creating a process group", 1)]),
}
ENDS_ALL = {
    "absent": (2, [("all_reduce of rank 0: Timed out after 2 s [", 1), ("has failed before", 1)]),
    "notice": (3, [("rank 0: DistBackendError: torch_mpi: all_reduce of rank 0: Timed out after 2 s", 1),
                   ("the process group failed: rank 0: all_reduce of rank 0: Timed out", 2)]),
    "asynchronous": (2, [("rank 0: DistBackendError: torch_mpi: all_reduce of rank 0: Timed out", 1)]),
    "raised": (3, [("ValueError: something is wrong here", 1), ("rank 1 ends by an error, so all ranks are ended", 1)]),
    "unheard": (2, [("ValueError: something is wrong here", 1), ("rank 1 ends by an error", 1)]),
    "exit_status": (3, [("started", 3), ("rank 1 ends with status 3, so all ranks are ended", 1)]),
    "half_posted": (2, [("rank 1: DistBackendError: torch_mpi: MPI_Isend", 1),
                        ("rank 1: DistBackendError: torch_mpi: MPI_Ireduce_scatter_block", 1),
                        ("reduce_scatter of rank 1 could not be started", 2), ("has failed before", 1)]),
    "aborted": (3, [("the process group failed: rank 1: the process group was aborted", 2)]),
    "inherited": (3, [("nothing inherited", 3)]),
    "truncated": (2, [("runcate", 2)]),
    "disagreeing": (3, [("all said", 3)]),  # and see below
    # without a word it would be a wrong result
    "falls_short": (4, [("rank 0: the ranks disagree: rank %d sends %d bytes, rank 0 receives 8" % sent, 1)
                        for sent in ((2, 4), (2, 0), (0, 0))]),
    "gone": (3, [("all_reduce of rank 2: rank 1 has ended or destroyed the group, rank 2 calls ALLREDUCE", 2)]),
    # by itself, or by the notice of the other one
    "gone_silently": (3, [(": rank 1 has ended [", 2)]),
    "gone_later": (3, [("all arrived", 2)]),
}


def contains(output, expected):
    """Check that each text appears so often."""
    for text, times in expected:
        assert output.count(text) >= times, (text, output[-5000:])


@pytest.fixture(scope="session")
def preload(installed, tmp_path_factory):
    """MPI that does what it rarely does."""
    library = tmp_path_factory.mktemp("preload") / "preload_mpi.so"
    compiler = mpi_program("mpicc", installed.mpi)
    flags = ["-Wall", "-Werror", "-fPIC", "-shared"]
    subprocess.run([compiler, *flags, HERE / "preload_mpi.c", "-o", library], check=True)
    return str(library)


@pytest.fixture(scope="session")
def survived(installed, preload, tmp_path_factory):
    """What all of these cases printed, in two runs: to start Python with torch takes longer than any of them.

    All ranks end with the same status then, which is no reason to end any.
    """
    return "\n".join(installed.run(
        ranks, "faults.py", *[case for case in SURVIVED if SURVIVED[case][0] == ranks], "handled", LD_PRELOAD=preload,
        status=None, timeout=600, FLAG_FILE=str(tmp_path_factory.mktemp("flags") / "flag")) for ranks in (2, 3))


@pytest.mark.parametrize("case", sorted(SURVIVED))
def test_survived(survived, installed, case):
    said = "\n".join(line for line in survived.splitlines() if line.startswith("[%s] " % case))
    assert said, survived[-5000:]
    contains(said, SURVIVED[case][1])


def test_nobody_is_ended_when_all_end(survived):
    assert "all ranks are ended" not in survived, survived[-5000:]
    assert "a duplicate is written elsewhere" in survived and "written to the stack" not in survived


# each way to notice it once
EVERY_DAY = ("raised", "exit_status", "disagreeing", "falls_short", "gone")


@pytest.mark.parametrize("case", [*EVERY_DAY, *(pytest.param(case, marks=pytest.mark.nightly)
                                                for case in sorted(set(ENDS_ALL) - set(EVERY_DAY)))])
def test_ends_all(installed, preload, case, tmp_path):
    ranks, expected = ENDS_ALL[case]
    output = installed.run(ranks, "faults.py", case, status=None, FLAG_FILE=str(tmp_path / "flag"), LD_PRELOAD=preload)
    contains(output, expected)
    if case == "disagreeing":
        all_are_told(output)
    if case in ("raised", "exit_status"):
        # job scripts look for these words
        status = 1 if case == "raised" else 3
        assert re.search(r": rank 1 on \S+ ended with status %d at 20\S+T\S+\.\d{9}\n" % status, output), output[-5000:]


def all_are_told(output):
    """In each way to disagree: ranks 1 and 2 hear another call than theirs; MPI's own error may reach rank 0 before."""
    # Open MPI may write the end of a line of its own late: what a rank says does not always begin one
    said = re.findall(r"\[disagreeing\] rank (\d): (.*, \w+ is late): (.*) \[[\d.]+ s\]$", output, re.M)
    ways = {}
    for rank, way, text in said:
        ways.setdefault(way, {})[rank] = text
    assert len(ways) == 14 * 3, output[-5000:]
    for way, ranks in ways.items():
        assert ranks["1"] == ranks["2"] == "told", (way, ranks)
        assert re.fullmatch("told(, after a wrong result)?|DistBackendError: .*runcate.*", ranks["0"]), (way, ranks)


def test_messages_arrive_though_the_sender_makes_no_further_call(installed, tmp_path):
    output = installed.run(2, "faults.py", "delivered", FLAG_FILE=str(tmp_path / "flag"))
    contains(output, [("delivered", 2)])


@pytest.mark.nightly
def test_endless_loop(installed):
    """A rank that never comes is named while the others wait, by the one beside it alone."""
    output = installed.run(3, "faults.py", "endless")
    assert output.count("rank 2 has waited for 60 s in all_reduce; rank 1 of its group has not called it yet") == 1
    assert output.count("has not called it yet") == 1, output


@pytest.mark.nightly
def test_ends_though_mpi_does_not(installed, preload, tmp_path):
    """MPICH 4.0 hangs in MPI_Finalize over TCP, once in twenty times; here always."""
    output = installed.run(2, "faults.py", "handled", status=None, timeout=120, LD_PRELOAD=preload, MPI_DOES="linger",
                           UCX_TLS="tcp,self", FLAG_FILE=str(tmp_path / "flag"))
    contains(output, [("all is well", 2)])


def test_killed_rank_ends_the_others_within_the_timeout(installed):
    # mpirun itself must not do it: that is what a batch system without such a service looks like
    options = {"mpich": ["-disable-auto-cleanup"], "openmpi": ["--mca", "orte_abort_on_non_zero_status", "0",
                                                               "--mca", "orte_enable_recovery", "1"]}
    begin = time.monotonic()
    output = installed.run(3, "faults.py", "killed", options=options[installed.mpi], status=None)
    assert output.count("started") == 3, output
    assert time.monotonic() - begin < 60, output
