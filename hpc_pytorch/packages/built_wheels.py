"""Wheels that were built here: each in a directory named after what it was built from, beside a note with the same.
Another note, in the build directory, says what is being built there: the next call continues a build of the same.
"""
import hashlib
import json
import os
import shutil
from pathlib import Path

from hpc_pytorch import fsync, part_directory, read_json, write_atomically
from hpc_pytorch.packages.lock_files import sha256_of

NOTE = 'provenance.json'
INTERRUPTED = 'unfinished.json'


def stores(ec, source_paths, kind='built'):
    """Return where the wheels of an easyconfig, or what else `kind` says, are kept: a place in each source path."""
    name = '%s-%s%s-%s' % (ec['name'], ec['version'], ec['versionsuffix'], kind)
    return [os.path.join(path, ec['name'][0].lower(), ec['name'], name) for path in source_paths]


def identity(facts):
    """Return a short name for everything that makes a wheel what it is."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def differences(facts, others):
    names = [name for name in set(facts).union(others) if facts.get(name) != others.get(name)]
    return ', '.join(sorted(names)).replace('_', ' ')


def find(stores, facts):
    """Return the undamaged wheel with this identity in one of these directories; None if there is none."""
    for store in stores:
        where = os.path.join(store, identity(facts))
        note = read_note(where)
        for wheel in map(str, Path(where).glob('*.whl')):
            if note and note.get('sha256') == sha256_of(wheel):
                return wheel
    return None


def read_note(directory):
    return read_json(os.path.join(directory, NOTE), {'asked': dict})


def read_interrupted(builddir):
    return read_json(os.path.join(builddir, INTERRUPTED), {'source': str, 'cmake_output': str, 'facts': dict})


def keep(wheel, store, facts, more):
    """Copy a wheel into a store, with its note; it appears there whole. Returns its path."""
    os.makedirs(store, exist_ok=True)
    where = os.path.join(store, identity(facts))
    note = dict(more, facts=facts, sha256=sha256_of(wheel))
    with part_directory(store) as part:
        new = os.path.join(part, 'new')
        os.mkdir(new)
        shutil.copy(wheel, new)
        write_atomically(os.path.join(new, NOTE), json.dumps(note, indent=2, sort_keys=True) + '\n')
        fsync(new)
        if os.path.isdir(where):
            # one with this identity is there: damaged, or --rebuild was asked for
            os.rename(where, os.path.join(part, 'old'))
        os.rename(new, where)
    return os.path.join(where, os.path.basename(wheel))
