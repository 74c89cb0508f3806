"""Locks of installations: a dead owner's goes, everybody else's stays."""
import os
import re
import subprocess
from pathlib import Path

import pytest
from common import CHECKOUT, clean_environment

# a dry run that would replace what belongs to somebody else
PROGRAM = '''
import os, sys
from types import SimpleNamespace
from easybuild.tools import config
from hpc_pytorch.packages import easybuild_errors
from hpc_pytorch.rules import installation_locks

config.init_build_options(dict({"extended_dry_run": True}, **{option: True for option in sys.argv[2].split()}))
installation_locks.install_path = lambda kind: sys.argv[1]
os.access = lambda path, mode: False
os.geteuid = lambda: -1
installation_locks.take(SimpleNamespace(installdir="/tmp/__ROOT__/toy/1.0", install_subdir="toy/1.0",
                                        mod_filepath="/modules/toy/1.0.lua"))
print(*easybuild_errors.FOUND)
'''


@pytest.mark.parametrize('option, noted', [
    ('rebuild', ''), ('force', ''), ('debug', ''),
    # a module of one's own for their software, and theirs, of which the installation has a note
    ('module_only force', '/mine/toy/1.0.lua'), ('module_only force', '/modules/toy/1.0.lua'),
])
def test_somebody_elses_in_a_dry_run(tmp_path, option, noted):
    """It is named, as the installation would stop, where that would replace it, or a module that --check compares."""
    note = tmp_path / 'toy/1.0/easybuild/provenance/module.json'
    note.parent.mkdir(parents=True)
    note.write_text('{"%s": "its checksum"}' % noted)
    said = subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', PROGRAM, str(tmp_path), option], cwd=CHECKOUT,
                          env=clean_environment(), stdout=subprocess.PIPE, check=True, text=True).stdout
    stops = option in ('rebuild', 'force') or noted.startswith('/modules')
    assert (re.search('%s/toy/1.0.* belongs to somebody else' % tmp_path, said) is not None) == stops


@pytest.mark.parametrize('job', ['slurm:77', 'slurm:78'])
def test_process_that_lives(tmp_path, job):
    """It holds its lock, whether salloc's job is over or is also that of a second ./eb."""
    program = ("import os, sys; from hpc_pytorch.rules import installation_locks as locks; "
               "locks.alive = lambda job, age: False; "
               "print([locks.is_stale(sys.argv[1], os.uname().nodename, os.getpid(), started, sys.argv[2])"
               " for started in (locks.start_time(os.getpid()), '1')])")
    (tmp_path / 'note').touch()
    said = subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', program, str(tmp_path / 'note'), job],
                          env=dict(clean_environment(), SLURM_JOB_ID='77'), cwd=CHECKOUT, stdout=subprocess.PIPE,
                          check=True, text=True).stdout
    assert said == '[False, True]\n'


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


@pytest.mark.slow
def test_job_that_was_started_again(toys, lock):
    """A job that the batch system started again is its own heir, even on another process's number."""
    note = owned(lock, 'slurm:77')
    output = toys.run(toys.write('toy'), env={'SLURM_JOB_ID': '77'})
    assert 'removing the stale lock' in output and not lock.exists() and not note.exists()
    assert not list(lock.parent.iterdir())
