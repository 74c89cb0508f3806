"""The run scripts, outside a container: they need no more than bash and coreutils, so most of them work here too."""
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from common import CHECKOUT, needs_program, nightly
from batch_systems.real_slurm import wait_for

SCRIPTS = CHECKOUT / 'hpc_pytorch/scripts'
# of the page, for `c=fe`
MASKS_OF_THE_PAGE = ('0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,'
                     '0xfe,0xfe00,0xfe00000000,0xfe0000000000')


def run(script, *arguments, status=0, **variables):
    """Run a script with nothing but these variables; returns (standard output, standard error)."""
    environment = dict({'PATH': '%s:/usr/bin:/bin' % Path(sys.executable).parent}, **variables)
    done = subprocess.run([SCRIPTS / script, *arguments], env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize('script', ['cpu-mask', 'extend-venv-activate', 'get-master', 'pytorch-stage'])
def test_help(script):
    """What the program's first lines say, which are also its part of the reference."""
    said, errors = run(script, '--help')
    assert said.startswith(script) and said.strip() and not errors
    assert said == ''.join(line[2:] or '\n' for line in (SCRIPTS / script).read_text().splitlines(True)[1:]
                           [:said.count('\n')]) and 'set -' not in said


def test_what_to_type_for_a_container_venv():
    """Without a directory it says what to type."""
    for words, status in (([], 1), (['--help'], 0)):
        said, errors = run('make-container-venv', *words, status=status)
        assert said.startswith('make-container-venv DIRECTORY [PLACE]: ') and not errors


def test_every_script_is_installed():
    """Every script is named by an easyconfig or the easyblock for containers; all that are named exist."""
    from hpc_pytorch.packages.container_modules import scripts_for
    table = scripts_for('torch')
    easyconfigs = ''.join(path.read_text() for path in CHECKOUT.glob('easyconfigs/*/*/*.eb'))
    scripts = [path.name for path in SCRIPTS.iterdir() if path.is_file()]
    assert set(table) <= set(scripts)
    assert [name for name in scripts if name not in table and "'%s'" % name not in easyconfigs] == []


@pytest.mark.parametrize('option, found', [('--nodes', 'host'), ('--here', 'container')])
@pytest.mark.parametrize('program', ['pytorch-run', 'pytorch-serve'])
def test_what_submits_jobs_runs_outside(tmp_path, program, option, found):
    """Its first line is `env python3`, which the module of a container has, too: the host's Python takes it."""
    for name in ('bin', 'runscripts', 'share', 'host'):
        (tmp_path / name).mkdir()
    (tmp_path / 'share/container').write_text('SIFPYTORCH exec PyTorch/1.0\n')
    shutil.copy(SCRIPTS / 'run-in-container', tmp_path / 'runscripts')
    (tmp_path / 'runscripts' / program).write_text((SCRIPTS / program).read_text().splitlines(True)[0])
    (tmp_path / 'runscripts' / program).chmod(0o755)
    for name, target in (('python3', 'run-in-container'), (program, program)):
        (tmp_path / 'bin' / name).symlink_to('../runscripts/' + target)
    for place, name in (('python3', 'host'), ('singularity', 'container')):
        (tmp_path / 'host' / place).write_text('#!/bin/bash\necho "%s: $*"\n' % name)
        (tmp_path / 'host' / place).chmod(0o755)
    # as on LUMI, the prefix may be a link
    (tmp_path / 'link').symlink_to('.')
    path = '%s/link/bin:%s/host:/usr/bin:/bin' % (tmp_path, tmp_path)
    done = subprocess.run([program, option, 'train.py'], stdout=subprocess.PIPE, text=True, check=True, timeout=60,
                          env={'PATH': path, 'SIFPYTORCH': '/dev/null'})
    assert done.stdout.startswith(found + ': ') and done.stdout.endswith('/%s %s train.py\n' % (program, option))


# -- get-master

@pytest.fixture(scope='module')
def scontrol(tmp_path_factory):
    """Slurm's own expansion of a list; it needs a configuration file, and no daemons."""
    directory = tmp_path_factory.mktemp('slurm')
    (directory / 'slurm.conf').write_text('ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\n')
    environment = dict(os.environ, SLURM_CONF=str(directory / 'slurm.conf'))

    def expand(nodes):
        return subprocess.run(['scontrol', 'show', 'hostnames', nodes], env=environment, stdout=subprocess.PIPE,
                              text=True, check=True).stdout
    return expand


def node_list(chance):
    """A node list such as Slurm writes them, and some that it only reads: it wants nothing behind the last brackets."""
    def brackets():
        parts = []
        for _ in range(chance.choice((1, 1, 2, 3))):
            width = chance.choice((1, 1, 2, 3, 4, 6))
            low = chance.randrange(10 ** min(width, 4))
            high = low + chance.choice((0, 1, 2, 9, 12))
            low = '%0*d' % (width, low)
            parts.append(low if chance.random() < 0.4 else '%s-%0*d' % (low, width, high))
        return '[%s]' % ','.join(parts)

    hosts = []
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
        host = chance.choice(('nid', 'n', 'login', 'uan0', 'gpu-', 'x1000c0s'))
        if chance.random() < 0.2:
            hosts.append(host + str(chance.randrange(100)))
        for _ in range(chance.choice((0, 0, 0, 1, 2, 3))):
            host += brackets() + chance.choice(('', 'b', 'y', '-ib', 'n'))
        hosts.append(host + brackets())
    return ','.join(hosts)


@pytest.mark.slow
@pytest.mark.parametrize('count', [300, nightly(5000)])
def test_get_master_as_scontrol(scontrol, count):
    """The first host of generated lists."""
    chance = random.Random(count)
    lists = [node_list(chance) for _ in range(count)]

    def compare(some):
        # in a shell that starts the script for every one
        firsts = subprocess.run(['bash', '-c', 'for nodes; do "$0" "$nodes"; done', SCRIPTS / 'get-master', *some],
                                stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        assert firsts == [scontrol(nodes).splitlines()[0] for nodes in some]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compare, [lists[start:start + 20] for start in range(0, count, 20)]))


