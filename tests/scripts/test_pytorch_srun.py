"""pytorch-srun and torchrun outside Slurm: the same variables whoever launches, ports, GPUs, cost."""
import os
import re
import resource
import shutil
import signal
import subprocess
import time
import sys
from pathlib import Path

import pytest
from common import CHECKOUT, needs_root
from containers import images as containers

SCRIPTS = CHECKOUT / 'hpc_pytorch/scripts'
NAMES = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')
# what torchrun sets besides, but for what programs do not read
TORCHRUNS = ('GROUP_RANK', 'GROUP_WORLD_SIZE', 'NODE_RANK', 'ROLE_RANK', 'ROLE_WORLD_SIZE', 'OMP_NUM_THREADS',
             'TORCHELASTIC_RUN_ID', 'TORCHELASTIC_USE_AGENT_STORE', 'TORCH_NCCL_ASYNC_ERROR_HANDLING')
SHOW = 'import os; print(*(name + "=" + os.environ.get(name, "-") for name in (%s)))' % ', '.join(
    map(repr, NAMES + TORCHRUNS + ('ROCR_VISIBLE_DEVICES', 'MIOPEN_USER_DB_PATH')))
# what the launchers set, as documented, for rank 5 of 8 on the second of two nodes
SRUN = {'SLURM_PROCID': '5', 'SLURM_STEP_NUM_TASKS': '8', 'SLURM_LOCALID': '1', 'SLURM_NODEID': '1',
        'SLURM_JOB_ID': '77', 'SLURM_STEP_ID': '0', 'SLURM_STEP_TASKS_PER_NODE': '4(x2)',
        'SLURM_STEP_NODELIST': 'nid[012-013]', 'SLURM_JOB_CPUS_PER_NODE': '112(x2)'}
PALS = {'PALS_RANKID': '5', 'PMI_SIZE': '8', 'PMI_RANK': '5', 'PALS_LOCAL_RANKID': '1', 'PALS_LOCAL_SIZE': '4',
        'PBS_JOBID': '12.pbs', 'PALS_APID': 'a-b-c'}
OPEN_MPI = {'OMPI_COMM_WORLD_RANK': '5', 'OMPI_COMM_WORLD_SIZE': '8', 'OMPI_COMM_WORLD_LOCAL_RANK': '1',
            'OMPI_COMM_WORLD_LOCAL_SIZE': '4', 'PMIX_NAMESPACE': '123@1', 'SLURM_JOB_NODELIST': 'nid[012-013]'}
MPICH = {'PMI_RANK': '5', 'PMI_SIZE': '8', 'MPI_LOCALRANKID': '1', 'MPI_LOCALNRANKS': '4', 'PBS_JOBID': '12.pbs'}
LAUNCHERS = {'srun': SRUN, 'PALS': PALS, 'Open MPI': OPEN_MPI, 'MPICH': MPICH}


@pytest.fixture
def script(tmp_path):
    """pytorch-srun as a module has it: beside nothing but get-master."""
    for name in ('pytorch-srun', 'get-master'):
        shutil.copy(SCRIPTS / name, tmp_path)
    (tmp_path / 'python').symlink_to(sys.executable)
    return tmp_path / 'pytorch-srun'


