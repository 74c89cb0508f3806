"""What ./eb --survey asks the machine: each question returns an answer or raises NotAsked, and changes nothing."""
import contextlib
import glob
import operator
import os
import re
import shutil
import socket
import subprocess
from collections import namedtuple
from pathlib import Path

from hpc_pytorch import collection_path
from hpc_pytorch.machine.batch_systems import PATIENCE, job_on_this_node
from hpc_pytorch.machine.collection_files import external_modules
from hpc_pytorch.machine.commands import TERMINAL_CODES, run
from hpc_pytorch.machine.modules import ModulesShell, first_that_fails, modules_tool
from hpc_pytorch.machine.systems import core_list, host_matches, is_for, is_retired
from hpc_pytorch.machine.versions import release

PARTITIONS = {
    'slurm': ('sinfo', '--noheader', '--format=%R|%z|%m|%G|%h|%a'),
    'pbs': ('qstat', '-Q', '-f'),
}
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


def all_there(found, expected):
    return set(expected) <= set(found)


def roughly(found, expected):
    """Allow for what firmware and system keep of the memory, and for sites whose jobs get less of it."""
    return 0.88 * expected <= found <= 1.35 * expected


def within(found, expected):
    """Compare core lists: each GPU's cores are among those next to it."""
    return len(found) == len(expected) and all(set(ours) <= set(near) for ours, near in zip(expected, found))


def paths_of_jobs(system):
    paths = [system.node['local_storage'], system.node['temporary_directory'], *system.container['bind_paths']]
    return list(filter(None, paths))


def commands_of(system):
    return sorted(filter(None, {system.launcher['command'], *system.compilers.values()}))


def partitions_of(system):
    return sorted(filter(None, {system.scheduler['partition'], system.scheduler['build_partition']}))


def easyconfigs_of(system):
    paths = [one for one in glob.glob(glob.escape(collection_path('easyconfigs')) + '/*/*/*.eb') if is_for(one, system)]
    return sorted(paths, key=lambda path: (is_retired(path, system), '/PyTorch-' not in path, path))