@pytest.mark.parametrize('nodes, first', [
    ('nid[001-003,007],login1,x[1-2]y[08-11]', 'nid001'),
    ('login1,nid[001-003]', 'login1'),
    ('x[1-2]y[08-11]', 'x1y08'),
    ('nid005042', 'nid005042'),
    ('n[9-11]', 'n9'),
    ('n1, n[3-4],', 'n1'),
    (' n[2-3]', 'n2'),
])
@pytest.mark.slow
def test_get_master(scontrol, nodes, first):
    """The first host; the list from the job step."""
    assert run('get-master', nodes)[0] == first + '\n'
    assert scontrol(nodes).startswith(first + '\n')
    assert run('get-master', SLURM_NODELIST='other[1-2]', SLURM_STEP_NODELIST=nodes)[0] == first + '\n'


def test_get_master_of_many_nodes():
    """The first of a million is found at once."""
    started = time.monotonic()
    assert run('get-master', 'nid[000000-999999]')[0] == 'nid000000\n'
    assert time.monotonic() - started < 5


@pytest.mark.parametrize('nodes, says', [
    ('nid[001-', 'no node list'),
    ('nid[003-001]', 'no range'),
    ('nid[a-b]', 'no range'),
    ('a]b[', 'no node list'),
    ('', 'expected a node list'),
    (' , ', 'names no host'),
])
def test_get_master_refuses(nodes, says):
    """One line that says what is wrong."""
    _, error = run('get-master', nodes, status=1)
    assert says in error and error.startswith('get-master: ') and error.count('\n') == 1


# -- cpu-mask

def test_cpu_mask_of_the_page():
    """The masks of the page, from the data of the system."""
    from hpc_pytorch.machine.systems import load
    cores = ' '.join(','.join(map(str, cores)) for cores in load('lumi').node['gpu_cores'])
    assert run('cpu-mask', GPU_CORES=cores)[0] == MASKS_OF_THE_PAGE + '\n'
    assert run('cpu-mask', GPU_CORES='49-55 57-63 17-23 25-31 1-7 9-15 33-39 41-47')[0] == MASKS_OF_THE_PAGE + '\n'


