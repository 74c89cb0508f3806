"""
Builds that were interrupted: a note in the build directory says what is being built there, so that the next call can
go on with it if it is to build the same.
"""
import json
import os

from hpc_pytorch import read_json, write_atomically

NOTE = 'unfinished.json'


def leave(builddir, note):
    """Leave a note: from now on the build can be continued."""
    write_atomically(os.path.join(builddir, NOTE), json.dumps(note))


def find(builddir):
    """Return the note of an interrupted build; None if none can be read."""
    return read_json(os.path.join(builddir, NOTE), {'source': str, 'cmake_output': str, 'facts': dict})


def differences(facts, others):
    """Return the differences of two builds, in words."""
    every = set(facts).union(others)
    names = [name for name in every if facts.get(name) != others.get(name)]
    return ', '.join(sorted(names)).replace('_', ' ')
