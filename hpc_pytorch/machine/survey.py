"""
``./eb --survey [FILE] [--job] [--new-system NAME]``: this machine against its description in systems/<name>/.

Asks only, within a minute; once on a login node and once in a job (``--job`` submits itself). PROBES is what is asked;
external modules are asked for besides, as each easyconfig loads them. The answers carry no user name and no path below
$HOME, so that the file can be sent to somebody.
"""
import argparse
import collections
import configparser
import contextlib
import glob
import json
import operator
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from hpc_pytorch import UsersProblem, VERSION, collection_path
from hpc_pytorch.machine import batch_systems, systems
from hpc_pytorch.machine.batch_systems import seconds_of
from hpc_pytorch.machine.modules import ModulesShell, first_that_fails, program_of_modules_tool
from hpc_pytorch.machine.versions import in_words, known, release, version_key

GIB = 2 ** 30
# result is one of these words; `told` is for what systems/ has nothing to compare with
Finding = collections.namedtuple('Finding', 'name result found expected how')
SINFO, QSTAT = ('sinfo', '--noheader', '--format=%R|%l|%c|%m|%G|%h'), ('qstat', '-Q', '-f')
SAME, DIFFERS, NOT_ASKED, TOLD = 'same', 'differs', 'not asked', 'told'


class NotAsked(Exception):
    """This machine cannot be asked that here; one message."""


class Machine(object):
    """What can be asked: commands, and files, which tests may keep below another root."""

    def __init__(self, system, root='/', environ=None):
        self.system, self.root = system, root
        self.environ = dict(os.environ if environ is None else environ)
        self.in_job = batch_systems.own_job(self.environ) is not None
        self.cache = {}

    def run(self, *command):
        if command not in self.cache:
            if not shutil.which(command[0], path=self.environ.get('PATH')):
                raise NotAsked("there is no %s" % command[0])
            try:
                done = subprocess.run(command, env=self.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, universal_newlines=True, timeout=20)
            except subprocess.TimeoutExpired:
                raise NotAsked("%s has not answered for 20 seconds" % command[0])
            if done.returncode:
                raise NotAsked("%s: %s" % (command[0], done.stdout.strip().split('\n')[-1]))
            self.cache[command] = done.stdout
        return self.cache[command]

    def path(self, path):
        return os.path.join(self.root, path.lstrip('/'))

    def read(self, path):
        try:
            return Path(self.path(path)).read_text()
        except OSError:
            raise NotAsked("there is no %s" % path)

    def names(self, pattern):
        """The last parts of the paths that fit a pattern."""
        return sorted(os.path.basename(path) for path in glob.glob(self.path(pattern)))


# -- questions: each takes the machine and returns what it found, or raises NotAsked

def python_version(machine):
    """Of python3, and of the one that the system's module brings."""
    version = machine.run('python3', '-I', '-c', 'import sys; print("%d.%d.%d" % sys.version_info[:3])').strip()
    names = machine.system.system['python_module']
    if release(version) >= [3, 9] or not names:
        return version
    shell = modules_shell(machine)
    said = shell.load(names)
    path = None if said else shutil.which('python3', path=shell.environ['PATH'])
    return "%s; %s brings %s" % (version, ' '.join(names), subprocess.run(
        [path, '-I', '-V'], stdout=subprocess.PIPE, universal_newlines=True).stdout.strip() if path else "none")


def modules_shell(machine):
    """The modules tool, in an environment apart."""
    tool = program_of_modules_tool(any_version=True)
    if not tool:
        raise NotAsked("no modules tool was found")
    return ModulesShell(tool[3], machine.environ)


def modules_tool(machine):
    tool = program_of_modules_tool()
    return tool[0] if tool else "none, or too old"


def topology(machine):
    """One (package, core) for each hardware thread."""
    found = []
    for name in machine.names('/sys/devices/system/cpu/cpu[0-9]*'):
        place = '/sys/devices/system/cpu/%s/topology/' % name
        found.append((machine.read(place + 'physical_package_id').strip(), machine.read(place + 'core_id').strip()))
    if not found:
        raise NotAsked("there is no /sys/devices/system/cpu")
    return found


