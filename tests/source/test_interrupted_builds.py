"""Notes about interrupted builds; a build that is killed and gone on with is in test_pytorchhpc.py."""
from hpc_pytorch.source import interrupted_builds


def test_note(tmp_path):
    """It is read as it was left; none, or one that cannot be read, is none."""
    assert interrupted_builds.find(str(tmp_path)) is None
    interrupted_builds.leave(str(tmp_path), {'compiler': 'gcc'})
    interrupted_builds.leave(str(tmp_path), {'compiler': 'clang'})
    assert interrupted_builds.find(str(tmp_path)) == {'compiler': 'clang'}
    note, = tmp_path.iterdir()
    note.write_text('{"compiler"')
    assert interrupted_builds.find(str(tmp_path)) is None


def test_differences():
    """In words, for the message that says why a build begins anew."""
    facts = {'compiler': 'gcc', 'build_options': ['USE_MPI=1'], 'same': 1}
    others = {'compiler': 'gcc', 'build_options': [], 'same': 1, 'patches': ['a']}
    assert interrupted_builds.differences(facts, others) == 'build options, patches'
    assert interrupted_builds.differences(facts, dict(facts)) == ''
