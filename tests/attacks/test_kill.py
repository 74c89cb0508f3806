"""Killed with signal 9 at any moment: README.rst says how to go on for an hour."""
import os
import random
import signal
import subprocess
import time

import pytest
from attacks.attempts import attack
from attacks.target import Target
from easyblocks.small_builds import Small

from ramgate.processes import descendants

pytestmark = pytest.mark.slow


def stop(process, after, chance):
    """Kill, after so many seconds, all of it, the first process only, or any one, as the kernel does without memory."""
    try:
        process.wait(timeout=after)
    except subprocess.TimeoutExpired:
        way = chance.choice(['all', 'first', 'any'])
        if way == 'all':
            os.killpg(process.pid, signal.SIGKILL)
        else:
            victim = process.pid if way == 'first' else chance.choice([process.pid] + sorted(descendants(process.pid)))
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass
    process.wait(timeout=600)


def clear(process):
    """Who is left of it goes."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def test_installation(tmp_path):
    """The next call ends well, also while processes of the killed one still write."""
    target = Target(tmp_path)
    duration = target.duration()

    def attempt(chance):
        killed = []
        target.forget(chance)
        for _ in range(chance.randrange(1, 4)):
            process, output = target.started(*chance.choice([(), ('--rebuild',), ('--fetch',)]))
            killed.append(process)
            stop(process, duration * chance.uniform(0.05, 1), chance)
            output.seek(0)
            said = output.read()
            assert 'Traceback' not in said, said
        try:
            target.check()
        finally:
            for process in killed:
                clear(process)

    attack(attempt, 1)


@pytest.mark.nightly
def test_build(tmp_path, eb):
    """From source; ./test has one such kill in test_killed_and_resumed."""
    small = Small(eb, tmp_path)
    small.write()
    durations = []

    def attempt(chance):
        if not durations:
            begin = time.monotonic()
            small()
            durations.append(time.monotonic() - begin)
        for _ in range(chance.randrange(1, 3)):
            call = eb.call(['--rehearse', small.easyconfig, '--rebuild'], {}, tmp_path)
            # a wheel that was built is used again, and then nothing is built
            for store in small.sources.glob('*-built'):
                store.rename(tmp_path / ('built-%d' % random.getrandbits(60)))
            with open(os.devnull, 'w') as nothing:
                process = subprocess.Popen(**dict(call, stdout=nothing, start_new_session=True))
                stop(process, durations[0] * chance.uniform(0.05, 1), chance)
                clear(process)
        output = small('--rebuild')
        assert 'PyTorch has the requested options' in output, output
        assert not list((eb.prefix / 'software' / '.locks').iterdir())

    attack(attempt, 1)
