"""Notes about interrupted builds; a build that is killed and continued is in test_pytorchhpc.py."""
from hpc_pytorch.source import interrupted_builds


def test_note(tmp_path):
    """It is read as it was left; none, or one that cannot be read, is none."""
    assert interrupted_builds.find(str(tmp_path)) is None
    left = {'facts': {'compiler': 'gcc'}, 'source': '/tree', 'cmake_output': ''}
    interrupted_builds.leave(str(tmp_path), left)
    interrupted_builds.leave(str(tmp_path), dict(left, facts={'compiler': 'clang'}))
    assert interrupted_builds.find(str(tmp_path))['facts'] == {'compiler': 'clang'}
    note, = tmp_path.iterdir()
    for damaged in ('{"compiler"', '{"facts": {}}', '{"source": "/tree", "cmake_output": ""}', '[]'):
        note.write_text(damaged)
        assert interrupted_builds.find(str(tmp_path)) is None


def test_differences():
    """In words, for the message that says why a build begins anew."""
    facts = {'compiler': 'gcc', 'build_options': ['USE_MPI=1'], 'same': 1}
    others = {'compiler': 'gcc', 'build_options': [], 'same': 1, 'patches': ['a']}
    assert interrupted_builds.differences(facts, others) == 'build options, patches'
    assert interrupted_builds.differences(facts, dict(facts)) == ''
