"""The official wheel for Bede, which is for Arm: refused here, before anything is fetched, tag by tag."""
import re
import sys

import pytest
from common import CHECKOUT, stand_in

EASYCONFIG = CHECKOUT / 'easyconfigs' / 'p' / 'PyTorch' / 'PyTorch-2.6.0-Bede-whl.eb'


def edited(directory, *pairs):
    """The easyconfig for this machine's Python, changed besides."""
    text = EASYCONFIG.read_text()
    for pattern, replacement in [
            (r".*'-standalone'.*\n", ''),
            (r"^python_versions = .*", "python_versions = ['%d.%d']" % sys.version_info[:2]), *pairs]:
        text, count = re.subn(pattern, replacement, text, flags=re.M)
        assert count == 1, pattern
    version = re.search(r"^version = '(.*)'", text, re.M).group(1)
    path = directory / EASYCONFIG.name.replace('2.6.0', version)
    path.write_text(text)
    return path


@pytest.mark.slow
def test_refused_here(eb, tmp_path):
    """The only wheel is for Arm and Python 3.12: what there is none for is told, and nothing is installed."""
    eb.sources = tmp_path / 'sources'
    stand_in('bede')
    for lock in (EASYCONFIG.parent / 'locks').glob('*2.6.0-[Bc]*.lock'):
        # as if it were made for this machine's Python, too
        (tmp_path / lock.name).write_text(re.sub('--python-version [0-9.]+', '', lock.read_text()))
    done = eb(edited(tmp_path), '--rehearse', '--system=bede', status=None, env={'PIP_NO_INDEX': '1'})
    assert done.returncode
    assert 'No index has torch 2.6.0+cu126 for Python %d.%d on x86_64' % sys.version_info[:2] in done.stdout
    # EasyBuild makes the empty directory before anything else
    assert not list(eb.modules.glob('PyTorch/*'))


@pytest.mark.nightly
@pytest.mark.slow
def test_with_this_machines_wheel(eb, tmp_path):
    """Everything but the wheel itself, which is for Arm: mpi4py and the mpi backend belong to Bede's Open MPI."""
    here = edited(tmp_path, (r"^version = .*", "version = '2.13.0'"), (r'whl/cu126', 'whl/cpu'),
                  ("'gpu', 'nccl', ", "'cpu', "),
                  (r"^lock_files = .*", "lock_files = ['torch-2.13.0-cpu.lock', 'PyTorch-2.13.0-workstation.lock', "
                   "'mpi4py.lock']"))
    eb(here, '--rehearse', '--system=bede')
    extension, = (eb.prefix / 'software' / 'PyTorch').glob('*/lib/python3*/site-packages/torch_mpi/_c*.so')
    assert b'libmpi.so.40' in extension.read_bytes()