class Machine(object):
    """A machine; tests keep its files below another root."""

    def __init__(self, system, root='/', environ=None):
        self.system = system
        self.root = root
        self.environ = dict(os.environ) if environ is None else environ
        self.job = job_on_this_node(self.environ)
        self.outputs, self.hanging = {}, set()

    def which(self, command):
        return shutil.which(command, path=self.environ.get('PATH'))

    def has_nvidia(self):
        """True unless this node has AMD's GPUs: one image for all nodes may have the commands of both."""
        return self.which('nvidia-smi') and not (self.which('rocm-smi') and os.path.exists(self.path('/dev/kfd')))

    def output(self, *command):
        """Return what a command prints; it runs once, also if it fails or hangs."""
        if not self.which(command[0]):
            raise NotAsked("there is no %s" % command[0])
        if command not in self.outputs:
            try:
                self.outputs[command] = run(command, env=self.environ, timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                self.outputs[command] = subprocess.CompletedProcess(command, 1, "no answer for %d seconds" % PATIENCE)
        done = self.outputs[command]
        answer = TERMINAL_CODES.sub('', done.stdout)
        if done.returncode:
            raise NotAsked("%s: %s" % (command[0], answer.strip().split('\n')[-1]))
        return answer

    def path(self, path):
        return os.path.join(self.root, os.path.expandvars(path).lstrip('/'))

    def read(self, path):
        try:
            return Path(self.path(path)).read_text().strip()
        except OSError:
            raise NotAsked("there is no %s" % path)

    def modules_shell(self):
        tool = modules_tool(any_version=True)
        if not tool or not self.environ.get('MODULEPATH'):
            raise NotAsked("$MODULEPATH is empty: type bash -l" if tool else "no modules tool was found")
        return ModulesShell(tool.program, self.environ, self.hanging)

    def with_modules(self, commands):
        """Return those of these commands that are there with the modules of the system's first easyconfig."""
        path = self.environ.get('PATH')
        names = next(filter(None, map(external_modules, easyconfigs_of(self.system))), None)
        if names:
            shell = self.modules_shell()
            if first_that_fails(shell, names) is None:
                path = shell.environ.get('PATH')
        return [command for command in commands if shutil.which(command, path=path)]

    @probe(BOTH, 'system architecture')
    def architecture(self):
        return os.uname().machine

    @probe(BOTH, 'system host_names', host_matches)
    def host_name(self):
        return socket.gethostname()

    @probe(LOGIN, 'system login_hosts', host_matches)
    def login_host(self):
        return socket.gethostname()

    @probe(JOB, paths_of_jobs, all_there)
    def paths_in_jobs(self):
        return [path for path in paths_of_jobs(self.system) if os.path.exists(self.path(path))]

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
        there = [kind for kind, command in PARTITIONS.items() if self.which(command[0]) and not self.which('qconf')]
        for kind in there:
            with contextlib.suppress(NotAsked):
                self.output(*PARTITIONS[kind])
                return kind
        return next(iter(there), 'none')

    @probe(LOGIN, partitions_of, all_there)
    def partitions(self):
        """Return Slurm's partitions with sizes, gpus without MIG slices or Intel's, or PBS's queues; `up`: open."""
        if self.system.scheduler['kind'] == 'pbs':
            queues = re.findall(r'^Queue: (\S+)((?:\n.+)*)', self.output(*PARTITIONS['pbs']), re.M)
            closed = re.compile('(enabled|started) = False|from_route_only = True')
            return {name: {'up': not closed.search(about)} for name, about in queues}
        found = {}
        # the other nodes of the job's partition may be of another kind
        own = ['--nodes=' + self.environ['SLURMD_NODENAME']] if 'SLURMD_NODENAME' in self.environ else []
        for line in re.findall(r'(?:.*[|]){5}.*', self.output(*PARTITIONS['slurm'], *own)):
            name, layout, megabytes, gres, share, state = line.strip().split('|')
            sockets, cores, threads = map(int, layout.replace('+', '').split(':'))
            gpus = re.findall(r'gpu:((?!intel|pvc|max\d|[^:]*(?:\dg\.|[ah]\d00.[12]?\dgb?\b))[\w.-]+:|)(\d+)\b', gres)
            facts = {
                'cores': sockets * cores,
                'threads': threads,
                'memory': int(megabytes.rstrip('+')) << 20,
                'gpus': sum(int(count) for _, count in gpus),
                'gpu_kind': gpus[0][0] if len(gpus) == 1 else '',
                'exclusive': share == 'EXCLUSIVE',
                'up': state == 'up',
            }
            # of nodes of several kinds
            found[name] = max(facts, found.get(name, facts), key=operator.itemgetter('gpus'))
        return found

    def partition(self):
        """Return the partition of this job, else of those that are up the one with most GPUs."""
        found = self.partitions()
        if not found:
            raise NotAsked("the batch system names no partition or queue")
        # the queue in which a PBS job runs may be one that takes no jobs of users
        own = self.environ.get('SLURM_JOB_PARTITION') or self.environ.get('PBS_O_QUEUE')
        if own in found:
            return own
        return max(found, key=lambda name: (found[name]['up'], found[name].get('gpus')))

    @probe(LOGIN, 'scheduler nodes_exclusive')
    def whole_nodes(self):
        facts = self.partitions().get(self.system.scheduler['partition'], {})
        if 'exclusive' not in facts:
            raise NotAsked("the batch system does not say")
        return facts['exclusive']

    def hardware_threads(self):
        found = re.findall(r'^[^#\n].*', self.output('lscpu', '--parse=SOCKET,CORE'), re.M)
        if not found:
            raise NotAsked("lscpu names no cores")
        return found

    @probe(JOB, 'node cores')
    def cores(self):
        return len(set(self.hardware_threads()))

    @probe(JOB, 'node threads_per_core')
    def threads_of_a_core(self):
        return len(self.hardware_threads()) // self.cores()

    @probe(JOB, 'node memory', roughly)
    def memory(self):
        total = re.search(r'MemTotal:\s+(\d+) kB', self.read('/proc/meminfo'))
        return int(total.group(1)) * 1024

    @probe(JOB, 'node gpu_cores', within)
    def cores_next_to_GPUs(self):
        return [core_list(self.read(path)) for path in self.core_files()]

    @probe(JOB, 'node gpus')
    def GPUs(self):
        return len(self.core_files())

    def core_files(self):
        """List the kernel's file of the cores next to each GPU; nvidia-smi knows only cores and GPUs of the job."""
        if self.has_nvidia():
            buses = sorted(os.listdir(self.path('/proc/driver/nvidia/gpus')))
            return ['/sys/bus/pci/devices/%s/local_cpulist' % bus for bus in buses]
        answer = self.output('rocm-smi', '--showtoponuma')
        nodes = re.findall(r'^GPU[ \[]\d+\]?\s*: \(Topology\) Numa Node: (-?\d+)', answer, re.M)
        path = '/sys/devices/system/node/node%s/cpulist'
        # all cores are as near on machines with one memory
        return ['/sys/devices/system/cpu/online' if node == '-1' else path % node for node in nodes]

    @probe(JOB, 'node gpu_architecture')
    def GPU_architecture(self):
        """Return the oldest generation of the GPUs, as compilers name it."""
        nvidias = 'nvidia-smi', '--query-gpu=compute_cap', '--format=csv,noheader'
        answer = self.output(*nvidias if self.has_nvidia() else ['rocm_agent_enumerator'])
        found = re.findall(r'^(?:\d+\.\d|gfx(?!000)\w+)$', answer, re.M)
        if not found:
            raise NotAsked("the driver names no architecture")
        return min(found, key=release)

    @probe(JOB, 'node cuda', lambda found, expected: float(found) >= expected)
    def CUDA_of_the_driver(self):
        found = re.search(r'CUDA (?:UMD )?Version: (\d+\.\d+)', self.output('nvidia-smi'))
        if not found:
            raise NotAsked("nvidia-smi names no CUDA version")
        return found.group(1)

    @probe(JOB, 'network interfaces', all_there)
    def interfaces(self):
        return os.listdir(self.path('/sys/class/net'))

    @probe(JOB, lambda system: ['cxi'] if 'slingshot' in system.words else None, all_there)
    def libfabric(self):
        return sorted(set(re.findall(r'^(\S+):$', self.output('fi_info', '-l'), re.M)))
