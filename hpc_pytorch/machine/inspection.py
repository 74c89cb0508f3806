"""
What ./eb --survey asks the machine that it runs on. Each question returns an answer or raises NotAsked; together they
take less than a minute and change nothing.
"""
import glob
import operator
import os
import re
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

from hpc_pytorch import collection_path
from hpc_pytorch.machine import batch_systems
from hpc_pytorch.machine.modules import ModulesShell, first_that_fails, modules_tool
from hpc_pytorch.machine.systems import core_list, host_matches, is_for

SINFO = ('sinfo', '--noheader', '--format=%R|%l|%c|%m|%G|%h')
QSTAT = ('qstat', '-Q', '-f')
# where something can be asked
LOGIN, JOB, BOTH = 'login', 'job', 'both'
# a question; a function of the system for what is expected (None and [] are not compared); how that is compared with
# what was found
Probe = namedtuple('Probe', 'name where ask expected same')
PROBES = []


class NotAsked(Exception):
    """This machine cannot answer that here; one message."""


def probe(where, expected, same=operator.eq):
    """Add a question to the survey; what is expected may also be 'section key' of system.cfg."""
    if isinstance(expected, str):
        section, key = expected.split()
        return probe(where, lambda system: getattr(system, section)[key], same)

    def add(question):
        PROBES.append(Probe(question.__name__.replace('_', ' '), where, question, expected, same))
        return question
    return add


# -- comparisons of what is found with what is expected

def all_there(found, expected):
    return set(expected) <= set(found)


def about(found, expected):
    """Allow for what firmware and system keep of the memory."""
    return 0.88 * expected <= found <= 1.15 * expected


def within(found, expected):
    """Compare core lists: each GPU's cores are among those next to it."""
    return len(found) == len(expected) and all(set(ours) <= set(near) for ours, near in zip(expected, found))


def long_enough(found, expected):
    return (batch_systems.seconds_of(found) or float('inf')) >= batch_systems.seconds_of(expected)


# -- expectations that are more than one key

def paths_of_jobs(system):
    node = system.node
    return list(filter(None, [node['local_storage'], node['temporary_directory']])) + system.container['bind_paths']


def commands_of(system):
    """Return the system's compilers and its launcher."""
    return sorted({command for command in system.compilers.values() if command} | {system.launcher['command']})


def partitions_of(system):
    names = {system.scheduler['partition'], system.scheduler['build_partition']}
    return sorted(filter(None, names))


def easyconfigs_of(system):
    paths = glob.glob(os.path.join(glob.escape(collection_path('easyconfigs')), '*', '*', '*.eb'))
    return sorted(path for path in paths if is_for(path, system))


def external_modules(path):
    """List the system's modules that an easyconfig loads, in EasyBuild's order: builddependencies first."""
    text = Path(path).read_text(encoding='utf-8', errors='replace')
    build = re.search(r'^builddependencies = \[.*?\]$', text, re.M | re.S)
    if build:
        text = build.group() + text.replace(build.group(), '')
    return re.findall(r"\('([^']+)', EXTERNAL_MODULE\)", text)


# -- the questions

