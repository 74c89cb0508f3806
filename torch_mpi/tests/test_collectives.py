"""Every collective with every type, operation and layout; many at random against gloo; training."""

import json

import pytest

pytestmark = pytest.mark.slow


# of three ranks 300 random ones run below; with Open MPI all_gather takes another way above four
@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.nightly) for ranks in (3, 5))])
def test_every_collective(installed, ranks):
    # the variable must not matter where torchcomms is not installed
    output = installed.run(ranks, "collectives.py", TORCH_DISTRIBUTED_USE_TORCHCOMMS="1")
    assert output.count("all collectives are right") == ranks


@pytest.mark.nightly
def test_more_groups_than_mpich_has_communicators(installed):
    """It has 2,048 a process: only with two ranks is each one in all groups."""
    output = installed.run(2, "collectives.py", 2500 if installed.mpi == "mpich" else 100)
    assert output.count("all collectives are right") == 2


@pytest.mark.parametrize("case", [pytest.param("alone", marks=pytest.mark.nightly), "beside", "others", "by_device"])
def test_groups_also_when_torch_looks_closely(installed, tmp_path, case):
    """DETAIL has torch wrap backends, from 2.14 on this one too, to compare the calls of the ranks over gloo."""
    output = installed.run(2, "groups.py", case, MEETING_FILE=str(tmp_path / "meeting"),
                           TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert output.count("all groups are right") == 2, output


def test_random_collectives_agree_with_gloo(installed, tmp_path):
    output = installed.run(3, "random_collectives.py", 300, MEETING_FILE=str(tmp_path / "meeting"))
    assert output.count("collectives agree with gloo") == 3


@pytest.mark.nightly
def test_training_gives_what_it_gives_on_gloo(installed, tmp_path):
    found = {}
    for backend in ("mpi", "gloo"):
        # gloo's threads sometimes abort the process at its very end, after the results are written
        installed.run(2, "training.py", backend, tmp_path / backend, status=0 if backend == "mpi" else None)
        found[backend] = json.loads((tmp_path / backend).read_text())
    assert found["mpi"] == found["gloo"]
    assert len(found["mpi"]["with_ddp"]) == 5
