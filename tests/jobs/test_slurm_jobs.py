"""
./eb --job with a real Slurm: the chain, what is asked for, memory, failing nodes, what users see.

Of hpc_pytorch/job_backends/hpcslurm.py, hpc_pytorch/machine/batch_systems.py, hpc_pytorch/rules/resource_needs.py, and
hpc_pytorch/jobs/submission.py, hpc_pytorch/jobs/requests.py, hpc_pytorch/jobs/records.py, hpc_pytorch/jobs/status.py.
"""
import glob
import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from easyblocks.small_builds import Small
from common import CHECKOUT, EB, needs_root, stand_in
from small_software import OCCUPY, WAIT, Toys
from batch_systems.faulty_slurm import write_faulty
from batch_systems.real_slurm import Slurm, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def slurm(tmp_path_factory):
    """Three nodes that say they are ARCHER2's and others', without a way out; some partitions give out whole nodes."""
    needs_root()
    # in jobs pip has no index
    for state in ('archer2-2023', 'archer2'):
        stand_in(state)
    with Slurm(tmp_path_factory.mktemp('slurm') / 's', nodes=3, cpus=128, memory=524288, gpus=8,
               partitions=('standard', 'small', 'batch', 'gh'), exclusive=('standard', 'batch')) as running:
        yield running


@pytest.fixture
def toys(slurm, eb, tmp_path):
    """Toys for ARCHER2, with a project that pays."""
    made = Toys(eb, tmp_path, 'ARCHER2', dict(slurm.environment, SBATCH_ACCOUNT='x01'))
    yield made
    slurm.output('scancel', '--quiet', *slurm.output('squeue', '-h', '-o', '%A').split())
    for node in slurm.nodes:
        slurm.output('scontrol', 'update', 'nodename=%s' % node, 'state=resume')
    wait_for(lambda: not slurm.output('squeue', '-h'), "end of the jobs")


def facts(slurm, job):
    """What Slurm says of a job."""
    return dict(re.findall(r'(\w+)=(\S*)', slurm.output('scontrol', '--oneliner', 'show', 'job', job)))


def test_chain(toys, slurm, lmod, checkout):
    """
    A build from source between two others: dependencies, other nodes, the module; submitted twice, built once. Jobs
    have no network.
    """
    listening = socket.create_server(('127.0.0.1', 0))
    port = listening.getsockname()[1]
    small = Small(toys.eb, toys.directory)
    small.write(edit=lambda text: text.replace("('cray-python',", "('base', '1.0', '-ARCHER2'), ('cray-python',"))
    go = toys.directory / 'go'
    toys.write('base', modules=['cray-python'], commands=[
        'bash -c "exec 9<>/dev/tcp/127.0.0.1/%d" 2> %%(installdir)s/network || true' % port,
        'env > %(installdir)s/environment', 'MINE=seen srun --ntasks=1 --cpus-per-task=1 env > %(installdir)s/step',
        WAIT.format(file=go)])
    top = toys.directory / 'top-1.0-ARCHER2.eb'
    toys.write('top').write_text(toys.write('top').read_text().replace(
        'dependencies = []', "dependencies = [('PyTorch', '1.13.1', '-small-ARCHER2')]"))
    # the stand-ins are made now: jobs have no index
    for easyconfig in (toys.directory / 'base-1.0-ARCHER2.eb', small.easyconfig):
        toys.run(easyconfig, '--robot=%s' % toys.directory, '-D')
    first = toys.submit(top, env={'A_SECRET': 'hidden'})
    assert len(first) == 3
    assert [facts(slurm, job)['Account'] for job in first] == ['x01'] * 3
    assert toys.submit(top) == first, "submitted twice"
    base, torch, _ = first
    waits = facts(slurm, torch)
    assert (waits['JobState'], waits['Dependency']) == ('PENDING', 'afterok:%s(unfulfilled)' % base)
    go.touch()
    seen = toys.wait(lambda found: '  running' in found.get('PyTorch/1.13.1-small-ARCHER2', ''), "PyTorch's job")
    assert 'log: %s' % toys.directory in seen['PyTorch/1.13.1-small-ARCHER2']
    ended = toys.wait_for_end()
    assert all('  done (COMPLETED' in text for text in ended.values()), ended
    assert all(facts(slurm, job)['NodeList'] in slurm.nodes for job in first)
    # nothing of the login node's environment gets in
    environment = (toys.eb.prefix / 'software/base/1.0-ARCHER2/environment').read_text()
    assert 'A_SECRET' not in environment and 'HPC_SYSTEM=archer2' in environment
    assert 'Connection refused' in (toys.eb.prefix / 'software/base/1.0-ARCHER2/network').read_text()
    socket.create_connection(('127.0.0.1', port)).close()
    # and steps get the job's
    assert 'MINE=seen' in (toys.eb.prefix / 'software/base/1.0-ARCHER2/step').read_text()
    modules = checkout / '.local/stand_ins/archer2-2023/modules'
    assert '(2, 3)' in lmod.run('module use %s %s; module load top/1.0-ARCHER2\n' % (modules, toys.eb.modules)
                                + "mpiexec -n 2 python -c 'import torch; print(torch.rank_sum())'")
    # ramgate's profile was kept, so that the next build begins with what this one has measured
    profile = json.loads((small.sources / 'PyTorch-1.13.1-small-ARCHER2-ramgate.json').read_text())
    assert profile['files']
    provenance = small.installation / 'easybuild/provenance'
    assert json.loads((provenance / 'ramgate/report.json').read_text())['compilations']
    facts_kept = json.loads((provenance / 'provenance.json').read_text())
    assert facts_kept['job'] == 'slurm:%s' % torch and 'cray-python/3.9.13.1' in facts_kept['modules']
    assert facts_kept['sources'].keys() == {'small-torch.tar.gz'}
    assert 'torch' in facts_kept['packages']
    # the module is there now: nothing to submit
    assert not toys.submit(top)


