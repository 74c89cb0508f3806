"""Slots for build tools."""
import pytest

from ramgate.build_tools import with_slots


@pytest.mark.parametrize('command, expected', [
    ('ninja all', 'ninja -j8 all'),
    ('ninja -t targets', 'ninja -j8 -t targets'),
    ('ninja -j 3 all', 'ninja -j 3 all'),
    ('cmake --build .', 'cmake --build . -j8'),
    # as PyTorch's setup.py says it, with $MAX_JOBS: of several, the last holds
    ('cmake --build . -- -j 2', 'cmake --build . -- -j 2 -j8'),
    ('make -j2 -- all', 'make -j2 -j8 -- all'),
    ('cmake -B out', 'cmake -B out'),
])
def test_slots(tmp_path, monkeypatch, command, expected):
    """Four times as many as cores in a tree with ramgate's launcher, unless the user wants another number."""
    (tmp_path / 'CMakeCache.txt').write_text('ramgate-cc')
    monkeypatch.chdir(tmp_path)
    assert ' '.join(with_slots(command.split(), 2, {})) == expected
