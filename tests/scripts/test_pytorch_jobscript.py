"""pytorch-jobscript: job scripts for the systems, from the data that the module has of them."""
import datetime
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from common import CHECKOUT, needs_program

from hpc_pytorch.machine.systems import FOR_JOBS

SCRIPT = CHECKOUT / 'hpc_pytorch/scripts/pytorch-jobscript'


@pytest.fixture
def jobscript(tmp_path):
    """A function that runs it as an installed module of a system would."""
    needs_program('shellcheck')
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'share').mkdir()
    for name in ('pytorch-jobscript', 'pytorch-run', 'pytorch-stage'):
        shutil.copy(SCRIPT.with_name(name), tmp_path / 'bin')
    for path in FOR_JOBS:
        shutil.copy(path, tmp_path / 'share')

    def run(system, *arguments, status=0, **variables):
        shutil.copy(CHECKOUT / 'systems' / system / 'system.cfg', tmp_path / 'share')
        environment = {'LOADEDMODULES': 'gcc/12:PyTorch/1.0-here', 'SBATCH_ACCOUNT': 'project1',
                       'PBS_ACCOUNT': 'project2', 'PATH': '%s:/usr/bin:/bin' % Path(sys.executable).parent}
        environment.update(variables)
        done = subprocess.run([tmp_path / 'bin/pytorch-jobscript', *arguments],
                              env={name: value for name, value in environment.items() if value is not None},
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert done.returncode == status, done.stderr
        if status:
            assert 'Traceback' not in done.stderr
            return done.stderr
        checked = subprocess.run(['shellcheck', '--exclude=SC1091', '-'], input=done.stdout, stdout=subprocess.PIPE,
                                 text=True)
        assert checked.returncode == 0, checked.stdout
        return done.stdout.splitlines()
    return run


def test_frontier(jobscript, tmp_path):
    """What the site's page asks for: GPUs, cores, binding, a clean environment."""
    lines = jobscript('frontier', '--nodes', '2', '--time', '10', 'train.py', '--epochs', '3', 'a b')
    for line in ('#SBATCH --nodes=2', '#SBATCH --time=00:10:00', '#SBATCH --account=project1',
                 '#SBATCH --partition=batch', '#SBATCH --gpus-per-node=8', '#SBATCH --export=NONE',
                 'unset SLURM_EXPORT_ENV', 'LMOD_QUIET=1 module load PyTorch/1.0-here || exit'):
        assert line in lines
    assert lines[-1] == ("srun --nodes=2 --ntasks=16 --ntasks-per-node=8 --kill-on-bad-exit=1 --cpus-per-task=7 "
                         "--gpus-per-node=8 --gpu-bind=none pytorch-srun train.py --epochs 3 'a b'")
    assert '#SBATCH -C nvme' not in lines
    staged = jobscript('frontier', '--stage', 'train.py')
    assert '#SBATCH -C nvme' in staged and 'eval "$staged"' in staged
    # an environment is activated if its python is the one that the shell starts
    (tmp_path / 'my venv/bin').mkdir(parents=True)
    (tmp_path / 'my venv/bin/python').symlink_to(sys.executable)
    path = '%s/my venv/bin:/usr/bin:/bin' % tmp_path
    active = jobscript('frontier', 'train.py', VIRTUAL_ENV=str(tmp_path / 'my venv'), PATH=path)
    place = active.index('LMOD_QUIET=1 module load PyTorch/1.0-here || exit')
    assert active[place + 1] == "source '%s/my venv/bin/activate' || exit" % tmp_path
    assert not [line for line in jobscript('frontier', 'train.py', VIRTUAL_ENV=str(tmp_path / 'my venv'))
                if line.startswith('source')]
    # what is on top of PyTorch, and both
    on_top = jobscript('frontier', 'train.py', LOADEDMODULES='PyTorch/1.0:gcc/12:torch_mpi/2.0:other/1')
    assert 'LMOD_QUIET=1 module load PyTorch/1.0 torch_mpi/2.0 || exit' in on_top
    # other partitions may share their nodes
    shared = jobscript('frontier', '--partition', 'extended', 'train.py')
    assert '#SBATCH --ntasks-per-node=8' in shared and '#SBATCH --cpus-per-task=7' in shared
    assert not [line for line in lines if line.startswith('#SBATCH --ntasks')]


@pytest.mark.parametrize('added', [['/home/me/src'], ['/home/me/my src', '.']])
def test_added_to_python_path(jobscript, added):
    """What the user added to $PYTHONPATH after `module load` is added after that of the job, too."""
    module = {'EBROOTPYTORCH': '/sw/PyTorch/1.0', 'EBROOTFLASHMINUSATTN': '/sw/flash-attn/2',
              'VIRTUAL_ENV': '/home/me/mine', 'LOADEDMODULES': 'PyTorch/1.0:flash-attn/2'}
    theirs = ['/sw/flash-attn/2/lib/python3.12/site-packages', '/sw/PyTorch/1.0/lib/python3.12/site-packages']
    path = ':'.join(added[:1] + ['/home/me/mine/lib/python3.12/site-packages'] + theirs + [''] + added[1:])
    lines = jobscript('isambard-ai', '--stage', 'train.py', PYTHONPATH=path, **module)
    line, = [line for line in lines if 'PYTHONPATH' in line]
    load = lines.index('LMOD_QUIET=1 module load PyTorch/1.0 flash-attn/2 || exit')
    assert load < lines.index(line) < lines.index('eval "$staged"')
    for before, after in ((theirs[0], theirs[:1]), ('', [])):
        done = subprocess.run(['bash', '-c', line + '; printenv PYTHONPATH'], env={'PYTHONPATH': before},
                              stdout=subprocess.PIPE, text=True, check=True)
        assert done.stdout == ':'.join(added + after) + '\n'
    assert not [line for line in jobscript('isambard-ai', 'train.py', PYTHONPATH=':'.join(theirs), **module)
                if 'PYTHONPATH' in line]


def test_own_module_on_top(jobscript, tmp_path):
    """A group's own module is loaded; on $PYTHONPATH alone it came before the packages of the active environment."""
    (tmp_path / 'pyvenv.cfg').touch()
    lines = jobscript('isambard-ai', 'train.py', LOADEDMODULES='gcc/12:PyTorch/1.0:geo-tools/2026.11:other/1',
                      EBROOTPYTORCH='/sw/PyTorch/1.0', EBROOTGEOMINUSTOOLS=str(tmp_path), EBROOTOTHER='/sw/other/1',
                      PYTHONPATH='%s/lib/python3.12/site-packages:/sw/PyTorch/1.0/lib/python3.12' % tmp_path)
    assert 'LMOD_QUIET=1 module load PyTorch/1.0 geo-tools/2026.11 || exit' in lines
    assert not [line for line in lines if 'PYTHONPATH' in line]


def test_no_stage(jobscript, tmp_path):
    """A container's module cannot stage: known before the job waits."""
    (tmp_path / 'bin/pytorch-stage').unlink()
    assert 'this module has no pytorch-stage' in jobscript('lumi', '--stage', 'train.py', status=1)


def test_one_rank_per_node(jobscript):
    """One rank with all GPUs of its node, and the cores that the operating system leaves."""
    assert jobscript('frontier', '--nodes', '2', '--ranks-per-node', '1', 'train.py')[-1] == (
        "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=1 --cpus-per-task=56 "
        "--gpus-per-node=8 --gpu-bind=none pytorch-srun train.py")


def test_cores_of_the_operating_system(jobscript):
    """LUMI keeps the first of each eight cores: eight ranks with eight each would be refused."""
    assert '--cpus-per-task=7' in jobscript('lumi', '--nodes', '2', 'train.py')[-1].split()


def test_pbs(jobscript):
    """The same for PBS and PALS."""
    lines = jobscript('derecho', '--nodes', '2', '--time', '90', 'train.py')
    for line in ('#PBS -l select=2:ncpus=64:mpiprocs=4:ngpus=4', '#PBS -l place=scatter:excl',
                 '#PBS -l walltime=01:30:00', '#PBS -A project2', '#PBS -q main',
                 '[ "$PBS_ENVIRONMENT" = PBS_INTERACTIVE ] || cd "$PBS_O_WORKDIR" || exit'):
        assert line in lines
    assert lines[-1] == 'mpiexec -n 8 --ppn 4 --cpu-bind numa pytorch-srun train.py'


def test_awkward_names(jobscript, tmp_path):
    """Blanks and quotes in a program's name: a script that the batch system and the shell read as it was meant."""
    for system in ('frontier', 'derecho', 'archer2', 'bede'):
        lines = jobscript(system, "my dir/it's \"a\" train.py", '--name=a b')
        assert shlex.split(lines[-1])[-2:] == ["my dir/it's \"a\" train.py", '--name=a b']
        name, = [line for line in lines if line.startswith(('#SBATCH --job-name=', '#PBS -N '))]
        assert name.endswith('it_s_a_train')
    assert '#SBATCH --job-name=job' in jobscript('frontier', '...')
    # PBS: "illegal -N value"
    assert '#PBS -N t_st' in jobscript('derecho', 'täst.py')


@pytest.mark.slow
def test_sbatch_reads_it(jobscript, tmp_path):
    """What sbatch itself says of a script's head; it reads that before it asks for a cluster."""
    script = tmp_path / 'script'
    script.write_text('\n'.join(jobscript('archer2', 'my "own" train.py')) + '\n')
    (tmp_path / 'slurm.conf').write_text('ClusterName=none\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\n'
                                         'AuthType=auth/none\n')
    done = subprocess.run(['sbatch', '--test-only', script], env={'SLURM_CONF': str(tmp_path / 'slurm.conf'),
                                                                  'PATH': '/usr/bin:/bin'},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert 'nvalid' not in done.stdout and 'nrecognized' not in done.stdout, done.stdout


def test_module_and_time(jobscript):
    """python -m; hours, minutes and seconds."""
    lines = jobscript('frontier', '--time', '1:30:00', '-m', 'package.train', '-m', 'x')
    assert '#SBATCH --time=01:30:00' in lines and '#SBATCH --job-name=package' in lines
    assert lines[-1].endswith(' pytorch-srun -m package.train -m x')
    assert '#SBATCH --time=00:01:00' in jobscript('frontier', '--time', '0:00:01', 'train.py')
    assert 'such as 1:30:00' in jobscript('frontier', '--time', '1:75:00', 'train.py', status=2)


def test_cpu_system(jobscript):
    """ARCHER2: its quality of service, no GPUs."""
    lines = jobscript('archer2', '--nodes', '2', '--ranks-per-node', '8', 'train.py')
    for line in ('--qos=standard', '--hint=nomultithread', '--distribution=block:block', '--export=none'):
        assert '#SBATCH ' + line in lines
    assert 'unset SLURM_EXPORT_ENV' in lines
    assert not any('gpu' in line for line in lines)
    assert '#SBATCH --qos=short' in jobscript('archer2', '--qos', 'short', 'train.py')
    assert lines[-1] == ("srun --nodes=2 --ntasks=16 --ntasks-per-node=8 --kill-on-bad-exit=1 --cpus-per-task=16 "
                         "pytorch-srun train.py")


def test_mpirun(jobscript):
    """Bede: Slurm, and Open MPI's mpirun."""
    lines = jobscript('bede', '--nodes', '2', 'train.py')
    assert '#SBATCH --gres=gpu:1' in lines
    assert lines[-1] == 'mpirun -n 2 --map-by ppr:1:node --bind-to none pytorch-srun train.py'


def test_mpich_on_pbs(jobscript, tmp_path):
    """With MPICH's own launcher, which takes its options; PALS's it refuses."""
    needs_program('mpiexec.hydra')
    text = (CHECKOUT / 'systems/derecho/system.cfg').read_text()
    text = re.sub('(?m)^gpu_options.*\n', '', text.replace('command = mpiexec\n', 'command = mpiexec.hydra\n'))
    (tmp_path / 'system.cfg').write_text(text)
    lines = jobscript(tmp_path, '--nodes', '1', 'train.py')
    launch, = [line for line in lines if line.startswith('mpiexec.hydra -n 4 -ppn 4 ')]
    words = shlex.split(launch.replace('pytorch-srun', 'echo'))
    assert subprocess.check_output(words, text=True) == 4 * 'train.py\n'
    # Hydra's own status is that of the signal that ended a rank
    assert lines[-1] == '(exit "$status")'


def test_requeue(jobscript):
    """How each batch system tells the program before its time is up, and what the script does when it has left."""
    lines = jobscript('frontier', '--requeue', '3', 'train.py')
    assert {'#SBATCH --requeue', '#SBATCH --open-mode=append', '#SBATCH --signal=USR1@120'} <= set(lines)
    assert 'scontrol requeue "$_job" && exit' in lines
    # mpirun's ranks are no step of Slurm's
    for system, time, seconds in (('bede', '60', 3480), ('derecho', '1', 45)):
        text = '\n'.join(jobscript(system, '--requeue', '3', '--time', time, 'train.py'))
        assert '\nbefore_the_end %d mpi' % seconds in text
        assert '-lt 3 ]' in text and '--signal=USR1@' not in text
    assert not any('85' in line for line in jobscript('frontier', 'train.py'))


@pytest.mark.parametrize('time', [1, 2, 5])
def test_signal_of_a_short_job(jobscript, time):
    """Slurm may send it 30 seconds early, and in a first, short try PyTorch is to be imported before it comes."""
    lines = jobscript('frontier', '--requeue', '3', '--time', str(time), 'train.py')
    lead, = (int(line.partition('USR1@')[2]) for line in lines if '--signal=' in line)
    assert lead >= 15 and 60 * time - lead - 30 >= 15 * time


@pytest.mark.parametrize('ended, status, again', [
    ((), 137, True), ((), 85, True), ((), 1, False),
    # sys.exit(-1) is no signal's
    ((), 255, False), ((0, 255), 255, False),
    # Ctrl-C, in an interactive job
    ((130, 130), 130, False),
    # rank 1 was killed, and rank 0 saw its connection break; rank 1 failed, and rank 0 was killed as it waited
    ((1, 137), 137, True), ((137, 1), 1, False)])
def test_queued_again(jobscript, tmp_path, ended, status, again):
    """What was killed goes on; a program that fails does not, though srun kills the ranks that wait for it."""
    for rank, its in enumerate(ended):
        (tmp_path / ('rank-%d.out' % rank)).write_text(
            'step 1\npytorch-srun: rank %d on n1 ended with status %d at 05:00:%d\n' % (rank, its, 59 - rank))
    assert queued_again(jobscript, tmp_path, max(ended + (status,))) == (('requeue 7\n', 0) if again else ('', status))


@pytest.mark.parametrize('array, queued', [
    ({'SLURM_JOB_ID': '7'}, '7_3'), ({'SLURM_JOB_ID': '9'}, '9'),
    # submitted by a job of an array
    ({'SLURM_JOB_ID': '9', 'SLURM_ARRAY_JOB_ID': '5'}, '9')])
def test_queued_again_in_an_array(jobscript, tmp_path, array, queued):
    """One of its jobs has the number by which Slurm asks about, and requeues, all of them."""
    variables = dict({'SLURM_ARRAY_JOB_ID': '7', 'SLURM_ARRAY_TASK_ID': '3'}, **array)
    assert queued_again(jobscript, tmp_path, 85, **variables) == ('requeue %s\n' % queued, 0)


def queued_again(jobscript, directory, ended, **variables):
    """Run what the script does after its ranks have ended with this status: what scontrol was told, and the status."""
    lines = jobscript('frontier', '--requeue', '3', 'train.py')
    begin = lines.index('LMOD_QUIET=1 module load PyTorch/1.0-here || exit') + 1
    end = lines.index('export SLURM_RESTART_COUNT')
    scontrol = 'scontrol() { [ "$1" = requeue ] && echo "$@" || echo "JobId=$4 Restarts=0 "; }'
    text = '\n'.join([scontrol] + lines[begin:end + 1] + ['(exit %d)' % ended] + lines[lines.index('status=$?'):])
    done = subprocess.run(['bash', '-c', text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=dict({'HPC_RANK_OUTPUTS': str(directory), 'SLURM_JOB_ID': '7', 'PATH': '/usr/bin:/bin'},
                                   **variables))
    return done.stdout, done.returncode


# PBS's commands: what qstat -f says of a job is in a file of its name; what the others are told is kept
PBS_COMMAND = """#!/bin/bash
[ "${0##*/}" != qsub ] || { pwd; printenv name account; } > "${0%/*}/where"
cd "${0%/*}"
[ "${0##*/}" != qstat ] || exec cat "${2%%@*}"
echo "${0##*/}" "$@" >> told
echo 9.pbs
"""
PBS_JOB = """Job Id: 7.pbs
    Account_Name = other
    Variable_List = PBS_O_HOME=/home/me,%sLR=3\\,GONE=4,LO
\tNG=5,UNSET=6,PBS_O_QUEUE=short
"""
# of an array PBS says this only of the whole
PBS_WHOLE = """    depend = beforeok:8.pbs@pbs,beforenotok:6.pbs@pbs
    Submit_arguments = -v A='-N 3 -l 5' -P ours -l job_priority=economy -lwallti
\tme=2:00:00 -W group_list=us -W depend=afterok:1 -N mine job
"""


def continued_on_pbs(jobscript, directory, first='', array='', command=PBS_COMMAND):
    """Run what the script does after its ranks have saved: how it ended, and what PBS's commands were told."""
    lines = jobscript('derecho', '--requeue', '3', 'train.py')
    (directory / '7.pbs').write_text(PBS_JOB % first)
    with open(directory / (array or '7.pbs'), 'a') as handle:
        handle.write(PBS_WHOLE)
    (directory / '8.pbs').write_text('    depend = afterok:7.pbs@pbs,afterany:5.pbs@pbs\n')
    for name in ('qstat', 'qsub', 'qalter', 'sleep'):
        (directory / name).write_text(command)
        (directory / name).chmod(0o755)
    # what users have in their scripts
    text = '\n'.join(['set -euo pipefail; cd /'] + lines[lines.index('set +e'):])
    text = re.sub('\nbefore_the_end .*\n', '\n(exit 85)\n', text)
    done = subprocess.run(['bash', '-c', text, 'job'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={'PATH': '%s:/usr/bin:/bin' % directory, 'PBS_JOBID': '7.pbs', 'PBS_O_QUEUE': 'short',
                               'PBS_O_WORKDIR': str(directory),
                               'PBS_ARRAY_ID': array, 'PBS_ARRAY_INDEX': '4' if array else '', 'LR': '3',
                               'LONG': '5', 'PBS_JOBNAME': 'mine', 'name': "a user's", 'account': 'own'})
    return done, (directory / 'told').read_text().splitlines()


@pytest.mark.parametrize('silent, status', [(3, 0), (99, 85)])
def test_continued_while_pbs_restarts(jobscript, tmp_path, silent, status):
    """A server that does not answer for half a minute is no reason to stop; one that never does leaves the status."""
    busy = '[ "${0##*/}" != qstat ] || [ "$(grep -c sleep told)" -ge %d ] || exit 15\n' % silent
    command = PBS_COMMAND.replace('*}"\n', '*}"\n' + busy, 1)
    done, told = continued_on_pbs(jobscript, tmp_path, command=command)
    assert done.returncode == status, done.stdout
    assert any(line.startswith('qsub -N mine -P ours -l job_priority=economy') for line in told) == (status == 0), told


def lines_before_the_end(lines):
    """Return the first and the last line of the functions that a script has for mpirun and mpiexec."""
    return lines.index('time_limit() {'), lines.index('}', lines.index('before_the_end() {'))


@pytest.mark.parametrize('walltime, status', [('00:00:04', 128 + signal.SIGUSR1), ('', 7)])
def test_other_time_than_in_the_script(jobscript, tmp_path, walltime, status):
    """`qsub -l walltime` counts: ranks get their signal before the end of that, as they save."""
    lines = jobscript('derecho', '--requeue', '3', '--time', '60', 'train.py')
    start, last = lines_before_the_end(lines)
    command = next(line for line in lines if line.startswith('before_the_end ')).split(' mpiexec ')[0]
    assert command == 'before_the_end 3480'
    (tmp_path / 'qstat').write_text('#!/bin/sh\necho "    Resource_List.walltime = %s"\n' % walltime)
    (tmp_path / 'qstat').chmod(0o755)
    program = 'sleep 600' if walltime else "sh -c 'exit 7'"
    text = '\n'.join(lines[start:last + 1] + ['%s %s' % (command, program)])
    done = subprocess.run(['bash', '-c', text], env={'PATH': '%s:/usr/bin:/bin' % tmp_path, 'PBS_JOBID': '7.pbs'})
    assert done.returncode == status


@pytest.mark.parametrize('environment, known, status', [
    ('BATCH', 4, 128 + signal.SIGUSR1), ('', 4, 7), ('BATCH', None, 7), ('BATCH', 3600, 7)])
def test_other_time_than_in_the_script_on_slurm(jobscript, tmp_path, environment, known, status):
    """`sbatch --time` or an edit counts where mpirun starts the ranks, too; not in a job that one is in already."""
    lines = jobscript('bede', '--requeue', '3', '--time', '60', 'train.py')
    start, last = lines_before_the_end(lines)
    end = datetime.datetime.now() + datetime.timedelta(seconds=known or 0)
    end = end.isoformat(timespec='seconds') if known else 'Unknown'
    # as Slurm, in the format that the user has set
    (tmp_path / 'scontrol').write_text('#!/bin/sh\nend=%s\n[ "$SLURM_TIME_FORMAT" = standard ] || end=1790000000\n'
                                       'echo "JobId=7 StartTime=x EndTime=$end Deadline=N/A"\n' % end)
    (tmp_path / 'scontrol').chmod(0o755)
    program = 'sleep 600' if status != 7 else "sh -c 'sleep 2; [ $before$limit = ab ] && exit 7'"
    text = '\n'.join(lines[start:last + 1] + ['before_the_end 3480 ' + program])
    done = subprocess.run(['bash', '-c', text], env={'PATH': '%s:/usr/bin:/bin' % tmp_path, '_job': '7',
                                                     'ENVIRONMENT': environment, 'SLURM_TIME_FORMAT': '%s',
                                                     'before': 'a', 'limit': 'b'}, timeout=60)
    assert done.returncode == status


@pytest.mark.parametrize('system', ['derecho', 'bede'])
def test_signal_counts_from_the_start_of_the_job(jobscript, tmp_path, system):
    """What a user has added before the ranks takes time, too; and lines with `timeout` of their own stay."""
    lines = jobscript(system, '--requeue', '3', '--time', '60', 'train.py')
    start, end = lines_before_the_end(lines)
    (tmp_path / 'qstat').write_text('#!/bin/sh\necho "    Resource_List.walltime = 01:00:00"\n')
    (tmp_path / 'qstat').chmod(0o755)
    text = '\n'.join([*lines[start:end + 1], 'timeout 300 echo mine', 'SECONDS=5000', 'before_the_end 3480 sleep 600'])
    done = subprocess.run(['bash', '-c', text], env={'PATH': '%s:/usr/bin:/bin' % tmp_path, 'PBS_JOBID': '7.pbs'},
                          stdout=subprocess.PIPE, text=True)
    assert done.stdout == 'mine\n' and done.returncode == 128 + signal.SIGUSR1


@pytest.mark.parametrize('array', ['', '7[].pbs'])
@pytest.mark.parametrize('first, option, names', [
    ('', '', 'HPC_JOB_RESTARTS,LR,LONG'), ('PATH=/bin,', '-V ', 'HPC_JOB_RESTARTS')])
def test_continued_on_pbs(jobscript, tmp_path, first, option, names, array):
    """The next job gets what the user gave to qsub, and who waits for this job's end waits for that one's, too."""
    done, told = continued_on_pbs(jobscript, tmp_path, first, array)
    assert done.returncode == 0 and 'the program continues in job 9.pbs\n' in done.stdout, done.stdout
    # also where the user has added a `cd` to the script; with -V the next job has all that is exported
    assert (tmp_path / 'where').read_text() == "%s\na user's\nown\n" % tmp_path
    given = '-N mine -P ours -l job_priority=economy -lwalltime=2:00:00 -W group_list=us'
    # of an array only this part, though the script may have all of it: #PBS -J
    index = '-J 4-5:2 ' if array else ''
    # those of arrays may undo each other's change; a job that pauses for each dependent may reach its time limit
    pauses = [line for line in told if line.startswith('sleep ')]
    assert len(pauses) == (3 if array else 1) and pauses[0] == 'sleep 0'
    told = [line for line in told if line not in pauses]
    assert told[:2] == ['qsub %s %s%s-A other -q short -v %s job' % (given, option, index, names),
                        'qalter -W depend=afterok:7.pbs@pbs,afterany:5.pbs@pbs,afterok:9.pbs 8.pbs@pbs'], told


@pytest.mark.parametrize('status, again', [(205, True), (1, False)])
def test_node_that_mpirun_has_lost(jobscript, tmp_path, status, again):
    """Its ranks are closed connections for the others, which fail; Open MPI says otherwise."""
    lines = jobscript('bede', '--requeue', '3', 'train.py')
    (tmp_path / 'rank-1.out').write_text('pytorch-srun: rank 1 on n1 ended with status 1 at 05:00:00\n')
    (tmp_path / 'scontrol').write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / 'scontrol').chmod(0o755)
    text = '\n'.join(['(exit %d)' % status] + lines[lines.index('status=$?'):])
    done = subprocess.run(['bash', '-c', text], text=True, stdout=subprocess.PIPE,
                          env={'HPC_RANK_OUTPUTS': str(tmp_path), '_job': '7', 'PATH': '%s:/usr/bin:/bin' % tmp_path})
    assert (done.stdout, done.returncode) == (('requeue 7\n', 0) if again else ('', status))


def test_restarts_of_another_job(jobscript):
    """The shell in which it was submitted may be in a job that was requeued: Slurm says how often this one was."""
    lines = jobscript('frontier', '--requeue', '3', 'train.py')
    start, end = lines.index('unset SLURM_EXPORT_ENV'), lines.index('export SLURM_RESTART_COUNT')
    commands = ['module() { :; }', 'scontrol() { echo "JobId=7 Requeue=1 Restarts=2 BatchFlag=1"; }']
    done = subprocess.run(['bash', '-c', '\n'.join(commands + lines[start:end + 1] + ['env'])], text=True, check=True,
                          stdout=subprocess.PIPE, env={'SLURM_RESTART_COUNT': '5', 'PATH': '/usr/bin:/bin'})
    assert 'SLURM_RESTART_COUNT=2' in done.stdout.splitlines()


def test_variables_of_another_srun(jobscript):
    """What is set in the user's shell for srun does not change what the job's starts; what sbatch has set stays."""
    lines = jobscript('archer2', 'train.py')
    start, end = lines.index('unset SLURM_EXPORT_ENV'), lines.index('LMOD_QUIET=1 module load PyTorch/1.0-here || exit')
    stays = {'SLURM_HINT': 'nomultithread', 'SLURM_JOB_ID': '7'}
    done = subprocess.run(['bash', '-c', '\n'.join(lines[start:end] + ['env'])], stdout=subprocess.PIPE, text=True,
                          check=True, env=dict(stays, SLURM_CONSTRAINT='x', SLURM_TIMELIMIT='1', SLURM_LABELIO='1',
                                               SLURM_WORKING_DIR='/', SRUN_EXPORT_ENV='NONE', SRUN_OUTPUT='x',
                                               # of an interactive job
                                               SLURM_MEM_PER_NODE='2048', SLURM_GPUS='1', SLURM_NTASKS_PER_GPU='1'))
    found = dict(line.split('=', 1) for line in done.stdout.splitlines())
    assert {name: value for name, value in found.items() if name.startswith('S') and name != 'SHLVL'} == stays


@pytest.mark.parametrize('submitter, stays', [
    # a rank that torchrun has started, one of pytorch-srun's, one of mpirun's, and a user
    ({'RANK': '0', 'MASTER_ADDR': 'login1', 'MASTER_PORT': '29500', 'TORCHELASTIC_RUN_ID': 'none'}, set()),
    ({'RANK': '0', 'MASTER_ADDR': 'n1', 'OMP_NUM_THREADS': '1', 'HPC_RANKS_BY': 'srun'}, set()),
    ({'OMPI_COMM_WORLD_RANK': '0', 'MASTER_PORT': '29500'}, {'MASTER_PORT'}),
    ({'MASTER_PORT': '29500', 'OMP_NUM_THREADS': '3'}, {'MASTER_PORT', 'OMP_NUM_THREADS'})])
def test_submitted_by_a_rank(jobscript, submitter, stays):
    """A program that submits the next job does not tell its ranks who they are, nor where the first one is."""
    lines = jobscript('lumi', 'train.py')
    start, end = lines.index('unset SLURM_EXPORT_ENV'), lines.index('LMOD_QUIET=1 module load PyTorch/1.0-here || exit')
    done = subprocess.run(['bash', '-c', '\n'.join(lines[start:end] + ['env'])], stdout=subprocess.PIPE, text=True,
                          check=True, env=submitter)
    assert {line.split('=')[0] for line in done.stdout.splitlines()} & set(submitter) == stays


@pytest.mark.parametrize('system, job', [('frontier', 'SLURM_JOB_ID'), ('derecho', 'PBS_JOBID')])
def test_status_in_a_job(jobscript, tmp_path, system, job):
    """Who starts it in a job waits for the status of the rank that failed first; an earlier run's do not count."""
    lines = jobscript(system, 'train.py', **{job: '7'})
    run = lines[lines.index('mkdir -p "$HPC_RANK_OUTPUTS"'):]
    launch, = [number for number, line in enumerate(run) if ' pytorch-srun train.py' in line]
    (tmp_path / 'rank-7.out').write_text('pytorch-srun: rank 7 on n1 ended with status 9 at 04:00:00\n')
    run[launch] = """echo 'pytorch-srun: rank 1 on n1 ended with status 3 at 05:00:01' > "$HPC_RANK_OUTPUTS/rank-1.out"
        echo 'pytorch-srun: rank 0 on n1 ended with status 137 at 05:00:02' > "$HPC_RANK_OUTPUTS/rank-0.out"
        (exit 137)"""
    # what a user adds below has the status, too
    for added, status in ((), 3), (('[ $? = 3 ] && exit 4',), 4):
        done = subprocess.run(['bash', '-c', '\n'.join([*run, *added])], env={'HPC_RANK_OUTPUTS': str(tmp_path),
                                                                               'PATH': '/usr/bin:/bin'})
        assert done.returncode == status
    assert 'exit "$status"' not in jobscript(system, 'train.py')


@pytest.mark.parametrize('ended, says, status, again', [
    (0, '', 0, False), (85, '', 85, True), ('', 'Killed', 143, True),
    # of another job that writes to the same file, as a sweep may; of ours, the rank's own output has it
    ('', 'Exited with exit code 1', 0, False)])
def test_ranks_that_are_left(jobscript, tmp_path, ended, says, status, again):
    """One that has ended well leaves the others their time; one that has left, or was killed, two minutes."""
    lines = jobscript('frontier', '--requeue', '3', 'train.py')
    start = lines.index('mkdir -p "$HPC_RANK_OUTPUTS"')
    launch, = [number for number, line in enumerate(lines) if line.startswith('srun ')]
    assert ' --kill-on-bad-exit=0 --wait=0 ' in lines[launch]
    (tmp_path / 'rank-1.out').write_text('pytorch-srun: rank 1 on n1 ended with status %s at 05:00:00\n' % ended)
    said = 'echo "srun: error: n1: task 1: %s" >&2\n' % says if says else ''
    for name, does in (('sleep', 'exec /bin/sleep 0.1'), ('scontrol', 'echo "$@"'),
                       ('srun', said + 'for turn in 1 2 3 4 5 6 7 8 9 10; do /bin/sleep 0.2; done')):
        (tmp_path / 'bin' / name).write_text('#!/bin/sh\n%s\n' % does)
        (tmp_path / 'bin' / name).chmod(0o755)
    with open(tmp_path / 'job.out', 'w') as errors:
        # of a run before this one
        print('srun: error: n1: task 0: Exited with exit code 85', file=errors, flush=True)
        done = subprocess.run(['bash', '-c', '\n'.join(lines[start:])], text=True, stderr=errors,
                              stdout=subprocess.PIPE, env={'HPC_RANK_OUTPUTS': str(tmp_path), '_job': '7',
                                                           'PATH': '%s/bin:/usr/bin:/bin' % tmp_path})
    assert (done.stdout, done.returncode) == (('requeue 7\n', 0) if again else ('', status))


def test_part_of_a_node(jobscript):
    """Two GPUs to debug with, where nodes are shared, and their share of the cores."""
    lines = jobscript('isambard-ai', '--gpus', '2', 'train.py')
    assert {'#SBATCH --gpus-per-node=2', '#SBATCH --ntasks-per-node=2', '#SBATCH --cpus-per-task=72'} <= set(lines)
    assert '--ntasks=2 ' in lines[-1] and ' --gpus-per-node=2 ' in lines[-1]
    lines = jobscript('lumi', '--gpus', '2', '--partition', 'small-g', 'train.py')
    assert {'#SBATCH --gpus-per-node=2', '#SBATCH --cpus-per-task=7', '#SBATCH --partition=small-g'} <= set(lines)
    lines = jobscript('derecho', '--gpus', '1', '--partition', 'develop', 'train.py')
    # nine tenths of a quarter of 512 GiB: without it, PBS gives little memory at many sites, or refuses the job
    assert '#PBS -l select=1:ncpus=16:mpiprocs=1:ngpus=1:mem=117964mb' in lines
    assert '--depth 16 --cpu-bind depth' in lines[-1]
    # PBS would put both parts on one node
    assert '#PBS -l place=scatter' in jobscript('derecho', '--gpus', '1', '--partition', 'develop', '--nodes', '2', 'a')


@pytest.mark.parametrize('system, arguments, variables, says', [
    ('lumi', ['--gpus', '2', 'train.py'], {}, 'jobs have whole nodes in the partition standard-g'),
    ('isambard-ai', ['--gpus', '5', 'train.py'], {}, 'expected at most 4'),
    ('frontier', ['train.py'], {'SBATCH_ACCOUNT': None}, '--account NAME, or set $SBATCH_ACCOUNT'),
    ('frontier', ['--ranks-per-node', '3', 'train.py'], {}, '8 GPUs'),
    ('frontier', ['train.py'], {'LOADEDMODULES': 'gcc/12'}, 'load the PyTorch module first'),
    ('archer2', ['--ranks-per-node', '300', 'train.py'], {}, 'at most as many ranks'),
    ('workstation', ['train.py'], {}, 'torchrun --nproc-per-node=2 train.py'),
])
def test_refused(jobscript, system, arguments, variables, says):
    """One line that says what to do."""
    error = jobscript(system, *arguments, status=1, **variables)
    assert says in error and error.count('\n') == 1
