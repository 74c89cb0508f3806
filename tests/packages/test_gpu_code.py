"""What runs on which GPU."""
import pytest

from hpc_pytorch.packages import gpu_code


@pytest.mark.parametrize('code, gpus, others', [
    ('sm_80', '8.0 8.6 8.9', '7.5 9.0 gfx90a'),
    ('sm_86', '8.6 8.9', '8.0 9.0'),
    ('sm_90a', '9.0', '9.1 10.0'),
    ('sm_100f', '10.0 10.3', '12.0 9.0'),
    ('sm_120', '12.0 12.1', '10.0'),
    ('compute_80', '8.0 8.6 9.0 12.0', '7.5 gfx90a'),
    ('compute_90a', '9.0', '8.0 10.0'),
    ('gfx90a', 'gfx90a', 'gfx906 gfx942 9.0'),
    ('gfx90a:xnack-', 'gfx90a', 'gfx908'),
])
def test_rules(code, gpus, others):
    """Machine code within a generation and upwards, PTX on everything newer, AMD's on the same."""
    assert [gpu for gpu in (gpus + ' ' + others).split() if gpu_code.runs_on(code, gpu)] == gpus.split()


def test_words():
    """Which GPU has none, what there is, and what to do; what was says nothing is not judged."""
    codes = 'sm_75 sm_80 sm_90 compute_90'.split()
    assert gpu_code.why_not('2.15.0', codes, ['8.6', '9.0+PTX', '10.0']) is None
    assert gpu_code.why_not('2.15.0', [], ['7.0']) is None
    assert 'no code for the GPU 8.6: it has code for cpu.' in gpu_code.why_not('2.15.0+cpu', [gpu_code.CPU], ['8.6'])
    refused = gpu_code.why_not('2.15.0', codes, ['8.0', '7.0'])
    assert 'torch 2.15.0 has no code for the GPU 7.0:' in refused and 'sm_75 sm_80 sm_90 compute_90' in refused
    assert '--cuda-compute-capabilities' in refused


@pytest.mark.parametrize('torch, rocm, fits', [
    ('2.2.2+rocm5.7', '5.7.1', True), ('2.2.2+rocm5.7', '5.6.1', False), ('2.10.0+rocm7.1', '7.1', True),
    ('2.10.0+rocm7.1', '7.10.0', False), ('2.10.0+rocm7.1', None, True), ('2.10.0+cpu', '7.1.1', True),
    ('2.9.0+rocm6.4.2', '6.4.1', True), ('2.10.0', '7.1.1', True),
])
def test_rocm(torch, rocm, fits):
    """The wheel's release of ROCm is the module's; both are named otherwise, and what to do."""
    problem = gpu_code.why_not_rocm(torch, rocm)
    assert fits == (problem is None)
    if problem:
        assert torch in problem and 'ROCm %s is loaded' % rocm in problem and '--new-version' in problem
