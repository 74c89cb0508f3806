"""
A real Slurm of the tests' own: several nodes on this machine, with daemons, ports, keys and directories that no other
Slurm uses. Needs root, and Debian's packages slurm-wlm and munge.

    with Slurm(directory) as slurm:
        subprocess.run(['srun', '-N2', 'hostname'], env=dict(os.environ, **slurm.environment))

The nodes are called nid0xxxxx and so on; their names can be looked up by what runs in a job, as on a cluster (but not
outside: the machine's /etc/hosts stays as it is). `hostname` prints the machine's name on all of them. From a job only
the nodes and Slurm's controller can be reached, and $HOME is another one (compute_node.py).
"""
import glob
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from batch_systems.compute_node import other_home
from torch_mpi.tests import mpi_installation

CONFIGURATION = """
ClusterName=tests
SlurmctldHost=localhost({login})
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
# a job that is started again waits until its first credential has expired: not for the usual 120 seconds
AuthInfo=socket={sockets}/munge,cred_expire=20
StateSaveLocation={directory}/state
SlurmdSpoolDir={sockets}/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ReturnToService=2
# MPICH's ranks find each other by it, as Cray MPICH's do by Cray's
MpiDefault=pmi2
SwitchType=switch/none
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU={memory_per_cpu}
# the nodes have what is written here, whatever the machine has
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
KillWait=5
MinJobAge=600
GresTypes=gpu
MailProg=/bin/true
{nodes}
{partitions}
"""
PARTITION = "PartitionName={name} Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe={share}"
NODE = "NodeName={name} NodeHostname=localhost NodeAddr={address} Port={port} CPUs={cpus} RealMemory={memory} {gpus}"
CGROUPS = """
CgroupPlugin=cgroup/v1
CgroupAutomount=no
CgroupMountpoint=/sys/fs/cgroup
ConstrainCores=no
ConstrainRAMSpace=yes
ConstrainSwapSpace=no
AllowedRAMSpace=100
MinRAMSpace=16
"""
# A node's daemon sees names that the machine does not know: /etc/hosts of its own, in a mount namespace of its own.
START_NODE = 'mount --bind "$1" /etc/hosts && shift && %s && exec "$@"'
# The nodes' network, and the one wire that leads to the login node.
NETWORK = """set -e
ip link set lo up
ip link add nodes type veth peer name "$1" netns "$4"
ip address add "$3/30" dev nodes
ip link set nodes up
nsenter --net="/proc/$4/ns/net" ip address add "$2/30" dev "$1"
nsenter --net="/proc/$4/ns/net" ip link set "$1" up
echo ready
exec sleep infinity
"""


def free_ports(count):
    """Ports that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(('127.0.0.1', 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def wait_for(true, what, seconds=60):
    """Poll until something is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "%s: not within %d seconds" % (what, seconds)
        time.sleep(0.05)


