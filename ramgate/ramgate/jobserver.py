"""
A jobserver (GNU make's protocol) for builds that cannot take a launcher: make, ninja 1.13, cargo and GCC's link-time
optimisation take a token for each job beside their first, and there are as many tokens as memory allows.

Jobs have no names here, and none can be run again: what one takes is what they were seen to take. Where memory gets
tight all the same, the newest compilers are frozen until others have ended.
https://www.gnu.org/software/make/manual/html_node/POSIX-Jobserver.html
"""
import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios

from ramgate.processes import descendants, own_memory, stat
from ramgate.schedule import MARGIN, SCARCE

# seconds between two looks; bytes of a job before any was seen; jobs differ: one takes so many times their mean
TICK, FIRST, UNEVEN = 0.1, 500 * 2 ** 20, 1.25
# what jobs took at most counts half after so many looks
HALF = 3000
# shares of the limit: below the first it is no use to freeze a process, above the other one that is frozen goes on
WORTH, EASY = 0.01, 0.1
# GNU make knows a FIFO from this version on; ninja and cargo prefer one
FIFO_SINCE = (4, 4)


class Allowance:
    """How many jobs may run at a time."""

    def __init__(self, cores):
        self.cores, self.each = cores, FIRST

    def jobs(self, own, free, busy, limit):
        """`own`: bytes of all jobs, of which `busy` run; `free`: bytes left of the limit."""
        self.each = max(UNEVEN * own / max(1, busy), self.each * 0.5 ** (1.0 / HALF))
        return max(1, min(self.cores, int((own + free - MARGIN * limit) / max(1.0, self.each))))


class Tokens:
    """A FIFO, or for an older make a pipe, with a letter for each job that may start beside the first."""

    def __init__(self, directory, fifo=None):
        self.given = 0
        if fifo if fifo is not None else make_version() >= FIFO_SINCE:
            path, self.inherited = os.path.join(directory, 'tokens'), ()
            os.mkfifo(path, 0o600)
            self.end, self.name = os.open(path, os.O_RDWR | os.O_NONBLOCK), 'fifo:' + path
        else:
            self.inherited = os.pipe()
            # an open file of our own, as theirs has to block
            self.end = os.open('/proc/self/fd/%d' % self.inherited[0], os.O_RDWR | os.O_NONBLOCK)
            self.name = '%d,%d' % self.inherited

    def lying(self):
        """Tokens that nobody has taken."""
        return struct.unpack('i', fcntl.ioctl(self.end, termios.FIONREAD, b'\0' * 4))[0]

    def change(self, jobs):
        """So many jobs may run, the first included. Tokens that are taken come back when their jobs end."""
        if jobs - 1 > self.given:
            self.given += os.write(self.end, b'+' * (jobs - 1 - self.given))
        elif jobs - 1 < self.given:
            with contextlib.suppress(BlockingIOError):
                self.given -= len(os.read(self.end, self.given - jobs + 1))


class Jobserver:
    """Gives and takes tokens until the build has ended; `control` as the broker's."""

    def __init__(self, tokens, control, limits, cores, root):
        self.tokens, self.control, self.limits, self.root = tokens, control, limits, root
        self.allowance, self.frozen = Allowance(cores), []

    def serve(self):
        """Until the build has ended."""
        while not (select.select([self.control], [], [], TICK)[0] and os.read(self.control, 1) in (b'f', b'')):
            self.look()
        self.thaw(len(self.frozen))

    def look(self):
        """Measure, and set the number of tokens."""
        memory = {pid: own_memory(pid) for pid in descendants(self.root) if pid != os.getpid()}
        own, busy = sum(memory.values()), 1 + self.tokens.given - self.tokens.lying()
        constraint = self.limits.tightest(own)
        jobs = self.allowance.jobs(own, constraint.free, busy, constraint.limit)
        # a few at a time: what new ones take is only known when they have grown
        self.tokens.change(min(jobs, self.tokens.given + 2 + busy // 4))
        self.relieve(memory, constraint)

    def relieve(self, memory, constraint):
        """Freeze the newest that is worth it while memory is short; let the oldest go on when it no longer is."""
        self.frozen = [pid for pid in self.frozen if pid in memory]
        heavy = [pid for pid in memory if memory[pid] > WORTH * constraint.limit and pid not in self.frozen]
        if constraint.free < SCARCE * constraint.limit and len(heavy) > 1:
            newest = max(heavy, key=lambda pid: int((stat(pid) or [b'0'] * 20)[19]))
            with contextlib.suppress(ProcessLookupError):
                os.kill(newest, signal.SIGSTOP)
                self.frozen.append(newest)
        elif constraint.free > EASY * constraint.limit or not heavy:
            self.thaw(1)

    def thaw(self, count):
        """So many of the frozen go on, the oldest first."""
        for pid in self.frozen[:count]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.frozen = self.frozen[count:]


def make_version():
    """(4, 3) of GNU make; a version that knows a FIFO where there is no make."""
    try:
        text = subprocess.run(['make', '--version'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              stdin=subprocess.DEVNULL).stdout.decode(errors='replace')
    except OSError:
        return FIFO_SINCE
    found = re.match(r'GNU Make (\d+)\.(\d+)', text)
    return tuple(int(part) for part in found.groups()) if found else FIFO_SINCE


def environment(tokens, cores, environ):
    """The build's environment: MAKEFLAGS, and no number of jobs anywhere, as ninja's -j switches its client off."""
    found = {name: value for name, value in environ.items() if name not in ('MAX_JOBS', 'CMAKE_BUILD_PARALLEL_LEVEL')}
    before = re.sub(r'(^| )(-j\d*|--jobserver-\S+)', '', environ.get('MAKEFLAGS', ''))
    return dict(found, MAKEFLAGS='%s -j%d --jobserver-auth=%s' % (before, cores, tokens.name))