def test_hidden(toys):
    """--hidden hides what was asked for, as without --job, and not the modules below it."""
    toys.write('base')
    toys.submit(toys.write('top', after=['base']), '--hidden')
    ended = toys.wait_for_end()
    assert all('  done (COMPLETED' in text for text in ended.values()), ended
    assert list(ended) == ['base/1.0-ARCHER2', 'top/.1.0-ARCHER2'] and toys.module('base').exists()
    assert toys.module('top').with_name('.1.0-ARCHER2.lua').exists() and not toys.module('top').exists()


def test_python_of_the_login_node(toys, toy):
    """The wheels are for a Python that the user has activated: the job knows it (tests/packages/test_wheel_tags.py)."""
    own = toys.directory / 'own'
    subprocess.run(['/usr/bin/python3', '-m', 'venv', '--without-pip', own], check=True)
    toys.submit(toy.easyconfig, '--system=archer2', env=dict(
        toy.online, PATH='%s/bin:%s' % (own, os.environ['PATH'])))
    assert '  done' in toys.wait_for_end()['toy/1.0']
    script, = (toys.eb.prefix / 'software/.jobs').glob('toy-1.0.*.sh')
    assert '\nexport HPC_JOB_PYTHON=%s/bin/python3\n' % own in script.read_text()


def test_killed_for_memory(toys, slurm):
    """Slurm kills what takes more than was asked for; the user sees why and what to do; what depends on it is gone."""
    toys.write('large', commands=[OCCUPY.format(megabytes=800, seconds=20)])
    top = toys.write('top', after=['large'])
    large, _ = toys.submit(top, '--job-target-resource=memory=400M', '--job-cores=1')
    ended = toys.wait_for_end()
    assert facts(slurm, large)['JobState'] == 'OUT_OF_MEMORY'
    text = ended['large/1.0-ARCHER2']
    assert '  failed (OUT_OF_MEMORY' in text and "it exceeded the job's memory (400 MiB)" in text
    assert '--job-target-resource=memory=' in text and 'log: ' in text
    assert Path(re.search(r'log: (\S+)', text).group(1)).exists()
    text = ended['top/1.0-ARCHER2']
    # it has no log
    assert '  cancelled' in text and 'large/1.0-ARCHER2 was not installed' in text and 'log: ' not in text
    # and again, with what was advised
    toys.write('large', commands=[OCCUPY.format(megabytes=800, seconds=0)])
    assert len(toys.submit(top, '--job-target-resource=memory=2G', '--job-cores=1')) == 2
    assert all('  done' in text for text in toys.wait_for_end().values())
    assert toys.module('top').exists()


