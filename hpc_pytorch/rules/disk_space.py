"""Refuse an installation for which a disk, or a quota, has too little room, before it begins."""
import collections
import contextlib
import ctypes
import errno
import glob
import os
import shutil
import subprocess
import tempfile

from easybuild.tools.config import build_path, install_path

from hpc_pytorch import existing
from hpc_pytorch.rules import policy
from hpc_pytorch.rules.resource_needs import LEAST_ROOM, NEEDS, needs_of
from ramgate.limits import human

PLACES = (
    ('build', '--buildpath', build_path),
    ('install', '--prefix or --installpath', install_path),
    ('temporary', '--tmpdir', tempfile.gettempdir),
)
FALLOC_FL_KEEP_SIZE = 1
FULL = {errno.ENOSPC: "the file system is full", errno.EDQUOT: "your quota there does not allow it"}


def bytes_of(paths):
    return sum(os.path.getsize(path) for path in paths if path and os.path.isfile(path))


def room_needed(easyblock):
    """Return the bytes to build, to install and for temporary files, from what sources and wheels become."""
    sources = 0
    for source in easyblock.src:
        size = bytes_of([source['path']])
        # the needs are those of compressed tarballs, about a sixth of what is in them
        sources += size // 6 if source['path'].endswith('.tar') else size
    store = getattr(easyblock, 'wheels', None)
    wheels = glob.glob(os.path.join(glob.escape(store), '*.*')) if store else []
    unpacked = bytes_of(wheels + [getattr(easyblock, 'wheel', None)])
    needs = needs_of(easyblock.cfg)._asdict()
    of_wheels = NEEDS['LockedWheels']._asdict()
    return {kind: max(LEAST_ROOM, needs[kind] * sources + of_wheels[kind] * unpacked)
            for kind, _, _ in PLACES if needs[kind]}


def check_room(easyblock):
    """Check the build, install and temporary directories, which may share a file system or have quotas of their own."""
    if not policy.going_to_install():
        return
    room = room_needed(easyblock)
    places = [(kind, option, existing(place())) for kind, option, place in PLACES if kind in room]
    together = collections.Counter()
    for kind, _, path in places:
        together[os.stat(path).st_dev] += room[kind]
    for kind, option, path in places:
        problem = why_no_room(path, room[kind], together[os.stat(path).st_dev])
        if problem:
            # EasyBuild has made it, before it knew the size
            with contextlib.suppress(OSError):
                os.removedirs(easyblock.installdir)
            policy.decide('free_space', "The %s directory %s has too little room: %s. Make room, or choose another "
                          "place with %s." % (kind, path, problem, option))


def why_no_room(directory, size, together):
    """Say why a directory, whose file system must have `together`, has no room for `size`; None if it has."""
    free = shutil.disk_usage(directory).free
    if free < together:
        return "%s are free, and %s are needed" % (human(free), human(together))
    state = os.statvfs(directory)
    if state.f_files and not state.f_favail:
        return "no more files can be made"
    problem = reserve(directory, size)
    return problem and "%s, and %s are needed" % (problem, human(size))


def reserve(directory, size):
    """Say why so many bytes cannot be reserved, which asks every quota of users, groups and projects; None if so."""
    kind = subprocess.check_output(['stat', '-f', '-c', '%T', directory])
    if kind.strip() in (b'tmpfs', b'ramfs'):
        # it would be in memory
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    with tempfile.TemporaryFile(dir=directory) as handle:
        if libc.fallocate(handle.fileno(), FALLOC_FL_KEEP_SIZE, 0, size):
            return FULL.get(ctypes.get_errno())
    return None
