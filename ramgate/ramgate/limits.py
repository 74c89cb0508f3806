"""How much memory the build may use now, and which limit that is; page cache that can be given back is no use of it."""
import contextlib
import os
import re
import resource
import subprocess
from collections import namedtuple

UNITS = {'B': 1, 'K': 2 ** 10, 'M': 2 ** 20, 'G': 2 ** 30, 'T': 2 ** 40}
# cgroup version 1 says "no limit" with a number near 2^63
UNLIMITED = 2 ** 60
# what stays free on the host for everybody else: a share of the memory, within bounds
RESERVE_SHARE = 0.02
RESERVE_LEAST = 256 * 2 ** 20
RESERVE_MOST = 4 * 2 ** 30
# what stays free in a cgroup whose processes the kernel kills all together: a share of its limit
FATAL_RESERVE = 0.03

# name: for the user; limit, free: bytes
Constraint = namedtuple('Constraint', 'name limit free')


class Problem(Exception):
    """A mistake of the user, in one line."""


def size(text):
    """Bytes from 12G, 1.5 GiB, 800M, 123b; a bare number would be megabytes for some, and bytes for others."""
    match = re.match(r'^\s*(\d+(?:\.\d*)?)\s*(B|[KMGT](?:i?B)?)\s*$', text, re.I)
    if not match or float(match.group(1)) == 0:
        raise Problem('expected a size such as 12G or 800M, found %r' % text)
    number, unit = match.groups()
    return int(float(number) * UNITS[unit[0].upper()])


def human(amount):
    for unit, factor in (('GB', 2 ** 30), ('MB', 2 ** 20)):
        if amount >= factor:
            return '%.1f %s' % (amount / factor, unit)
    return '%.0f kB' % (amount / 1024)


def read(*parts):
    """Return the text of a small file; '' if it does not exist or may not be read."""
    with contextlib.suppress(OSError), open(os.path.join(*parts)) as file:
        return file.read()
    return ''


def number(*parts):
    """Return the number in a small file; None if there is none ('max')."""
    text = read(*parts).strip()
    return int(text) if text.isdigit() else None


def numbers(*parts):
    """{name: number} from the lines of a file such as memory.stat or /proc/meminfo."""
    return {name: int(value) for name, value in re.findall(r'^(\w+):?\s+(\d+)', read(*parts), re.M)}


class Cgroup:
    def __init__(self, directory, version):
        self.directory = directory
        self.version = version

    def limit(self):
        """Its limit in bytes; None if it has none."""
        names = {1: ('memory.limit_in_bytes',), 2: ('memory.max', 'memory.high')}[self.version]
        values = [number(self.directory, name) for name in names]
        return min((value for value in values if value is not None and value < UNLIMITED), default=None)

    def constraint(self):
        """Return what it allows now; None if it limits nothing."""
        usage, prefix = {1: ('memory.usage_in_bytes', 'total_'), 2: ('memory.current', '')}[self.version]
        limit = self.limit()
        used = number(self.directory, usage)
        if limit is None or used is None:
            return None
        stat = numbers(self.directory, 'memory.stat')
        cache = stat.get(prefix + 'inactive_file', 0) + stat.get(prefix + 'active_file', 0)
        free = limit - max(0, used - cache)
        if self.kills_all():
            free -= limit * FATAL_RESERVE
        return Constraint('the memory cgroup %s' % self.directory, limit, free)

    def kills_all(self):
        """True if the kernel kills all of its processes at once: the build tool gets no second try."""
        return number(self.directory, 'memory.oom.group') == 1

    def oom_kills(self):
        name = {1: 'memory.oom_control', 2: 'memory.events'}[self.version]
        return numbers(self.directory, name).get('oom_kill', 0)


def mounts(root='/'):
    """[(version, mount point, path of the mount within the hierarchy)] of the memory cgroup file systems."""
    lines = read(root, 'proc/self/mountinfo')
    found = re.findall(r'^\S+ \S+ \S+ (\S+) (\S+) .* - (?:cgroup(2)|cgroup \S+ \S*\bmemory\b)', lines, re.M)
    return [(int(version or 1), mount, top) for top, mount, version in found]