def test_node_fails(toys, slurm):
    """A node goes down under a build: the job starts again on another one, and the module is there at the end."""
    go = toys.directory / 'go'
    easyconfig = toys.write('patient', commands=['echo $SLURMD_NODENAME >> %s' % (toys.directory / 'nodes'),
                                                 WAIT.format(file=go)])
    job, = toys.submit(easyconfig)
    wait_for((toys.directory / 'nodes').exists, "start of the job", 120)
    first = facts(slurm, job)['NodeList']
    # its daemon dies, and what it has started lives on; it does not come back by itself
    slurm.kill_node(first)
    for state in ('down', 'drain'):
        slurm.output('scontrol', 'update', 'nodename=%s' % first, 'state=%s' % state, 'reason=test')
    wait_for(lambda: facts(slurm, job)['Restarts'] == '1', "requeue")
    wait_for(lambda: len((toys.directory / 'nodes').read_text().split()) == 2, "second start", 300)
    alive = [path for path in map(Path, glob.glob('/proc/[0-9]*/environ')) if is_turn_of(path, first)]
    assert not alive, "both are building"
    slurm.start_node(first)
    go.touch()
    ended = toys.wait_for_end()['patient/1.0-ARCHER2']
    assert '  done (COMPLETED' in ended and 'requeued 1 time(s)' in ended
    assert facts(slurm, job)['NodeList'] != first
    assert toys.module('patient').exists()


def is_turn_of(path, node):
    """Whether a process belongs to the job's life on this node."""
    try:
        return b'HPC_JOB_TURN=' + node.encode() in path.read_bytes()
    except OSError:
        return False


# input variables of sbatch(1), squeue(1), scontrol(1) and scancel(1) of Slurm 22.05 that would change something here
AWKWARD = {
    'SBATCH_ACCTG_FREQ': '1', 'SBATCH_ARRAY_INX': '1-3', 'SBATCH_CORE_SPEC': '1', 'SBATCH_CPUS_PER_GPU': '2',
    'SBATCH_DEBUG': '1', 'SBATCH_DELAY_BOOT': '1', 'SBATCH_DISTRIBUTION': 'cyclic', 'SBATCH_ERROR': '/nowhere/e',
    'SBATCH_EXCLUSIVE': '1', 'SBATCH_EXPORT': 'ALL', 'SBATCH_GET_USER_ENV': '1', 'SBATCH_GPUS': '3',
    'SBATCH_GPUS_PER_NODE': '3', 'SBATCH_GRES': 'gpu:5', 'SBATCH_HINT': 'nomultithread', 'SBATCH_IGNORE_PBS': '1',
    'SBATCH_INPUT': '/nowhere/i', 'SBATCH_JOB_NAME': 'mine', 'SBATCH_MEM_BIND': 'local', 'SBATCH_MEM_PER_CPU': '7',
    'SBATCH_MEM_PER_GPU': '7', 'SBATCH_MEM_PER_NODE': '7', 'SBATCH_NO_KILL': '1', 'SBATCH_NO_REQUEUE': '1',
    'SBATCH_OPEN_MODE': 'append', 'SBATCH_OUTPUT': '/nowhere/o', 'SBATCH_OVERCOMMIT': '1', 'SBATCH_PROFILE': 'task',
    'SBATCH_REQ_SWITCH': '1', 'SBATCH_SIGNAL': 'KILL@60', 'SBATCH_SPREAD_JOB': '1', 'SBATCH_THREADS_PER_CORE': '1',
    'SBATCH_USE_MIN_NODES': '1', 'SBATCH_PARTITION': 'gh', 'SBATCH_QOS': 'x',
    'SBATCH_TIMELIMIT': '1', 'SBATCH_WAIT': '1', 'SBATCH_WAIT_ALL_NODES': '1', 'SLURM_EXIT_ERROR': '9',
    'SLURM_UMASK': '0777', 'SLURM_TIME_FORMAT': '%s', 'SQUEUE_FORMAT': '%u', 'SQUEUE_STATES': 'COMPLETED',
    'SQUEUE_USERS': 'nobody', 'SQUEUE_NAMES': 'x', 'SQUEUE_PARTITION': 'gh', 'SCONTROL_ALL': '1',
    'SCANCEL_INTERACTIVE': '1', 'SCANCEL_NAME': 'x', 'SCANCEL_STATE': 'SUSPENDED', 'SCANCEL_USER': 'nobody'}