def test_cpu_mask_of_any_node():
    """Also with more cores than an integer has bits."""
    chance = random.Random(1)
    for _ in range(20):
        gpus = [sorted(chance.sample(range(300), chance.randrange(1, 20))) for _ in range(chance.randrange(1, 9))]
        expected = ','.join(hex(sum(1 << core for core in cores)) for cores in gpus)
        assert run('cpu-mask', GPU_CORES=' '.join(','.join(map(str, cores)) for cores in gpus))[0] == expected + '\n'


@pytest.mark.parametrize('cores, says', [('', 'is not set'), ('1-7 x', "'x'"), ('7-1', "'7-1'")])
def test_cpu_mask_refuses(cores, says):
    """One line that says what is wrong."""
    assert says in run('cpu-mask', GPU_CORES=cores, status=1)[1]


# -- conda-python-distributed

SHOW = ('import os; print(*(name + "=" + os.environ.get(name, "-") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", '
        '"LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")))')
# what the launchers set for rank 5 of 8 on the second of two nodes
SRUN = {'SLURM_PROCID': '5', 'SLURM_STEP_NUM_TASKS': '8', 'SLURM_LOCALID': '1', 'SLURM_NODEID': '1',
        'SLURM_JOB_ID': '77', 'SLURM_STEP_ID': '2', 'SLURM_STEP_TASKS_PER_NODE': '4(x2)',
        'SLURM_STEP_NODELIST': 'nid[012-013]'}
PALS = {'PALS_RANKID': '5', 'PMI_SIZE': '8', 'PALS_LOCAL_RANKID': '1', 'PALS_LOCAL_SIZE': '4', 'PBS_JOBID': '12.pbs',
        'PALS_APID': 'a-b-c'}
MPIRUN = {'OMPI_COMM_WORLD_RANK': '5', 'OMPI_COMM_WORLD_SIZE': '8', 'OMPI_COMM_WORLD_LOCAL_RANK': '1',
          'OMPI_COMM_WORLD_LOCAL_SIZE': '4', 'PMIX_NAMESPACE': '123@1', 'SLURM_JOB_NODELIST': 'nid[012-013]'}


def ranks(status=0, **variables):
    """What Python sees of a rank, as a dict."""
    output, error = run('conda-python-distributed', '-c', SHOW, status=status, **variables)
    return dict(word.split('=', 1) for word in output.split()) if status == 0 else error


@pytest.mark.parametrize('launcher', [SRUN, PALS, MPIRUN], ids=['srun', 'PALS', 'Open MPI'])
def test_ranks(launcher, tmp_path):
    """The same whoever launches."""
    hosts = tmp_path / 'hosts'
    hosts.write_text('nid012\nnid013\n')
    found = ranks(PBS_NODEFILE=str(hosts), **launcher)
    assert (found['RANK'], found['WORLD_SIZE'], found['LOCAL_RANK'], found['LOCAL_WORLD_SIZE']) == ('5', '8', '1', '4')
    assert found['MASTER_ADDR'] == 'nid012'
    assert 10000 <= int(found['MASTER_PORT']) < 32768


def test_torchrun_is_left_alone():
    """torchrun sets everything itself, and its ranks see all GPUs; that it runs in a job changes nothing."""
    theirs = {'RANK': '5', 'WORLD_SIZE': '8', 'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '4', 'MASTER_ADDR': 'here',
              'MASTER_PORT': '1234', 'ROCR_VISIBLE_DEVICES': '0,1,2,3'}
    found = ranks(TORCHELASTIC_RUN_ID='none', **dict(SRUN, **theirs))
    assert dict(found, **theirs) == found


@pytest.mark.parametrize('tasks, node, here', [('4(x2)', 1, '4'), ('2(x3),1', 3, '1'), ('3,1', 0, '3'), ('8', 0, '8')])
def test_tasks_of_this_node(tasks, node, here):
    """Slurm's way to write how many ranks each node has."""
    found = ranks(**dict(SRUN, SLURM_STEP_TASKS_PER_NODE=tasks, SLURM_NODEID=str(node)))
    assert found['LOCAL_WORLD_SIZE'] == here