class Machine(object):
    """A machine; tests keep its files below another root."""

    def __init__(self, system, root='/', environ=None):
        self.system = system
        self.root = root
        self.environ = dict(os.environ if environ is None else environ)
        self.job = batch_systems.own_job(self.environ)
        self.outputs = {}

    def which(self, command):
        return shutil.which(command, path=self.environ.get('PATH'))

    def output(self, *command):
        """Return what a command prints; it runs once."""
        if command not in self.outputs:
            if not self.which(command[0]):
                raise NotAsked("there is no %s" % command[0])
            try:
                done = subprocess.run(command, env=self.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, universal_newlines=True, timeout=20)
            except subprocess.TimeoutExpired:
                raise NotAsked("%s has not answered for 20 seconds" % command[0])
            if done.returncode:
                raise NotAsked("%s: %s" % (command[0], done.stdout.strip().split('\n')[-1]))
            self.outputs[command] = done.stdout
        return self.outputs[command]

    def path(self, path):
        return os.path.join(self.root, os.path.expandvars(path).lstrip('/'))

    def existing(self, paths):
        return [path for path in paths if os.path.exists(self.path(path))]

    def names(self, pattern):
        return sorted(os.path.basename(path) for path in glob.glob(self.path(pattern)))

    def read(self, path):
        try:
            return Path(self.path(path)).read_text().strip()
        except OSError:
            raise NotAsked("there is no %s" % path)

    def modules_shell(self):
        tool = modules_tool(any_version=True)
        if not tool:
            raise NotAsked("no modules tool was found")
        return ModulesShell(tool.program, self.environ)

    def with_modules(self, commands):
        """Return those of these commands that are there with the modules of the system's first easyconfig."""
        environ = self.environ
        for names in filter(None, map(external_modules, easyconfigs_of(self.system))):
            shell = self.modules_shell()
            if first_that_fails(shell, names) is None:
                environ = shell.environ
            break
        return [command for command in commands if shutil.which(command, path=environ.get('PATH'))]

    @probe(BOTH, 'system architecture')
    def architecture(self):
        return os.uname().machine

    @probe(BOTH, 'system host_names', host_matches)
    def host_name(self):
        return socket.gethostname()

    @probe(LOGIN, 'system login_hosts', host_matches)
    def login_host(self):
        return socket.gethostname()

    @probe(LOGIN, lambda system: 'reached')
    def package_index(self):
        command = [sys.executable, '-m', 'pip', 'index', 'versions', 'pip', '--retries=0', '--timeout=10']
        done = subprocess.run(command, env=self.environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
        return 'not reached' if done.returncode else 'reached'

    @probe(JOB, paths_of_jobs, all_there)
    def paths_in_jobs(self):
        return self.existing(paths_of_jobs(self.system))

    @probe(LOGIN, 'container image_search_path', all_there)
    def images(self):
        return self.existing(self.system.container['image_search_path'])

    @probe(BOTH, commands_of, all_there)
    def commands(self):
        return self.with_modules(commands_of(self.system))

    @probe(JOB, lambda system: ['singularity'] if system.container['bind_paths'] else None, all_there)
    def container_run_time(self):
        return self.with_modules(['singularity', 'apptainer'])

    @probe(BOTH, 'scheduler kind')
    def batch_system(self):
        """Return the batch system of this job, or the one that answers, or the one whose commands are there."""
        if self.job:
            return self.job.partition(':')[0]
        there = [(kind, command) for kind, command in (('slurm', SINFO), ('pbs', QSTAT)) if self.which(command[0])]
        for kind, command in there:
            try:
                self.output(*command)
                return kind
            except NotAsked:
                continue
        return there[0][0] if there else 'none'

    @probe(LOGIN, partitions_of, all_there)
    def partitions(self):
        """Return Slurm's partitions or PBS's queues: {name: {limit, cores, memory, gpus, exclusive}}."""
        return self.pbs_queues() if self.system.scheduler['kind'] == 'pbs' else self.slurm_partitions()

    def pbs_queues(self):
        found = {}
        for name, text in re.findall(r'^Queue: (\S+)\n((?:[ \t].*\n?)*)', self.output(*QSTAT), re.M):
            limit = re.search(r'^\s+resources_max\.walltime = (.*)$', text, re.M)
            found[name] = {'limit': limit and limit.group(1)}
        return found

    def slurm_partitions(self):
        found = {}
        for line in self.output(*SINFO).splitlines():
            name, limit, cpus, megabytes, gres, share = line.strip().split('|')
            numbers = re.findall(r'gpu(?::[\w.-]+)?:(\d+)', gres)
            found[name] = {
                'limit': limit,
                'cores': int(cpus.rstrip('+')),
                'memory': int(megabytes.rstrip('+')) << 20,
                'gpus': sum(map(int, numbers)),
                'exclusive': share == 'EXCLUSIVE',
            }
        return found

    def partition_fact(self, key):
        found = self.partitions().get(self.system.scheduler['partition'], {}).get(key)
        if found is None:
            raise NotAsked("the batch system does not say")
        return found

    @probe(LOGIN, 'scheduler walltime', long_enough)
    def time_limit(self):
        return self.partition_fact('limit')

    @probe(LOGIN, 'scheduler nodes_exclusive')
    def whole_nodes(self):
        return self.partition_fact('exclusive')

    @probe(LOGIN, 'node memory', about)
    def memory_of_nodes(self):
        return self.partition_fact('memory')

    @probe(LOGIN, 'node gpus')
    def GPUs_of_nodes(self):
        return self.partition_fact('gpus')

    def hardware_threads(self):
        """Return one (package, core) for each hardware thread."""
        found = []
        for name in self.names('/sys/devices/system/cpu/cpu[0-9]*'):
            place = '/sys/devices/system/cpu/%s/topology/' % name
            found.append((self.read(place + 'physical_package_id'), self.read(place + 'core_id')))
        if not found:
            raise NotAsked("there is no /sys/devices/system/cpu")
        return found

    @probe(JOB, 'node cores')
    def cores(self):
        return len(set(self.hardware_threads()))

    @probe(JOB, 'node threads_per_core')
    def threads_of_a_core(self):
        return len(self.hardware_threads()) // self.cores()

    @probe(JOB, 'node memory', about)
    def memory(self):
        return int(re.search(r'MemTotal:\s+(\d+) kB', self.read('/proc/meminfo')).group(1)) * 1024

    @probe(JOB, 'node gpu_cores', within)
    def cores_next_to_GPUs(self):
        """Return for each GPU the cores next to it, as the driver says."""
        if not self.which('nvidia-smi'):
            nodes = re.findall(r'^GPU[ \[]\d+\]?\s*: \(Topology\) Numa Node: (\d+)',
                               self.output('rocm-smi', '--showtoponuma'), re.M)
            return [core_list(self.read('/sys/devices/system/node/node%s/cpulist' % node)) for node in nodes]
        rows = [line.split('\t') for line in self.output('nvidia-smi', 'topo', '-m').splitlines()]
        titles = [row for row in rows if 'CPU Affinity' in row]
        if not titles:
            raise NotAsked("nvidia-smi topo -m names no CPU affinity")
        column = titles[0].index('CPU Affinity')
        return [core_list(row[column]) for row in rows if row[0].startswith('GPU')]

    @probe(JOB, 'node gpus')
    def GPUs(self):
        return len(self.cores_next_to_GPUs())

    @probe(JOB, 'node cuda', lambda found, expected: float(found) >= expected)
    def CUDA_of_the_driver(self):
        found = re.search(r'CUDA Version: (\d+\.\d+)', self.output('nvidia-smi'))
        if not found:
            raise NotAsked("nvidia-smi names no CUDA version")
        return found.group(1)

    @probe(JOB, 'network interfaces', all_there)
    def interfaces(self):
        return self.names('/sys/class/net/*')

    @probe(JOB, lambda system: ['cxi'] if 'slingshot' in system.words else None, all_there)
    def libfabric(self):
        """List libfabric's providers."""
        return sorted(set(re.findall(r'^(\S+):$', self.output('fi_info', '-l'), re.M)))