def test_users_environment(toys, slurm):
    """What the user has set for other jobs, and limits of the login node, do not get into these."""
    toys.eb.command = ['prlimit', '--nofile=777:777', '--core=0:0'] + toys.eb.command
    easyconfig = toys.write('toy', commands=['ulimit -n > %s' % (toys.directory / 'limit'),
                                             'echo "$HOME" > %s' % (toys.directory / 'home'),
                                             WAIT.format(file=toys.directory / 'go')])
    ours = []
    changing = re.compile('Time|JobId|Std|Node|BatchHost|Command|Comment|State|Priority|Reason|Sched')
    for environment in ({}, AWKWARD):
        job, = toys.submit(easyconfig, env=environment)
        shown = dict(re.findall(r'([\w/:]+)=(\S*)', slurm.output('scontrol', '--oneliner', 'show', 'job', job)))
        ours.append({name: value for name, value in shown.items() if not changing.search(name)})
        slurm.output('scancel', job)
        wait_for(lambda: not slurm.output('squeue', '-h'), "end of the job")
    assert ours[0] == ours[1]
    home = str(toys.directory)
    job, = toys.submit(easyconfig, '--job-target-resource=walltime=26:00:00', env={'HOME': home})
    assert facts(slurm, job)['TimeLimit'] == '1-02:00:00'
    wait_for((toys.directory / 'home').exists, "start of the job", 120)
    # below which EasyBuild installs, unless told otherwise
    assert (toys.directory / 'home').read_text().strip() == home
    assert (toys.directory / 'limit').read_text().strip() != '777'
    output = toys.run(easyconfig, '--job', '--force', '--job-target-resource=walltime=0:33:00')
    assert 'toy/1.0-ARCHER2 is job' in output and 'is job %s' % job not in output
    (toys.directory / 'go').touch()
    job = re.search(r'job (\d+)', toys.wait_for_end()['toy/1.0-ARCHER2']).group(1)
    assert facts(slurm, job)['TimeLimit'] == '00:33:00'


@pytest.mark.nightly
def test_controller_does_not_answer(toys, slurm):
    """sbatch gets no answer, and the job is in the queue later: nobody says that there is none; submitted once."""
    tools = toys.directory / 'tools'
    tools.mkdir()
    (tools / 'sbatch').write_text('#!/bin/sh\ncase "$*" in\n*--parsable*) kill -STOP %d ;;\nesac\n'
                                  'exec /usr/bin/sbatch "$@"\n' % slurm.controller.pid)
    (tools / 'sbatch').chmod(0o755)
    easyconfig = toys.write('toy', commands=[WAIT.format(file=toys.directory / 'go')])
    try:
        output = toys.refused(easyconfig, env={'PATH': '%s:%s' % (tools, os.environ['PATH'])})
    finally:
        slurm.controller.send_signal(signal.SIGCONT)
    assert 'Could not determine whether toy-1.0-ARCHER2 was queued' in output, output
    assert 'no job was submitted' not in output
    wait_for(lambda: slurm.output('squeue', '-h'), "the job that nobody knows of")
    assert len(toys.submit(easyconfig)) == 1
    assert len(slurm.output('squeue', '-h').split('\n')) == 2, "submitted twice"
    (toys.directory / 'go').touch()
    assert '  done' in toys.wait_for_end()['toy/1.0-ARCHER2']