@pytest.mark.parametrize('given, seen', [
    ({'ROCR_VISIBLE_DEVICES': '0,1,2,3'}, '1'),
    ({'ROCR_VISIBLE_DEVICES': '4,5,6,7'}, '5'),
    ({'ROCR_VISIBLE_DEVICES': '6'}, '6'),
    ({'ROCR_VISIBLE_DEVICES': '4,5,6,7', 'SEE_ALL_GPUS': '1'}, '4,5,6,7'),
])
def test_each_rank_sees_its_gpu(given, seen):
    """Of the GPUs that the job has."""
    assert ranks(**SRUN, **given)['ROCR_VISIBLE_DEVICES'] == seen
    cuda = {name.replace('ROCR', 'CUDA'): value for name, value in given.items()}
    assert ranks(**SRUN, **cuda)['CUDA_VISIBLE_DEVICES'] == seen


def test_users_address_and_port():
    """Whoever sets them knows better."""
    found = ranks(MASTER_ADDR='there', MASTER_PORT='29500', **SRUN)
    assert (found['MASTER_ADDR'], found['MASTER_PORT']) == ('there', '29500')
    # in many a ~/.bashrc, and on each node another one
    assert [ranks(MASTER_ADDR=mine, **SRUN)['MASTER_ADDR'] for mine in ('localhost', '127.0.0.1')] == ['nid012'] * 2


def test_ports_differ():
    """Jobs and steps that can run at the same time have ports of their own."""
    jobs = [ranks(**dict(SRUN, SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(step)))['MASTER_PORT']
            for job in (77, 78, 79, 200) for step in (0, 1, 2, 50)]
    assert len(set(jobs)) == len(jobs)
    assert ranks(**dict(SRUN, SLURM_LOCALID='3'))['MASTER_PORT'] == ranks(**SRUN)['MASTER_PORT']
    applications = [ranks(MASTER_ADDR='x', **dict(PALS, PALS_APID=name))['MASTER_PORT'] for name in 'abcd']
    assert len(set(applications)) == 4


@pytest.mark.parametrize('variables', [
    {},
    # a batch script, which Slurm also numbers as a task, and the shell of salloc
    {'SLURM_PROCID': '0', 'SLURM_NTASKS': '4', 'SLURM_JOB_ID': '1', 'SLURM_LOCALID': '0'},
    {'SLURM_PROCID': '0', 'SLURM_NTASKS': '4', 'SLURM_JOB_ID': '1', 'SLURM_STEP_ID': '4294967290'},
], ids=['nothing', 'sbatch', 'salloc'])
def test_without_launcher(variables):
    """Refuses instead of waiting for ranks that nobody starts."""
    error = ranks(status=1, **variables)
    assert 'no launcher started this' in error and 'srun' in error and error.count('\n') == 1


def test_launcher_that_says_too_little():
    """One line that names the variable, or the host, that is missing."""
    assert '$PMI_SIZE is not set' in ranks(status=1, PALS_RANKID='0')
    assert 'set MASTER_ADDR' in ranks(status=1, **PALS)


# the only rank of its node
ALONE = dict(SRUN, SLURM_STEP_TASKS_PER_NODE='1(x8)', SLURM_NODEID='5', SLURM_LOCALID='0')


def start(tmp_path, code, *arguments, variables=ALONE, **options):
    """conda-python-distributed as a process, with its own directory for temporary files."""
    environment = dict({'PATH': '%s:/usr/bin:/bin' % Path(sys.executable).parent, 'TMPDIR': str(tmp_path)}, **variables)
    return subprocess.Popen([SCRIPTS / 'conda-python-distributed', '-u', '-c', code, *arguments], env=environment,
                            stdin=options.pop('stdin', subprocess.DEVNULL), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, **options)


SHOW_CACHE = ('import os, stat; place = os.environ["MIOPEN_USER_DB_PATH"]; open(place + "/x", "w").close(); '
              'print(place, oct(os.stat(place).st_mode & 0o777), os.environ["MIOPEN_CUSTOM_CACHE_DIR"] == place)')


