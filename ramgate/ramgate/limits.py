"""
How much memory the build may use right now, and which limit that is.

Each constraint knows its limit and what is in use under it; what is left is the smallest difference. Page cache that
the kernel would give back is not counted as used.
"""
import os
import re
import resource
import shutil
import subprocess
from collections import namedtuple

UNITS = {'': 1, 'K': 2 ** 10, 'M': 2 ** 20, 'G': 2 ** 30, 'T': 2 ** 40}
# cgroup v1 says "no limit" with a number near 2^63
UNLIMITED = 2 ** 60
# what stays free on the host for everybody else: a share of the memory, within bounds
RESERVE_SHARE, RESERVE_LEAST, RESERVE_MOST = 0.02, 256 * 2 ** 20, 4 * 2 ** 30

# what stays free in a cgroup whose processes the kernel kills all together: a share of its limit
FATAL_RESERVE = 0.03

# name: for the user; limit: bytes; free: bytes that can still be taken; scope: cgroup path, '' for the host, None for
# the build
Constraint = namedtuple('Constraint', 'name limit free scope')


class Problem(Exception):
    """A mistake of the user, in one line."""


def size(text):
    """Bytes from 12G, 1.5 GiB, 800M, 123 (bytes)."""
    match = re.match(r'^\s*(\d+(?:\.\d*)?)\s*([KMGT]?)(?:i?B)?\s*$', text, re.I)
    if not match or float(match.group(1)) == 0:
        raise Problem('expected a size such as 12G or 800M, found %r' % text)
    return int(float(match.group(1)) * UNITS[match.group(2).upper()])


def human(amount):
    """12.3 GB from bytes."""
    for unit, factor in (('GB', 2 ** 30), ('MB', 2 ** 20)):
        if amount >= factor:
            return '%.1f %s' % (amount / factor, unit)
    return '%.0f kB' % (amount / 1024)