def run(script, *arguments, status=0, preexec_fn=None, **variables):
    """Run a script with nothing but these variables; returns (standard output, standard error)."""
    environment = dict({'PATH': '%s:/usr/bin:/bin' % script.parent, 'TMPDIR': str(script.parent)}, **variables)
    done = subprocess.run([script, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=60, preexec_fn=preexec_fn)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr


def ranks(script, **variables):
    """What a rank sees, as a dict."""
    return dict(word.split('=', 1) for word in run(script, '-c', SHOW, **variables)[0].split())


def test_network_of_nccl(script):
    """A site's plugin is insisted on where there is a network: between nodes; what the user has set stays."""
    show = 'import os; print(os.environ.get("NCCL_NET"))'
    alone = dict(OPEN_MPI, OMPI_COMM_WORLD_SIZE='4')
    for expected, variables in (('OFI', OPEN_MPI), ('None', alone), ('x', dict(OPEN_MPI, NCCL_NET='x'))):
        assert run(script, '-c', show, HPC_NCCL_NET='OFI', **variables)[0].split() == [expected]
    assert run(script, '-c', show, **OPEN_MPI)[0].split() == ['None']
    # who knows that it is slow
    assert run(script, '-c', show, HPC_NCCL_NET='OFI', HPC_ALLOW_SOCKETS='1', **OPEN_MPI)[0].split() == ['None']


@pytest.mark.parametrize('nodes, warned', [('2', False), ('4', True)])
def test_more_nodes_than_ranks_are_on(script, tmp_path, nodes, warned):
    """The script was written for two; sbatch's or qsub's command line asked for more, which are paid for."""
    hosts = tmp_path / 'hosts'
    hosts.write_text(''.join('n%d\n' % number for number in range(int(nodes))) * 2)
    slurm = dict(SRUN, SLURM_PROCID='0', SLURM_LOCALID='0', SLURM_NODEID='0', SLURM_JOB_NUM_NODES=nodes)
    pbs = dict(PALS, PALS_RANKID='0', PALS_LOCAL_RANKID='0', PBS_NODEFILE=str(hosts))
    for launcher in slurm, pbs:
        told = run(script, '-c', '', HPC_NODE_CPUS='1', HPC_RANK_OUTPUTS=str(tmp_path), **launcher)[0]
        assert ('the job has 4 nodes, and the ranks are on 2: write its script anew, with --nodes 4' in told) == warned
        # who writes the srun line may have a reason
        assert 'write its script' not in ''.join(run(script, '-c', '', HPC_NODE_CPUS='1', **launcher))


def test_ranks_that_nobody_bound(script, tmp_path):
    """Who has a script of pytorch-jobscript is not sent to it: Slurm binds nothing without a TaskPlugin."""
    told = dict(SRUN, SLURM_PROCID='0', SLURM_LOCALID='0', SLURM_NODEID='0', HPC_NODE_CPUS='1')
    assert 'pytorch-jobscript shows how to bind them' in run(script, '-c', '', **told)[1]
    output = ''.join(run(script, '-c', '', HPC_RANK_OUTPUTS=str(tmp_path), **told))
    assert 'does not bind them' in output and 'pytorch-jobscript' not in output
    # as our scripts start it
    told = dict(OPEN_MPI, OMPI_COMM_WORLD_RANK='0', OMPI_COMM_WORLD_LOCAL_RANK='0', HPC_NODE_CPUS='1', MASTER_ADDR='a')
    assert 'share all' not in ''.join(run(script, '-c', '', HPC_RANK_OUTPUTS=str(tmp_path), **told))


@pytest.mark.slow
def test_output_is_kept(script, tmp_path):
    """All that a rank prints, to its last line, is in its file, and goes where it went; also when Python is killed."""
    kept = tmp_path / 'outputs'
    kept.mkdir()
    told = dict(SRUN, HPC_RANK_OUTPUTS=str(kept))
    read = (kept / 'rank-5.out').read_text
    printed = run(script, '-c', 'import sys; print("out"); print("err", file=sys.stderr)', **told)[0]
    assert sorted(printed.split()) == ['err', 'out']
    # one that leaves before the others may be why they fail
    assert re.sub(r'pytorch-srun: rank 5 on .* ended with status 0 at .*\n', '', read()) == printed != read()
    kill = 'import os; print("x" * 100000, flush=True); os.kill(os.getpid(), 9)'
    printed = run(script, '-c', kill, status=-9, **told)[0]
    assert 'rank 5 on ' in printed.splitlines()[-1] and read() == printed
    # what it leaves behind may keep the file open, and MPICH's mpiexec waits for the end of this output
    leave = 'import subprocess; print(subprocess.Popen(["sleep", "600"]).pid)'
    left = subprocess.run([script, '-c', leave], env=dict(told, PATH='%s:/usr/bin:/bin' % tmp_path), text=True,
                          stdout=subprocess.PIPE, check=True, timeout=60).stdout
    os.kill(int(left), signal.SIGKILL)
    assert read().startswith(left)
    # of one alone its status, too, unless all is well: Hydra forgets that of a rank to which it passed a signal
    alone = dict(OPEN_MPI, OMPI_COMM_WORLD_RANK='0', OMPI_COMM_WORLD_SIZE='1', OMPI_COMM_WORLD_LOCAL_RANK='0',
                 OMPI_COMM_WORLD_LOCAL_SIZE='1', HPC_RANK_OUTPUTS=str(kept))
    end = 'import os, signal, sys; %s'
    for code, status, noted in (('', 0, None), ('sys.exit(1)', 1, 1), ('sys.exit(85)', 85, 85),
                                ('os.kill(os.getpid(), signal.SIGUSR1)', -signal.SIGUSR1, 128 + signal.SIGUSR1)):
        run(script, '-c', end % code, status=status, **alone)
        note = r'pytorch-srun: rank 0 on \S+ ended with status %d at \S+\n' % noted if noted else ''
        assert re.fullmatch(note, (kept / 'rank-0.out').read_text())
    # a directory that is not there is no reason to stop
    assert run(script, '-c', 'print(1)', **dict(told, HPC_RANK_OUTPUTS=str(tmp_path / 'none')))[0] == '1\n'


@pytest.mark.parametrize('shell', ['the first', 'the one that runs Python'])
def test_killed_itself(script, tmp_path, shell):
    """It says which rank that was, for others would be blamed, and Python ends, which nobody waits for any more."""
    program = 'import os, time; print(os.getpid(), os.getppid(), flush=True); time.sleep(30)'
    environment = dict(OPEN_MPI, HPC_RANK_OUTPUTS=str(tmp_path), MASTER_ADDR='here', PATH='%s:/usr/bin:/bin' % tmp_path)
    with subprocess.Popen([script, '-c', program], env=environment, stdout=subprocess.PIPE, text=True) as rank:
        process, parent = rank.stdout.readline().split()
        python = Path('/proc', process)
        assert python.exists()
        os.kill(rank.pid if shell == 'the first' else int(parent), signal.SIGKILL)
        said = rank.stdout.read()
    assert re.fullmatch(r'pytorch-srun: rank 5 on \S+ ended with status 137 at \S+\n', said), said
    assert (tmp_path / 'rank-5.out').read_text().endswith(said) and not (python / 'cwd').exists()


@pytest.mark.parametrize('version, names', [
    ({}, ('TORCH_NCCL_TRACE_BUFFER_SIZE', 'TORCH_NCCL_DEBUG_INFO_TEMP_FILE')),
    ({'EBVERSIONPYTORCH': '2.8.1'}, ('TORCH_NCCL_TRACE_BUFFER_SIZE', 'TORCH_NCCL_DEBUG_INFO_TEMP_FILE')),
    ({'EBVERSIONPYTORCH': '2.10.0'}, ('TORCH_FR_BUFFER_SIZE', 'TORCH_FR_DUMP_TEMP_FILE')),
])
def test_flight_recorder(script, tmp_path, version, names):
    """Is switched on where outputs are kept, by the names of this PyTorch; what the user has set stays."""
    show = 'import os; print(*(name + "=" + os.environ[name] for name in os.environ if name.startswith(("TORCH_NCCL_' \
           'T", "TORCH_NCCL_D", "TORCH_FR"))))'
    told = dict(SRUN, HPC_RANK_OUTPUTS=str(tmp_path), **version)
    found = dict(word.split('=') for word in run(script, '-c', show, **told)[0].split())
    assert found == {names[0]: '2000', names[1]: '%s/nccl-trace-' % tmp_path, 'TORCH_NCCL_DUMP_ON_TIMEOUT': '1'}
    assert names[0] + '=7' in run(script, '-c', show, **dict(told, **{names[0]: '7'}))[0]
    assert run(script, '-c', show, **dict(SRUN, **version))[0].split() == []


@pytest.mark.parametrize('launcher', LAUNCHERS.values(), ids=LAUNCHERS)
def test_users_variables(script, launcher):
    """A sweep's own, with names like the script's: the program had the script's values."""
    theirs = {name: 'a b\n$x' for name in ('run', 'nodes', 'cores', 'mine', 'node', 'last', 'python', 'name')}
    show = 'import os, sys; print(*(name for name in sys.argv[1:] if os.environ.get(name) != "a b\\n$x"))'
    assert run(script, '-c', show, *theirs, MASTER_ADDR='nid012', **launcher, **theirs)[0].split() == []


@pytest.mark.parametrize('launcher', LAUNCHERS.values(), ids=LAUNCHERS)
def test_same_variables(script, tmp_path, launcher):
    """The same whoever launches."""
    (tmp_path / 'hosts').write_text('nid012\nnid013\n')
    found = ranks(script, PBS_NODEFILE=str(tmp_path / 'hosts'), **launcher)
    assert [found[name] for name in NAMES[:5]] == ['5', '8', '1', '4', 'nid012']
    assert [found[name] for name in TORCHRUNS[:5]] == ['1', '2', '1', '5', '8']
    assert [found[name] for name in TORCHRUNS[-2:]] == ['False', '1'] and found['TORCHELASTIC_RUN_ID'] != '-'
    assert 1024 < int(found['MASTER_PORT']) < 32768


def test_first_rank_elsewhere(script):
    """In a heterogeneous job rank 0 may not be on the first node: it says where, instead of waiting for itself."""
    variables = dict(SRUN, SLURM_PROCID='0', SLURM_LOCALID='0', SLURMD_NODENAME='nid013')
    says = 'pytorch-srun: rank 0 runs on nid013, not on nid012: export MASTER_ADDR=nid013\n'
    assert run(script, '-c', '', status=1, **variables)[1] == says
    assert ranks(script, MASTER_ADDR='nid013', **variables)['MASTER_ADDR'] == 'nid013'
    assert ranks(script, **dict(variables, SLURMD_NODENAME='nid012'))['MASTER_ADDR'] == 'nid012'


@pytest.mark.parametrize('first, warned', [('nid012', True), ('nid013.cluster', False)])
def test_host_file(script, tmp_path, first, warned):
    """With a host file rank 0 may not be on the job's first node, where the others wait for it."""
    (tmp_path / 'hosts').write_text('%s\nnid014\n' % first)
    told = dict(PALS, PALS_RANKID='0', PALS_LOCAL_RANKID='0', PBS_NODEFILE=str(tmp_path / 'hosts'))
    errors = run(script, '-c', '', SLURMD_NODENAME='nid013', **told)[1]
    assert ('rank 0 runs on nid013: if all wait, export MASTER_ADDR=nid013\n' in errors) == warned, errors


@pytest.mark.slow
def test_signal_at_the_end(script):
    """Those that arrive as Python ends do not cost its status: bash 5.2's `wait` lost it, and $() ended the script."""
    (script.parent / 'python').unlink()
    (script.parent / 'python').write_text('#!/bin/sh\necho $$\nexec sleep 60\n')
    (script.parent / 'python').chmod(0o755)
    environment = {'PATH': '%s:/usr/bin:/bin' % script.parent, 'MASTER_ADDR': 'here', **OPEN_MPI}
    for _ in range(150):
        rank = subprocess.Popen([script, 'x'], env=environment, stdout=subprocess.PIPE, text=True)
        os.kill(int(rank.stdout.readline()), signal.SIGTERM)
        for _ in range(12):
            os.kill(rank.pid, signal.SIGUSR2)
            time.sleep(0.0004)
        try:
            # the second is handed on, and may be the first that Python sees
            assert rank.wait(60) in (-signal.SIGTERM, -signal.SIGUSR2)
        finally:
            rank.kill()
            rank.stdout.close()


def test_directory_of_miopen(script, tmp_path):
    """On systems with AMD's GPUs alone; what a killed rank has left goes, what a living one has and others' stay."""
    assert ranks(script, **SRUN)['MIOPEN_USER_DB_PATH'] == '-'
    gone = subprocess.Popen(['true'])
    gone.wait()
    left, living, another = (tmp_path / ('miopen.%s.x' % owner) for owner in (gone.pid, os.getpid(), 'x'))
    for path in (left, living):
        path.mkdir()
    another.symlink_to(living)
    found = ranks(script, ROCR_VISIBLE_DEVICES='0,1,2,3', **SRUN)['MIOPEN_USER_DB_PATH']
    assert Path(found).parent == tmp_path and not Path(found).exists()
    assert not left.exists() and living.exists() and another.is_symlink()


@pytest.mark.parametrize('tasks, node, rank, local', [('3,1', '0', '2', '2'), ('3,1', '1', '3', '0'),
                                                      ('1,3', '0', '0', '0'), ('1,3', '1', '1', '0')])
def test_unequal_nodes(script, tmp_path, tasks, node, rank, local):
    """The number of nodes, and that of this node, also where they have unequal numbers of ranks."""
    step = dict(SRUN, SLURM_STEP_NUM_TASKS='4', SLURM_STEP_TASKS_PER_NODE=tasks, SLURM_NODEID=node, SLURM_PROCID=rank,
                SLURM_LOCALID=local)
    (tmp_path / 'hosts').write_text('nid012\nnid012\nnid013\n')
    pals = dict(PALS, PALS_RANKID=rank, PMI_SIZE='4', PALS_LOCAL_RANKID=local,
                PALS_LOCAL_SIZE=tasks.split(',')[int(node)], PBS_NODEFILE=str(tmp_path / 'hosts'))
    for launcher in (step, pals):
        found = ranks(script, **launcher)
        assert (found['GROUP_RANK'], found['GROUP_WORLD_SIZE']) == (node, '2'), launcher


def test_open_files(script):
    """As many as are allowed: the first rank has a connection to each other one."""
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    show = 'import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))'
    soft, hard = run(script, '-c', show, preexec_fn=few, **SRUN)[0].split()
    assert soft == hard != '64'


def test_near_nvidia_gpu(script, tmp_path):
    """Where the system's description has no cores beside GPUs, the kernel knows them."""
    needs_root()
    first, second = sorted(os.sched_getaffinity(0))[:2]
    # another device, and the GPUs in the order of their numbers
    for address, vendor, kind, cores in (('0000:01:00.0', '0x8086', '0x020000', first),
                                         ('0000:03:00.0', '0x10de', '0x030200', second),
                                         ('0000:41:00.0', '0x10de', '0x030200', first),
                                         ('0000:42:00.0', '0x10de', '0x068000', first)):
        (tmp_path / 'devices' / address).mkdir(parents=True)
        for name, value in (('vendor', vendor), ('class', kind), ('local_cpulist', cores)):
            (tmp_path / 'devices' / address / name).write_text('%s\n' % value)
    script.with_name('seen').write_text(
        '#!/bin/bash\nmount --bind "$0.devices" /sys/bus/pci/devices && exec "${0%seen}pytorch-srun" -c '
        '\'import os; print(os.environ["CUDA_VISIBLE_DEVICES"])\'\n')
    script.with_name('seen').chmod(0o755)
    (tmp_path / 'devices').rename(tmp_path / 'seen.devices')
    node = dict(SRUN, SLURM_STEP_TASKS_PER_NODE='2(x4)', CUDA_VISIBLE_DEVICES='0,1', PATH='%s:/usr/bin:/bin' % tmp_path)
    for local, core, seen in (('0', first, '1,0'), ('1', second, '1,0'), ('0', second, '0,1')):
        done = subprocess.run(['unshare', '--mount', script.with_name('seen')], env=dict(node, SLURM_LOCALID=local),
                              preexec_fn=run_on({core}), stdout=subprocess.PIPE, text=True, check=True)
        assert done.stdout == seen + '\n'


@pytest.fixture
def environment(script):
    """That of an mpiexec, for more ranks than cores."""
    return {'PATH': '%s:/usr/bin:/bin' % script.parent, 'TMPDIR': '/tmp', 'HOME': '/', 'OMPI_ALLOW_RUN_AS_ROOT': '1',
            'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1', 'OMPI_MCA_rmaps_base_oversubscribe': '1'}


@pytest.mark.slow
@pytest.mark.parametrize('program', ['mpiexec.mpich', 'mpiexec.openmpi'])
def test_one_saves_and_others_leave(script, environment, tmp_path, program):
    """Open MPI ended all ranks when the first one had left with status 85, also the one that was saving."""
    save = """import os, sys, time
if os.environ["RANK"] == "0":
    while "ended with status 85" not in open(sys.argv[1]).read():
        time.sleep(0.1)
    time.sleep(4)
    print("rank 0 has saved")
else:
    print("rank 1 has nothing to save")
sys.exit(85)"""
    # what an earlier program of the job has left
    for rank in '01':
        (tmp_path / ('.ended-' + rank)).write_text('')
    (tmp_path / 'rank-1.out').write_text('')
    # and a variable of the user's is none of ours
    done = subprocess.run([program, '-n', '2', script, '-c', save, tmp_path / 'rank-1.out'], stdin=subprocess.DEVNULL,
                          env=dict(environment, HPC_RANK_OUTPUTS=str(tmp_path), last='1'), timeout=120)
    assert done.returncode == 85
    assert re.search(r'rank 0 has saved\n.* ended with status 85 at ', (tmp_path / 'rank-0.out').read_text())


@pytest.mark.slow
def test_runs_at_once(script, environment):
    """On the same nodes of one job: the ranks of MPICH's runs met those of others, at one port."""
    command = ['mpiexec.mpich', '-launcher', 'fork', '-hosts', 'n1,n2', '-n', '2', '-ppn', '1', script, '-c',
               'import os; print(os.environ["MASTER_PORT"])']
    told = dict(environment, PBS_JOBID='7', MASTER_ADDR='n1')
    ports = [subprocess.run(command, env=told, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.split()
             for _ in range(3)]
    assert [len(each) for each in ports] == [2, 2, 2] and len({port for each in ports for port in each}) == 3, ports


@pytest.mark.slow
@pytest.mark.parametrize('status', [3, 255])
@pytest.mark.parametrize('program', ['mpiexec.mpich', 'mpiexec.openmpi'])
def test_one_fails(script, environment, tmp_path, program, status):
    """The others end: those of MPICH's Hydra worked on until the time limit, as it heeds only signals."""
    fail = 'import os, sys, time; time.sleep(600) if os.environ["RANK"] == "0" else sys.exit(%d)' % status
    done = subprocess.run([program, '-n', '2', script, '-c', fail], stdin=subprocess.DEVNULL, timeout=60,
                          env=dict(environment, HPC_RANK_OUTPUTS=str(tmp_path)))
    assert done.returncode
    assert ' ended with status %d at ' % status in (tmp_path / 'rank-1.out').read_text()


@pytest.mark.slow
@pytest.mark.parametrize('program', ['mpiexec.mpich', 'mpiexec.openmpi'])
def test_ranks_that_read_the_input(script, environment, program):
    """As a forgotten input() does: with MPICH's Hydra all but the first waited for ever."""
    done = subprocess.run([program, '-n', '2', script, '-c', 'import sys; print("read", repr(sys.stdin.read()))'],
                          env=environment, input='for the first', stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0 and sorted(re.findall('read (.*)', done.stdout)) == ["''", "'for the first'"]


@pytest.mark.slow
@pytest.mark.parametrize('program', ['mpiexec.mpich', 'mpiexec.openmpi'])
def test_real_launchers(script, environment, program):
    """Four real ranks."""
    # one write for each line, as ranks share the output
    show = SHOW.replace('print(*(', 'os.write(1, (" ".join((').replace(')))', '))) + "\\n").encode())', 1)
    done = subprocess.run([program, '-n', '4', script, '-c', show], env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    found = [dict(word.split('=', 1) for word in line.split()) for line in done.stdout.splitlines() if 'RANK=' in line]
    assert sorted(rank['RANK'] for rank in found) == list('0123'), done.stdout
    assert all(rank['LOCAL_RANK'] == rank['RANK'] and rank['WORLD_SIZE'] == rank['LOCAL_WORLD_SIZE'] == '4'
               and rank['MASTER_ADDR'] == '127.0.0.1' for rank in found)
    assert len({rank['MASTER_PORT'] for rank in found}) == 1


@pytest.mark.parametrize('status', [3, 200, 255])
def test_status(script, status):
    """The program's own, also what sys.exit(-1) becomes, which is no signal's."""
    errors = run(script, '-c', 'raise SystemExit(%d)' % status, status=status, **SRUN)[1]
    assert errors.count('\n') == 1 and 'rank 5 on ' in errors, errors


def test_port(script):
    """The job's and step's own, unless the user has set one."""
    assert 10000 <= int(ranks(script, **SRUN)['MASTER_PORT']) < 32768
    assert ranks(script, MASTER_PORT='29500', **SRUN)['MASTER_PORT'] == '29500'


def test_ports_of_jobs_on_one_node(script):
    """Jobs that can be on a node at the same time, and their steps, have different ports."""
    jobs = [ranks(script, **dict(SRUN, SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(step)))['MASTER_PORT']
            for job in (77, 78, 200) for step in (0, 1)]
    assert len(set(jobs)) == len(jobs)


@pytest.mark.parametrize('given, seen, local', [
    # bound by srun: one task per GPU, --gpu-bind=closest
    ({'ROCR_VISIBLE_DEVICES': '6'}, '6', ('0', '1')),
    ({'ROCR_VISIBLE_DEVICES': '0,1,2,3'}, '0,1,2,3', ('1', '4')),
    ({'ROCR_VISIBLE_DEVICES': '0,1,2,3', 'SEE_ALL_GPUS': '1'}, '0,1,2,3', ('1', '4')),
    # one task per node
    ({'ROCR_VISIBLE_DEVICES': '0,1,2,3', 'SLURM_STEP_TASKS_PER_NODE': '1(x2)', 'SLURM_LOCALID': '0'}, '0,1,2,3',
     ('0', '1')),
    ({}, '-', ('1', '4')),
])
def test_gpus(script, given, seen, local):
    """LOCAL_RANK is a device that the rank has, and its number on the node unless the launcher has given it one GPU."""
    found = ranks(script, **dict(SRUN, **given))
    assert found['ROCR_VISIBLE_DEVICES'] == seen
    assert (found['LOCAL_RANK'], found['LOCAL_WORLD_SIZE']) == local
    assert (found['GROUP_RANK'], found['NODE_RANK']) == ('1', '1')


def run_on(cores):
    """What makes a process run on these cores only."""
    return lambda: os.sched_setaffinity(0, cores)


def test_near_gpu(script):
    """The launcher gives the cores in ascending order: the GPU next to those of a rank is its device LOCAL_RANK."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    node = dict(SRUN, SLURM_STEP_TASKS_PER_NODE='2(x4)', ROCR_VISIBLE_DEVICES='4,5',
                GPU_CORES='%d %d' % (second, first))
    for local, core, seen in (('0', first, '5,4'), ('1', second, '5,4'),
                              # as cpu-mask has bound them, the order of the GPUs is that of the ranks
                              ('0', second, '4,5'), ('1', first, '4,5')):
        found = ranks(script, preexec_fn=run_on({core}), **dict(node, SLURM_LOCALID=local))
        assert (found['ROCR_VISIBLE_DEVICES'], found['OMP_NUM_THREADS']) == (seen, '1')
    # all cores are near to no GPU
    assert ranks(script, **dict(node, SLURM_CPUS_ON_NODE='1'))['ROCR_VISIBLE_DEVICES'] == '4,5'
    # a GPU of Slurm's may be one of few
    assert ranks(script, **dict(node, ROCR_VISIBLE_DEVICES='1,2,3'))['ROCR_VISIBLE_DEVICES'] == '1,2,3'


def test_threads(script):
    """As many as the rank has cores; several ranks that may use all of them share them; what is set stays."""
    alone = dict(SRUN, SLURM_STEP_TASKS_PER_NODE='1(x8)', SLURM_LOCALID='0', SLURM_NODEID='5')
    cores = int(ranks(script, **alone)['OMP_NUM_THREADS'])
    assert 1 <= cores <= len(os.sched_getaffinity(0))
    shared = dict(SRUN, SLURM_STEP_TASKS_PER_NODE='2(x4)', SLURM_CPUS_ON_NODE='1')
    assert ranks(script, **shared)['OMP_NUM_THREADS'] == str(max(cores // 2, 1))
    assert ranks(script, **dict(shared, OMP_NUM_THREADS='3'))['OMP_NUM_THREADS'] == '3'


def test_threads_on_pbs(script):
    """PBS itself sets both to all cores of a node, for each rank; the job's ompthreads, or an export, stay."""
    rank = dict(PALS, PALS_LOCAL_SIZE='1', PALS_LOCAL_RANKID='0', MASTER_ADDR='deg0001')
    cores = ranks(script, **rank)['OMP_NUM_THREADS']
    for ncpus, threads, expected in (('6400', '6400', cores), ('1', '1', '1'), ('6400', '3', '3')):
        assert ranks(script, **dict(rank, NCPUS=ncpus, OMP_NUM_THREADS=threads))['OMP_NUM_THREADS'] == expected


def test_cost(script):
    """What it does itself costs less than 30 ms of processor time; true stands for Python."""
    (script.parent / 'python').unlink()
    (script.parent / 'python').symlink_to('/bin/true')
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(script, HPC_NODE_CPUS='128', **SRUN)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.03, times


def torchrun(tmp_path, status, **variables):
    """Our torchrun with an interpreter that only shows its arguments."""
    shutil.copy(SCRIPTS / 'torchrun', tmp_path)
    (tmp_path / 'python').write_text('#!/bin/sh\necho "$@" $here $tasks\n')
    (tmp_path / 'python').chmod(0o755)
    return run(tmp_path / 'torchrun', '--nnodes=2', 'train.py', '-x', status=status, **variables)


def test_torchrun(tmp_path):
    """Several tasks of srun on a node: what to type. One on each, and elsewhere: nothing."""
    plain = '-m torch.distributed.run --nnodes=2 train.py -x\n'
    assert torchrun(tmp_path, 0) == (plain, '')
    batch = {'SLURM_JOB_ID': '1', 'SLURM_PROCID': '0', 'SLURM_NTASKS': '8'}
    assert torchrun(tmp_path, 0, **batch) == (plain, '')
    output, error = torchrun(tmp_path, 2, SLURM_STEP_NUM_NODES='2', **SRUN)
    assert output == '' and 'srun <options of srun> pytorch-srun PROGRAM' in error
    assert torchrun(tmp_path, 0, **dict(SRUN, SLURM_STEP_NUM_TASKS='2', SLURM_STEP_NUM_NODES='2')) == (plain, '')
    assert torchrun(tmp_path, 0, here='a', tasks='b') == (plain[:-1] + ' a b\n', ''), "a user's own variables"


def test_on_every_system():
    """Every PyTorch module has it: named in the easyconfig, or among a container's scripts."""
    for path in CHECKOUT.glob('easyconfigs/p/PyTorch/*.eb'):
        text = path.read_text()
        assert 'pytorch-srun' in text or "'SingularityContainer'" in text, path.name
    assert 'pytorch-srun = ' in (CHECKOUT / 'hpc_pytorch/packages/container_scripts.cfg').read_text()


@pytest.mark.slow
def test_in_a_container(place):
    """The module of a container has it on the path outside, for Python inside; LUMI's own name for it still works."""
    shutil.copy(containers.python_image('path'), place.store / 'tool.sif')
    place.install(place.easyconfig("import_name = 'torch'\npackage_version = ''"))
    scripts = place.eb.prefix / 'software/Tool/1.0/runscripts'
    # in the place of the image's Python; the directory is the first on the path in the container
    (scripts / 'python').write_text(
        '#!/bin/bash\necho "${SINGULARITY_CONTAINER##*/} $RANK $LOCAL_RANK $MASTER_ADDR $*"\n')
    (scripts / 'python').chmod(0o755)
    place.give_to_user()
    variables = dict(SRUN, ROCR_VISIBLE_DEVICES='0,1,2,3')
    output = place.as_user('pytorch-srun train.py "a b"; singularity -s exec $SIF conda-python-distributed train.py',
                           'Tool', env=variables)
    assert output.splitlines()[-2:] == ['tool.sif 5 1 nid012 train.py a b', 'tool.sif 5 1 nid012 train.py']
