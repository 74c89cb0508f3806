"""Memory of process groups, and families of processes, as /proc shows them."""
import os

PAGE = os.sysconf('SC_PAGE_SIZE')


def stat(pid):
    """The fields of /proc/PID/stat after the name: state, parent, group, ...; None where it has gone."""
    try:
        with open('/proc/%s/stat' % pid, 'rb') as file:
            return file.read().rpartition(b')')[2].split()
    except OSError:
        return None


def own_memory(pid):
    """Bytes that only this process occupies: what is resident less what is shared with files and others."""
    try:
        with open('/proc/%s/statm' % pid, 'rb') as file:
            words = file.read().split()
            return (int(words[1]) - int(words[2])) * PAGE
    except (OSError, IndexError):
        return 0


class Groups:
    """Sums up memory by process group. A compiler's whole tree has the group that the launcher gave it."""

    def __init__(self):
        # who was seen twice in a foreign group stays there: a crowded login node costs nothing
        self.foreign = {}

    def memory(self, groups):
        """{group: bytes} for each of the given groups."""
        found = dict.fromkeys(groups, 0)
        foreign = {}
        for pid in os.listdir('/proc'):
            if not pid.isdigit():
                continue
            seen = self.foreign.get(pid, 0)
            if seen < 2:
                words = stat(pid)
                if words is None:
                    continue
                group = int(words[2])
                if group in found:
                    found[group] += own_memory(pid)
                    continue
            foreign[pid] = seen + 1
        self.foreign = foreign
        return found


def descendants(pid):
    """All living processes below a process, its own number left out."""
    children = {}
    for child in os.listdir('/proc'):
        if child.isdigit():
            words = stat(child)
            if words and words[0] not in (b'Z', b'X'):
                children.setdefault(int(words[1]), []).append(int(child))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found
