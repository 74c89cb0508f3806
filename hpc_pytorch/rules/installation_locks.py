"""
Locks of killed installations.

EasyBuild marks a running installation with a directory, which stays when it is killed with signal 9. Beside it we note
whose it is, before it is made, so that a dead owner's can be told from a running one's.
"""
import contextlib
import glob
import os
import pwd
import socket
import time

from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import build_option
from easybuild.tools.filetools import det_lock_path, remove_dir

from hpc_pytorch.machine.batch_systems import alive, own_job


def start_time(pid):
    """When a process of this host was started, in the kernel's ticks; None if there is no such process."""
    try:
        with open('/proc/%d/stat' % pid) as handle:
            return handle.read().rsplit(')', 1)[1].split()[19]
    except (OSError, IndexError):
        return None


def note_name(lock_path):
    """The note that says that this process, in this job if it is in one, holds a lock."""
    pid = os.getpid()
    return '%s.owner=%s=%s=%s=%s' % (lock_path, socket.gethostname(), pid, start_time(pid), own_job() or '')


def owners(lock_path):
    """All notes about a lock: (note, host, pid, start time, job)."""
    for note in glob.glob(glob.escape(lock_path) + '.owner=*=*=*=*'):
        _, host, pid, started, job = note.rsplit('=', 4)
        if pid.isdigit():
            yield note, host, int(pid), started, job


def is_dead(note, host, pid, started, job):
    """Whether an installation has ended without giving its lock back; a job that was started again is its own heir."""
    if job:
        try:
            age = time.time() - os.path.getmtime(note)
        except OSError:
            return True
        return job == own_job() or not alive(job, age)
    return host == socket.gethostname() and start_time(pid) != started


def release_dead_lock(lock_path):
    """Remove the lock of an installation that is gone; keep one that somebody may still hold."""
    living, dead = [], []
    for note, host, pid, started, job in owners(lock_path):
        (dead if is_dead(note, host, pid, started, job) else living).append(note)
    for note in dead:
        # another process may find the same
        with contextlib.suppress(FileNotFoundError):
            os.remove(note)
    if dead and not living and os.path.isdir(lock_path):
        remove_dir(lock_path)
        print_msg("an installation was killed earlier; its lock is removed: %s", lock_path)
    elif os.path.isdir(lock_path) and build_option('wait_on_lock_limit') == 0:
        raise EasyBuildError("Another installation holds %s (%s). If it no longer runs, remove that directory and try "
                             "again.", lock_path, '; '.join(map(in_words, living)) or 'owner unknown')


def in_words(note):
    host, pid, _, job = note.rsplit('=', 4)[1:]
    about = os.stat(note)
    try:
        user = pwd.getpwuid(about.st_uid).pw_name
    except KeyError:
        user = 'user %d' % about.st_uid
    return "%s on %s, process %s%s, since %s" % (user, host, pid, ' in job ' + job if job else '',
                                                 time.strftime('%Y-%m-%d %H:%M', time.localtime(about.st_mtime)))


def lock_of(easyblock):
    """Where EasyBuild is going to put the lock of an installation; None if it makes none."""
    if build_option('ignore_locks') or build_option('extended_dry_run'):
        return None
    return det_lock_path(easyblock.installdir.replace('/', '_'))


def take(easyblock):
    """Before EasyBuild makes the lock of an installation, note that it is this process."""
    lock_path = lock_of(easyblock)
    if lock_path:
        release_dead_lock(lock_path)
        os.makedirs(os.path.dirname(lock_path), exist_ok=True)
        open(note_name(lock_path), 'w').close()


def give_back(easyblock):
    lock_path = lock_of(easyblock)
    if lock_path and os.path.exists(note_name(lock_path)):
        os.remove(note_name(lock_path))
