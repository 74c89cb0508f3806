"""The broker in whole builds: its end, and that of the program that started it."""
import os
import signal

from pathlib import Path

import pytest

from ramgate.processes import descendants


def broker_of(process):
    """The broker's process: the child of `ramgate run` that runs the same program."""
    own = Path('/proc/%d/cmdline' % process.pid).read_bytes()
    for pid in descendants(process.pid):
        try:
            if Path('/proc/%d/cmdline' % pid).read_bytes() == own:
                return pid
        except OSError:
            pass
    return None


def test_the_broker_dies_and_the_build_goes_on(build, eventually):
    made = [build.job('job%d' % number, 'wait go', 'sleep 0.05') for number in range(6)]
    process = build.start('--jobs', '3')
    eventually(lambda: len(list(build.directory.glob('*.o'))) == 3)
    os.kill(broker_of(process), signal.SIGKILL)
    (build.directory / 'go').touch()
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    assert all(path.read_text().startswith('object of') for path in made)
    build.clean()


@pytest.mark.slow
def test_a_killed_ramgate_leaves_nothing_running(build, eventually):
    for at in range(4):
        build.job('job%d' % at, 'sleep 300')
    process = build.start('--jobs', '2')
    eventually(lambda: len(list(build.directory.glob('*.o'))) == 2)
    process.kill()
    process.communicate(timeout=60)
    eventually(lambda: not build.processes())