@pytest.mark.nightly
def test_interrupted_submission(toys, slurm):
    """Killed after the first of two jobs: nothing is held, and the next call ends in a chain that runs once."""
    built = toys.directory / 'built'
    toys.write('base', commands=['echo base >> %s' % built, WAIT.format(file=toys.directory / 'go')])
    top = toys.write('top', after=['base'], commands=['echo top >> %s' % built])
    call = toys.eb.started('--rehearse', top, '--robot=%s' % toys.directory, '--job', cwd=toys.directory,
                           env=toys.environment)
    wait_for(lambda: slurm.output('squeue', '-h'), "the first job", 240)
    os.killpg(call.pid, signal.SIGKILL)
    call.communicate()
    assert 'JobHeld' not in slurm.output('squeue', '-h', '-o', '%r')
    assert len(toys.submit(top)) == 2
    (toys.directory / 'go').touch()
    assert all('  done' in text for text in toys.wait_for_end().values())
    assert sorted(built.read_text().split()) == ['base', 'top']


def test_after_scancel(toys, slurm):
    """A job that was cancelled runs for some seconds more: it does not count, nor do those that wait for it."""
    busy = toys.directory / 'busy'
    toys.write('base', commands=['touch %s; sleep 600' % busy])
    top = toys.write('top', after=['base'])
    jobs = toys.submit(top)
    wait_for(busy.exists, "start of the job", 120)
    slurm.output('scancel', jobs[0])
    again = toys.submit(top)
    assert len(again) == 2 and not set(jobs) & set(again), (jobs, again)


@pytest.mark.nightly
def test_compute_nodes_lack_directories(toys, slurm):
    """What the system's file says is refused; what it does not know fails with Slurm's reason and what to do."""
    easyconfig = toys.write('toy', commands=['true'])
    output = toys.refused(easyconfig, '--job-output-dir=/home/nobody')
    assert 'do not have /home' in output and '--job-output-dir=' in output
    logs = toys.directory / 'logs'
    with all_nodes_drained(slurm):
        toys.submit(easyconfig, '--job-output-dir=%s' % logs)
        toys.wait(lambda found: 'reserved or down' in found['toy/1.0-ARCHER2'], "Slurm's reason, explained")
        logs.rename(toys.directory / 'elsewhere')
    text = toys.wait_for_end()['toy/1.0-ARCHER2']
    assert 'JobLaunchFailure' in text and 'does not exist on the compute node' in ' '.join(text.split())


def test_why_it_waits(toys, slurm):
    """A partition's limit, another job, a reservation, a hold: each explained, with what to do."""
    slurm.output('scontrol', 'create', 'reservation', 'reservationname=mine', 'users=root', 'starttime=now+1day',
                 'duration=1:00:00', 'nodes=%s' % slurm.nodes[0])
    slurm.output('scontrol', 'update', 'partitionname=gh', 'maxtime=10')
    toys.write('base')
    top = toys.write('top', after=['base'])
    try:
        base, _ = toys.submit(top, '--job-target-resource=partition=gh,walltime=1:00:00,memory=1G', '--job-cores=1')
        reserved, = toys.submit(toys.write('reserved'), env={'SBATCH_RESERVATION': 'mine'})
        found = toys.wait(lambda found: '(PENDING, PartitionTimeLimit' in found['base/1.0-ARCHER2']
                          and '(PENDING, Reservation' in found['reserved/1.0-ARCHER2'], "Slurm's reasons")
        assert 'never starts: cancel job %s, and submit again' % base in found['base/1.0-ARCHER2']
        assert 'Dependency' in found['top/1.0-ARCHER2']
        assert 'when the jobs that it depends on' in found['top/1.0-ARCHER2']
        assert facts(slurm, reserved)['Reservation'] == 'mine'
        # the user's, which the user can release, and an administrator's
        for hold, advice in (('uhold', 'scontrol release %s' % base), ('hold', 'ask the helpdesk')):
            slurm.output('scontrol', hold, base)
            toys.wait(lambda found: advice in found['base/1.0-ARCHER2'], "the hold")
            slurm.output('scontrol', 'release', base)
        slurm.output('scancel', reserved)
    finally:
        slurm.output('scontrol', 'update', 'partitionname=gh', 'maxtime=UNLIMITED')
        slurm.output('scontrol', 'delete', 'reservationname=mine')
    assert '  done' in toys.wait_for_end()['top/1.0-ARCHER2']


