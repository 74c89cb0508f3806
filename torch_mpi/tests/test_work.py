"""Single operations: their futures, and how they are waited for."""

import re

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("futures", [10000, pytest.param(100000, marks=pytest.mark.nightly)])
def test_futures_that_are_made_while_their_work_ends(installed, futures):
    assert installed.run(2, "futures.py", futures).count("all futures ended") == 2


def test_it_goes_on_while_the_program_does_something_else(installed):
    """Nobody waits for an all_reduce of 32 MB for a while; then hardly anything of it is left."""
    output = installed.run(2, "overlap.py")
    assert float(output.split("left to wait for: ")[1].split()[0]) < 0.5, output


@pytest.mark.nightly
def test_a_rank_that_waits_keeps_its_core(installed):
    """It naps only while other programs want it: what moves data, or slept before, has not lost it (quiet cores)."""
    output = installed.run(2, "waits_without_naps.py")
    assert int(output.split("naps in 20 operations: ")[1].split()[0]) < 100, output


def test_nothing_disturbs_a_rank_that_waits(installed):
    """Its thread for operations nobody waits for does not run each millisecond: that cost a tenth of the time."""
    output = installed.run(2, "progress_thread_rests.py")
    found = re.findall(r"(\w+): (\d+) times in (\d+) ms", output)
    assert found, output
    for name, times, milliseconds in found:
        assert int(times) * 3 < int(milliseconds), (name, output)
