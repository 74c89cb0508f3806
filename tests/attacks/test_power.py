"""A machine that loses power: README.rst says how to go on for an hour."""
import fcntl
import os
import signal
import struct
import subprocess
import time

import pytest
from common import FOR_ROOT
from attacks.attempts import attack
from attacks.target import Target
from small_software import site

from hpc_pytorch import fsync

pytestmark = [pytest.mark.slow, pytest.mark.nightly, FOR_ROOT]
# linux/fs.h: nothing that is only in memory is written any more, not even the journal
SHUTDOWN, WITHOUT_JOURNAL = 0x8004587d, 2


class Disk:
    """A file system that, as after a loss of power, has only what was written to its disk."""

    def __init__(self, folder):
        self.place, self.image = folder / 'disk', folder / 'image-0'
        self.place.mkdir()
        with open(self.image, 'wb') as handle:
            handle.truncate(200 * 2 ** 20)
        subprocess.run(['mkfs.ext4', '-q', str(self.image)], check=True)
        self.mount()

    def mount(self):
        """With a journal that is written each second, so that there is more to go wrong."""
        subprocess.run(['mount', '-o', 'loop,commit=1', str(self.image), str(self.place)], check=True)

    def lose_power(self):
        """From now on."""
        place = os.open(self.place, os.O_RDONLY)
        fcntl.ioctl(place, SHUTDOWN, struct.pack('I', WITHOUT_JOURNAL))
        os.close(place)

    def mend(self):
        """On again; on a copy, as other mount namespaces may still have the file system without power."""
        self.unmount()
        lost, self.image = self.image, self.image.with_name('image-%d' % (int(self.image.name[6:]) + 1))
        subprocess.run(['cp', '--sparse=always', str(lost), str(self.image)], check=True)
        lost.unlink()
        self.mount()

    def unmount(self):
        """Processes of the machine that had no power may take a moment to be gone."""
        deadline = time.monotonic() + 60
        while subprocess.run(['umount', str(self.place)], stderr=subprocess.DEVNULL).returncode:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_power(tmp_path):
    """What was fetched, and what has a module, is whole or is not there."""
    disk = Disk(tmp_path)
    target = Target(tmp_path, place=disk.place)
    target.online.update(site(tmp_path, '[policy]\nfree_space = allow\n'))
    duration = target.duration()

    def attempt(chance):
        target.forget(chance)
        installed = target.modules()
        fsync(str(disk.place))
        process, _ = target.started(*chance.choice([[], ['--fetch']]))
        time.sleep(duration * chance.uniform(0.2, 2))
        disk.lose_power()
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        disk.mend()
        target.check_fetched()
        assert target.modules() or not installed
        if target.modules():
            target.check_module()
        target.check()

    try:
        attack(attempt, 1)
    finally:
        disk.unmount()