def memory(machine):
    """Bytes that the node has."""
    return int(re.search(r'MemTotal:\s+(\d+) kB', machine.read('/proc/meminfo')).group(1)) * 1024


def cores_near_gpus(machine):
    """For each GPU the cores that are next to it, as the driver says."""
    try:
        rows = [line.split('\t') for line in machine.run('nvidia-smi', 'topo', '-m').splitlines()]
        column = next(row.index('CPU Affinity') for row in rows if 'CPU Affinity' in row)
        return [systems.core_list(row[column]) for row in rows if row[0].startswith('GPU')]
    except NotAsked:
        nodes = re.findall(r'^GPU[ \[]\d+\]?\s*: \(Topology\) Numa Node: (\d+)',
                           machine.run('rocm-smi', '--showtoponuma'), re.M)
        return [systems.core_list(machine.read('/sys/devices/system/node/node%s/cpulist' % node).strip())
                for node in nodes]


def cuda_of_driver(machine):
    found = re.search(r'CUDA Version: (\d+\.\d+)', machine.run('nvidia-smi'))
    if not found:
        raise NotAsked("nvidia-smi names no CUDA version")
    return found.group(1)


def newest_cuda_module(system):
    versions = [name.split('/')[1] for path in easyconfigs_of(system) for name in external_modules(path)
                if name.startswith('cuda/')]
    return max(versions, key=version_key) if versions else None


def partitions(machine):
    """Slurm's partitions or PBS's queues: {name: {limit, cores, memory, gpus, exclusive}}."""
    found = {}
    if machine.system.scheduler['kind'] == 'pbs':
        for name, text in re.findall(r'^Queue: (\S+)\n((?:[ \t].*\n?)*)', machine.run(*QSTAT), re.M):
            facts = dict(re.findall(r'^\s+([\w.]+) = (.*)$', text, re.M))
            found[name] = {'limit': facts.get('resources_max.walltime')}
        return found
    for line in machine.run(*SINFO).splitlines():
        name, limit, cores, size, gres, share = line.strip().split('|')
        gpus = sum(int(number) for number in re.findall(r'gpu(?::[\w.-]+)?:(\d+)', gres))
        found[name] = {'limit': limit, 'cores': int(cores.rstrip('+')), 'memory': int(size.rstrip('+')) << 20,
                       'gpus': gpus, 'exclusive': share == 'EXCLUSIVE'}
    return found


def of_partition(key):
    """A question about the partition for runs."""
    def ask(machine):
        found = partitions(machine).get(machine.system.scheduler['partition'], {})
        if found.get(key) is None:
            raise NotAsked("the batch system does not say")
        return found[key]
    return ask


def scheduler_kind(machine):
    """That of this job, or the one that answers; one whose commands are there where none does."""
    if machine.in_job:
        return batch_systems.own_job(machine.environ).partition(':')[0]
    there = [(kind, words) for kind, words in (('slurm', SINFO), ('pbs', QSTAT))
             if shutil.which(words[0], path=machine.environ.get('PATH'))]
    for kind, words in there:
        with contextlib.suppress(NotAsked):
            machine.run(*words)
            return kind
    return there[0][0] if there else 'none'


def providers(machine):
    """libfabric's providers."""
    return sorted(set(re.findall(r'^(\S+):$', machine.run('fi_info', '-l'), re.M)))


def there(name, where, paths):
    """A row of PROBES: paths that have to be there."""
    return (name, where, 'ls', lambda machine: [path for path in paths(machine.system)
                                                if os.path.exists(machine.path(os.path.expandvars(path)))],
            lambda s: paths(s) or None, all_there)


def on_path(machine, names):
    """Those of these commands that are found once the first easyconfig's modules are loaded."""
    environ = machine.environ
    modules = [names for names in map(external_modules, easyconfigs_of(machine.system)) if names]
    if modules:
        shell = modules_shell(machine)
        if first_that_fails(shell, modules[0]) is None:
            environ = shell.environ
    return [name for name in names if shutil.which(name, path=environ.get('PATH'))]


