"""Checks on a real Slurm: jobs of two and four nodes, and each check fails when what it watches is broken."""
import json
import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from common import needs_root, nightly
from batch_systems.real_slurm import Slurm, wait_for
from torch_mpi.tests.mpi_installation import build, kept_venv

from checks.small_module import small_module

pytestmark = pytest.mark.slow

# what takes longer than a throttled process may run at a time
SLOWLY = '-SSpeedCheck.more=train:--steps 5 --width 256 --batch-size 256'
# into a network, with its devices where MPICH looks for them
ENTER = """UCX_TLS=tcp,self exec %s unshare --mount sh -c 'mount -t sysfs none /sys && exec "$@"' sh "$@"
"""
# what is printed where there are GPUs
NCCL = '''nccl     all_reduce       16 cuda         1048576         9274.4      0.113      0.113    yes
nccl     broadcast        16 cuda         1048576         1307.5      0.802      0.802    %s
nccl between nodes: %s
setting: NCCL_SOCKET_IFNAME=hsn0
'''


def train(cores, speed, right=True, gpu=True):
    """What measure.py prints of two ranks."""
    ranks = [{'rank': 0, 'host': 'nid1', 'cores': cores, 'device': '0', 'speed': 100.0},
             {'rank': 1, 'host': 'nid1', 'cores': [57, 58], 'device': '1', 'speed': speed}]
    return 'measured: %s\n' % json.dumps(
        {'unit': 'samples/s', 'right': right, 'gpu': gpu, 'values': {'total': 150.0}, 'ranks': ranks})


@pytest.fixture(scope='module')
def cluster():
    """The module on a Slurm whose nodes say that they are ARCHER2's, or Frontier's."""
    needs_root()
    with small_module() as module, Slurm(module.directory / 'slurm', cpus=128, memory=64 << 10, gpus=8,
                                         partitions=('standard', 'batch', 'gh')) as slurm:
        module.env = dict(slurm.environment, HPC_SYSTEM='archer2')
        module.slurm = slurm
        yield module


