"""Processes and their memory, as /proc shows them."""
import contextlib
import os
import signal
import time

from ramgate.command_lines import WRAPPER, compiles, is_compiler

PAGE = os.sysconf('SC_PAGE_SIZE')
TICKS = os.sysconf('SC_CLK_TCK')
# the kernel keeps so many letters of a program's name
NAME_LENGTH = 15
# owners of processes that belong to no compiler: of the tree, and below a compiler wrapper
FREE = 'free'
MANAGED = 'managed'


def read(pid, name):
    """Return a file of a process; b'' if it has ended."""
    with contextlib.suppress(OSError), open('/proc/%d/%s' % (pid, name), 'rb') as file:
        return file.read()
    return b''


def link(pid, name):
    with contextlib.suppress(OSError):
        return os.readlink('/proc/%d/%s' % (pid, name))
    return ''


def pids():
    return [int(name) for name in os.listdir('/proc') if name.isdigit()]


def stat(pid):
    """Return the words of stat from the state on; none if the process has ended."""
    words = read(pid, 'stat').rpartition(b')')[2].split()
    return words if words[:1] not in ([b'Z'], [b'X']) else []


def parent(pid):
    words = stat(pid)
    return int(words[1]) if words else 0


def cpu_seconds(pid):
    return sum(map(int, stat(pid)[11:13])) / TICKS


def own_memory(pid):
    """Bytes that only this process occupies: shared pages (files, libraries) do not count."""
    words = read(pid, 'statm').split()
    return (int(words[1]) - int(words[2])) * PAGE if words else 0


def in_groups(groups):
    """{process group: its processes}. A compiler's whole tree is in the group that the compiler wrapper made."""
    found = {group: [] for group in groups}
    for pid in pids() if found else ():
        with contextlib.suppress(OSError):
            group = os.getpgid(pid)
            if group in found:
                found[group].append(pid)
    return found


def descendants(pid):
    """Return all processes below this one that are not zombies, without this one."""
    children = {}
    for child in pids():
        children.setdefault(parent(child), []).append(child)
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def send(processes, *numbers):
    """Send signals to processes; a negative number is a process group."""
    for pid in processes:
        for number in numbers:
            with contextlib.suppress(OSError):
                os.kill(pid, number)


def end_all(find):
    """End the processes that `find` returns, until it returns none."""
    for attempt in range(100):
        left = find()
        if not left:
            return
        send(left, signal.SIGKILL if attempt else signal.SIGTERM, signal.SIGCONT)
        time.sleep(0.02 if attempt else 0.2)
        # this process may have inherited them
        with contextlib.suppress(OSError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def command_line(pid, name):
    """Return the words with which a program was called, without the interpreter of a script."""
    words = [os.fsdecode(word) for word in read(pid, 'cmdline').split(b'\0')[:-1]]
    names = [os.path.basename(word)[:NAME_LENGTH] for word in words[:2]]
    return words[1:] if name in names[1:] and name != names[0] else words


class Tree:
    """The processes below `root`, and which of them are compilers that were started without a compiler wrapper."""
    # each has an owner: the compiler (its pid) below which it runs, MANAGED, FREE, or None outside of the tree

    def __init__(self, root, directory):
        self.directory = directory
        # this very process watches
        self.owners = {root: FREE, os.getpid(): None}
        self.names = {}

    def look(self):
        """Return the compilers that have started since the last look, with their words: [(pid, words)]."""
        self.born = []
        present = pids()
        self.owners = {pid: self.owners[pid] for pid in present if pid in self.owners}
        # those first that may have become a compiler or a wrapper before they had children
        for pid, owner in list(self.owners.items()):
            if owner == FREE:
                self.identify(pid)
        for pid in present:
            self.place(pid)
        self.names = {pid: name for pid, name in self.names.items() if pid in self.owners}
        return self.born

    def place(self, pid):
        """Assign a process to its parent's owner; an orphan falls to the root, which adopts."""
        if pid not in self.owners:
            above = parent(pid)
            self.owners[pid] = self.place(above) if above else None
            if self.owners[pid] == FREE:
                self.identify(pid)
        return self.owners[pid]

    def identify(self, pid):
        name = os.fsdecode(read(pid, 'comm')).rstrip('\n')
        if self.names.get(pid) == name:
            return
        words = command_line(pid, name)
        if not words:
            # it is just being started
            return
        self.names[pid] = name
        if len(name) == NAME_LENGTH and os.path.basename(words[0]).startswith(name):
            name = os.path.basename(words[0])
        directory, program = os.path.split(link(pid, 'exe'))
        if program == WRAPPER:
            self.owners[pid] = MANAGED if directory == self.directory else FREE
        elif name == WRAPPER:
            # the launcher's script, about to become something else
            del self.names[pid]
        elif b'RAMGATE_WRAPPED=' in read(pid, 'environ'):
            # below a wrapper that an emulator runs
            self.owners[pid] = MANAGED
        elif is_compiler(name) and compiles(words):
            self.owners[pid] = pid
            self.born.append((pid, words))

    def below(self, compilers):
        """{compiler: its processes, and itself}."""
        found = {compiler: [] for compiler in compilers}
        for pid, owner in self.owners.items():
            if owner in found:
                found[owner].append(pid)
        return found

    def members(self):
        self.look()
        return [pid for pid, owner in self.owners.items() if owner is not None and stat(pid)]
