"""pytorch-run: from a login node to the end of a training, on real Slurm and on the PBS stand-in."""
import contextlib
import os
import pickle
import re
import runpy
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from batch_systems.pbs_stand_in import Pbs, patiently
from batch_systems.real_slurm import Slurm
from common import CHECKOUT, ModulesTool, clean_environment, needs_root
from containers.images import COREUTILS
from small_software import SYSTEM

from hpc_pytorch.machine.systems import FOR_JOBS

# jobs start in a login shell, which has set the path anew: PBS's own commands are beside ours
MODULE = """prepend_path("PATH", "%s")
prepend_path("PATH", "%s/bin")
setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
"""
# says which rank it is; ends as it is told, when a file is there, or when it is told to leave, which makes the file
PROGRAM = """import os, signal, sys, time
def leave(*_):
    # mpirun may tell it, and so may pytorch-srun
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # the first rank has most to save
    time.sleep(0 if int(os.environ['RANK']) else 2)
    open(sys.argv[2], 'w').close()
    sys.exit(85)
signal.signal(signal.SIGUSR1, leave)
users = [os.environ['job']] if 'job' in os.environ else []
print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], *sys.argv[1:], *users, flush=True)
while sys.argv[1:2] == ['until'] and not os.path.exists(sys.argv[2]):
    time.sleep(0.1)
sys.exit(int(sys.argv[-1]) if sys.argv[-1].isdigit() else 0)
"""


class Login:
    """A login node with the module loaded: starts pytorch-run."""

    def __init__(self, directory, kind, launcher, environment, system=None):
        self.system = system
        self.directory = directory / 'work'
        installed = directory / 'installed'
        for path in (self.directory, installed / 'bin', installed / 'share', directory / 'modules/PyTorch'):
            path.mkdir(parents=True)
        for name in ('pytorch-run', 'pytorch-srun', 'get-master'):
            shutil.copy(CHECKOUT / 'hpc_pytorch/scripts' / name, installed / 'bin')
        (installed / 'bin/python').symlink_to(sys.executable)
        # some tests start no rank, and run where there is no MPI
        (installed / 'bin/mpirun').symlink_to(shutil.which('mpirun.openmpi') or '/nowhere')
        (installed / 'share/system.cfg').write_text(SYSTEM % (kind, launcher))
        for path in FOR_JOBS:
            shutil.copy(path, installed / 'share')
        (directory / 'modules/PyTorch/1.0.lua').write_text(
            MODULE % (environment.get('PATH', '').split(':')[0], installed))
        (self.directory / 'train.py').write_text(PROGRAM)
        self.program = installed / 'bin/pytorch-run'
        self.environment = dict(clean_environment(), HOME=str(self.directory), LOADEDMODULES='PyTorch/1.0',
                                MODULEPATH=str(directory / 'modules'), **environment)

    def start(self, *arguments, **options):
        """Call it, and do not wait."""
        return subprocess.Popen([sys.executable, '-I', self.program, *arguments], env=self.environment, text=True,
                                cwd=self.directory, **dict(dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                                                stderr=subprocess.PIPE), **options))

    def __call__(self, *arguments):
        """Call it: (exit status, standard output, standard error)."""
        called = self.start(*arguments)
        output, errors = called.communicate(timeout=900)
        assert 'Traceback' not in errors, errors
        return called.returncode, output, errors


@pytest.fixture(scope='module')
def slurm(tmp_path_factory):
    """A login node of a Slurm with two nodes."""
    needs_root()
    directory = tmp_path_factory.mktemp('run')
    with Slurm(directory / 'slurm', nodes=2) as slurm:
        yield Login(directory, 'slurm', 'srun', slurm.environment, slurm)


@pytest.fixture
def pbs(tmp_path):
    """A login node of a PBS."""
    with Pbs(tmp_path / 'pbs') as pbs:
        yield Login(tmp_path, 'pbs', 'mpirun', pbs.environment, pbs)


@pytest.fixture
def nowhere(tmp_path):
    """A machine with Slurm's module, and without Slurm."""
    return Login(tmp_path, 'slurm', 'srun', {'PATH': '/nowhere'})


@pytest.mark.slow
@pytest.mark.parametrize('counted, option', [(2, 'gpus_option = --gres=gpu:\n'), (0, '')])
def test_nodes_that_are_shared(tmp_path, counted, option):
    """
    A job with all GPUs of a node has its cores only if it asks for them, where other jobs may have some. Sites whose
    Slurm does not count GPUs would refuse a step that asks for some.
    """
    needs_root()
    with Slurm(tmp_path / 'slurm', nodes=1, gpus=counted) as slurm:
        login = Login(tmp_path, 'slurm', 'srun', slurm.environment, slurm)
        shared = option + '[node]\ngpus = 2\ncores = 4\n'
        (tmp_path / 'installed/share/system.cfg').write_text(
            (SYSTEM % ('slurm', 'srun')).replace('[node]\ncores = 2\n', shared))
        status, output, errors = login('train.py')
        part, alone, _ = login('--gpus', '1', 'train.py')
    assert status == 0 and output.count('of 2') == 2, output + errors
    assert part == 0 and alone.count('rank 0 of 1') == 1, alone


@pytest.mark.slow
def test_dry_run(nowhere):
    """The job script, and no file."""
    before = os.listdir(nowhere.directory)
    status, output, _ = nowhere('--dry-run', '--nodes', '2', 'train.py', 'a b')
    assert status == 0 and output.startswith('#!/bin/bash -l\n#SBATCH --job-name=train\n')
    assert output.endswith("pytorch-srun train.py 'a b'\n")
    assert os.listdir(nowhere.directory) == before
    # sbatch takes a dash for an option
    assert '--job-name=x\n' in nowhere('--dry-run', './-x.py')[1]


@pytest.mark.parametrize('name', ['Lmod', 'Environment Modules'])
def test_a_profile_sets_the_path_anew(nowhere, name):
    """As Debian's does, while Environment Modules believe that the module is loaded, with what it needs."""
    tool = ModulesTool(name)
    installed, modules = nowhere.program.parent, nowhere.directory.parent / 'modules'
    # for Lmod, that is a failure
    with open(modules / 'PyTorch/1.0.lua', 'a') as module:
        module.write('LmodWarning("it is to be removed in May")\n')
    if name != 'Lmod':
        shutil.rmtree(modules / 'PyTorch')
        (modules / 'PyTorch').mkdir()
        (modules / 'PyTorch/1.0').write_text('#%%Module\nmodule load MPI\nprepend-path PATH %s\n' % installed)
        (modules / 'MPI').write_text('#%%Module\nprepend-path PATH %s/of-mpi\n' % modules)
    script = """module use %s; module load PyTorch
pytorch-run --dry-run train.py | grep -v '^#' | sed '/pytorch-srun train.py/d' >load || exit
PATH=/usr/local/bin:/usr/bin:/bin
. ./load
echo ":$PATH:" $(command -v pytorch-srun)
""" % modules
    environment = {'HOME': nowhere.environment['HOME']}
    *_, path, program = tool.run(script, environment, cwd=nowhere.directory).split()
    assert program == str(installed / 'pytorch-srun')
    assert name == 'Lmod' or '/of-mpi:' in path


def test_conda(nowhere):
    """Who activated a conda environment after the module is told that jobs do not; below the module it is no harm."""
    conda = nowhere.directory / 'conda'
    (conda / 'bin').mkdir(parents=True)
    (conda / 'bin/python').symlink_to(sys.executable)
    nowhere.environment.update(CONDA_PREFIX=str(conda), PATH='%s/bin:/nowhere' % conda)
    assert "does not activate %s, as conda's python" % conda in nowhere('--dry-run', 'train.py')[2]
    nowhere.environment['PATH'] = '%s:%s/bin' % (nowhere.program.parent, conda)
    assert nowhere('--dry-run', 'train.py')[2] == ''


