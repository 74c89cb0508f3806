"""What builds leave in profiles, and what it says about others."""
import json
from types import SimpleNamespace

import pytest

from ramgate import estimates
from ramgate.curves import Recorder
from ramgate.estimates import MB, SHIPPED, Knowledge

KERNELS = 'caffe2/CMakeFiles/torch_cpu.dir/__/aten/src/ATen/native/cpu/'


def end(knowledge, name, language, seconds, megabytes):
    recorder = Recorder()
    recorder.add(0.0, MB)
    recorder.add(seconds, megabytes * MB)
    knowledge.learn_end(SimpleNamespace(name=name, language=language, seconds=seconds, recorder=recorder, learnt=0))


def test_knowledge_goes_from_files_to_kinds(tmp_path):
    knowledge = Knowledge(str(tmp_path / 'profile'))
    first = knowledge.estimate('d/a.o', 'CXX')
    for number in range(20):
        end(knowledge, 'd/file%d.o' % number, 'CXX', 5.0, 100)
    knowledge.save(str(tmp_path / 'profile'))
    again = Knowledge(str(tmp_path / 'profile'))
    assert again.estimate('d/file3.o', 'CXX').earlier
    assert again.estimate('d/file3.o', 'CXX').peak == 100
    # of the same kind as what this build has shown, and not known before
    assert not knowledge.estimate('d/new.o', 'CXX').earlier and not again.estimate('d/new.o', 'CXX').earlier
    assert knowledge.estimate('d/new.o', 'CXX').peak < 130 < first.peak == again.estimate('d/new.o', 'CXX').peak


def test_two_builds_share_a_profile(tmp_path):
    """Neither forgets what the other wrote."""
    path = str(tmp_path / 'profile')
    both = [Knowledge(path), Knowledge(path)]
    for at, knowledge in enumerate(both):
        end(knowledge, 'd/file%d.o' % at, 'CXX', 5.0, 100)
        knowledge.save(path)
    assert Knowledge(path).foreseen == 2


def test_a_build_that_is_killed_has_left_a_profile(tmp_path, monkeypatch):
    """It is written while the build runs; where it cannot be, the build goes on."""
    monkeypatch.setattr(estimates, 'SAVE_EVERY', 0)
    knowledge = Knowledge(str(tmp_path / 'profile'))
    end(knowledge, 'd/file.o', 'CXX', 5.0, 100)
    assert Knowledge(str(tmp_path / 'profile')).foreseen == 1
    end(Knowledge(str(tmp_path / 'none' / 'profile')), 'd/file.o', 'CXX', 5.0, 100)


def test_what_is_shipped_is_found_below_any_directory():
    """The largest file of PyTorch 1.13.1, as built by CMake in build/, and one that only other versions have."""
    knowledge = Knowledge(others=[SHIPPED])
    name = 'caffe2/CMakeFiles/torch_cpu.dir/__/torch/csrc/jit/runtime/static/generated_ops.cpp.o'
    same = knowledge.estimate('/tmp/pip-x1y2/build/' + name, 'CXX')
    assert same.earlier and same.peak > 1000
    # the same kernel for another instruction set
    known, other = [knowledge.estimate('build/%sSumKernel.cpp.%s.cpp.o' % (KERNELS, capability), 'CXX')
                    for capability in ('AVX2', 'SVE256')]
    assert other.earlier and other.peak == pytest.approx(known.peak, rel=0.5) and other.uncertainty > known.uncertainty
    bwd = knowledge.estimate('aten/src/ATen/native/transformers/cuda/flash_attn/kernels/'
                             'flash_bwd_hdim96_fp16_causal_sm80.cu.o', 'CUDA')
    assert bwd.peak > 5000 > knowledge.estimate('flash_attn/kernels/flash_fwd_hdim64_fp16_sm80.cu.o', 'CUDA').peak


def test_what_has_ended_corrects_what_was_shipped():
    knowledge = Knowledge(others=[SHIPPED])
    files = [(name, entry) for name, entry in knowledge.earlier[0].files.items()
             if entry['language'] == 'CXX' and entry['seconds'] > 5]
    last = files[-1][0]
    before = knowledge.estimate(last, 'CXX')
    assert before.peak > max(files[-1][1]['curve'])
    for name, entry in files[:100]:
        end(knowledge, name, 'CXX', 2 * entry['seconds'], 1.5 * max(entry['curve']))
    after = knowledge.estimate(last, 'CXX')
    assert after.slowness == pytest.approx(2, rel=0.2)
    assert after.peak == pytest.approx(before.peak / 1.1 * 1.5, rel=0.15)
    # nothing that takes twice the memory is known of other languages, but the machine is the same
    assert knowledge.estimate('flash_attn/kernels/flash_fwd_hdim64_fp16_sm80.cu.o', 'CUDA').slowness > 1.2


def test_another_version_s_profile_fills_the_gaps(tmp_path):
    for name, megabytes in (('own', 100), ('other', 900)):
        (tmp_path / name).write_text(json.dumps({'version': 1, 'files': {
            'src/deep/%s.cpp.o' % file: {'seconds': 5, 'curve': [megabytes], 'language': 'CXX'}
            for file in ('common', name)}}))
    (tmp_path / 'broken').write_text('{')
    knowledge = Knowledge(str(tmp_path / 'own'), others=[str(tmp_path / name) for name in ('none', 'broken', 'other')])
    assert len(knowledge.warnings) == 2 and 'broken is no profile of ramgate' in knowledge.warnings[1]
    assert knowledge.estimate('src/deep/common.cpp.o', 'CXX').peak == 100
    assert knowledge.estimate('build/src/deep/other.cpp.o', 'CXX').peak == pytest.approx(900, rel=0.15)
