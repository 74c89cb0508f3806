"""
What all rooms share: where the collection lies, its version, versions of software, and the error for users.

All modules but machine/launcher.py keep to Python 3.6, with which some clusters run EasyBuild; without an
import from EasyBuild they need the standard library only.
"""
import glob
import os
import shutil
import socket
import sys
import tempfile
import time

VERSION = '2.0.0'
HERE = os.path.dirname(os.path.realpath(__file__))


class UsersProblem(Exception):
    """Something that a user or a site can mend: one message, shown without a traceback."""


def collection_path(name):
    """Return the path of a directory of the collection, in a checkout or where pip has installed it."""
    top = os.path.dirname(HERE)
    places = [os.path.join(place, name) for place in (HERE, top, os.path.join(top, 'easybuild'))]
    return next((place for place in places if os.path.isdir(place)), places[0])


# the collection's own ramgate, also where another one is installed
sys.path.insert(0, collection_path('ramgate'))


def settle(path):
    """What was written to a file, or to a directory's file system, survives a loss of power from now on."""
    import ctypes
    place = os.open(path, os.O_RDONLY)
    failed = getattr(ctypes.CDLL(None, use_errno=True), 'syncfs' if os.path.isdir(path) else 'fsync')(place)
    os.close(place)
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


def part_directory(place):
    """For `with`: a directory for what is not whole yet; those of calls that were killed are removed."""
    for left in glob.glob(os.path.join(glob.escape(place), 'part-*')):
        host, _, pid = os.path.basename(left)[len('part-'):].rpartition('=')[0].rpartition('=')
        # another host's processes are not known here
        if not os.path.exists('/proc/' + pid) if host == socket.gethostname() else (
                time.time() - os.path.getmtime(left) > 86400):
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix='part-%s=%d=' % (socket.gethostname(), os.getpid()), dir=place)