def test_cache_of_a_rank(tmp_path):
    """Each rank has its own, closed to others, and removes it when it ends."""
    seen = set()
    # as on a node with AMD's GPUs
    variables = [dict(SRUN, ROCR_VISIBLE_DEVICES='0', SLURM_LOCALID=str(rank)) for rank in range(4)]
    for process in [start(tmp_path, SHOW_CACHE, variables=one) for one in variables]:
        output, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
        place, mode, same = output.split()
        assert Path(place).parent == tmp_path and mode == '0o700' and same == 'True'
        seen.add(place)
    assert len(seen) == 4
    assert not list(tmp_path.iterdir())


def test_users_own_cache(tmp_path):
    """Kept, and not removed."""
    mine = {'MIOPEN_USER_DB_PATH': str(tmp_path / 'mine'), 'MIOPEN_CUSTOM_CACHE_DIR': str(tmp_path / 'other')}
    (tmp_path / 'mine').mkdir()
    output, error = start(tmp_path, SHOW_CACHE, variables=dict(ALONE, **mine)).communicate(timeout=60)
    assert output.split()[0] == mine['MIOPEN_USER_DB_PATH'] and output.split()[2] == 'False', error
    assert [path.name for path in tmp_path.iterdir()] == ['mine']


@pytest.mark.parametrize('name', ['SLURM_NODEID', 'SLURM_JOB_ID', 'SLURM_STEP_NODELIST', 'SLURM_STEP_TASKS_PER_NODE',
                                  'SLURM_LOCALID', 'SLURM_STEP_ID'])
def test_variable_of_slurm_that_is_missing(name):
    """Named, with what started this."""
    variables = {other: value for other, value in SRUN.items() if other != name}
    error = ranks(status=1, **variables)
    assert 'started by srun' in error and '$' + name in error and error.count('\n') == 1


@pytest.mark.parametrize('name', ['SLURM_PROCID', 'SLURM_NODEID', 'SLURM_JOB_ID', 'SLURM_STEP_ID', 'SLURM_LOCALID',
                                  'SLURM_STEP_NUM_TASKS', 'SLURM_STEP_NUM_NODES', 'SLURM_STEP_TASKS_PER_NODE',
                                  'SLURM_JOB_CPUS_PER_NODE', 'SLURM_CPUS_ON_NODE', 'HPC_NODE_CPUS'])
@pytest.mark.parametrize('script', ['conda-python-distributed', 'torchrun'])
def test_values_are_not_run(tmp_path, script, name):
    """What is no number is refused, or left alone; bash's arithmetic would run the command in it."""
    mark = tmp_path / 'ran'
    variables = dict(SRUN, SLURM_STEP_ID='0', **{'PATH': '/usr/bin:/bin'})
    variables[name] = 'PATH[$(touch %s)]' % mark
    done = subprocess.run([SCRIPTS / script, 'x.py'], env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60)
    assert not mark.exists(), done.stdout


def test_users_variable():
    """One that is called as the script's own was."""
    show = 'import os; print(os.environ["scripts"])'
    assert run('conda-python-distributed', '-c', show, scripts='mine', **SRUN)[0] == 'mine\n'


def test_more_ranks_than_gpus():
    """Two ranks would share a GPU, and NCCL refuses that late and in other words."""
    eight = dict(SRUN, SLURM_STEP_NUM_TASKS='16', SLURM_STEP_TASKS_PER_NODE='8(x2)', ROCR_VISIBLE_DEVICES='0,1,2,3')
    error = ranks(status=1, **eight)
    assert '8 ranks' in error and '4 GPUs' in error and 'SEE_ALL_GPUS=1' in error
    assert ranks(SEE_ALL_GPUS='1', **eight)['ROCR_VISIBLE_DEVICES'] == '0,1,2,3'


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT])
def test_signals(tmp_path, number):
    """Python gets the signal; how it ends is how the script ends; nothing stays behind."""
    process = start(tmp_path, 'import os, time; print(os.getpid(), flush=True)\nwhile True: time.sleep(1)',
                    preexec_fn=no_core_files)
    python = int(process.stdout.readline())
    os.kill(process.pid, number)
    _, error = process.communicate(timeout=60)
    # a shell cannot die of SIGQUIT, only say that something did
    assert process.returncode == (-number if number != signal.SIGQUIT else 128 + number), error
    assert ('KeyboardInterrupt' in error) == (number == signal.SIGINT)
    assert not Path('/proc/%d' % python).exists()
    assert not list(tmp_path.iterdir())


