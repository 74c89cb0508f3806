"""Wheels that were built here: found by what they were built from, whole or not at all."""
import json

import pytest

from hpc_pytorch.packages import built_wheels

FACTS = {'sources': ['0123'], 'options': {'USE_MPI': '1'}, 'compiler': 'gcc 12'}


def kept(tmp_path, text='wheel', **more):
    """A wheel in a store: (the store, its path there)."""
    wheel = tmp_path / 'torch-1-py3-none-any.whl'
    wheel.write_text(text)
    store = str(tmp_path / 'store')
    return store, built_wheels.keep(str(wheel), store, dict(FACTS, **more), {'asked': {}})


def test_found_by_what_it_was_built_from(tmp_path):
    """The same facts, in any order, find it; any other do not."""
    store, path = kept(tmp_path)
    assert built_wheels.find(['/no/such/store', store], dict(reversed(list(FACTS.items())))) == path
    assert built_wheels.find([store], dict(FACTS, compiler='gcc 13')) is None
    # checksums may be tuples, which are lists in the note
    typed = {'sources': [('sha256', '0123')]}
    store, path = kept(tmp_path, **typed)
    assert built_wheels.find([store], dict(FACTS, **typed)) == path


def test_damaged_one_is_not_used(tmp_path):
    """Neither a wheel that is not what its note says, nor one without a note; keeping it again mends it."""
    store, path = kept(tmp_path)
    with open(path, 'a') as handle:
        handle.write('more')
    assert built_wheels.find([store], FACTS) is None
    assert kept(tmp_path)[1] == path and built_wheels.find([store], FACTS) == path
    note = tmp_path / 'store' / built_wheels.identity(FACTS) / built_wheels.NOTE
    assert json.loads(note.read_text())['facts'] == FACTS
    note.write_text('{')
    assert built_wheels.find([store], FACTS) is None


def test_nothing_half_made_stays(tmp_path):
    """A wheel that cannot be copied leaves nothing in the store."""
    store = tmp_path / 'store'
    with pytest.raises(OSError):
        built_wheels.keep(str(tmp_path / 'missing.whl'), str(store), FACTS, {})
    assert not list(store.iterdir())
