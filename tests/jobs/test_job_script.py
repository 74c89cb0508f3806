"""
What every job runs, where a job is started again elsewhere at the worst moment.

In real life: a node loses its daemon just when the job begins (found by test_random_faults.py).
"""
import subprocess
from pathlib import Path

import pytest
from common import CHECKOUT

SCRIPT = CHECKOUT / 'hpc_pytorch/jobs/job-script'
# a build that goes on until it is killed
ENDLESS = 'echo >%s; until [ -e %s ]; do sleep 0.1; done'


@pytest.fixture
def job(tmp_path):
    """Runs the script with commands in the way; returns what it printed and its exit status."""
    def run(**commands):
        (tmp_path / 'bin').mkdir()
        for name, text in commands.items():
            path = tmp_path / 'bin' / name
            path.write_text('#!/bin/sh\n' + text)
            path.chmod(0o755)
        (tmp_path / 'toy.json').write_text('{"token": "abcdefabcdef"}')
        names = {'record': tmp_path / 'toy.json', 'token': 'abcdefabcdef', 'files': tmp_path / 'toy.abcdefabcdef',
                 'log': '', 'PATH': '%s:/usr/bin:/bin' % (tmp_path / 'bin')}
        build = ENDLESS % (tmp_path / 'begun', tmp_path / 'go')
        script = ''.join("%s='%s'\n" % fact for fact in names.items()) + "build() {\nsh -c '%s'\n}\n" % build
        done = subprocess.run(['bash', '-c', script + SCRIPT.read_text()], text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout
    return run


def another_turn(directory):
    """A shell's line: the same job is started elsewhere now."""
    return 'echo other-1-1 >%s\n' % (directory / 'toy.abcdefabcdef.turn')


def gone(directory):
    """Whether nothing says any more that this one lives."""
    return not list(Path(directory).glob('*.alive.*'))


def test_started_again_before_the_build(job, tmp_path):
    """At once after its turn was written: it does not begin to build."""
    status, output = job(mv='/usr/bin/mv "$@"\n' + another_turn(tmp_path))
    assert status == 1 and 'was started again elsewhere' in output
    assert not (tmp_path / 'begun').exists() and gone(tmp_path)


@pytest.mark.slow
def test_started_again_at_the_build(job, tmp_path):
    """After it has looked, and before its build begins: the build is killed all the same."""
    status, output = job(date=another_turn(tmp_path))
    assert status == 1 and 'was started again elsewhere' in output
    assert gone(tmp_path)


def test_shows_that_it_lives_before_its_turn(job, tmp_path):
    """Who starts elsewhere a moment later sees it, and waits."""
    listed = tmp_path / 'listed'
    status, _ = job(mv='ls %s >%s; /usr/bin/mv "$@"\n' % (tmp_path, listed) + another_turn(tmp_path))
    assert status == 1 and '.alive.' in listed.read_text()


def test_waiting_and_started_again(job, tmp_path):
    """It waits for an earlier start, and a later one comes: it gives way, and the earlier one's sign stays."""
    earlier = tmp_path / 'toy.000000000000.alive.earlier-1-1'
    earlier.touch()
    status, output = job(sleep=another_turn(tmp_path) + 'exec /usr/bin/sleep "$@"\n')
    assert status == 1 and 'waiting until an earlier start' in output
    assert earlier.exists() and not (tmp_path / 'begun').exists()
