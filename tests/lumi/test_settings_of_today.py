"""LUMI of 2026: which settings a container's module makes depends on its ROCm."""
import pytest


@pytest.mark.slow
@pytest.mark.parametrize('name, there, absent', [
    ('PyTorch-2.10.0-rocm-7.0-python-3.12-singularity-20260807.eb', 'FI_MR_CACHE_MONITOR", "userfaultfd"',
     'NCCL_NET_GDR_LEVEL'),
    ('PyTorch-2.7.1-rocm-6.2.4-python-3.12-singularity-20250827.eb', 'NCCL_NET_GDR_LEVEL", "3"', 'FI_MR_CACHE_MONITOR'),
    # whose versionsuffix names no ROCm
    ('lumi-multitorch-20260807-mpich-singularity.eb', 'FI_MR_CACHE_MONITOR", "userfaultfd"', 'NCCL_NET_GDR_LEVEL'),
])
def test_settings_by_rocm(eb, name, there, absent):
    output = eb('--rehearse', '-x', name).stdout
    assert 'setenv("%s)' % there in output and absent not in output
