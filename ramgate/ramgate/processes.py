"""Processes and their memory, as /proc shows them."""
import os

PAGE = os.sysconf('SC_PAGE_SIZE')


def pids():
    return [int(name) for name in os.listdir('/proc') if name.isdigit()]


def own_memory(pid):
    """Bytes that only this process occupies: shared pages (files, libraries) do not count."""
    try:
        with open('/proc/%d/statm' % pid, 'rb') as file:
            words = file.read().split()
    except OSError:
        return 0
    return (int(words[1]) - int(words[2])) * PAGE


def memory_of_groups(groups):
    """{process group: bytes}. A compiler's whole tree is in the group that the compiler wrapper made."""
    found = dict.fromkeys(groups, 0)
    for pid in pids():
        try:
            group = os.getpgid(pid)
        except OSError:
            continue
        if group in found:
            found[group] += own_memory(pid)
    return found


def descendants(pid):
    """All processes below this one that are not zombies, without this one."""
    children = {}
    for child in pids():
        try:
            with open('/proc/%d/stat' % child, 'rb') as file:
                state, parent = file.read().rpartition(b')')[2].split()[:2]
        except OSError:
            continue
        if state not in (b'Z', b'X'):
            children.setdefault(int(parent), []).append(child)
    found = []
    parents = [pid]
    while parents:
        below = children.get(parents.pop(), [])
        found += below
        parents += below
    return found
