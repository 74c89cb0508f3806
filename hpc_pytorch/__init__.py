"""What all rooms share: where the collection lies, its version, the error for users, and writing to disk safely.

All modules but start.py and stand_ins/ keep to Python 3.6, with which some clusters run EasyBuild; without an import
from EasyBuild they need the standard library only.
"""
import configparser
import ctypes
import glob
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

VERSION = '2.0.0'
HERE = os.path.dirname(os.path.realpath(__file__))


class UsersProblem(Exception):
    """A problem that a user or a site can fix: one message, shown without a traceback."""


def collection_path(name):
    """Return the path of a directory of the collection, in a checkout or where pip has installed it."""
    top = os.path.dirname(HERE)
    paths = [os.path.join(place, name) for place in (HERE, top, os.path.join(top, 'easybuild'))]
    return next(filter(os.path.isdir, paths), paths[0])


# the collection's own ramgate, also where another one is installed
sys.path.insert(0, collection_path('ramgate'))


def say(text):
    """Tell the user in a line what ./eb does; standard output stays EasyBuild's."""
    print("eb: %s" % text, file=sys.stderr, flush=True)


def parse(path):
    """Parse one of the files of sections that the collection and sites have."""
    parser = configparser.ConfigParser(delimiters=('=',), comment_prefixes=('#',), interpolation=None,
                                       default_section='', empty_lines_in_values=False)
    parser.optionxform = str
    try:
        parser.read_string(Path(path).read_text(encoding='utf-8'), path)
    except OSError as error:
        raise UsersProblem("%s cannot be read: %s" % (path, error.strerror))
    except (configparser.Error, UnicodeDecodeError) as error:
        raise UsersProblem("%s cannot be read: %s" % (path, str(error).replace('\n', ' ')))
    return parser


def existing(path):
    """Return the nearest directory above, or this path itself, that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def fsync(path):
    """Flush a file, or the file system that a directory is on, to disk: it survives a loss of power."""
    # coreutils before 8.24 have no `sync -f`
    libc = ctypes.CDLL(None, use_errno=True)
    flush = libc.syncfs if os.path.isdir(path) else libc.fsync
    descriptor = os.open(path, os.O_RDONLY)
    failed = flush(descriptor)
    os.close(descriptor)
    if failed:
        raise OSError(ctypes.get_errno(), "cannot be flushed to disk", path)


def write_atomically(path, text):
    """Write a file completely or not at all; one that has this text already stays untouched."""
    path = str(path)
    if os.path.exists(path) and Path(path).read_text(encoding='utf-8', errors='replace') == text:
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = '%s.%d' % (path, os.getpid())
    try:
        Path(partial).write_text(text, encoding='utf-8')
        if os.path.exists(path):
            # colleagues may read it, and go on to
            shutil.copymode(path, partial)
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)


def read_json(path, fields):
    """Return what a JSON file has, if it has these fields, {name: type}; None if it is missing or damaged."""
    try:
        found = json.loads(Path(path).read_text(encoding='utf-8'))
        whole = all(isinstance(found[name], kind) for name, kind in fields.items())
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if whole else None


def part_directory(place):
    """Make a temporary directory for partial downloads, for `with`; removes those that killed processes left."""
    this_host = socket.gethostname()
    for left in glob.glob(glob.escape(place) + '/part-*=*=*'):
        host, pid = re.search(r'part-([^/]*)=([^/=]*)=[^/=]*$', left).groups()
        abandoned = not os.path.exists('/proc/' + pid)
        if host != this_host:
            # its processes are not visible here
            abandoned = time.time() - os.path.getmtime(left) > 86400
        if abandoned:
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix='part-%s=%d=' % (this_host, os.getpid()), dir=place)