def read(path):
    """A small file's text, None where there is none."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None


def number(path):
    """The number in a small file; None where there is none, or where it says max."""
    text = read(path)
    return int(text) if text and text.strip().isdigit() else None


def fields(path, separator=None):
    """{'name': number} of a file with a name and a number in each line."""
    lines = ((line.split(separator) + ['', ''])[:2] for line in (read(path) or '').splitlines())
    return {name: int(value.split()[0]) for name, value in lines if value.strip()[:1].isdigit()}


class Cgroup:
    """One level of a memory cgroup hierarchy."""
    # version: files with limits, file with use, prefix of the fields of memory.stat, file that counts kills
    FILES = {1: (('memory.limit_in_bytes',), 'memory.usage_in_bytes', 'total_', 'memory.oom_control'),
             2: (('memory.max', 'memory.high'), 'memory.current', '', 'memory.events')}

    def __init__(self, directory, version, path):
        self.directory, self.version, self.path = directory, version, path
        self.limits, self.usage, self.prefix, self.kills = self.FILES[version]

    def file(self, name):
        """The path of one of its files."""
        return os.path.join(self.directory, name)

    def limit(self):
        """Its limit in bytes, None where it has none."""
        values = [number(self.file(name)) for name in self.limits]
        return min((value for value in values if value is not None and value < UNLIMITED), default=None)

    def constraint(self):
        """What it allows now, None where it limits nothing."""
        limit, used = self.limit(), number(self.file(self.usage))
        if limit is None or used is None:
            return None
        stat = fields(self.file('memory.stat'))
        cache = stat.get(self.prefix + 'inactive_file', 0) + stat.get(self.prefix + 'active_file', 0)
        spare = limit * FATAL_RESERVE if self.kills_all() else 0
        free = limit - max(0, used - cache) - spare
        return Constraint('the memory cgroup %s' % self.directory, limit, free, self.path)

    def kills_all(self):
        """Whether the kernel ends everything in it at once where memory runs out; a build tool has no second try."""
        return self.version == 2 and number(self.file('memory.oom.group')) == 1

    def stalled(self):
        """Seconds so far in which everybody in it waited for memory (PSI); None where the kernel does not say."""
        match = re.search(r'^full .*total=(\d+)', read(self.file('memory.pressure')) or '', re.M)
        return int(match.group(1)) / 1e6 if match else None

    def oom_kills(self):
        """How many processes the kernel has killed in it."""
        return fields(self.file(self.kills)).get('oom_kill', 0)


def mounts(root='/'):
    """[(version, mount point, root within the hierarchy)] of the memory cgroup file systems."""
    found = []
    for line in (read(os.path.join(root, 'proc/self/mountinfo')) or '').splitlines():
        before, _, after = line.partition(' - ')
        kind, _, options = (after.split() + ['', '', ''])[:3]
        if kind == 'cgroup2' or (kind == 'cgroup' and 'memory' in options.split(',')):
            found.append((2 if kind == 'cgroup2' else 1, before.split()[4], before.split()[3]))
    return found


def cgroups(root='/'):
    """The memory cgroups of this process, innermost first, of both versions."""
    own = {}
    for line in (read(os.path.join(root, 'proc/self/cgroup')) or '').splitlines():
        hierarchy, controllers, path = line.split(':', 2)
        if hierarchy == '0':
            own[2] = path
        elif 'memory' in controllers.split(','):
            own[1] = path
    found = []
    for version, mount, top in mounts(root):
        path = own.get(version)
        if path is None:
            continue
        # inside a container the mount may show only a part of the hierarchy
        if top != '/':
            path = path[len(top):] if (path + '/').startswith(top.rstrip('/') + '/') else '/'
        while True:
            directory = os.path.join(root, mount.lstrip('/'), path.lstrip('/')).rstrip('/')
            if os.path.isdir(directory):
                found.append(Cgroup(directory, version, path))
            if path in ('/', ''):
                break
            path = os.path.dirname(path)
    return found


def slurm_grant(environ):
    """
    What Slurm gave this job on this node, in bytes; None outside a job or where it says nothing (0 is all there is).
    """
    for name, factor in (('SLURM_MEM_PER_NODE', 1), ('SLURM_MEM_PER_CPU', int(environ.get('SLURM_CPUS_ON_NODE') or 1))):
        if environ.get(name, '').isdigit() and int(environ[name]):
            return int(environ[name]) * factor * 2 ** 20
    return None


def pbs_grant(environ):
    """What PBS gave this job on this node, in bytes: qstat knows, the environment does not."""
    if not environ.get('PBS_JOBID') or not shutil.which('qstat'):
        return None
    try:
        text = subprocess.run(['qstat', '-f', environ['PBS_JOBID']], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              stdin=subprocess.DEVNULL, timeout=20).stdout.decode(errors='replace')
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = dict(re.findall(r'Resource_List\.(mem|nodect) = (\S+)', text))
    if 'mem' not in found:
        return None
    return size(found['mem']) // int(found.get('nodect', 1))


class Limits:
    """All that limits the build; `constraints(own)` is what holds right now."""

    def __init__(self, memory=None, environ=os.environ, groups=None):
        self.cgroups = cgroups() if groups is None else groups
        soft = resource.getrlimit(resource.RLIMIT_AS)[0]
        granted = (('--memory', memory), ('the Slurm job', slurm_grant(environ)), ('the PBS job', pbs_grant(environ)),
                   ('the address space limit (ulimit -v)', None if soft == resource.RLIM_INFINITY else soft))
        self.granted = [(name, limit) for name, limit in granted if limit]
        # what other ramgates said they will still take: {who: (bytes, cgroup path)}
        self.neighbours, self.last_stall = {}, None

    @property
    def scope(self):
        """The cgroup path of the build, for neighbours."""
        return next((group.path for group in self.cgroups), '/')

    def host(self):
        """What the host has."""
        memory = fields('/proc/meminfo', ':')
        total, available = memory['MemTotal'] * 1024, memory.get('MemAvailable', memory['MemFree']) * 1024
        reserve = min(max(total * RESERVE_SHARE, RESERVE_LEAST), RESERVE_MOST)
        return Constraint('the memory of this host', total, int(available - reserve), '')

    def constraints(self, own):
        """Everything that limits, `own` being what the build's jobs occupy now."""
        found = [group.constraint() for group in self.cgroups] + [self.host()]
        found = [self.beside_neighbours(constraint) for constraint in found if constraint]
        return found + [Constraint(name, limit, limit - own, None) for name, limit in self.granted]

    def beside_neighbours(self, constraint):
        """The constraint less what other ramgates under it are still going to take."""
        inside = sum(claim for claim, path in self.neighbours.values()
                     if constraint.scope == '' or (path + '/').startswith(constraint.scope.rstrip('/') + '/'))
        return constraint._replace(free=constraint.free - inside)

    def warnings(self):
        """What the user should know before the build starts."""
        return ['the kernel kills everything in %s together when its memory runs out (memory.oom.group): ramgate '
                'leaves %d %% of it free, as it could not run such jobs again' % (group.directory, FATAL_RESERVE * 100)
                for group in self.cgroups if group.kills_all() and group.limit()]

    def pressure(self, now):
        """The share of the time since the last call in which everything in the build's cgroup waited for memory."""
        stalled = self.cgroups[0].stalled() if self.cgroups else None
        before, self.last_stall = self.last_stall, (now, stalled)
        if stalled is None or before is None or before[1] is None or now <= before[0]:
            return 0.0
        return (stalled - before[1]) / (now - before[0])

    def tightest(self, own):
        """The constraint that leaves least."""
        return min(self.constraints(own), key=lambda constraint: constraint.free)

    def oom_kills(self):
        """Kills counted in the innermost cgroup that counts (each level counts those of its children in v2 only)."""
        return sum(group.oom_kills() for group in self.cgroups[:1])
