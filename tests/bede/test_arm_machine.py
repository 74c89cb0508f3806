"""A Debian for aarch64, whole, by qemu-user: what Arm's newcomers type, up to what the wheels' size forbids here."""
import subprocess

import pytest
from common import CACHE, CHECKOUT, FOR_ROOT

pytestmark = [pytest.mark.slow, pytest.mark.nightly, FOR_ROOT]


def test_dry_run():
    """./eb makes its environment, with what it needs of Debian, and says which wheels it would install."""
    root = CACHE / 'arm' / 'machine'
    root.parent.mkdir(parents=True, exist_ok=True)
    machine = [CHECKOUT / 'tests/bede/in-arm-machine', root]
    assert subprocess.run([*machine, 'uname', '-m'], check=True, text=True, timeout=3500,
                          stdout=subprocess.PIPE).stdout.endswith('aarch64\n')
    clone = root / 'root/clone'
    subprocess.run(['rm', '-rf', clone], check=True)
    tracked = subprocess.run(['git', '-C', CHECKOUT, 'archive', 'HEAD'], check=True, stdout=subprocess.PIPE).stdout
    clone.mkdir()
    subprocess.run(['tar', '-x', '-C', clone], input=tracked, check=True)
    done = subprocess.run([*machine, '/root/clone/eb', '-x', 'PyTorch-2.15.0-workstation.eb'], text=True, timeout=3500,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and 'Traceback' not in done.stdout, done.stdout
    assert 'torch 2.15.0\n' in done.stdout and '[SUCCESS] PyTorch/2.15.0-workstation' in done.stdout, done.stdout
