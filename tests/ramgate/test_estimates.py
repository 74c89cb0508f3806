"""What builds leave in profiles, and what it says about others."""
from ramgate.curves import Recorder
from ramgate.estimates import Knowledge


def test_knowledge_goes_from_files_to_kinds(tmp_path):
    knowledge = Knowledge(str(tmp_path / 'profile'))
    first = knowledge.estimate('d/a.o', 'CXX')
    for number in range(20):
        recorder = Recorder()
        recorder.add(0.0, 2 ** 20)
        recorder.add(5.0, 100 * 2 ** 20)
        knowledge.finished('d/file%d.o' % number, 'CXX', 5.0, recorder, 0)
    knowledge.save(str(tmp_path / 'profile'))
    again = Knowledge(str(tmp_path / 'profile'))
    assert again.estimate('d/file3.o', 'CXX').known
    assert again.estimate('d/file3.o', 'CXX').peak == 100
    assert not again.estimate('d/new.o', 'CXX').known
    assert again.estimate('d/new.o', 'CXX').peak < 130 < first.peak
