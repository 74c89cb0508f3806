"""Locks of installations: a dead owner's goes, everybody else's stays."""
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def lock(toys):
    """The lock of a toy's installation."""
    path = toys.eb.prefix / 'software' / '.locks'
    path = path / (str(toys.eb.prefix / 'software/toy/1.0-ARCHER2').replace('/', '_') + '.lock')
    path.mkdir(parents=True)
    return path


def owned(lock, job):
    """A note that a process which has ended, of this job, holds the lock."""
    gone = subprocess.Popen(['true'])
    gone.wait()
    note = Path('%s.owner=%s=%d=1=%s' % (lock, os.uname().nodename, gone.pid, job))
    note.touch()
    return note


def test_job_that_was_started_again(toys, lock):
    """A job that the batch system started again is its own heir, even on another process's number."""
    note = owned(lock, 'slurm:77')
    output = toys.run(toys.write('toy'), env={'SLURM_JOB_ID': '77'})
    assert 'removing the stale lock' in output and not lock.exists() and not note.exists()
    assert not list(lock.parent.iterdir())