def package_index(machine):
    """Whether pip reaches the package index that it is configured for."""
    done = subprocess.run([sys.executable, '-m', 'pip', 'index', 'versions', 'pip', '--retries=0', '--timeout=10'],
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          env=machine.environ)
    return 'reached' if done.returncode == 0 else 'not reached'


def quota(machine):
    """What is free where $HOME is, bytes and files: of the file system, and what those say that know quotas."""
    home = machine.environ.get('HOME', '/')
    state = os.statvfs(machine.path(home))
    told = ["%d GiB and %d files free" % (state.f_bavail * state.f_frsize // GIB, state.f_favail)]
    for command in (('lfs', 'quota', '-q', '-h', home), ('quota', '-s')):
        with contextlib.suppress(NotAsked):
            told.append('%s: %s' % (command[0], ' '.join(machine.run(*command).split())))
    return '; '.join(told)


# -- comparisons: what was found, what is expected

def all_there(found, expected):
    return set(expected) <= set(found)


def about(found, expected):
    """Of what the hardware has, the firmware and the system keep a part."""
    return 0.88 * expected <= found <= 1.15 * expected


def within(found, expected):
    """Cores of each GPU are among those next to it."""
    return len(found) == len(expected) and all(set(ours) <= set(near) for ours, near in zip(expected, found))


def compilers_of(system):
    return sorted({command for command in system.compilers.values() if command})


def home_is_left_out(system):
    """Whether compute nodes do not have $HOME."""
    home = os.path.join(os.path.realpath(os.environ.get('HOME', '/')), '')
    return any(home.startswith(os.path.join(directory, '')) for directory in system.node['not_mounted'])


# name; where it is asked (login, job or both); how, for people; the question; what systems/ says, where it says
# something; the comparison, where it is not whether both are the same
Probe = collections.namedtuple('Probe', 'name where how ask expected same')
PROBES = tuple(Probe(*row, *(lambda system: None, operator.eq)[len(row) - 4:]) for row in (
    ('architecture', 'both', 'uname -m', lambda machine: os.uname().machine, lambda s: s.system['architecture']),
    ('host name', 'both', 'hostname', lambda machine: socket.gethostname(), lambda s: s.system['host_names'] or None,
     systems.host_matches),
    ('login host', 'login', 'hostname', lambda machine: socket.gethostname(), lambda s: s.system['login_hosts'] or None,
     systems.host_matches),
    ('python3', 'login', 'python3 -V; module load', python_version, lambda s: '3.9 or newer',
     lambda found, _: any(release(one) >= [3, 9] for one in re.findall(r'\d+\.\d+\.\d+', found))),
    ('shell', 'login', '$SHELL', lambda machine: os.path.basename(machine.environ.get('SHELL', ''))),
    ('modules tool', 'both', '$LMOD_CMD, $MODULES_CMD', modules_tool, lambda s: ('Lmod', 'EnvironmentModules'),
     lambda found, expected: found in expected),
    ('modules loaded', 'both', '$LOADEDMODULES', lambda machine: machine.environ.get('LOADEDMODULES', '')),
    ('compilers', 'both', 'module load; which', lambda machine: on_path(machine, compilers_of(machine.system)),
     compilers_of, all_there),
    ('launcher', 'both', 'module load; which', lambda machine: on_path(machine, [machine.system.launcher['command']]),
     lambda s: [s.launcher['command']], all_there),
    ('batch system', 'both', 'sinfo; qstat -Q', scheduler_kind, lambda s: s.scheduler['kind']),
    ('partition', 'login', 'sinfo; qstat -Q', partitions, lambda s: s.scheduler['partition'], operator.contains),
    ('build partition', 'login', 'sinfo; qstat -Q', partitions, lambda s: s.scheduler['build_partition'],
     operator.contains),
    ('time limit', 'login', 'sinfo; qstat -Q', of_partition('limit'), lambda s: s.scheduler['walltime'],
     lambda found, expected: (seconds_of(found) or float('inf')) >= seconds_of(expected)),
    ('whole nodes', 'login', 'sinfo', of_partition('exclusive'), lambda s: s.scheduler['nodes_exclusive']),
    ('threads of nodes', 'login', 'sinfo', of_partition('cores'),
     lambda s: s.node['cores'] and s.node['cores'] * (s.node['threads_per_core'] or 1)),
    ('memory of nodes', 'login', 'sinfo', of_partition('memory'), lambda s: s.node['memory'], about),
    ('GPUs of nodes', 'login', 'sinfo', of_partition('gpus'), lambda s: s.node['gpus']),
    ('cores', 'job', '/sys/devices/system/cpu', lambda machine: len(set(topology(machine))), lambda s: s.node['cores']),
    ('threads of a core', 'job', '/sys/devices/system/cpu',
     lambda machine: len(topology(machine)) // len(set(topology(machine))), lambda s: s.node['threads_per_core']),
    ('NUMA nodes', 'job', '/sys/devices/system/node',
     lambda machine: len(machine.names('/sys/devices/system/node/node[0-9]*'))),
    ('memory', 'job', '/proc/meminfo', memory, lambda s: s.node['memory'], about),
    ('GPUs', 'job', 'nvidia-smi topo -m; rocm-smi', lambda machine: len(cores_near_gpus(machine)),
     lambda s: s.node['gpus'] or None),
    ('cores next to GPUs', 'job', 'nvidia-smi topo -m; rocm-smi', cores_near_gpus,
     lambda s: s.node['gpu_cores'] or None, within),
    ('CUDA of the driver', 'job', 'nvidia-smi', cuda_of_driver, newest_cuda_module,
     lambda found, expected: release(found)[:1] >= release(expected)[:1]),
    ('AMD driver', 'job', '/sys/module/amdgpu/version',
     lambda machine: machine.read('/sys/module/amdgpu/version').strip()),
    ('interfaces', 'job', '/sys/class/net', lambda machine: machine.names('/sys/class/net/*'),
     lambda s: s.network['interfaces'] or None, all_there),
    ('Slingshot devices', 'job', '/sys/class/cxi', lambda machine: len(machine.names('/sys/class/cxi/*'))),
    ('libfabric', 'job', 'fi_info -l', providers,
     lambda s: ['cxi'] if any(name.startswith('hsn') for name in s.network['interfaces']) else None, all_there),
    there('local storage', 'job', lambda s: list(filter(None, [s.node['local_storage']]))),
    there('temporary directory', 'job', lambda s: [s.node['temporary_directory'] or '/tmp']),
    ('$HOME in jobs', 'job', 'ls', lambda machine: os.path.isdir(machine.path(machine.environ.get('HOME', '/'))),
     lambda s: not home_is_left_out(s) if s.node['not_mounted'] else None),
    ('room in $HOME', 'login', 'df, lfs quota, quota', quota),
    there('images', 'login', lambda s: s.container['image_search_path']),
    ('container run time', 'job', 'module load; which', lambda machine: on_path(machine, ['singularity', 'apptainer']),
     lambda s: ['singularity'] if s.container['bind_paths'] else None, all_there),
    there('paths for containers', 'job', lambda s: s.container['bind_paths']),
    ('package index', 'login', 'pip index versions', package_index, lambda s: 'reached'),
    ('package index in jobs', 'job', 'pip index versions', package_index),
))


def ask(probe, machine):
    expected = probe.expected(machine.system)
    if probe.where not in ('both', 'job' if machine.in_job else 'login'):
        there = 'in jobs: --job' if probe.where == 'job' else 'on login nodes'
        return Finding(probe.name, NOT_ASKED, "only " + there, expected, probe.how)
    try:
        found = probe.ask(machine)
    except (NotAsked, OSError, ValueError) as reason:
        # one strange answer does not cost the others
        return Finding(probe.name, NOT_ASKED, str(reason), expected, probe.how)
    result = TOLD if expected is None else SAME if probe.same(found, expected) else DIFFERS
    return Finding(probe.name, result, found, expected, probe.how)


# -- modules

def easyconfigs_of(system):
    paths = glob.glob(os.path.join(glob.escape(collection_path('easyconfigs')), '*', '*', '*.eb'))
    return sorted(path for path in paths if systems.is_for(path, system))


def external_modules(path):
    """The system's modules that an easyconfig loads, in EasyBuild's order: builddependencies first."""
    text = Path(path).read_text(encoding='utf-8', errors='replace')
    build = re.search(r'^builddependencies = \[.*?\]$', text, re.M | re.S)
    parts = [build.group(0), text.replace(build.group(0), '')] if build else [text]
    return [name for part in parts for name in re.findall(r"\('([^']+)', EXTERNAL_MODULE\)", part)]


def versions_of(machine, path):
    """{software: version} that come together: what an easyconfig names, libfabric and the driver of this machine."""
    found = re.findall(r"^ *\('([\w-]+)(?:', '|/)(\d[\w.-]*)'", Path(path).read_text(encoding='utf-8'), re.M)
    found += re.findall(r'(.+?)-(\d[\d.]*)', os.path.basename(path))[:1]
    with contextlib.suppress(NotAsked):
        found.append(('driver', machine.read('/sys/module/nvidia/version').strip()))
    with contextlib.suppress(NotAsked):
        found += re.findall(r'^(libfabric): (\S+)', machine.run('fi_info', '--version'), re.M)
    return {name.lower(): version for name, version in found}


def about_each_easyconfig(machine):
    """For each easyconfig whether its modules load in their order, and what newer versions of them there are."""
    for path in easyconfigs_of(machine.system):
        for row in known(versions_of(machine, path), machine.system.words):
            fails = row['result'] == 'fails'
            yield path, Finding('versions of', DIFFERS if fails else TOLD, in_words(row),
                                'versions that go together' if fails else None, 'pairs.cfg')
        names, title = external_modules(path), 'modules of'
        if not names:
            continue
        try:
            shell = modules_shell(machine)
        except NotAsked as reason:
            yield path, Finding(title, NOT_ASKED, str(reason), ' '.join(names), 'module load')
            continue
        problem = first_that_fails(shell, names)
        if problem:
            yield path, Finding(title, DIFFERS, "%s cannot be loaded; versions: %s" % (
                problem[0], ' '.join(shell.versions(problem[0])) or 'none'), ' '.join(names), 'module load')
            continue
        yield path, Finding(title, SAME, ' '.join(names), ' '.join(names), 'module load')
        newer = [one for name in names if '/' in name for one in shell.versions(name)
                 if '/' in one and version_key(one.split('/', 1)[1]) > version_key(name.split('/', 1)[1])]
        yield path, Finding('newer for', TOLD, ' '.join(newer) or 'none', None, 'module avail')
        for finding in about_metadata(machine.system, shell, names):
            yield path, finding


def about_modules(machine):
    """The same; a difference that several easyconfigs have is one finding, with all of their names."""
    found = collections.OrderedDict()
    for path, finding in about_each_easyconfig(machine):
        key = (finding.name, finding.found) if finding.result == DIFFERS else (finding.name, path)
        found.setdefault(key, (finding, []))[1].append(os.path.basename(path))
    for finding, files in found.values():
        files = ', '.join(files)
        if finding.name.endswith((' of', ' for')):
            yield finding._replace(name='%s %s' % (finding.name, files))
        else:
            yield finding._replace(found='%s (%s)' % (finding.found, files))


def about_metadata(system, shell, names):
    """What external_modules.cfg says of loaded modules, and is wrong."""
    metadata = configparser.ConfigParser(interpolation=None)
    metadata.read(os.path.join(system.directory, 'external_modules.cfg'), encoding='utf-8')
    for name in names:
        entry = metadata[name] if name in metadata else {}
        loaded = [one for one in shell.loaded if one == name or one.startswith(name + '/')]
        if '/' not in name and entry.get('version') and loaded != ['%s/%s' % (name, entry['version'])]:
            yield Finding('version of %s' % name, DIFFERS, ' '.join(loaded), entry['version'], 'module load')
        prefix = entry.get('prefix', '')
        place = prefix if prefix.startswith('/') else shell.environ.get(prefix.split('/')[0], '') if prefix else None
        if place is not None and not os.path.isdir(place):
            found = 'no directory ' + place if place else 'not set'
            yield Finding('prefix of %s' % name, DIFFERS, found, prefix, 'module load')


# -- the whole

def survey(machine):
    return [ask(probe, machine) for probe in PROBES] + list(about_modules(machine))


def without_names(value, environ):
    """No user's name and no path below $HOME in what is given away; keys stay, also those that are a name."""
    if isinstance(value, dict):
        return {key: without_names(one, environ) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_names(one, environ) for one in value]
    for name in ('HOME', 'USER') if isinstance(value, str) else ():
        if len(environ.get(name, '')) > 2:
            value = value.replace(environ[name], '$' + name)
    return value


def table(findings):
    """For people: what differs comes last, where it is seen."""
    order = (NOT_ASKED, TOLD, SAME, DIFFERS)
    lines = []
    for finding in sorted(findings, key=lambda finding: order.index(finding.result)):
        found, expected = (' '.join(map(str, answer)) if isinstance(answer, (list, tuple, dict)) else str(answer)
                           for answer in (finding.found, finding.expected))
        found = found if len(found) < 70 or finding.result == DIFFERS else found[:66] + ' ...'
        wanted = ", expected: " + expected if finding.result == DIFFERS else ""
        lines.append('%-9s  %-22s  %s%s' % (finding.result, finding.name, found, wanted))
    return '\n'.join(lines)


def job_script(path):
    return "#!/bin/bash\nexec %s --survey=%s > %s 2>&1\n" % (
        os.environ['HPC_PYTORCH_COMMAND'], shlex.quote(path), shlex.quote(path + '.txt'))


def submit(system, path):
    """The same in a job; where its answer is going to be."""
    scheduler = batch_systems.SCHEDULERS.get(system.scheduler['kind'])
    if not scheduler:
        raise UsersProblem("--survey --job: %s has no batch system" % system.system['title'])
    with tempfile.NamedTemporaryFile('w', suffix='.sh') as script:
        script.write(job_script(path))
        script.flush()
        account = os.environ.get(system.scheduler['account_variable'] or '')
        request = batch_systems.Request(account, system.scheduler['partition'], system.scheduler['qos'], 1, None, 5,
                                        system.node['gpus'] or None, system.scheduler['gpus_option'],
                                        system.scheduler['nodes_exclusive'], {}, system.node['local_storage_option'])
        return scheduler.submit(scheduler.command(request, 'survey', 'survey', path + '.log', []), script.name)


def main(arguments):
    """Ask, compare, print; 1 if something that we rely on differs."""
    parser = argparse.ArgumentParser(prog='./eb', description=__doc__, allow_abbrev=False)
    parser.add_argument('--survey', nargs='?', metavar='FILE', help="the answers as JSON, to be sent")
    parser.add_argument('--job', action='store_true', help="ask in a job")
    parser.add_argument('--new-system', metavar='NAME', help="write drafts of systems/NAME")
    given = parser.parse_known_args(arguments)[0]
    system = systems.load(os.environ['HPC_SYSTEM'])
    path = os.path.abspath(given.survey or 'survey-%s.json' % system.name)
    if given.job:
        print("Job %s will write %s and %s.txt" % (submit(system, path), path, path))
        return 0
    machine = Machine(system)
    if given.new_system is not None:
        from hpc_pytorch.machine import new_system
        print("Written; read and correct them:")
        print('\n'.join(new_system.write_drafts(given.new_system, machine)))
        return 0
    findings = survey(machine)
    where = 'job' if machine.in_job else 'login'
    if given.survey:
        answer = {'format': 1, 'collection': VERSION, 'system': system.name, 'where': where,
                  'findings': [finding._asdict() for finding in findings]}
        Path(path).write_text(json.dumps(without_names(answer, machine.environ), indent=1, default=str))
    print("%s, %s:\n\n%s\n" % (system.system['title'], 'in a job' if machine.in_job else 'on a login node',
                               without_names(table(findings), machine.environ)))
    differ = [finding.name for finding in findings if finding.result == DIFFERS]
    print("the same: %d; different: %d%s" % (sum(finding.result == SAME for finding in findings), len(differ),
                                             ': ' + ', '.join(differ) if differ else ''))
    return 1 if differ else 0


if __name__ == '__main__':
    # new_system knows this module by its name, not as __main__
    from hpc_pytorch.machine import survey as this
    try:
        sys.exit(this.main(sys.argv[1:]))
    except UsersProblem as problem:
        sys.exit("ERROR: %s" % problem)