def cgroups(root='/'):
    """Return the memory cgroups of this process, innermost first."""
    own = read(root, 'proc/self/cgroup')
    found = []
    for version, mount, top in mounts(root):
        path = re.search(r'^0::(.*)' if version == 2 else r'^\d+:(?:.*,)?memory(?:,[^:]*)?:(.*)', own, re.M)
        if not path:
            continue
        # a container's mount may show only a part of the hierarchy
        inside = os.path.relpath(path.group(1), top)
        parts = [] if inside == '.' or inside.startswith('..') else inside.split('/')
        for depth in range(len(parts), -1, -1):
            directory = os.path.join(root, mount.lstrip('/'), *parts[:depth])
            if os.path.isdir(directory):
                found.append(Cgroup(directory, version))
    return found


def cores():
    """Return the cores that this process may use: its affinity, or less if a cgroup (version 2) grants less."""
    count = len(os.sched_getaffinity(0))
    for cgroup in cgroups():
        quota, _, period = read(cgroup.directory, 'cpu.max').partition(' ')
        if quota.isdigit():
            count = min(count, max(1, int(quota) // int(period)))
    return count


def slurm_grant(environ):
    """Bytes that Slurm gave this job on this node; None outside a job, and if it gave all there is (0)."""
    cpus = int(environ.get('SLURM_CPUS_ON_NODE') or 1)
    for name, factor in (('SLURM_MEM_PER_NODE', 1), ('SLURM_MEM_PER_CPU', cpus)):
        if environ.get(name, '').isdigit() and int(environ[name]):
            return int(environ[name]) * factor * 2 ** 20
    return None


def pbs_grant(environ):
    """Bytes that PBS gave this job on this node: qstat knows, the environment does not."""
    if not environ.get('PBS_JOBID'):
        return None
    try:
        done = subprocess.run(['qstat', '-f', environ['PBS_JOBID']], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = dict(re.findall(r'Resource_List\.(mem|nodect) = (\S+)', done.stdout.decode(errors='replace')))
    return size(found['mem']) // int(found.get('nodect', 1)) if 'mem' in found else None


def host():
    """Return the memory of the host, less what stays free for everybody else."""
    memory = numbers('/proc/meminfo')
    total = memory['MemTotal'] * 1024
    reserve = min(max(total * RESERVE_SHARE, RESERVE_LEAST), RESERVE_MOST)
    return Constraint('the memory of this host', total, int(memory['MemAvailable'] * 1024 - reserve))


class Limits:
    def __init__(self, memory=None, environ=os.environ, groups=None):
        self.cgroups = cgroups() if groups is None else groups
        grants = (('--memory', memory),
                  ('the Slurm job', slurm_grant(environ)),
                  ('the PBS job', pbs_grant(environ)),
                  ('the address space limit (ulimit -v)', resource.getrlimit(resource.RLIMIT_AS)[0]))
        self.grants = [(name, limit) for name, limit in grants if limit and limit != resource.RLIM_INFINITY]

    def constraints(self, own):
        """Return all that hold now; `own`: bytes that the build's compilations occupy."""
        found = [host()] + [cgroup.constraint() for cgroup in self.cgroups]
        found += [Constraint(name, limit, limit - own) for name, limit in self.grants]
        return [constraint for constraint in found if constraint]

    def tightest(self, own):
        return min(self.constraints(own), key=lambda constraint: constraint.free)

    def warnings(self):
        return ['the kernel kills everything in %s together when its memory runs out (memory.oom.group): ramgate '
                'leaves %d %% of it free, as it could not restart such compilers'
                % (cgroup.directory, FATAL_RESERVE * 100)
                for cgroup in self.cgroups if cgroup.kills_all() and cgroup.limit()]

    def oom_kills(self):
        """Kills in the innermost cgroup (in version 1 the outer ones do not count those of the inner ones)."""
        return sum(cgroup.oom_kills() for cgroup in self.cgroups[:1])
