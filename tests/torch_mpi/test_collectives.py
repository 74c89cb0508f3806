"""Every collective with every type, operation and layout; many at random against gloo; training."""

import json
import re

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("ranks", [2, 3, 5])  # with Open MPI all_gather takes another way above four
def test_every_collective(installed, ranks):
    output = installed.run(ranks, "collectives.py")
    assert output.count("all collectives are right") == ranks


@pytest.mark.parametrize("case", ["alone", "beside", "by_device"])
def test_groups_also_when_torch_looks_closely(installed, tmp_path, case):
    """DETAIL has torch wrap backends, from 2.14 on this one too, to compare the calls of the ranks over gloo."""
    output = installed.run(2, "groups.py", case, MEETING_FILE=str(tmp_path / "meeting"),
                           TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert output.count("all groups are right") == 2, output


def test_random_collectives_agree_with_gloo(installed, tmp_path):
    output = installed.run(3, "random_collectives.py", 300, MEETING_FILE=str(tmp_path / "meeting"))
    assert output.count("collectives agree with gloo") == 3


def test_training_gives_what_it_gives_on_gloo(installed, tmp_path):
    found = {}
    for backend in ("mpi", "gloo"):
        # gloo's threads sometimes abort the process at its very end, after the results are written
        installed.run(2, "training.py", backend, tmp_path / backend, status=0 if backend == "mpi" else None)
        found[backend] = json.loads((tmp_path / backend).read_text())
    assert found["mpi"] == found["gloo"]
    assert len(found["mpi"]["with_ddp"]) == 5


def test_it_goes_on_while_the_program_does_something_else(installed):
    """Nobody waits for an all_reduce of 32 MB for a while; then hardly anything of it is left."""
    output = installed.run(2, "overlap.py")
    assert float(output.split("left to wait for: ")[1].split()[0]) < 0.5, output


def test_nothing_disturbs_a_rank_that_waits(installed):
    """Its thread for operations nobody waits for does not run each millisecond: that cost a tenth of the time."""
    output = installed.run(2, "progress_thread_rests.py")
    found = re.findall(r"(\w+): (\d+) times in (\d+) ms", output)
    assert found, output
    for name, times, milliseconds in found:
        assert int(times) * 3 < int(milliseconds), (name, output)
