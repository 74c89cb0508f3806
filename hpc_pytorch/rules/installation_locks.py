"""Remove stale locks of killed installations: beside EasyBuild's lock, a directory, we record its owner first."""
import contextlib
import glob
import os
import socket
import time

from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import build_option, install_path
from easybuild.tools.filetools import det_lock_path, remove_dir

from hpc_pytorch import read_json
from hpc_pytorch.machine.batch_systems import alive, own_job
from hpc_pytorch.packages.easybuild_errors import refuse
from hpc_pytorch.rules import policy
from ramgate.processes import stat


def start_time(pid):
    """Return when a process of this host was started, in the kernel's ticks; '' if there is no such process."""
    return b''.join(stat(pid)[19:20]).decode()


def own_note(lock_path):
    """Return the file that says that this process, in this job if it is in one, holds a lock."""
    pid = os.getpid()
    return '%s.owner=%s=%d=%s=%s' % (lock_path, socket.gethostname(), pid, start_time(pid), own_job() or '')


def owners(lock_path):
    """Yield all notes about a lock: (note, host, pid, start time, job)."""
    for note in glob.glob(glob.escape(lock_path) + '.owner=*=*=*=*'):
        _, host, pid, started, job = note.rsplit('=', 4)
        if pid.isdigit():
            yield note, host, int(pid), started, job


def is_stale(note, host, pid, started, job):
    """True if an installation has ended without removing its lock; a requeued job takes over its own lock."""
    here = host == socket.gethostname()
    # salloc's job may be over while ./eb runs on, or have another ./eb
    if here and start_time(pid) == started:
        return False
    if job:
        try:
            age = time.time() - os.path.getmtime(note)
        except OSError:
            return True
        return job == own_job() or not alive(job, age)
    return here


def remove_stale_lock(lock_path):
    living, stale = [], False
    for note, host, pid, started, job in owners(lock_path):
        if is_stale(note, host, pid, started, job):
            stale = True
            # another process may do the same
            with contextlib.suppress(FileNotFoundError):
                os.remove(note)
        else:
            of_job = ' in job ' + job if job else ''
            living.append("process %d%s on %s" % (pid, of_job, host))
    if not os.path.isdir(lock_path):
        return
    if stale and not living:
        remove_dir(lock_path)
        print_msg("removing the stale lock of a killed installation: %s", lock_path)
    elif build_option('wait_on_lock_limit') == 0:
        raise EasyBuildError("Another installation holds %s (%s). If it no longer runs, remove that directory and try "
                             "again.", lock_path, ', '.join(living) or "owner unknown")


def lock_of(easyblock):
    """Return where EasyBuild puts the lock of an installation; None if it makes none."""
    if build_option('ignore_locks') or build_option('extended_dry_run'):
        return None
    return det_lock_path(easyblock.installdir.replace('/', '_'))


def check_owner(directory):
    """Stop before somebody else's installation loses its module: EasyBuild takes the group's right to write away."""
    for place, _, _ in os.walk(directory):
        if not os.access(place, os.W_OK) and os.stat(place).st_uid != os.geteuid():
            raise EasyBuildError(
                "%s belongs to somebody else (ls -ld shows to whom), so you can neither replace nor remove it. If its "
                "owner installs it with --group-writable-installdir, the group can.", place)


def take(easyblock):
    """Record this process as the owner, before EasyBuild takes the lock."""
    # a dry run shows also what is installed already
    replaces = not build_option('extended_dry_run') or build_option('rebuild') or build_option('force')
    # that of a dry run is another one
    place = os.path.join(install_path('software'), easyblock.install_subdir)
    if build_option('module_only'):
        # --check compares the module file with this note
        place = os.path.join(place, 'easybuild/provenance')
        replaces = replaces and easyblock.mod_filepath in (read_json(os.path.join(place, 'module.json'), {}) or ())
    if replaces and (policy.going_to_install() or build_option('module_only')):
        try:
            check_owner(place)
        except EasyBuildError as problem:
            refuse(problem.msg)
    lock_path = lock_of(easyblock)
    if lock_path:
        remove_stale_lock(lock_path)
        os.makedirs(os.path.dirname(lock_path), exist_ok=True)
        open(own_note(lock_path), 'w').close()


def release(easyblock):
    lock_path = lock_of(easyblock)
    if lock_path and os.path.exists(own_note(lock_path)):
        os.remove(own_note(lock_path))