def test_not_started(toys, slurm):
    """The node's prolog fails, or an administrator requeues: Slurm holds the job, and its user can release it."""
    configuration, prolog = slurm.directory / 'slurm.conf', slurm.directory / 'prolog'
    prolog.write_text('#!/bin/sh\nexit 1\n')
    prolog.chmod(0o755)
    before = configuration.read_text()
    slurm.write('slurm.conf', before + 'Prolog=%s\n' % prolog)
    slurm.output('scontrol', 'reconfigure')
    try:
        job, = toys.submit(toys.write('toy', commands=[WAIT.format(file=toys.directory / 'go')]))
        found = toys.wait(lambda found: 'launch_failed' in found['toy/1.0-ARCHER2'], "the failure")
    finally:
        slurm.write('slurm.conf', before)
        slurm.output('scontrol', 'reconfigure')
    assert 'its node could not start it, and Slurm holds it: scontrol release %s' % job in found['toy/1.0-ARCHER2']
    slurm.output('scontrol', 'release', job)
    toys.wait(lambda found: '  running' in found['toy/1.0-ARCHER2'], "the job")
    slurm.output('scontrol', 'requeuehold', job)
    found = toys.wait(lambda found: 'job_requeued' in found['toy/1.0-ARCHER2'], "the requeue")
    assert 'it is held: scontrol release %s' % job in found['toy/1.0-ARCHER2']


def test_no_controller(toys, slurm):
    """scancel meets none: what was submitted stays, and is named. Nor does scontrol: it is asked for one job."""
    toys.write('base', commands=[WAIT.format(file=toys.directory / 'go')])
    top = toys.write('top', after=['base'])
    tools, asked = toys.directory / 'tools', toys.directory / 'asked'
    write_faulty(tools, ['scancel'])
    (tools / 'fail-scancel').touch()
    sbatch = tools / 'sbatch'
    sbatch.write_text('#!/bin/sh\ncase "$*" in *top*) echo Invalid qos specification; exit 1;; esac\n'
                      'exec /usr/bin/sbatch "$@"\n')
    sbatch.chmod(0o755)
    environment = {'PATH': '%s:%s' % (tools, os.environ['PATH'])}
    output = toys.refused(top, env=environment)
    job = re.search(r'these jobs stay in the queue: (\d+)', output).group(1)
    assert 'Unable to contact slurm controller' in output and 'no job was submitted' not in output, output
    assert 'job %s  ' % job in toys.status()['base/1.0-ARCHER2']
    assert toys.submit(top)[0] == job, "submitted twice"
    scontrol = tools / 'scontrol'
    scontrol.write_text('#!/bin/sh\necho "$*" >> %s\necho "Unable to contact slurm controller (connect failure)"\n'
                        'exit 1\n' % asked)
    scontrol.chmod(0o755)
    toys.environment.update(environment)
    found = toys.status()
    assert len(found) == 2 and all('  unknown (scontrol: Unable to contact' in text for text in found.values()), found
    assert len(asked.read_text().splitlines()) == 1
    (toys.directory / 'go').touch()


@pytest.mark.nightly
def test_moved_to_another_cluster(toys, slurm):
    """A federation may do that: nobody knows its state, and nothing is submitted again."""
    tools = toys.directory / 'tools'
    tools.mkdir()
    for name, text in (('sbatch', 'echo 77'), ('squeue', ''), (
            'scontrol', 'test "$*" = "--oneliner show job 77" && '
            'echo "JobId=77 JobState=REVOKED Reason=None NodeList="')):
        (tools / name).write_text('#!/bin/sh\n%s\n' % text)
        (tools / name).chmod(0o755)
    toys.environment['PATH'] = '%s:%s' % (tools, os.environ['PATH'])
    easyconfig = toys.write('toy')
    assert toys.submit(easyconfig) == ['77']
    assert '  unknown (REVOKED)' in toys.status()['toy/1.0-ARCHER2']
    assert 'its state could not be determined: REVOKED' in toys.refused(easyconfig)


