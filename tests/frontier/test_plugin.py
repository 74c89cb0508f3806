"""The OFI plugin: whether NCCL must have it, and its build on the stand-in."""
import importlib.machinery
import importlib.util

import pytest
from common import CHECKOUT, EB

@pytest.fixture(scope='module')
def check():
    """pytorch-check as a module."""
    path = CHECKOUT / 'hpc_pytorch/scripts/pytorch-check'
    loader = importlib.machinery.SourceFileLoader('pytorch_check', str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader('pytorch_check', loader))
    loader.exec_module(module)
    return module


def test_network(check, monkeypatch):
    """The plugin; InfiniBand, where the system does not insist on a plugin; neither."""
    monkeypatch.delenv('HPC_NCCL_NET', raising=False)
    assert check.accepted('OFI plugin (provider cxi)') == 'the network is the OFI plugin (provider cxi)'
    assert 'InfiniBand, which needs no plugin' in check.accepted('InfiniBand')
    monkeypatch.setenv('HPC_NCCL_NET', 'OFI')
    for network in ('InfiniBand', 'sockets (slow: load the module of the OFI plugin)', 'its log does not say',
                    'OFI plugin (provider tcp;ofi_rxm)'):
        with pytest.raises(check.Failed, match='the network is %s' % network[:8]):
            check.accepted(network)


@pytest.mark.slow
def test_build(tmp_path, lmod):
    """aws-ofi-nccl for ROCm, against Debian's HIP and libfabric, through the easyconfig as it is."""
    eb = EB(tmp_path / 'prefix')
    name = 'aws-ofi-nccl-1.19.2-Frontier.eb'
    eb.fetch_from_github(name, '--rehearse')
    eb(name, '--rehearse')
    output = lmod.run("""
        module use %s/.local/stand_ins/frontier-2024/modules %s
        module load aws-ofi-nccl
        nm -D "$EBROOTAWSMINOFIMINNCCL/lib/librccl-net.so"
        echo "$LD_LIBRARY_PATH"
    """ % (CHECKOUT, eb.modules))
    # the interfaces that RCCL of ROCm 5.7 and of later releases asks for
    for interface in ('ncclNetPlugin_v6', 'ncclNetPlugin_v7', 'ncclNetPlugin_v8'):
        assert interface in output
    assert str(eb.prefix / 'software/aws-ofi-nccl') in output.splitlines()[-1]
