"""Isambard-AI: a system of data only. Its settings, and its easyconfig with this machine's wheels on its stand-in."""
import re
import subprocess
import sys

import pytest
from common import CHECKOUT, stand_in

from hpc_pytorch.machine import systems

EASYCONFIG = CHECKOUT / 'easyconfigs/p/PyTorch/PyTorch-2.11.0-IsambardAI-whl.eb'
# of BriCS's guide to NCCL (2026-06), without NCCL_NET and NCCL_DEBUG
GUIDE = {
    'NCCL_SOCKET_IFNAME': 'hsn', 'NCCL_NET_GDR_LEVEL': 'PHB', 'NCCL_CROSS_NIC': '1', 'NCCL_MIN_NCHANNELS': '4',
    'NCCL_GDRCOPY_ENABLE': '1', 'NCCL_NET_FORCE_FLUSH': '0', 'FI_CXI_DEFAULT_CQ_SIZE': '131072',
    'FI_CXI_DEFAULT_TX_SIZE': '2048', 'FI_CXI_DISABLE_NON_INJECT_MSG_IDC': '1', 'FI_HMEM_CUDA_USE_GDRCOPY': '1',
    'FI_CXI_DISABLE_HOST_REGISTER': '1', 'FI_MR_CACHE_MONITOR': 'userfaultfd', 'FI_CXI_RDZV_PROTO': 'alt_read',
    'FI_CXI_RDZV_THRESHOLD': '0', 'FI_CXI_RDZV_GET_MIN': '0', 'FI_CXI_RDZV_EAGER_SIZE': '0',
    'FI_CXI_RX_MATCH_MODE': 'hybrid'}


def test_settings():
    """The guide's, and the job option without which one of them does harm is in every job script."""
    system = systems.load('isambard-ai')
    found = system.settings_for(['gpu', 'nccl'])
    assert {one.name: one.value for one in found} == GUIDE
    assert {one.job_option for one in found if one.job_option} == set(system.scheduler['options'])
    assert {one.name: one.value for one in system.settings_for(['gpu', 'mpi'])} == {'MPICH_GPU_SUPPORT_ENABLED': '0'}


def test_hosts():
    """A login node is known by its name; a compute node's is one on other systems, too."""
    assert systems.choose(None, {}, 'login40', [])[0] == 'isambard-ai'
    assert systems.choose(None, {}, 'nid010594', [])[0] == systems.DEFAULT
    assert systems.choose(None, {}, 'nid010594', [EASYCONFIG.name])[0] == 'isambard-ai'


@pytest.mark.slow
def test_dry_run(eb, on_arm):
    """As on Arm: it succeeds, takes CUDA's wheels and the newer plugin, and the module sets what the guide says."""
    output = eb(EASYCONFIG, '--rehearse', '-x', '--robot', env=on_arm).stdout
    assert '[SUCCESS] PyTorch/2.11.0-IsambardAI-whl' in output and '[SUCCESS] aws-ofi-nccl/1.21.1' in output
    assert '* torch 2.11.0+cu128' in output and '* nvidia-nccl-cu12 2.28.9' in output
    assert re.search(r'cpython-3\.12\.\d+\+\d+-aarch64-', output)
    for name, value in GUIDE.items():
        assert 'setenv("%s", "%s")' % (name, value) in output


@pytest.mark.nightly
@pytest.mark.slow
def test_with_this_machines_wheels(eb, tmp_path):
    """All but the wheels and the plugin: mpi4py and the mpi backend are built with cc, for cray-mpich."""
    text = EASYCONFIG.read_text()
    for pattern, replacement in [
            (r".*'aws-ofi-nccl'.*\n", ''), (r".*'-standalone'.*\n", ''),
            (r"^version = .*", "version = '2.13.0'"), ('whl/cu128', 'whl/cpu'),
            ("features = ..gpu', 'nccl', ", "features = ['cpu', "),
            (r"^python_versions = .*", "python_versions = ['%d.%d']" % sys.version_info[:2]),
            (r"^lock_files = .*", "lock_files = ['torch-2.13.0-cpu.lock', 'PyTorch-2.13.0-workstation.lock', "
             "'mpi4py.lock']")]:
        text, count = re.subn(pattern, replacement, text, flags=re.M)
        assert count == 1, pattern
    path = tmp_path / EASYCONFIG.name.replace('2.11.0', '2.13.0')
    path.write_text(text)
    stand_in('isambard-ai')
    eb(path, '--rehearse', '--system=isambard-ai')
    extension, = (eb.prefix / 'software' / 'PyTorch').glob('*/lib/python3*/site-packages/torch_mpi/_c*.so')
    needed = subprocess.run(['readelf', '-d', extension], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert 'libmpich.so.12' in needed