def test_refused(toys, slurm):
    """No project, words that mean nothing, more than any node has: said at once, and nothing stays in the queue."""
    easyconfig = toys.write('toy')
    output = toys.refused(easyconfig, env={'SBATCH_ACCOUNT': ''})
    assert 'export SBATCH_ACCOUNT=PROJECT' in output and 'No project account is set' in output
    assert 'cannot be written to /proc/1/logs, so nothing' in toys.refused(easyconfig, '--job-output-dir=/proc/1/logs')
    assert "found 'memori=3G'" in toys.refused(easyconfig, '--job-target-resource=memori=3G')
    assert 'such as 1:30:00' in toys.refused(easyconfig, '--job-target-resource=walltime=long')
    assert "a size such as 12G or 800M, found '4000'" in toys.refused(easyconfig, '--job-target-resource=memory=4000')
    assert 'gpus: 1 is more than the 0 that' in toys.refused(easyconfig, '--job-target-resource=gpus=1')
    toys.write('base')
    both = toys.write('both', after=['base'])
    output = toys.refused(both, '--job-cores=100000')
    assert 'Nothing was submitted; ask for less' in output and '--job-cores' in output
    assert 'memory (MiB): 1048576 is more than the ' in toys.refused(both, '--job-target-resource=memory=1T')
    output = toys.refused(both, '--job-target-resource=partition=nowhere')
    assert 'choose another: --job-target-resource=partition=NAME' in output
    assert 'is for pbs' in toys.refused(easyconfig, '--job-backend=PbsPro', env={
        'PATH': '%s:%s' % (other_batch_system(toys.directory), os.environ['PATH'])})
    assert not slurm.output('squeue', '-h')


def test_no_cluster_here(toys):
    """A host that has Slurm's commands, and no configuration."""
    (toys.directory / 'tools').mkdir()
    squeue = toys.directory / 'tools/squeue'
    squeue.write_text('#!/bin/sh\necho "squeue: fatal: Could not establish a configuration source"\nexit 1\n')
    squeue.chmod(0o755)
    output = toys.refused(toys.write('toy'), env={'PATH': '%s:%s' % (squeue.parent, os.environ['PATH'])})
    assert 'Could not establish a configuration source: is this a host of the cluster?' in output, output


def other_batch_system(directory):
    """The commands of PBS, which know of no job."""
    tools = directory / 'tools'
    tools.mkdir()
    for name in ('qsub', 'qstat', 'qselect', 'qdel'):
        (tools / name).symlink_to('/bin/true')
    return tools


# suffix of the easyconfig, options -> what Slurm was asked for; nobody else gets what is left of a whole node
ASKED = [
    ('ARCHER2', [], {'Partition': 'standard', 'NumCPUs': '128', 'MinMemoryNode': '0'}),
    ('LUMI', [], {'Partition': 'small', 'CPUs/Task': '8', 'MinMemoryNode': '16G', 'TimeLimit': '02:00:00'}),
    ('Frontier', [], {'Partition': 'batch', 'CPUs/Task': '56', 'TresPerNode': 'gres:gpu:8'}),
    ('Bede', [], {'Partition': 'gh', 'CPUs/Task': '72', 'TresPerNode': 'gres:gpu:1'}),
    ('LUMI', ['--job-cores=3', '--job-target-resource=walltime=0:20:00,memory=5G,gpus=2,partition=gh,account=other'],
     {'Partition': 'gh', 'CPUs/Task': '3', 'MinMemoryNode': '5G', 'TimeLimit': '00:20:00', 'Account': 'other',
      'TresPerNode': 'gres:gpu:2'}),
]


