"""Notes about interrupted builds; a build that is killed and continued is in test_pytorchhpc.py."""
import json

from hpc_pytorch import write_atomically
from hpc_pytorch.packages import built_wheels


def test_note(tmp_path):
    """It is read as it was left; none, or one that cannot be read, is none."""
    assert built_wheels.read_interrupted(str(tmp_path)) is None
    left = {'facts': {'compiler': 'gcc'}, 'source': '/tree', 'cmake_output': ''}
    note = tmp_path / built_wheels.INTERRUPTED
    for facts in (left['facts'], {'compiler': 'clang'}):
        write_atomically(note, json.dumps(dict(left, facts=facts)))
    assert built_wheels.read_interrupted(str(tmp_path))['facts'] == {'compiler': 'clang'}
    for damaged in ('{"compiler"', '{"facts": {}}', '{"source": "/tree", "cmake_output": ""}', '[]'):
        note.write_text(damaged)
        assert built_wheels.read_interrupted(str(tmp_path)) is None


def test_differences():
    """In words, for the message that says why a build begins anew."""
    facts = {'compiler': 'gcc', 'build_options': ['USE_MPI=1'], 'same': 1}
    others = {'compiler': 'gcc', 'build_options': [], 'same': 1, 'patches': ['a']}
    assert built_wheels.differences(facts, others) == 'build options, patches'
    assert built_wheels.differences(facts, dict(facts)) == ''
