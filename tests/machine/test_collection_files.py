"""Files that easyconfigs name: beside the easyconfig first, else in the collection."""
import os
from pathlib import Path

import pytest
from common import CHECKOUT

from hpc_pytorch import fsync
from hpc_pytorch.machine.collection_files import named_file, directories


def test_beside_it_comes_first(tmp_path):
    """A copy of an easyconfig with a lock file of its own uses that."""
    easyconfig = tmp_path / 'toy.eb'
    assert named_file(str(easyconfig), 'pytorch-check') == str(CHECKOUT / 'hpc_pytorch/scripts/pytorch-check')
    (tmp_path / 'pytorch-check').touch()
    assert named_file(str(easyconfig), 'pytorch-check') == str(tmp_path / 'pytorch-check')
    assert named_file(str(easyconfig), 'no-such-file') is None


def test_names_are_unique():
    """No name is in two directories: which one is meant would depend on their order."""
    names = [path.name for directory in directories() for path in Path(directory).iterdir() if path.is_file()]
    assert len(names) == len(set(names))


def test_flushed_with_old_coreutils(tmp_path, monkeypatch):
    """Before 8.24 `sync` had no -f, and flushed all there is."""
    program = tmp_path / 'sync'
    program.write_text('#!/bin/sh\n[ "$1" != -f ]\n')
    program.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
    for path in (program, tmp_path):
        fsync(str(path))
    with pytest.raises(OSError, match='gone'):
        fsync(str(tmp_path / 'gone'))
