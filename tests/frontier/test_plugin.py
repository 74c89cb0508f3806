"""The OFI plugin: what NCCL's log says of it, and its build on the stand-in."""
import importlib.machinery
import importlib.util

import pytest
from common import CHECKOUT, EB

# as NCCL and RCCL print it
USED = """n1:7:7 [0] NCCL INFO NET/OFI Selected Provider is cxi (found 4 nics)
n1:7:7 [0] NCCL INFO Using network AWS Libfabric
"""
NOT_USED = """n1:7:7 [0] NCCL INFO NET/Plugin : No plugin found (librccl-net.so), using internal implementation
n1:7:7 [0] NCCL INFO NET/Socket : Using [0]hsn0:10.0.0.1<0>
n1:7:7 [0] NCCL INFO Using network Socket
"""


@pytest.fixture(scope='module')
def check():
    """pytorch-check as a module."""
    path = CHECKOUT / 'hpc_pytorch/scripts/pytorch-check'
    loader = importlib.machinery.SourceFileLoader('pytorch_check', str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader('pytorch_check', loader))
    loader.exec_module(module)
    return module


def test_network(check):
    """The old name of the plugin's network, the new one, and none of them."""
    assert check.network_of(USED) == 'the network is AWS Libfabric, provider cxi'
    assert check.network_of(USED.replace('AWS Libfabric', 'OFI')) == 'the network is OFI, provider cxi'
    for log in (NOT_USED, ''):
        with pytest.raises(check.Failed) as failed:
            check.network_of(log)
        assert 'load the module of the plugin' in str(failed.value)
    with pytest.raises(check.Failed) as failed:
        check.network_of(NOT_USED)
    assert 'the network is Socket' in str(failed.value) and 'No plugin found' in str(failed.value)


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