@contextmanager
def network():
    """A network of its own with the interface hsn0, named by the words to start something in it."""
    begin = 'ip link set lo up && ip link add hsn0 type veth peer name end && ip link set end up && ' \
            'ip addr add 10.99.0.1/24 dev hsn0 && ip link set hsn0 up && echo ready && exec sleep infinity'
    process = subprocess.Popen(['unshare', '--net', 'sh', '-c', begin], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == 'ready\n'
        yield 'nsenter --net=/proc/%d/ns/net' % process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_two_nodes(cluster):
    """Training on two nodes."""
    output, _ = cluster.check('--name=train.*nodes=2', '-SSpeedCheck.slowest_rank=0.05')
    assert '1 of 1 checks passed' in output
    # ARCHER2's description names no interfaces
    assert 'Which network the ranks use was not compared' in output


@pytest.mark.nightly
def test_two_and_four_nodes(cluster):
    """Training on one, two and four nodes."""
    output, checks = cluster.check('--name=train', '-SSpeedCheck.slowest_rank=0.05')
    assert '3 of 3 checks passed' in output
    assert set(checks['SpeedCheck %what=train %nodes=4']['values']) == {'total', 'each'}


@pytest.mark.nightly
def test_network(cluster):
    """The fast network by its name; another interface; and the same network, slowed down."""
    frontier = {'HPC_SYSTEM': 'frontier'}
    name, through = 'bandwidth-gloo.*nodes=2', '-SSpeedCheck.env_vars=GLOO_SOCKET_IFNAME:%s'
    with network() as enter:
        # frontier's jobs begin without the environment of the shell that submits them
        more = ['-SSpeedCheck.ranks_per_node=1', '-SSpeedCheck.executable=%s pytorch-srun' % enter]
        cluster.check('--name=' + name, *more, through % 'hsn0', '--update', env=frontier)
        reasons = cluster.reasons(name, *more, through % 'lo', env=frontier)
        assert 'gloo talks through lo, and the fast network is hsn0' in reasons
        assert 'Settings that were seen: GLOO_SOCKET_IFNAME=lo' in reasons
        subprocess.run(enter.split() + 'tc qdisc add dev lo root tbf rate 20mbit burst 200kb latency 2s'.split(),
                       check=True)
        reasons = cluster.reasons(name, *more, through % 'hsn0', env=frontier)
        assert 'all_reduce_1M=0.0' in reasons


@pytest.mark.nightly
def test_mpi(cluster, tmp_path):
    """MPICH's ranks on two nodes, started by srun, through the fast network and through another interface."""
    site = next(build('mpich', '-O1', kept_venv()).glob('**/torch_mpi/__init__.py')).parent.parent
    shutil.copytree(site, cluster.packages, dirs_exist_ok=True)
    cluster.promise("collection_packages = ['torch_mpi']\n")
    with network() as enter:
        # as the nodes are one machine, UCX would take its memory
        (tmp_path / 'enter').write_text(ENTER % enter)
        words = ['-SSpeedCheck.ranks_per_node=1', '-SSpeedCheck.executable=sh %s/enter pytorch-srun' % tmp_path,
                 '-SSpeedCheck.more=bandwidth-mpi:--to 1M --seconds 0.05']
        name, through, frontier = 'bandwidth-mpi.*nodes=2', '-SSpeedCheck.env_vars=UCX_NET_DEVICES:%s', {
            'HPC_SYSTEM': 'frontier'}
        cluster.check('--name=' + name, *words, through % 'hsn0', env=frontier)
        assert 'mpi talks through lo' in cluster.reasons(name, *words, through % 'lo', env=frontier)


@pytest.mark.parametrize('name, output, reason', [
    ('nccl.*nodes=2', NCCL % ('yes', 'OFI plugin (provider cxi)'), None),
    ('nccl.*nodes=2', NCCL % ('yes', 'sockets'), 'nccl talks through sockets, and the fast network is hsn0'),
    nightly('nccl.*nodes=2', NCCL % ('yes', 'sockets'), 'Settings that were seen: NCCL_SOCKET_IFNAME=hsn0'),
    nightly('nccl.*nodes=2', NCCL % ('yes', 'OFI plugin (provider tcp;ofi_rxm)'), 'through OFI plugin (provider tcp'),
    ('nccl.*nodes=2', NCCL % ('NO', 'OFI plugin'), 'wrong results'),
    nightly('train.*nodes=1', train([49, 50], 99.0), None),
    ('train.*nodes=1', train([1, 2], 99.0), 'rank 0 on nid1 has device 0, and cores that are not near'),
    ('train.*nodes=1', train([49, 50], 99.0, gpu=False), 'PyTorch sees no GPU'),
    ('train.*nodes=1', train([49, 50], 50.0), 'slow by itself: rank 1 on nid1'),
    nightly('train.*nodes=1', train([49, 50], 99.0, right=False), 'wrong results'),
])
def test_on_gpus(cluster, tmp_path, name, output, reason):
    """There are none: cat prints what is printed on a machine that has some."""
    (tmp_path / 'output').write_text(output)
    words = ['-SSpeedCheck.ranks_per_node=1', '-SSpeedCheck.executable=sh -c "cat %s" sh' % (tmp_path / 'output')]
    if reason:
        assert reason in cluster.reasons(name, *words, env={'HPC_SYSTEM': 'frontier'})
    else:
        cluster.check('--name=' + name, *words, env={'HPC_SYSTEM': 'frontier'})


def test_wheels_for_cpus_on_gpus(cluster, tmp_path):
    """A module that is for CPUs on purpose trains on them, and has no NCCL to check."""
    (tmp_path / 'output').write_text(train([49, 50], 99.0, gpu=False))
    cluster.promise("features = ['mpi', 'cpu']\n")
    words = ['-SSpeedCheck.ranks_per_node=1', '-SSpeedCheck.executable=sh -c "cat %s" sh' % (tmp_path / 'output')]
    try:
        checks = cluster.check('--name=(nccl|train).*nodes=1', *words, env={'HPC_SYSTEM': 'frontier'})[1]
    finally:
        cluster.promise('')
    assert list(checks) == ['SpeedCheck %what=train %nodes=1']


# in the place of pytorch-check, as there are no GPUs: prints what it would in a job of two nodes with one rank each
PLUGIN = """#!/bin/sh
[ "$1 $SLURM_JOB_NUM_NODES $SLURM_STEP_NUM_TASKS $SLURM_GPUS_ON_NODE" = "plugin 2 2 8" ] || exit
result="works: the network is the OFI plugin (provider cxi)"
[ "$SLURM_PROCID" != %s ] || result="FAILS: the network is sockets"
echo "plugin   $result"
"""


@pytest.mark.parametrize('bad_rank', [None, nightly(1)])
def test_plugin(cluster, bad_rank):
    """One pytorch-check on each of two nodes, with their GPUs; also for a plugin's module of the site."""
    cluster.promise("dependencies = [('site/aws-ofi-nccl/1.21.1', EXTERNAL_MODULE)]\n")
    program = cluster.root / 'bin/pytorch-check'
    before = program.read_text()
    program.write_text(PLUGIN % bad_rank)
    try:
        if bad_rank:
            reasons = cluster.reasons('probe=plugin', env={'HPC_SYSTEM': 'frontier'})
            assert 'plugin   FAILS: the network is sockets' in reasons
        else:
            output, _ = cluster.check('--name=probe=plugin', env={'HPC_SYSTEM': 'frontier'})
            assert '1 of 1 checks passed' in output and 'was not compared:' not in output
    finally:
        program.write_text(before)


@pytest.mark.nightly
def test_slow_node(cluster):
    """One node's processors are throttled; the check names it."""
    node = cluster.slurm.nodes[1]
    group = Path('/sys/fs/cgroup/cpu/slow-%d' % os.getpid())
    group.mkdir()
    daemon = next(daemon for daemon in cluster.slurm.daemons if node in daemon.args)
    try:
        (group / 'cpu.cfs_period_us').write_text('20000')
        (group / 'cpu.cfs_quota_us').write_text('1000')
        (group / 'cgroup.procs').write_text(str(daemon.pid))
        reasons = cluster.reasons('train.*nodes=2', '-SSpeedCheck.slowest_rank=0.5', SLOWLY,
                                  '-Jnodelist=' + ','.join(cluster.slurm.nodes[:2]))
        assert 'slow by itself: rank 1 on %s' % node in reasons
    finally:
        (Path('/sys/fs/cgroup/cpu/cgroup.procs')).write_text(str(daemon.pid))
        wait_for(lambda: not (group / 'cgroup.procs').read_text().strip(), "the group is empty")
        group.rmdir()


def test_killed_rank(cluster, tmp_path):
    """The report names it, however much the others print when it has gone."""
    (tmp_path / 'rank.py').write_text(
        "import os, signal, sys, time\nscript = %r\n"
        "if os.environ['RANK'] == '1':\n    with open(script + '.new', 'w') as handle:\n"
        "        print(os.getppid(), file=handle)\n    os.rename(script + '.new', script)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "while not os.path.exists(script) or os.path.exists('/proc/' + open(script).read().strip()):\n"
        "    time.sleep(0.05)\nsys.exit('Connection closed by peer\\n' * 100)\n" % str(tmp_path / 'script'))
    reasons = cluster.reasons('train.*nodes=2', '-SSpeedCheck.executable=pytorch-srun %s/rank.py' % tmp_path)
    assert re.search(r'^rank 1 on nid\d+ failed first, with status 137', reasons, re.M), reasons
    # Slurm may lose what ranks print last
    assert 'output of each rank: ' in reasons


TWO = ['train.*nodes=1', '-SSpeedCheck.ranks_per_node=2', '-SSpeedCheck.slowest_rank=0.05']


def test_wrong_binding(cluster):
    """Ranks that share cores."""
    assert 'share cores: [0' in cluster.reasons(*TWO)


def test_ranks_that_are_not_bound(cluster, tmp_path):
    """As our own scripts start them with mpirun."""
    (tmp_path / 'output').write_text(train([57, 58], 99.0))
    words = ['-SSpeedCheck.ranks_per_node=1', '-SSpeedCheck.executable=sh -c "cat %s" sh' % (tmp_path / 'output')]
    cluster.check('--name=train.*nodes=1', *words, env={
        'HPC_SYSTEM': 'bede', 'SBATCH_ACCOUNT': 'root', 'OMPI_ALLOW_RUN_AS_ROOT': '1',
        'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'})


@pytest.mark.nightly
def test_right_binding(cluster, tmp_path):
    """Ranks that do not."""
    (tmp_path / 'bind').write_text('exec taskset -c "$SLURM_LOCALID" pytorch-srun "$@"\n')
    cluster.check('--name=' + TWO[0], *TWO[1:], '-SSpeedCheck.executable=sh %s/bind' % tmp_path)