def no_core_files():
    """SIGQUIT would leave one."""
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def test_signal_that_python_handles(tmp_path):
    """A checkpoint on SIGUSR1, as jobs do it before their time is up: the script waits for Python's own end."""
    process = start(tmp_path, 'import signal, sys, time\n'
                    'signal.signal(signal.SIGUSR1, lambda *_: print("checkpoint", flush=True))\n'
                    'signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n'
                    'print("ready", flush=True)\nwhile True: time.sleep(0.1)')
    assert process.stdout.readline() == 'ready\n'
    for _ in range(3):
        os.kill(process.pid, signal.SIGUSR1)
        assert process.stdout.readline() == 'checkpoint\n'
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 9
    assert not list(tmp_path.iterdir())


def test_signals_at_any_time(tmp_path):
    """A signal while the script starts is not lost, and leaves no Python behind."""
    needs_program('pgrep')
    for delay in range(12):
        process = start(tmp_path, 'import time; time.sleep(100)', 'mark-%d-%d' % (os.getpid(), delay))
        # not to wait for something, but to hit every place of the script
        time.sleep(delay * 0.008)
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGTERM
        wait_for(lambda: not processes('mark-%d-%d' % (os.getpid(), delay)), "end of Python", 60)
    assert not list(tmp_path.iterdir())


def processes(mark):
    """The processes with this argument."""
    return subprocess.run(['pgrep', '-f', '--', mark], stdout=subprocess.PIPE).stdout.split()


def test_arguments_input_and_status(tmp_path):
    """Python gets the arguments and the input as they are, and its exit status comes out."""
    words = ['a b', "c'd", '"', '$HOME', '`id`', 'new\nline', '', '*', '\\', '-x', '--', 'ü']
    process = start(tmp_path, 'import sys; print(ascii(sys.argv[1:]), sys.stdin.read()); sys.exit(42)', *words,
                    stdin=subprocess.PIPE)
    output, _ = process.communicate('from outside', timeout=60)
    assert output == '%s from outside\n' % ascii(words)
    assert process.returncode == 42


# -- environments

def test_environments(tmp_path):
    """$WITH_CONDA is run as the command that it is; of virtual environments only the module's own counts."""
    activate = tmp_path / 'activate'
    activate.write_text('export ACTIVATED=$1\n')
    show = ['bash', '-c', 'echo "$ACTIVATED $PATH"']
    output, _ = run('with-environment', *show, WITH_CONDA='source %s pytorch' % activate)
    assert output.startswith('pytorch ')
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'bin' / 'python').symlink_to(sys.executable)
    output, _ = run('with-environment', *show, VIRTUAL_ENV=str(tmp_path))
    assert str(tmp_path) not in output


def test_wrapper_without_module(tmp_path):
    """Says what to type."""
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'share').mkdir()
    (tmp_path / 'runscripts').symlink_to(SCRIPTS)
    done = subprocess.run([SCRIPTS / 'run-in-container'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 127 and 'expected a command' in done.stderr


def test_unpacked_with_old_coreutils(tmp_path):
    """Before 8.24 `sync` had no -f: unmake-squashfs does without."""
    (tmp_path / 'runscripts').mkdir()
    for name in ('make-squashfs', 'unmake-squashfs'):
        shutil.copy(SCRIPTS / name, tmp_path / 'runscripts')
    (tmp_path / 'user-software.squashfs').touch()
    for name, text in (('sync', '[ "$1" != -f ]'), ('unsquashfs', 'mkdir "$6"')):
        (tmp_path / name).write_text('#!/bin/sh\n%s\n' % text)
        (tmp_path / name).chmod(0o755)
    subprocess.run([tmp_path / 'runscripts/unmake-squashfs'], check=True, stdout=subprocess.DEVNULL,
                   env={'PATH': '%s:/usr/bin:/bin' % tmp_path})
    assert (tmp_path / 'user-software').is_dir() and (tmp_path / 'user-software.unpacked').exists()
