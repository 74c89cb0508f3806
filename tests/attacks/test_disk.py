"""A file system that fails while something is installed: README.rst says how to go on for an hour."""
import contextlib
import os
import resource
import shutil
import subprocess
import threading

import pytest
from common import FOR_ROOT
from attacks.attempts import attack
from attacks.target import Target
from small_software import site

pytestmark = [pytest.mark.slow, pytest.mark.nightly, FOR_ROOT]
REASON = ('No space left on device', 'too little room', 'Read-only file system', 'cannot be written to',
          'File too large', 'is not writable', 'not be written', 'cannot write to')
MB = 2 ** 20


class Disk:
    """A file system that can be full, full of files, or read-only from one moment on."""

    def __init__(self, place):
        self.place = place
        place.mkdir()
        # less than the source path wants to see at least would be refused at once
        self.mount('size=80m,nr_inodes=4000')

    def mount(self, options):
        """Mount it, or again."""
        subprocess.run(['mount', '-t', 'tmpfs', '-o', options, 'none', str(self.place)], check=True)

    def fill(self, chance):
        """Others need the room, but for a rest that is too small."""
        state, rest = os.statvfs(self.place), chance.choice([0, chance.randrange(256)]) * 1024
        with open(self.place / 'filling', 'wb') as handle, contextlib.suppress(OSError):
            os.posix_fallocate(handle.fileno(), 0, max(1, state.f_bavail * state.f_frsize - rest - 4096))

    def crowd(self, chance):
        """Others have made as many files as there may be, but for a few."""
        (self.place / 'crowd').mkdir()
        with contextlib.suppress(OSError):
            for number in range(os.statvfs(self.place).f_favail - chance.randrange(30)):
                (self.place / 'crowd' / str(number)).touch()

    def write_protect(self, _):
        """As a file server that was restarted; the kernel waits until nobody has a file open for writing."""
        while subprocess.run(['mount', '-o', 'remount,ro', str(self.place)], stderr=subprocess.DEVNULL).returncode:
            if self.over.wait(0.01):
                return

    def mend(self):
        """All is well again."""
        subprocess.run(['mount', '-o', 'remount,rw', str(self.place)], check=True)
        shutil.rmtree(self.place / 'crowd', ignore_errors=True)
        (self.place / 'filling').unlink(missing_ok=True)


def test_disk(tmp_path):
    """It ends with the reason, not with a traceback, or well; afterwards all is as if nothing had been."""
    disk = Disk(tmp_path / 'disk')
    target = Target(tmp_path, place=disk.place)
    target.online.update(site(tmp_path, '[policy]\nfree_space = allow\n'))
    duration = target.duration()

    def attempt(chance):
        target.forget(chance)
        (disk.place / 'tmp').mkdir(exist_ok=True)
        limit = chance.choice([None, None, None, chance.randrange(2 * MB)])
        options = chance.choice([[], ['--tmpdir=%s' % (disk.place / 'tmp')]])
        # EasyBuild's own temporary directory comes last on the command line
        process, output = target.started(*chance.choice([['--rebuild'], ['--fetch']]), *options, **(
            {'preexec_fn': lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))} if limit else {}))
        disk.over = threading.Event()
        try:
            process.wait(timeout=duration * chance.uniform(0, 1))
        except subprocess.TimeoutExpired:
            if not limit:
                way = chance.choice([disk.fill, disk.crowd, disk.write_protect])
                waiting = threading.Thread(target=way, args=(chance,))
                waiting.start()
                process.wait(timeout=600)
                disk.over.set()
                waiting.join()
        process.wait(timeout=600)
        disk.mend()
        output.seek(0)
        said = output.read()
        assert 'Traceback' not in said, said
        assert process.returncode == 0 or any(reason in said for reason in REASON), said
        target.check()

    try:
        attack(attempt, 1)
    finally:
        subprocess.run(['umount', '--lazy', str(disk.place)], check=True)