class Slurm:
    """Starts when entered, and has left nothing running when left."""

    def __init__(self, directory, nodes=4, cpus=4, memory=2048, gpus=0, partitions=('main',), exclusive=()):
        """
        `memory` of a node in MiB; `gpus` that can be asked for, and are not there; `partitions`, the first being the
        default, of which the `exclusive` ones give out whole nodes with all that they have.
        """
        self.directory = Path(directory)
        # a socket's path has 107 characters at most, and a test's directory may have more
        self.sockets = Path(tempfile.mkdtemp(prefix='hpc-'))
        self.sockets.chmod(0o755)
        self.cpus, self.memory, self.gpus = cpus, memory, gpus
        self.partitions, self.exclusive = partitions, exclusive
        self.count = nodes
        self.nodes = []
        # the login node's address and the nodes', as seen from the other side
        self.login = self.address = self.network = None
        self.daemons = []

    @property
    def environment(self):
        """What Slurm's commands need to find it."""
        return {'SLURM_CONF': str(self.directory / 'slurm.conf')}

    def __enter__(self):
        try:
            self.configure()
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def configure(self):
        """Write the files; the ports are chosen as late as can be."""
        for name in ('state', 'log', 'home'):
            (self.directory / name).mkdir(parents=True)
        # users' jobs have to get at their scripts below it
        self.directory.chmod(0o755)
        ports = free_ports(self.count + 1)
        # names are unique on this machine, as ports are: Slurm's cgroups are called after them
        self.nodes = sorted('nid%06d' % port for port in ports[1:])
        # 100.64.0.0/10 is nobody's; ports are unique here, and so are these
        self.login, self.address = ('100.%d.%d.%d' % (64 + (ports[0] >> 14), ports[0] >> 6 & 255,
                                                      (ports[0] << 2 & 255) + number) for number in (1, 2))
        lines = [NODE.format(name=node, address=self.address, port=int(node[3:]), cpus=self.cpus, memory=self.memory,
                             gpus='Gres=gpu:%d' % self.gpus if self.gpus else '') for node in self.nodes]
        partitions = [PARTITION.format(name=name, share='EXCLUSIVE' if name in self.exclusive else 'NO')
                      for name in self.partitions]
        partitions[0] += ' Default=YES'
        self.write('slurm.conf', CONFIGURATION.format(
            directory=self.directory, sockets=self.sockets, login=self.login, port=ports[0], nodes='\n'.join(lines),
            partitions='\n'.join(partitions), memory_per_cpu=self.memory // self.cpus))
        self.write('cgroup.conf', CGROUPS)
        for number in range(self.gpus):
            self.write('gpu%d' % number, '')
        self.write('gres.conf', 'Name=gpu File=%s/gpu[0-%d]\n' % (self.directory, self.gpus - 1) if self.gpus else '')
        # the machine's own name, too: the address that it has elsewhere is not there
        hosts = ''.join('127.0.0.1 %s\n' % node for node in [socket.gethostname()] + self.nodes)
        self.write('hosts', Path('/etc/hosts').read_text().rstrip('\n') + '\n' + hosts)
        key = self.directory / 'munge.key'
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))

    def write(self, name, text):
        """A file that everybody can read."""
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o644)

    def start(self):
        """All daemons as children of this process, then wait until every node is ready for work."""
        here = self.directory
        self.daemon('munged', '--foreground', '--force', '--key-file', here / 'munge.key', '--socket',
                    self.sockets / 'munge', '--pid-file', here / 'munged.pid', '--log-file', here / 'munged.log',
                    '--seed-file', here / 'munged.seed')
        wait_for((self.sockets / 'munge').exists, "munged")
        self.network = subprocess.Popen(['unshare', '--net', 'sh', '-c', NETWORK, 'sh', 'hpc%s' % self.nodes[0][3:],
                                         self.login, self.address, str(os.getpid())], stdout=subprocess.PIPE, text=True)
        assert self.network.stdout.readline() == 'ready\n', "the nodes' network"
        self.daemon('slurmctld', '-D', '-f', here / 'slurm.conf')
        for node in self.nodes:
            self.start_node(node)
        wait_for(lambda: self.output('sinfo', '-h', '-t', 'idle', '-o', '%D').strip() == str(self.count),
                 "nodes of Slurm")

    def start_node(self, node):
        """The daemon of a node, which sees the kept environments with PyTorch wherever they are."""
        mpi_installation.CACHE.mkdir(parents=True, exist_ok=True)
        home = other_home(self.directory / 'home', mpi_installation.CACHE)
        return self.daemon('nsenter', '--net=/proc/%d/ns/net' % self.network.pid, 'unshare', '--mount', '--propagation',
                           'private', '--', 'sh', '-c', START_NODE % home, 'sh', self.directory / 'hosts', 'slurmd',
                           '-D', '-N', node, '-f', self.directory / 'slurm.conf')

    def kill_node(self, node):
        """A node's daemon dies; what runs on the node lives on."""
        daemon = next(daemon for daemon in self.daemons if node in daemon.args)
        daemon.kill()
        daemon.wait()
        self.daemons.remove(daemon)

    @property
    def controller(self):
        """The controller's process."""
        return next(daemon for daemon in self.daemons if 'slurmctld' in daemon.args)

    def daemon(self, *command):
        """Start a daemon."""
        with tempfile.NamedTemporaryFile(dir=self.directory / 'log', delete=False) as log:
            self.daemons.append(subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                                 stdout=log, stderr=log, env=dict(os.environ, **self.environment)))
        return self.daemons[-1]

    def output(self, *command):
        """What a command of Slurm prints."""
        return subprocess.run(command, env=dict(os.environ, **self.environment), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60).stdout

    def stop(self):
        """End the jobs, then the daemons in the opposite order, and remove their cgroups."""
        if any('slurmd' in daemon.args for daemon in self.daemons):
            self.output('scancel', '--quiet', *self.output('squeue', '-h', '-o', '%A').split())
            wait_for(lambda: not self.output('squeue', '-h', '-o', '%A').strip(), "end of the jobs")
        while self.daemons:
            daemon = self.daemons.pop()
            daemon.terminate()
            daemon.wait(30)
        if self.network:
            with self.network:
                self.network.kill()
        for node in self.nodes:
            for top in glob.glob('/sys/fs/cgroup/*/slurm_%s' % node):
                for directory, _, _ in sorted(os.walk(top), reverse=True):
                    os.rmdir(directory)
        shutil.rmtree(self.sockets, ignore_errors=True)
