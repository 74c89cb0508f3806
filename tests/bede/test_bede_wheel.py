"""The official wheel for Bede, which is for Arm: refused here, before anything is fetched, tag by tag."""
import re
import sys

import pytest
from common import CHECKOUT

EASYCONFIG = CHECKOUT / 'easyconfigs' / 'p' / 'PyTorch' / 'PyTorch-2.6.0-Bede-whl.eb'


@pytest.mark.slow
def test_refused_here(eb, tmp_path):
    """Another Python, another processor: both are told, and nothing is fetched or installed."""
    easyconfig = tmp_path / EASYCONFIG.name
    easyconfig.write_text(re.sub(r"^python_versions = .*", "python_versions = ['%d.%d']" % sys.version_info[:2],
                                 EASYCONFIG.read_text(), flags=re.M))
    done = eb(easyconfig, '--rehearse', '--system=bede', status=None)
    output = done.stdout.replace('\n', ' ')
    assert done.returncode
    assert 'torch-2.6.0+cu126-cp312-cp312-linux_aarch64.whl does not fit' in output
    if sys.version_info[:2] != (3, 12):
        assert 'Python tag cp312: it is for CPython 3.12, and' in output
    assert 'linux_aarch64 is for aarch64 processors, this machine has x86_64' in output
    assert "Couldn't find file" not in output
    assert not (eb.prefix / 'software' / 'PyTorch').exists()


@pytest.mark.slow
def test_with_this_machines_wheel(eb, tmp_path):
    """Everything but the wheel itself, which is for Arm: mpi4py and the mpi backend belong to Bede's Open MPI."""
    text = EASYCONFIG.read_text()
    for pattern, replacement in [
            (r"^version = .*?\n", "version = '2.13.0'\n"),
            (r"^sources = \[\{.*?^\}\]\n", ""), (r"^checksums = .*?\n", ""), (r"^source_urls = .*?\n", ""),
            (r"^python_versions = .*?\n", "python_versions = ['%d.%d']\n" % sys.version_info[:2]),
            (r"^lock_files = .*?\n", "extra_index_urls = ['https://download.pytorch.org/whl/cpu']\n"
                                     "lock_files = ['torch-2.13.0-cpu.lock', 'PyTorch-2.13.0-workstation.lock']\n")]:
        text, count = re.subn(pattern, replacement, text, flags=re.M | re.S)
        assert count == 1, pattern
    here = tmp_path / EASYCONFIG.name.replace('2.6.0', '2.13.0')
    here.write_text(text)
    eb(here, '--rehearse', '--system=bede')
    extension, = (eb.prefix / 'software' / 'PyTorch').glob('*/lib/python3*/site-packages/torch_mpi/_c*.so')
    assert b'libmpi.so.40' in extension.read_bytes()


def test_checksum_can_be_renewed():
    """One source, one checksum, on PyTorch's own page."""
    text = EASYCONFIG.read_text()
    assert "source_urls = ['https://download.pytorch.org/whl/cu126']" in text
    assert len(re.findall(r"^checksums = \['[0-9a-f]{64}'\]", text, re.M)) == 1
