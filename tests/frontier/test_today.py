"""Frontier of 2026: what is set for its ROCm 7, and not for the ROCm 5 of 2024; the plugin that is built for it."""
import re

import pytest
from common import stand_in
from small_software import make_wheel, sha256

from hpc_pytorch.machine import systems

EASYCONFIG = """easyblock = 'LockedWheels'
name = 'toy'
version = '1.0'
versionsuffix = '-Frontier'
homepage = 'https://example.org'
description = 'a toy'
toolchain = SYSTEM
dependencies = [('PrgEnv-gnu/%s', EXTERNAL_MODULE), ('rocm/%s', EXTERNAL_MODULE), ('miniforge3', EXTERNAL_MODULE)]
lock_files = ['toy.lock']
python_versions = ['3.14', '3.13', '3.12', '3.11', '3.10', '3.9']
features = ['gpu', 'nccl', 'mpi']
scripts = ['pytorch-jobscript', 'pytorch-run']
moduleclass = 'ai'
"""
# "strongly recommended by HPE and AMD"
TODAY = {
    'NCCL_SOCKET_IFNAME': 'hsn0,hsn1,hsn2,hsn3', 'NCCL_CROSS_NIC': '1', 'NCCL_NET_GDR_LEVEL': 'PHB',
    'HSA_FORCE_FINE_GRAIN_PCIE': '1', 'FI_MR_CACHE_MONITOR': 'kdreg2', 'FI_CXI_DISABLE_HOST_REGISTER': '1',
    'FI_CXI_DEFAULT_CQ_SIZE': '131072', 'FI_CXI_DEFAULT_TX_SIZE': '2048', 'FI_CXI_RDZV_PROTO': 'alt_read',
    'FI_CXI_RDZV_EAGER_SIZE': '0', 'FI_CXI_RDZV_THRESHOLD': '0', 'FI_CXI_RDZV_GET_MIN': '0',
    'FI_CXI_RX_MATCH_MODE': 'hybrid',
}


def test_settings_by_rocm():
    """Each state of the machine has its own; without ROCm neither has any of them."""
    frontier = systems.load('frontier')

    def found(versions):
        return {setting.name: setting.value for setting in frontier.settings_for(['nccl'], versions)}
    assert found({'rocm': '7.1.1'}) == TODAY
    assert found({'rocm': '5.7.1'}) == {'NCCL_SOCKET_IFNAME': 'hsn0'} and found({}) == {}
    assert 'NCCL_NET' not in {setting.name for setting in frontier.settings}, "a single node has no network"


@pytest.mark.slow
def test_module(eb, tmp_path, lmod):
    """The version of the system's ROCm module decides; the job asks Slurm for what alt_read needs."""
    (tmp_path / 'toy.lock').write_text('toy==1.0 --hash=sha256:%s\n' % sha256(make_wheel(tmp_path, 'toy')))
    easyconfig = tmp_path / 'toy-1.0-Frontier.eb'
    said = {}
    for state, versions in (('frontier-2024', ('8.5.0', '5.7.1')), ('frontier', ('8.7.0', '7.1.1'))):
        easyconfig.write_text(EASYCONFIG % versions)
        modules = stand_in(state)
        eb(easyconfig, '--rehearse', '--rebuild', env={'PIP_FIND_LINKS': str(tmp_path), 'PIP_NO_INDEX': '1'})
        said[state] = lmod.run('module use %s %s; module load toy; env; module help toy 2>&1' % (modules, eb.modules))
    share = eb.prefix / 'software/toy/1.0-Frontier/share'
    assert {'system.cfg', 'launchers.cfg'} <= {path.name for path in share.iterdir()}
    now = dict(re.findall(r'^(\w+)=(.*)$', said['frontier'], re.M))
    assert TODAY.items() <= now.items() and now['HPC_NCCL_NET'] == 'OFI'
    assert 'NCCL_PROTO=^LL128' in said['frontier'] and 'NCCL_NET_GDR_LEVEL=3' not in said['frontier']
    then = said['frontier-2024']
    assert '\nFI_CXI' not in then and 'NCCL_SOCKET_IFNAME=hsn0\n' in then
    assert 'NCCL_NET_GDR_LEVEL=3' in then and 'LL128' not in then
    job = eb.prefix / 'software/toy/1.0-Frontier/bin/pytorch-jobscript'
    written = lmod.run('LOADEDMODULES=PyTorch/1 %s --nodes 2 --account a train.py' % job)
    assert '#SBATCH --network=disable_rdzv_get' in written