@pytest.mark.parametrize('suffix, options, expected', ASKED)
def test_asked_for(toys, slurm, suffix, options, expected):
    """What the system's file says, what the software needs, what the command line says."""
    toys.suffix = suffix
    # no job starts before it was looked at
    with all_nodes_drained(slurm):
        job, = toys.submit(toys.write('toy'), '--system=%s' % suffix.lower(), *options)
        found = dict(re.findall(r'([\w/]+)=(\S*)', slurm.output('scontrol', '--oneliner', 'show', 'job', job)))
        assert {name: found.get(name) for name in expected} == expected
        slurm.output('scancel', job)


class all_nodes_drained:
    """Nothing starts inside."""

    def __init__(self, slurm):
        self.slurm = slurm

    def set(self, *words):
        """All nodes at once."""
        self.slurm.output('scontrol', 'update', 'nodename=%s' % ','.join(self.slurm.nodes), *words)

    def __enter__(self):
        self.set('state=drain', 'reason=test')

    def __exit__(self, *_):
        self.set('state=resume')


def test_share_of_the_node(toys, slurm):
    """A build from source on some of the cores asks for their share of the node's memory."""
    easyconfig = toys.directory / 'PyTorch-1.0-LUMI.eb'
    easyconfig.write_text("""easyblock = 'EB_PyTorchHPC'
name = 'PyTorch'
version = '1.0'
versionsuffix = '-LUMI'
homepage = 'https://example.org/'
description = 'never built'
toolchain = SYSTEM
lock_files = ['empty.lock']
python_versions = ['3.11']
max_parallel = 16
moduleclass = 'ai'
""")
    (toys.directory / 'empty.lock').write_text('# nothing\n')
    toys.eb = EB(toys.directory / 'prefix')
    toys.eb.sources = toys.directory / 'sources'
    toys.suffix = 'LUMI'
    # the stand-in of LUMI has no compilers: nothing is compiled there
    tools = toys.directory / 'tools'
    tools.mkdir()
    for name in ('cc', 'CC', 'ftn'):
        (tools / name).symlink_to('/usr/bin/gcc')
    toys.environment['PATH'] = '%s:%s' % (tools, os.environ['PATH'])
    with all_nodes_drained(slurm):
        job, = toys.submit(easyconfig, '--system=lumi')
        found = facts(slurm, job)
        slurm.output('scancel', job)
    # 16 of 64 cores with their share of 480 GiB, and the system's default time
    assert (found['MinMemoryNode'], found['TimeLimit']) == ('120G', '04:00:00')


def test_explained(toys, slurm):
    """A build that fails with a known error: cause and remedy; a job that takes too long; one that was deleted."""
    toys.write('broken', commands=['echo "c++: fatal error: Killed signal terminated program cc1plus" >&2; exit 1'])
    toys.submit(toys.directory / 'broken-1.0-ARCHER2.eb')
    toys.submit(toys.write('endless', commands=['sleep 3600']))
    job, = toys.submit(toys.write('unwanted', commands=[
        'cd %s/ramgate && exec python3 -m ramgate run --memory 1G -- sleep 3600' % CHECKOUT]))
    # the step, and how far ramgate is; an end is set only for what runs
    step = re.compile('  running.*\n +postprocessing.*\n +0/0 done, 0 running, .* of 1.0 GB')
    toys.wait(lambda found: step.search(found['unwanted/1.0-ARCHER2']) and '  running' in found['endless/1.0-ARCHER2'],
              "the step")
    subprocess.run(['scancel', job], env=dict(os.environ, **slurm.environment), check=True)
    endless = re.search(r'job (\d+)', toys.status()['endless/1.0-ARCHER2']).group(1)
    slurm.output('scontrol', 'update', 'jobid=%s' % endless, 'endtime=now')
    found = toys.wait_for_end()
    assert '  failed' in found['broken/1.0-ARCHER2'] and 'ran out of memory' in found['broken/1.0-ARCHER2']
    assert '  cancelled' in found['unwanted/1.0-ARCHER2'] and 'somebody deleted it' in found['unwanted/1.0-ARCHER2']
    assert '(TIMEOUT' in found['endless/1.0-ARCHER2'] and 'walltime=' in found['endless/1.0-ARCHER2']