@pytest.mark.slow
def test_refused(nowhere):
    """One line: no sbatch, no job to be in, an option that pytorch-jobscript refuses."""
    (nowhere.directory / 'train.py').touch()
    for arguments, says, wanted in ((['tarin.py'], 'tarin.py was not found in ', 1),
                                    (['python', 'train.py'], 'the Python script python was not found in ', 1),
                                    (['train.py'], 'sbatch was not found here: submit train-1.job on a', 1),
                                    (['--ranks-per-node', '3', 'train.py'], 'a node has 2 cores', 1)):
        status, output, errors = nowhere(*arguments)
        assert (status, output, errors.count('\n')) == (wanted, '', 1) and says in errors
    assert 'pytorch-run --nodes 2' in nowhere('--help')[1] and '--ranks-per-node' in nowhere('--help')[1]


def test_full_disk(nowhere):
    """The job script cannot be written, as with `> job`: one line, and no status 0."""
    with open('/dev/full', 'w') as full:
        called = nowhere.start('--dry-run', 'train.py', stdout=full)
    errors = called.communicate(timeout=60)[1]
    assert called.returncode == 1 and errors.count('\n') == 1, errors
    assert 'the job script cannot be written: No space left on device' in errors


@pytest.mark.parametrize('number', [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_killed(tmp_path, number):
    """What waits for the job is not left, and does not delete it, as OpenPBS's qsub does at signals."""
    waits = "trap 'echo qdel > told; exit' HUP INT QUIT TERM; echo > ready; while :; do sleep 0.1; done"
    program = "import sys, time; sys.path.insert(0, %r); import followed_jobs\n" % str(CHECKOUT / 'hpc_pytorch/share')
    program += "print(followed_jobs.start(['bash', '-c', %r]).pid, flush=True); time.sleep(600)" % waits
    with subprocess.Popen([sys.executable, '-c', program], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as called:
        waiting = Path('/proc', called.stdout.readline().strip())
        patiently((tmp_path / 'ready').exists, "begin of what waits", 10)
        # as when the login node is shut down
        os.kill(int(waiting.name), signal.SIGTERM)
        time.sleep(0.3)
        os.kill(called.pid, number)
    patiently(lambda: not (waiting / 'cwd').exists(), "end of what waits", 10)
    assert not (tmp_path / 'told').exists()


def test_image_without_tee(tmp_path):
    """A rank runs where there is no tee, as in a small image: its output is not kept in a file of its own."""
    for name in COREUTILS:
        (tmp_path / name).symlink_to(shutil.which(name))
    (tmp_path / 'python').symlink_to(sys.executable)
    names = ('RANK', 'SIZE', 'LOCAL_RANK', 'LOCAL_SIZE')
    environment = dict({'OMPI_COMM_WORLD_' + name: str(int('SIZE' in name)) for name in names},
                       PATH=str(tmp_path), HPC_RANK_OUTPUTS=str(tmp_path))
    done = subprocess.run([CHECKOUT / 'hpc_pytorch/scripts/pytorch-srun', '-c', 'print("it runs")'], text=True,
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert (done.returncode, done.stdout) == (0, 'it runs\n')


@pytest.mark.slow
def test_where_ranks_wait(slurm):
    """As the researchers' page has it: SIGUSR2 prints each rank's line; a step looks at the nodes of a running job."""
    page = (CHECKOUT / 'docs/researchers.rst').read_text()
    lines = textwrap.dedent(re.search(r'( +import faulthandler.*?\n)\n', page, re.S).group(1))
    (slurm.directory / 'waits.py').write_text(lines + PROGRAM)
    end = slurm.directory / 'end-of-wait'
    called = slurm.start('--nodes', '2', 'waits.py', 'until', end)
    outputs = {}

    def all_say(words):
        outputs.update((path.name, path.read_text()) for path in slurm.directory.glob('waits-*/rank-*.out'))
        return len(outputs) == 2 and all(words in text for text in outputs.values())

    try:
        patiently(lambda: all_say('of 2 until'), "start of the ranks", 300)
        job, = [path.name[len('waits-'):] for path in slurm.directory.glob('waits-*') if path.is_dir()]
        looked = slurm.system.output(*'srun --jobid JOB --overlap --nodes 2 --ntasks-per-node 1'.replace(
            'JOB', job).split(), 'echo', 'looked')
        assert looked.split() == ['looked'] * 2
        slurm.system.output('scancel', '--signal=USR2', job)
        patiently(lambda: all_say('waits.py", line '), "the lines of the ranks")
    finally:
        end.touch()
    assert called.wait(300) == 0, called.communicate()


@pytest.mark.slow
def test_bandwidth_in_its_place(nowhere):
    """The sed of the researchers' page leaves a job script that measures the network."""
    page = (CHECKOUT / 'docs/researchers.rst').read_text()
    sed = re.search(r"^ +(sed -i 's/pytorch-srun .* job)$", page, re.M).group(1)
    (nowhere.directory / 'job').write_text(nowhere('--dry-run', '--nodes', '2', 'train.py')[1])
    subprocess.run(['bash', '-c', sed], cwd=nowhere.directory, check=True)
    assert (nowhere.directory / 'job').read_text().endswith(' pytorch-bandwidth nccl\n')


class Evil:
    """What a pickle can do."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, 'w'))


def test_missed_collectives(tmp_path):
    """
    Of flight recorders' dumps: what each group waited for, and where. A dump that is no plain value is not loaded.
    (Those of a real recorder are in test_training.py.)
    """
    def dump(rank, **numbers):
        frames = [{'filename': '/x/site-packages/torch/x.py', 'line': 1}, {'filename': 'mine.py', 'line': 7}]
        entries = [{'process_group': [group, 'of ' + group], 'collective_seq_id': number + 1, 'is_p2p': False,
                    'profiling_name': 'nccl:all_reduce', 'frames': frames}
                   for group, count in numbers.items() for number in range(count)]
        status = {group: {'last_enqueued_collective': count} for group, count in numbers.items()}
        content = {'entries': entries, 'pg_status': status}
        (tmp_path / ('nccl-trace-%d' % rank)).write_bytes(pickle.dumps(content))
    missed = runpy.run_path(str(CHECKOUT / 'hpc_pytorch/share/endings.py'))['missed_collectives']
    assert list(missed(tmp_path)) == []
    dump(0, all=3, part=2)
    dump(1, all=2)
    dump(2, all=3, part=2)
    (tmp_path / 'nccl-trace-3').write_bytes(pickle.dumps(Evil(str(tmp_path / 'done'))))
    (tmp_path / 'nccl-trace-4').write_bytes((tmp_path / 'nccl-trace-0').read_bytes()[:99])
    # as PyTorch 2.2 and 2.3 write them
    (tmp_path / 'nccl-trace-5').write_bytes(pickle.dumps([{'seq_id': 1}]))
    (tmp_path / 'nccl-trace-6').write_bytes(pickle.dumps({'version': '1.5', 'entries': [{'seq_id': 1}]}))
    assert list(missed(tmp_path)) == [
        'rank 1 did not reach collective 3 of of all, all_reduce; rank 0, 2 waited in it, at mine.py, line 7']
    assert not (tmp_path / 'done').exists()


@pytest.mark.slow
def test_two_nodes(slurm):
    """Shows what all ranks print and ends as the job does; scripts and output stay, each under a name of its own."""
    status, output, errors = slurm('--nodes', '2', '--time', '5', 'train.py')
    assert status == 0, output + errors
    assert {'rank 0 of 2', 'rank 1 of 2'} <= set(output.splitlines())
    number = errors.split()[2].rstrip(',')
    assert (slurm.directory / ('train-%s.out' % number)).read_text() == output
    for rank in range(2):
        kept = slurm.directory / ('train-%s/rank-%d.out' % (number, rank))
        assert kept.read_text().startswith('rank %d of 2\n' % rank)
    status, output, errors = slurm('--time', '5', 'train.py', 'status', '3')
    assert status == 3 and 'rank 0 of 1 status 3' in output and 'ended with status 3' in errors, output + errors
    assert (slurm.directory / 'train-1.job').exists() and (slurm.directory / 'train-2.job').exists()
    status, output, errors = slurm('--partition', 'nowhere', 'train.py')
    assert status == 1 and 'the batch system refused' in errors


@pytest.mark.slow
@pytest.mark.parametrize('end, status, says', [
    ("raise RuntimeError('HIP out of memory. Tried to allocate')", 1, 'a GPU ran out of memory'),
    ("raise ValueError('no such file: %s' % rank)", 1, 'ValueError: no such file: 1'),
    ("os.kill(os.getpid(), signal.SIGKILL)", 137, None),
    # of a program that does not save at the signal, as Lightning does not
    ("os.kill(os.getpid(), signal.SIGUSR1)", 138, 'before the time limit, ended it: run the same command again'),
])
def test_why_it_failed(slurm, end, status, says):
    """The last lines: the rank that ended first, whichever was killed for that, and why."""
    # what the others print is not the reason
    (slurm.directory / 'fail.py').write_text(
        "import os, signal, time\nrank = int(os.environ['RANK'])\nwaits = 'rank-0-waits-%d'\n"
        "print('rank', rank, 'is on', os.environ['SLURMD_NODENAME'], flush=True)\n"
        "while rank == 1 and not os.path.exists(waits):\n    time.sleep(0.1)\nif rank == 1:\n    %s\n"
        "print('DUE TO NODE FAILURE', flush=True)\nopen(waits, 'w').close()\ntime.sleep(600)\n" % (os.getpid(), end))
    (slurm.directory / ('rank-0-waits-%d' % os.getpid())).unlink(missing_ok=True)
    ended, output, errors = slurm('--nodes', '2', '--time', '5', 'fail.py')
    # not that of a rank that was killed as it waited
    assert ended == status
    last = errors.splitlines()[-3:]
    node = re.search(r'^rank 1 is on (\S+)$', output, re.M).group(1)
    assert last[0] == 'pytorch-run: rank 1 on %s failed first, with status %d' % (node, status), output + errors
    # where its own output tells nothing, the job's may
    assert (says or 'a node failed') in last[1]
    assert re.fullmatch(r'pytorch-run: output of each rank: fail-\d+/rank-\*\.out', last[2])


@pytest.mark.slow
def test_one_saves_and_others_leave(slurm, tmp_path):
    """Told to stop with scancel, without --requeue: srun ended the rank that was still saving."""
    (slurm.directory / 'save.py').write_text(PROGRAM.replace(' else 2)', ' else 4)\n    print("saved", flush=True)'))
    called = slurm.start('--nodes', '2', '--time', '5', 'save.py', 'until', str(tmp_path / 'saved'))
    number = called.stderr.readline().split()[2]
    assert {called.stdout.readline().split()[0] for _ in range(2)} == {'rank'}
    subprocess.run(['scancel', '--signal=USR1', number], env=slurm.environment, check=True)
    output, errors = called.communicate(timeout=900)
    assert called.returncode == 85 and output.splitlines().count('saved') == 2, output + errors
    assert 'saved its state and stopped' in errors and 'failed first' not in errors, errors


@pytest.mark.parametrize('lines, says', [
    (['srun: error: nid2: task 1: Killed', '*** STEP 1.0 ON nid1 CANCELLED AT T ***'],
     'rank 1 on nid2 failed first, with status 137'),
    # as by scancel, and not at once
    (['*** STEP 1.0 ON nid1 CANCELLED AT T ***', 'srun: error: nid2: task 1: Killed'],
     'rank 0 on nid1 failed first, with status 143'),
])
def test_killed_with_pytorch_srun(tmp_path, lines, says):
    """A rank of which only srun can say anything: nobody else is blamed, who was told to end for it."""
    (tmp_path / 'train-7').mkdir()
    (tmp_path / 'train-7/rank-0.out').write_text('pytorch-srun: rank 0 on nid1 ended with status 143 at 05:06:51\n')
    (tmp_path / 'train-7/rank-1.out').touch()
    why = runpy.run_path(str(CHECKOUT / 'hpc_pytorch/share/endings.py'))['why']
    assert next(why(str(tmp_path / 'train-7.out'), ['\n'.join(lines)])) == says


def test_mpirun_that_knows_no_nodes(tmp_path):
    """Debian's Open MPI on PBS, whose library it was not built with."""
    why = runpy.run_path(str(CHECKOUT / 'hpc_pytorch/share/endings.py'))['why']
    said = 'Your job has requested more processes than the ppr for this topology can support:\n  PPR: 1:node\n'
    assert next(why(str(tmp_path / 'train-7.out'), [said])).startswith('mpirun found too few nodes or cores: ')


@pytest.mark.parametrize('outputs, says', [
    # (each rank's last exception, status, time): connections close before the process has ended
    ([('[rank0]: RuntimeError: [gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:5030.', 1, '05:01'),
      ('[rank1]: RuntimeError: loss is NaN', 1, '05:02')], ['rank 1 on n1 failed first, with status 1', 'loss is NaN']),
    ([('[rank0]: RuntimeError: Read error [10.0.0.1]:5030: Connection reset by peer', 1, '05:01'),
      ('the data are not there', 3, '05:02')], ['rank 1 on n1 failed first, with status 3']),
    # as srun ends the others once the first process has ended
    ([('[rank0]: RuntimeError: [gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:5030.', 1, '05:01'),
      ("[rank1]: KeyError: 'lr'", 143, '05:02')], ['rank 1 on n1 failed first, with status 143', "KeyError: 'lr'"]),
    ([('[rank0]: RuntimeError: [gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:5030.', 1, '05:01'),
      ('waits', 143, '05:02')], ['rank 0 on n0 failed first, with status 1', 'Connection closed by peer']),
    # exceptions have other names, too, and follow from others
    ([("[rank0]: Traceback (most recent call last):\n[rank0]:   File \"a.py\", line 1, in f\n[rank0]: KeyError: 'x'\n\n"
       '[rank0]: During handling of the above exception, another exception occurred:\n\n'
       '[rank0]: Traceback (most recent call last):\n[rank0]:   File "a.py", line 2, in f\n[rank0]:     read()\n'
       '[rank0]: zipfile.BadZipFile: File is not a zip file', 1, '05:01')], ['status 1', 'zipfile.BadZipFile: File']),
    ([('Traceback (most recent call last):\n  File "a.py", line 1\n    next(x)\nStopIteration', 1, '05:01')],
     ['status 1', 'StopIteration']),
    # behind a progress bar, which does not end its line
    ([('\r 50%|####    | 20/40 [00:01<00:02, 3.1it/s]', 137, '05:01'),
      ('[rank1]: RuntimeError: [gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:5030.', 1, '05:02')],
     ['rank 0 on n0 failed first, with status 137']),
    ([('\r 50%|####    | 20/40 [00:01<00:02, 3.1it/s][rank0]: Traceback (most recent call last):\n'
       '[rank0]:   File "a.py", line 1\n[rank0]:     next(x)\n[rank0]: StopIteration\n 50%|##', 1, '05:01')],
     ['status 1', 'StopIteration']),
])
def test_loses_another(tmp_path, outputs, says):
    """A rank that fails as it has lost another, and ends before that one, is not named for it."""
    (tmp_path / 'train-7').mkdir()
    for rank, output in enumerate(outputs):
        (tmp_path / ('train-7/rank-%d.out' % rank)).write_text(
            '%s%spytorch-srun: rank %d on n%d ended with status %d at %s\n' % (
                output[0], '' if '%|' in output[0] else '\n', rank, rank, *output[1:]))
    why = runpy.run_path(str(CHECKOUT / 'hpc_pytorch/share/endings.py'))['why']
    lines = list(why(str(tmp_path / 'train-7.out'), ['']))
    assert len(lines) == len(says) + 1 and all(map(str.__contains__, lines, says)), lines


@pytest.mark.parametrize('raised', ['DataLoader worker (pid(s) 258) exited unexpectedly', '[Errno 104] Reset by peer'])
def test_memory_of_a_worker(tmp_path, raised):
    """Slurm says in the job's output that memory has run out; the rank itself raises something for that, or nothing."""
    (tmp_path / 'train-7').mkdir()
    (tmp_path / 'train-7/rank-0.out').write_text(
        'RuntimeError: %s\npytorch-srun: rank 0 on n0 ended with status 1 at 05:01\n' % raised)
    why = runpy.run_path(str(CHECKOUT / 'hpc_pytorch/share/endings.py'))['why']
    said = ' 45%|###  |slurmstepd-n0: error: Detected 1 oom-kill event(s) in StepId=47.0. Some of your processes ...\n'
    failed, reason, _ = why(str(tmp_path / 'train-7.out'), [said])
    assert failed.startswith('rank 0 on n0 failed first') and reason.startswith('a node ran out of memory: '), reason


@pytest.mark.parametrize('words, says', [
    ('    Exit_status = 265\n', 'it was killed: for the memory'),
    ('    Exit_status = 271\n', 'it was deleted, or reached its time limit'),
    ('qstat: PBS is not configured to maintain job history 7\n\nqsub: 9', 'it was killed: for the memory'),
    ('qstat: PBS is not configured to maintain job history 7\n\nqsub: 1', 'the batch system keeps no history'),
])
def test_ends_of_pbs_jobs(words, says):
    """What was killed by signal 9 need not have reached its time limit; without history there is a place to look."""
    scripts = runpy.run_path(str(CHECKOUT / 'hpc_pytorch/share/batch_scripts.py'))
    row = scripts['first_that_fits'](scripts['read_share']('batch_scripts.cfg'), 'pbs ended: ', words)
    assert row['cause'].startswith(says)


@pytest.mark.parametrize('status, says', [('53', 'it could not be started'), ('10', ''), ('9', ''), ('31', '')])
def test_launch_failures(status, says):
    """Slurm calls it so, too, if a signal ended the job's shell: scancel --batch --signal=USR1, which is 10."""
    scripts = runpy.run_path(str(CHECKOUT / 'hpc_pytorch/share/batch_scripts.py'))
    words = 'JobState=FAILED Reason=JobLaunchFailure Dependency=(null) Requeue=1 ExitCode=0:%s RunTime=' % status
    row = scripts['first_that_fits'](scripts['read_share']('batch_scripts.cfg'), 'slurm ended: ', words)
    assert row.get('cause', '')[:len('it could not be started')] == says


@pytest.mark.parametrize('failure', [
    'task 0 launch failed: Unspecified error',
    'Task launch for StepId=7.0 failed on node n0: Communication connection failure',
])
def test_rank_that_is_not_started(tmp_path, failure):
    """Slurm then kills the ranks that it could start: none of them is to blame."""
    why = runpy.run_path(str(CHECKOUT / 'hpc_pytorch/share/endings.py'))['why']
    text = 'srun: error: %s\nsrun: error: n1: task 1: Killed\nsrun: Force Terminated StepId=7.0\n' % failure
    line, = why(str(tmp_path / 'train-7.out'), [text])
    assert line.startswith('Slurm could not start all ranks (srun: %s)' % failure)


def test_reasons_of_an_earlier_start(tmp_path, monkeypatch):
    """Slurm adds to the output of a job that it starts again: what ended the earlier one has not ended this one."""
    monkeypatch.syspath_prepend(str(CHECKOUT / 'hpc_pytorch/share'))
    monkeypatch.chdir(tmp_path)
    script = runpy.run_path(str(CHECKOUT / 'hpc_pytorch/share/batch_scripts.py'))
    says = script['read_share']('batch_scripts.cfg')['slurm']['restarts'].splitlines()[-1]
    begins, again = (subprocess.run(['bash', '-c', says], env=dict(os.environ, SLURM_RESTART_COUNT=count),
                                    stdout=subprocess.PIPE, text=True).stdout for count in '01')
    earlier = 'srun: error: n1: task 1: Killed\nslurmstepd: *** JOB 7 CANCELLED AT 12:00 DUE TO NODE FAILURE ***\n'
    job = SimpleNamespace(output='train-7.out', number='7', status=1)
    explain = runpy.run_path(str(CHECKOUT / 'hpc_pytorch/share/followed_jobs.py'))['Job'].explain
    Path('train-7.out').write_text(begins + earlier + again + 'srun: error: n2: task 0: Killed\n')
    assert list(explain(job, 1)) == ['job 7 ended with status 1', 'rank 0 on n2 failed first, with status 137']
    # the last start has the last word
    Path('train-7.out').write_text(begins + again + earlier)
    assert list(explain(job, 1))[1:] == ['rank 1 on n1 failed first, with status 137',
                                         'a node failed: submit the job again']


@pytest.mark.parametrize('says, cause', [
    ('JobState=FAILED Reason=NonZeroExitCode ExitCode=143:0 PreemptTime=2026-11-26T18:23:00', 'preempted it'),
    ('JobState=PREEMPTED Reason=None ExitCode=0:15 PreemptTime=2026-11-26T18:23:00', 'preempted it'),
    ('JobState=CANCELLED Reason=None ExitCode=0:15 PreemptTime=None', 'it was cancelled'),
    ('JobState=FAILED Reason=NonZeroExitCode ExitCode=143:0 PreemptTime=None', 'for the reason, type: scontrol'),
])
def test_told_to_end(tmp_path, monkeypatch, says, cause):
    """Ranks are told to end some time before Slurm preempts or cancels their job, and its script has time to tell."""
    monkeypatch.syspath_prepend(str(CHECKOUT / 'hpc_pytorch/share'))
    monkeypatch.chdir(tmp_path)
    systems = runpy.run_path(str(CHECKOUT / 'hpc_pytorch/share/batch_scripts.py'))['read_share']('batch_scripts.cfg')
    Job = runpy.run_path(str(CHECKOUT / 'hpc_pytorch/share/followed_jobs.py'))['Job']
    job = Job(SimpleNamespace(name='train', kind='slurm', batch_systems=systems, words=systems['slurm']))
    job.number, job.status, job.ask = '7', 143, lambda: says
    first = next(job.explain(143))
    assert first.startswith('job 7 ended with status 143: ') and cause in first


@pytest.mark.parametrize('reason, says', [
    ('AssocGrpCPUMinutesLimit', 'too few hours left for it: it starts when there are more. Or CANCEL, and submit'),
    ('QOSGrpGRESMinutes', 'too few hours left'),
    ('AssocGrpCPURunMinutesLimit', 'it starts when one of them has ended'),
    ('QOSMaxJobsPerUserLimit', 'it starts when one of them has ended'),
    ('AssocMaxJobsLimit', 'it starts when one of them has ended'),
    ('MaxGRESPerAccount', 'it starts when one of them has ended'),
    ('QOSMaxWallDurationPerJobLimit', 'never starts: CANCEL, and submit again with LESS'),
    ('MaxMemPerLimit', 'never starts: CANCEL, and submit again with SMALLER'),
    ('QOSMaxMemoryPerJob', 'submit again with SMALLER'),
    ('QOSMaxCpuMinutesPerJobLimit', 'submit again with LESS'),
    ('job_state = S', 'PBS has suspended it'),
    ('QOSMaxNodePerJobLimit', 'submit again with LESS'),
    ('QOSMinGRES', 'less than its QOS takes and never starts: CANCEL, and submit again with QOS'),
    ('ReqNodeNotAvail, Reserved for maintenance', 'To start before, CANCEL, and submit again with LESS'),
])
def test_reasons_to_wait(reason, says):
    """Another project is only of use for who has used up the hours of this one; options alone change no job."""
    scripts = runpy.run_path(str(CHECKOUT / 'hpc_pytorch/share/batch_scripts.py'))
    row = scripts['first_that_fits'](scripts['read_share']('waits.cfg'), 'waits: ', reason)
    meaning = row['meaning'].format(cancel='CANCEL', less='LESS', account='ACCOUNT', partition='PARTITION', job=7,
                                    smaller='SMALLER', qos='QOS')
    assert says in meaning.replace('\n', ' ')
    if 'job_state' in reason:
        # PBS's words begin the line
        asked = 'Job Id: 7.pbs\n    %s\n    comment = Job run at Sat\n' % reason
        found = re.search(scripts['read_share']('batch_scripts.cfg')['pbs']['waits'], asked)
        assert found.group(found.lastindex) == reason


@pytest.mark.slow
def test_left_early(slurm):
    """A rank that leaves with status 0 is named beside the one that fails for it."""
    (slurm.directory / 'early.py').write_text(
        "import os, time\nif os.environ['RANK'] == '1':\n    raise SystemExit\n"
        "while not any('ended with status 0' in open(os.path.join(os.environ['HPC_RANK_OUTPUTS'], name)).read()\n"
        "              for name in os.listdir(os.environ['HPC_RANK_OUTPUTS'])):\n    time.sleep(0.1)\n"
        "raise RuntimeError('Connection closed by peer')\n")
    status, output, errors = slurm('--nodes', '2', '--time', '5', 'early.py')
    assert status == 1 and re.search(r'rank 0 on \S+ failed first, with status 1', errors), output + errors
    assert re.search(r'rank 1 had ended before that \(rank 1 on nid\d+, with status 0\)', errors), errors


@pytest.mark.slow
def test_stands_still(slurm, tmp_path):
    """A rank that does not move is named while the job runs, with what lets it go on."""
    script = slurm.program.with_name('pytorch-srun')
    text = script.read_text()
    script.write_text(text.replace('standstill=45', 'standstill=5'))
    (slurm.directory / 'still.py').write_text(
        "import os, signal, sys, time\nif os.environ['RANK'] == '1':\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    open(sys.argv[1], 'w').close()\nwhile not os.path.exists(sys.argv[1]):\n    time.sleep(0.1)\n")
    called = slurm.start('--nodes', '2', '--time', '5', 'still.py', str(tmp_path / 'go'))
    for line in called.stdout:
        found = re.match(r'pytorch-srun: rank 1 on nid\d+ makes no progress: .* kill -CONT (\d+)\)', line)
        if found:
            os.kill(int(found.group(1)), signal.SIGCONT)
            break
    output, errors = called.communicate(timeout=900)
    script.write_text(text)
    assert found and called.returncode == 0, output + errors


@pytest.mark.slow
def test_limit_and_lost_node(slurm, tmp_path, monkeypatch):
    """They are told apart, and from a cancelled job (test_ctrl_c)."""
    # where the site does not queue it again by itself
    monkeypatch.setitem(slurm.environment, 'SBATCH_NO_REQUEUE', '1')
    lost = slurm.start('--time', '5', 'train.py', 'until', str(tmp_path / 'never'))
    assert lost.stdout.readline().startswith('rank 0')
    number = re.search(r'job (\d+)', lost.stderr.readline()).group(1)
    node = slurm.system.output('squeue', '-h', '-o', '%N', '-j', number).strip()
    assert node in slurm.system.nodes
    slurm.system.output('scontrol', 'update', 'NodeName=' + node, 'State=DOWN', 'Reason=test')
    patiently(lambda: 'NODE_FAIL' in slurm.system.output('scontrol', 'show', 'job', number), "loss of the node")
    errors = lost.communicate(timeout=900)[1]
    slurm.system.output('scontrol', 'update', 'NodeName=' + node, 'State=RESUME')
    assert 'ended before its program did: a node failed' in errors, errors
    late = slurm.start('--time', '5', 'train.py', 'until', str(tmp_path / 'never'))
    assert late.stdout.readline().startswith('rank 0')
    number = re.search(r'job (\d+)', late.stderr.readline()).group(1)
    # Slurm knows limits of whole minutes only
    slurm.system.output('scontrol', 'update', 'JobId=' + number, 'EndTime=now')
    errors = late.communicate(timeout=900)[1]
    assert 'ended before its program did: it reached its time limit' in errors, errors


@pytest.mark.slow
def test_lost_node_and_started_again(slurm, tmp_path, monkeypatch):
    """srun often says 0 of ranks that were lost with their node: after that the next start counts."""
    # which is too seldom with a real loss: a scontrol that says so once, and lets the second start end
    (tmp_path / 'scontrol').write_text(
        "#!/bin/sh\nif grep -q 'ended with status 0' train-*.out && [ ! -e %s ]; then\n    touch %s\n"
        "    for out in train-*.out; do echo 'pytorch-run: the program ended with status 3' >> $out; done\n"
        "    echo JobState=PENDING Reason=BeginTime\nelse\n    exec %s \"$@\"\nfi\n" % (
            tmp_path / 'asked', tmp_path / 'asked', shutil.which('scontrol', path=slurm.environment['PATH'])))
    (tmp_path / 'scontrol').chmod(0o755)
    monkeypatch.setitem(slurm.environment, 'PATH', '%s:%s' % (tmp_path, slurm.environment['PATH']))
    status, output, errors = slurm('--time', '5', 'train.py')
    assert status == 3 and 'pytorch-run: the program ended with status 0\n' in output, output + errors


@pytest.mark.slow
def test_groups_of_ranks(slurm):
    """Nodes with unequal numbers of ranks, and a heterogeneous job: what torchrun calls groups are nodes."""
    names = ('RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'GROUP_RANK', 'GROUP_WORLD_SIZE')
    show = "import os; print(' '.join(os.environ[name] for name in %r))" % (names,)
    environment = dict(slurm.environment, PATH='%s:%s' % (slurm.program.parent, slurm.environment['PATH']))
    first, second = slurm.system.nodes
    program = [slurm.program.with_name('pytorch-srun'), '-c', show]
    for options, groups in ((['-N2', '-n4', '-m', 'plane=3'], '0001'),
                            (['-N1', '-n1', ':', '-N1', '-n2'], '011'),
                            # Slurm numbers its nodes by component, and lists their tasks by name
                            (['-N1', '-n1', '-w', second, ':', '-N1', '-n2', '-w', first], '011')):
        if second in options:
            environment['MASTER_ADDR'] = second
        if ':' in options:
            place = options.index(':')
            command = ['srun', '-t5', *options[:place], *program, ':', '-t5', *options[place + 1:], *program]
        else:
            command = ['srun', '-t5', *options, *program]
        done = subprocess.run(command, env=environment, cwd=slurm.directory, text=True, timeout=900,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        expected = ['%d %d %d %s 2' % (rank, len(groups), groups.count(group), group)
                    for rank, group in enumerate(groups)]
        assert sorted(done.stdout.splitlines()) == expected, done.stdout + done.stderr


@pytest.mark.slow
def test_what_hurts(slurm):
    """The first rank says what makes a run slow: cores that nobody gave out, a setting whose job option is missing."""
    told = dict(slurm.environment, HPC_NODE_CPUS='128', A_SETTING='alt_read',
                HPC_JOB_OPTIONS='A_SETTING=alt_read:--network=disable_rdzv_get B=1:--network=other',
                PATH='%s:%s' % (slurm.program.parent, slurm.environment['PATH']))

    def said(*options):
        done = subprocess.run(['srun', '-n2', '-t5', *options, slurm.program.with_name('pytorch-srun'), '-c', 'pass'],
                              env=told, cwd=slurm.directory, text=True, timeout=900, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # what continues a line of the script is no part of a message
        assert done.returncode == 0 and '\\' not in done.stderr, done.stderr
        return [line for line in done.stderr.splitlines() if line.startswith('pytorch-srun: ')]
    shared, without = said()
    assert 'share all of its cores' in shared
    assert 'A_SETTING=alt_read' in without and 'lacks --network=disable_rdzv_get' in without
    assert said('--network=disable_rdzv_get') == [shared]


@pytest.mark.slow
def test_interactive(slurm):
    """In a job that one is in already."""
    def said(options, *asked):
        start = 'bash -l <(%s -I %s --dry-run %s train.py)' % (sys.executable, slurm.program, options)
        done = subprocess.run([*asked, '-c2', '-t5', 'bash', '-c', start], env=slurm.environment, text=True,
                              timeout=300, cwd=slurm.directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        return set(done.stdout.splitlines())
    assert {'rank 0 of 2', 'rank 1 of 2'} <= said('--nodes 2', 'salloc', '-N2')
    # as below srun --pty: the step has all cores of the job
    assert 'rank 0 of 1' in said('', 'srun', '-N1')


@pytest.mark.slow
@pytest.mark.parametrize('cores', ['-c2', '-c1'])
def test_check_in_a_step(slurm, cores):
    """The step of srun --pty has all cores of the job, perhaps one: pytorch-check's two ranks share them."""
    check = """import runpy, sys
check = runpy.run_path(%r)['under_launcher']
check.__globals__.update(SECONDS=20, find_launcher=lambda: 'srun --nodes=1 --ntasks=2 --cpus-per-task=1'.split())
sys.executable = 'echo'
print(check('mpi'))
""" % str(CHECKOUT / 'hpc_pytorch/scripts/pytorch-check')
    done = subprocess.run(['srun', '-n1', cores, '-t5', sys.executable, '-c', check], env=slurm.environment, text=True,
                          timeout=300, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert 'all_reduce over 2 ranks' in done.stdout, done.stdout


def at_work(login, go):
    """A job that is at work, until there is such a file."""
    called = login.start('--time', '5', 'train.py', 'until', str(go))
    first = called.stdout.readline()
    assert first.startswith('rank 0'), first
    return called


def cancelled(login, go, *command):
    """What is said when the job is cancelled."""
    called = at_work(login, go)
    number = re.search(r'job (\S+) \(', called.stderr.readline()).group(1)
    subprocess.run([*command, number], env=login.environment, check=True)
    errors = called.communicate(timeout=900)[1]
    # the stand-in's qdel does not reach what mpirun has started
    go.touch()
    assert called.returncode not in (0, 130)
    return errors


@pytest.mark.slow
def test_ctrl_c(slurm, tmp_path):
    """The job goes on; what to type to cancel it is said."""
    assert 'ended before its program did: it was cancelled' in cancelled(slurm, tmp_path / 'never', 'scancel')
    # it had been started
    assert 'directory' not in cancelled(slurm, tmp_path / 'never too', 'scancel', '--batch', '--signal=TERM')
    called = at_work(slurm, tmp_path / 'go')
    called.send_signal(signal.SIGINT)
    errors = called.communicate(timeout=900)[1]
    assert called.returncode == 130, errors
    assert 'continues; its output: tail -F train-' in errors and 'to cancel it: scancel ' in errors, errors
    job = errors.split()[2].rstrip(',')

    def state():
        return subprocess.run(['squeue', '-h', '-o', '%T', '-j', job], env=slurm.environment, text=True,
                              stdout=subprocess.PIPE).stdout.strip()
    assert state() == 'RUNNING'
    (tmp_path / 'go').touch()
    patiently(lambda: state() != 'RUNNING', "end of the job", 120)


@pytest.mark.slow
def test_nobody_reads(slurm, tmp_path):
    """As with `| head`, or on a full disk: the job goes on, and that is said."""
    for stdout, says in ((subprocess.PIPE, 'Broken pipe'), (open('/dev/full', 'w'), 'No space left')):
        called = slurm.start('--time', '5', 'train.py', stdout=stdout)
        if called.stdout:
            called.stdout.close()
            called.stdout = None
        errors = called.communicate(timeout=900)[1]
        assert called.returncode == 130 and 'Traceback' not in errors and 'Exception' not in errors, errors
        assert 'cannot be shown any more: %s' % says in errors and 'continues; its output: tail -F' in errors, errors


@pytest.mark.slow
def test_slurm_starts_it_again(slurm, tmp_path):
    """As Slurm does by itself when a node has failed: its output is shown, and its status is the job's."""
    called = at_work(slurm, tmp_path / 'go')
    number = re.search(r'job (\S+) \(', called.stderr.readline()).group(1)
    subprocess.run(['scontrol', 'requeue', number], env=slurm.environment, check=True)
    (tmp_path / 'go').touch()
    output, errors = called.communicate(timeout=900)
    assert called.returncode == 0 and 'rank 0' in output and 'ended with status 0' in output, output + errors


@pytest.mark.slow
def test_pbs(pbs, tmp_path):
    """The same on PBS, whose own output comes when a job has ended: this one's is shown while it runs."""
    status, output, errors = pbs('--time', '5', 'train.py')
    assert status == 0 and 'rank 0 of 1' in output, output + errors
    kept, = pbs.directory.glob('train-*/rank-0.out')
    assert kept.read_text() == 'rank 0 of 1\n'
    assert pbs('--time', '5', 'train.py', 'status', '3')[0] == 3
    for history in (True, False):
        pbs.system.keep_history(history)
        says = cancelled(pbs, tmp_path / str(history), 'qdel')
        assert 'ended before its program did: it was deleted (qdel)\n' in says


@pytest.mark.slow
@pytest.mark.parametrize('history', [True, False])
def test_no_queue_takes_it(pbs, history):
    """Behind a routing queue: PBS drops the job, and its qsub does not notice."""
    pbs.system.keep_history(history)
    pbs.system.start_none('nothing')
    called = pbs.start('train.py')
    patiently(pbs.system.jobs, "the job")
    pbs.system.purge(1)
    errors = called.communicate(timeout=900)[1]
    assert called.returncode == 1 and 'its program did: PBS does not know it any more: ' in errors, errors


@pytest.mark.slow
def test_no_home_on_the_node(pbs, monkeypatch):
    """PBS cannot start a job there."""
    monkeypatch.setitem(pbs.environment, 'HOME', '/proc/nonexistent')
    status, _, errors = pbs('train.py')
    assert status == 254 and 'PBS could not start it: most often your home directory' in errors, errors


@pytest.mark.slow
def test_interactive_on_pbs(pbs, tmp_path):
    """In a job that one is in already, in another directory than that of qsub: the program that is there runs."""
    (tmp_path / 'elsewhere').mkdir()
    (tmp_path / 'elsewhere/train.py').write_text("print('this one')\n")
    start = 'bash -l <(%s -I %s --dry-run train.py)' % (sys.executable, pbs.program)
    job = {'PBS_ENVIRONMENT': 'PBS_INTERACTIVE', 'PBS_O_WORKDIR': str(pbs.directory), 'PBS_JOBID': '1.pbs'}
    done = subprocess.run(['bash', '-c', start], env=dict(pbs.environment, **job), cwd=tmp_path / 'elsewhere',
                          text=True, timeout=900, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)
    assert done.stdout == 'this one\n', done.stdout + done.stderr


@pytest.mark.slow
def test_signal_on_pbs(pbs, tmp_path):
    """What starts the ranks hands it on; qsig would reach the shell from which PBS starts the script."""
    called = at_work(pbs, tmp_path / 'saved')
    for process in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            if (process / 'comm').read_text() == 'mpirun\n' and (process / 'cwd').resolve() == pbs.directory:
                os.kill(int(process.name), signal.SIGUSR1)
    output, errors = called.communicate(timeout=900)
    assert called.returncode == 85 and 'saved its state and stopped' in errors, output + errors
    assert (tmp_path / 'saved').exists()


@pytest.mark.slow
def test_pbs_starts_it_again(pbs, tmp_path):
    """When a node has failed: the output of both starts is shown and kept, and the status is the second one's."""
    called = at_work(pbs, tmp_path / 'go')
    pbs.system.node_down('deg0001')
    (tmp_path / 'go').touch()
    output, errors = called.communicate(timeout=900)
    assert called.returncode == 0 and 'rank 0' in output and 'ended with status 0' in output, output + errors
    kept, = pbs.directory.glob('train-*.out')
    assert kept.read_text().count('rank 0 of 1') == 2


@pytest.mark.slow
def test_module_that_does_not_load(slurm, monkeypatch):
    """In a job, say: nothing is started without it."""
    monkeypatch.setitem(slurm.environment, 'LOADEDMODULES', 'PyTorch/0.9')
    status, output, errors = slurm('train.py')
    assert status and 'pytorch-srun' not in output, output + errors
    assert 'before its program was started: its module or environment' in errors and 'lost' not in errors, errors


@pytest.mark.slow
def test_profile_that_changes_the_directory(slurm):
    """The program and its outputs are where it was submitted, wherever the user's login shells begin."""
    elsewhere = slurm.directory / 'else where'
    elsewhere.mkdir()
    (elsewhere / 'train.py').write_text("print('another program')")
    profile = slurm.directory / '.bash_profile'
    profile.write_text('cd "%s"\n' % elsewhere)
    try:
        status, output, errors = slurm('train.py', 'status', '3')
        script = slurm('--dry-run', 'train.py', 'status', '4')[1]
        in_a_job = 'bash -l <("%s" -I "%s" --dry-run train.py status 4)' % (sys.executable, slurm.program)
        others = [subprocess.run(command, input=script, text=True, env=slurm.environment, cwd=place, timeout=600)
                  for place, command in ((slurm.directory, ['sbatch', '--wait']),
                                         ('/', ['sbatch', '--wait', '--chdir=%s' % slurm.directory]),
                                         (slurm.directory, ['salloc', '--exclusive', 'bash', '-c', in_a_job]))]
    finally:
        profile.unlink()
    assert status == 3 and 'another' not in output and 'output of each rank' in errors, output + errors
    assert [done.returncode for done in others] == [4, 4, 4]


@pytest.mark.slow
def test_requeued(slurm, tmp_path, monkeypatch):
    """Before its time is up Slurm tells the program, which leaves; the job is queued again, once, and followed."""
    done = tmp_path / 'done'
    # as in the shell of a job that was requeued
    monkeypatch.setitem(slurm.environment, 'SLURM_RESTART_COUNT', '1')
    # the job script had a variable of this name
    monkeypatch.setitem(slurm.environment, 'job', "one of a user's")
    settings = slurm.system.directory / 'slurm.conf'
    before = settings.read_text()
    # as at some sites: who still saves would be killed
    settings.write_text(before + 'KillOnBadExit=1\nWaitTime=1\n')
    status, output, errors = slurm('--nodes', '2', '--time', '1', '--requeue', '1', 'train.py', 'until', done, '85')
    settings.write_text(before)
    # it has begun twice, in one job with one output, and has ended once
    assert status == 85 and output.count('rank 0 of 2') == 2, output + errors
    assert output.count(" one of a user's\n") == 4, output
    assert output.count('the program ended with status') == 1 and errors.count('; output: ') == 1, output + errors
    assert output.count('pytorch-run: started again (1)\n') == 1, output
    number = errors.split()[2].rstrip(',')
    assert (slurm.directory / ('train-%s.1/rank-1.out' % number)).exists()
    for rank in range(2):
        assert 'ended with status 85' in (slurm.directory / ('train-%s.0/rank-%d.out' % (number, rank))).read_text()
    assert 'saved its state and stopped' in errors and 'output of each rank: train-%s.1/' % number in errors


@pytest.mark.slow
@pytest.mark.nightly
def test_requeued_with_mpirun(tmp_path):
    """As on Bede, with another time than in the script: mpirun's ranks get the signal before the end of that."""
    needs_root()
    with Slurm(tmp_path / 'slurm', nodes=1) as slurm:
        login = Login(tmp_path, 'slurm', 'mpirun', slurm.environment, slurm)
        options = ('--time', '60', '--requeue', '1', '--ranks-per-node', '2')
        script = login('--dry-run', *options, 'train.py', 'until', str(tmp_path / 'done'))[1]
        done = subprocess.run(['sbatch', '--wait', '--time=1'], input=script, text=True, env=login.environment,
                              cwd=login.directory, stdout=subprocess.PIPE, timeout=600)
    texts = [path.read_text() for path in sorted(login.directory.glob('train-*.[01]/rank-0.out'))]
    assert done.returncode == 0 and len(texts) == 2, done.stdout
    assert 'ended with status 85' in texts[0] and 'ended with status 0' in texts[1]


@pytest.mark.nightly
@pytest.mark.slow
def test_requeued_on_pbs(pbs, tmp_path):
    """PBS has no signals: timeout sends it, and mpirun hands it on. A second job, in which it ends well."""
    done = tmp_path / 'done'
    status, output, errors = pbs('--time', '1', '--requeue', '1', 'train.py', 'until', str(done))
    assert status == 0 and output.count('rank 0 of 1 until') == 2, output + errors


@pytest.mark.slow
def test_users_own_script_on_pbs(pbs):
    """PBS brought what it has to say into train.pbs, as many call the job script that they wrote themselves."""
    own = pbs.directory / 'train.pbs'
    own.write_text('mine')
    status, output, errors = pbs('--time', '5', 'train.py')
    assert status == 0, output + errors
    patiently((pbs.directory / 'train.job.pbs').exists, "PBS's own output")
    assert own.read_text() == 'mine'


@pytest.mark.slow
def test_followed_on_pbs(pbs):
    """The job that a job submits to continue, at most once; whatever the launcher makes of the ranks' status."""
    launcher = pbs.program.parent / 'mpirun'
    launcher.unlink()
    launcher.write_text('#!/bin/sh\nmpirun.openmpi --oversubscribe "$@"\nexit 0\n')
    launcher.chmod(0o755)
    status, output, errors = pbs('--ranks-per-node', '2', '--requeue', '1', 'train.py', 'status', '85')
    assert status == 85 and output.count('rank 1 of 2') == 2, output + errors
    second = errors.split('output: ')[2].split()[0]
    assert 'job %s' % second[len('train-'):-len('.out')] in errors and 'saved its state and stopped' in errors, errors
    assert (pbs.directory / second).read_text().count('rank 0 of 2') == 1


@pytest.mark.slow
def test_own_packages_on_the_nodes(slurm):
    """The lines of docs/researchers.rst for an environment's packages and data, with two nodes that share a disk."""
    page = (CHECKOUT / 'docs/researchers.rst').read_text()
    once = re.search(r'^    tar -cf mine.tar .*\n    tar -cf data.tar .*', page, re.M).group().replace('/path/to', '.')
    lines = textwrap.dedent(re.search(r'^    disk=(?:.+\n)+', page, re.M).group())
    (slurm.directory / 'job').write_text("""#!/bin/bash
set -e
%s
srun -N2 -n2 --ntasks-per-node=1 python3 -c 'import own; print(own.__file__)'
srun -N2 -n2 --ntasks-per-node=1 cat "$disk/data/numbers"
""" % lines)
    environment = dict(slurm.environment, PYTORCH_LOCAL_DIR=str(slurm.directory / 'disk'))
    done = subprocess.run(['bash', '-ec', """
        python3 -m venv --without-pip mine
        touch "$(echo mine/lib/python3.*/site-packages)/own.py"
        mkdir data disk
        echo many numbers > data/numbers
        %s
        sbatch --wait -N2 -o packages.out job
        cat packages.out
    """ % once], env=environment, cwd=slurm.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.stdout.count('%s/disk/mine/own.py\n' % slurm.directory) == 2, done.stdout
    assert done.stdout.count('many numbers\n') == 2, done.stdout


@pytest.mark.slow
def test_active_environment(slurm, monkeypatch):
    """The job has its packages; one that is gone is named."""
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', 'its own'], cwd=slurm.directory, check=True)
    environment = slurm.directory / 'its own'
    packages, = environment.glob('lib/python3.*/site-packages')
    (packages / 'own.py').write_text('print("own packages")\n')
    (slurm.directory / 'uses.py').write_text('import own\n' + PROGRAM)
    monkeypatch.setitem(slurm.environment, 'VIRTUAL_ENV', str(environment))
    monkeypatch.setitem(slurm.environment, 'PATH', '%s/bin:%s' % (environment, slurm.environment['PATH']))
    status, output, errors = slurm('uses.py')
    assert status == 0 and output.count('own packages') == 1, output + errors
    # as after another `module load`
    monkeypatch.setitem(slurm.environment, 'PATH', '%s:%s' % (slurm.program.parent, slurm.environment['PATH']))
    _, output, errors = slurm('--dry-run', 'uses.py')
    assert 'does not activate %s, as another python' % environment in errors and 'source' not in output, errors
    monkeypatch.setitem(slurm.environment, 'PATH', slurm.environment['PATH'].partition(':')[2])
    (environment / 'bin/activate').unlink()
    status, output, errors = slurm('train.py')
    assert status and 'its own/bin/activate' in output and 'its module or environment could not' in errors, output


@pytest.mark.slow
def test_variables_of_sbatch(slurm, monkeypatch):
    """sbatch heeds them rather than the script: what was typed counts, and ranks get the job's environment."""
    for name, value in (('ACCOUNT', 'another'), ('TIMELIMIT', '7'), ('OUTPUT', 'other.out'), ('EXPORT', 'NONE'),
                        ('NO_REQUEUE', '1')):
        monkeypatch.setitem(slurm.environment, 'SBATCH_' + name, value)
    # nor do srun's count
    for name, value in (('SLURM_CONSTRAINT', 'nowhere'), ('SLURM_TIMELIMIT', '0:01'), ('SLURM_WORKING_DIR', '/'),
                        ('SLURM_LABELIO', '1'), ('SRUN_EXPORT_ENV', 'NONE')):
        monkeypatch.setitem(slurm.environment, name, value)
    status, output, errors = slurm('--account', 'typed', '--time', '3', '--requeue', '1', 'train.py')
    assert status == 0 and 'rank 0 of 1' in output, output + errors
    job = slurm.system.output('scontrol', 'show', 'job', errors.split()[2].rstrip(','))
    assert 'Account=typed' in job and 'TimeLimit=00:03:00' in job and 'Requeue=1' in job, job
    _, output, errors = slurm('--dry-run', '--account', 'typed', 'train.py')
    assert '$SBATCH_ACCOUNT (another) rather than the script' in errors and 'heeds' not in output, errors


@pytest.mark.slow
def test_why_it_waits(slurm):
    """Slurm's reason while the job waits, again when it changes, and what to do about one that never passes."""
    slurm.system.output('scontrol', 'update', 'PartitionName=main', 'MaxTime=10')
    try:
        called = slurm.start('--time', '60', 'train.py')
        number = re.search(r'job (\d+)', called.stderr.readline()).group(1)
        assert called.stderr.readline() == (
            'pytorch-run: job %s waits (PartitionTimeLimit): it asks for more than the partition or QOS allows and '
            'never starts: cancel it (scancel %s), and submit again with less --time, fewer --nodes or --partition '
            'NAME\n' % (number, number))
        slurm.system.output('scontrol', 'uhold', number)
        assert 'waits (JobHeldUser): it is held: scontrol release %s\n' % number in called.stderr.readline()
    finally:
        slurm.system.output('scontrol', 'update', 'PartitionName=main', 'MaxTime=INFINITE')
    slurm.system.output('scontrol', 'release', number)
    output, errors = called.communicate(timeout=900)
    assert called.returncode == 0 and 'rank 0 of 1' in output, output + errors
    called = slurm.start('--nodes', '99', 'train.py')
    number = re.search(r'job (\d+)', called.stderr.readline()).group(1)
    assert 'fewer --nodes' in called.stderr.readline()
    slurm.system.output('scancel', number)
    assert 'it was cancelled' in called.communicate(timeout=900)[1]


@pytest.mark.slow
def test_closed_output(slurm):
    """As with >&-: only the job's files have its output, and its status is that of the call."""
    call = ['bash', '-c', 'exec "$0" -I "$@" >&-', sys.executable, slurm.program, 'train.py', 'status', '3']
    called = subprocess.run(call, env=slurm.environment, cwd=slurm.directory, text=True, timeout=900,
                            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert called.returncode == 3 and 'Traceback' not in called.stderr, called.stderr


@pytest.mark.slow
def test_no_script(nowhere):
    """A directory without room, or that cannot be written to: one line, and no script that is half there."""
    call = ['/bin/bash', '-c', 'ulimit -f 0; exec "$0" -I "$@"', sys.executable, nowhere.program, 'train.py']
    done = subprocess.run(call, env=nowhere.environment, cwd=nowhere.directory, text=True, timeout=300,
                          stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert done.returncode == 1 and done.stderr.count('\n') == 1, done.stderr
    assert 'cannot be written to this directory (File too large): make room' in done.stderr
    assert os.listdir(nowhere.directory) == ['train.py']


@pytest.mark.slow
def test_no_room(tmp_path):
    """The directory becomes full while the job runs: Slurm only says that the job has failed."""
    needs_root()
    slurm = Slurm(tmp_path / 'slurm', nodes=1)
    login = Login(tmp_path, 'slurm', 'srun', slurm.environment, slurm)
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=1m', 'none', login.directory], check=True)
    try:
        (login.directory / 'train.py').write_text("print('x' * 3000000, flush=True)\n")
        with slurm:
            status, output, errors = login('train.py')
    finally:
        subprocess.run(['umount', '--lazy', login.directory], check=True)
    assert status and 'could not be written to this directory: No space left on device' in errors, output + errors


@pytest.mark.slow
def test_no_room_on_pbs(pbs):
    """A status that is also PBS's for a job that it could not start: this one has started."""
    needs_root()
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=1m', 'none', pbs.directory], check=True)
    try:
        (pbs.directory / 'train.py').write_text("print('x' * 3000000, flush=True)\n")
        launcher = pbs.program.parent / 'mpirun'
        launcher.unlink()
        launcher.write_text('#!/bin/sh\nmpirun.openmpi "$@"\nexit 255\n')
        launcher.chmod(0o755)
        status, output, errors = pbs('train.py')
    finally:
        subprocess.run(['umount', '--lazy', pbs.directory], check=True)
    assert status and 'could not be written to this directory: No space left on device' in errors, errors


@pytest.mark.slow
def test_directory_that_nodes_lack(slurm, nowhere, monkeypatch):
    """One that the system's file names is refused at once; of another one, Slurm's word for it is explained."""
    shared = nowhere.program.parent.parent / 'share/system.cfg'
    shared.write_text(shared.read_text().replace('[node]\n', '[node]\nnot_mounted = %s\n' % nowhere.directory.parent))
    status, _, errors = nowhere('train.py')
    assert status == 1 and 'of Here do not have %s: change to' % nowhere.directory.parent in errors, errors
    assert os.listdir(nowhere.directory) == ['train.py']
    # who submits a script of his own may do that elsewhere
    status, output, errors = nowhere('--dry-run', 'train.py')
    assert status == 0 and output and 'do not have %s: change to' % nowhere.directory.parent in errors, errors
    # mounted where the nodes do not see it
    local = slurm.directory.parent / 'local'
    local.mkdir()
    subprocess.run(['mount', '-t', 'tmpfs', 'none', local], check=True)
    try:
        shutil.copytree(slurm.directory, local / 'work')
        monkeypatch.setattr(slurm, 'directory', local / 'work')
        status, output, errors = slurm('train.py')
    finally:
        subprocess.run(['umount', '--lazy', local], check=True)
    assert status and 'could not be started, usually as your directory does not exist' in errors, output + errors


@pytest.mark.slow
def test_number_that_comes_again(slurm):
    """After a batch system was installed anew: the output of an old job of this number is not the new one's."""
    number = int(slurm('train.py')[2].split()[2].rstrip(','))
    for later in range(1, 4):
        old = slurm.directory / ('train-%d.out' % (number + later))
        old.write_text('of old\npytorch-run: the program ended with status 0\n')
        os.utime(old, (0, 0))
    status, output, errors = slurm('train.py', 'status', '3')
    assert status == 3 and 'of old' not in output, output + errors
