"""
./eb --job on PBS Pro, of which the tests have a stand-in that runs jobs for real and without a network.

Of hpc_pytorch/job_backends/pbspro.py; which code is behind that is said in test_slurm_jobs.py.
"""
import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from common import CHECKOUT, EB, FOR_ROOT, LMOD, clean_environment, nightly, stand_in
from small_software import OCCUPY, WAIT, Toys, make_wheel, site
from batch_systems.pbs_stand_in import Pbs, patiently as wait_for
from batch_systems.real_pbs import RealPbs

pytestmark = pytest.mark.slow


@pytest.fixture
def pbs(tmp_path):
    """Two nodes, two queues, one project."""
    with Pbs(tmp_path / 'pbs', accounts=['NCAR0001'], queues={'main': 12 * 3600, 'short': 600}) as running:
        yield running


@pytest.fixture
def toys(pbs, eb, tmp_path):
    """Toys for Derecho, with a project that pays."""
    return Toys(eb, tmp_path, 'Derecho', dict(pbs.environment, PBS_ACCOUNT='NCAR0001'))


LOCKED = """easyblock = 'LockedWheels'
name = 'PyTorch'
version = '1.0'
versionsuffix = '-Derecho'
homepage = 'https://example.org/'
description = 'one small package in its place'
toolchain = SYSTEM
dependencies = [
    ('ncarenv/23.09', EXTERNAL_MODULE), ('aws-ofi-nccl', '1.0', '-Derecho'), ('conda/latest', EXTERNAL_MODULE)]
lock_files = ['PyTorch-1.0-Derecho.lock']
python_versions = [%r]
sanity_check_commands = ['python -c "import toy"']
moduleclass = 'ai'
"""


def locked_wheels(toys):
    """PyTorch's place in the chain, taken by a package from a lock file; returns where pip finds it."""
    index = toys.directory / 'index'
    index.mkdir()
    wheel = make_wheel(index, 'toy')
    (toys.directory / 'PyTorch-1.0-Derecho.lock').write_text(
        '# made by the test\ntoy==1.0 --hash=sha256:%s\n' % hashlib.sha256(wheel.read_bytes()).hexdigest())
    (toys.directory / 'PyTorch-1.0-Derecho.eb').write_text(LOCKED % ('%d.%d' % sys.version_info[:2]))
    toys.eb.sources = toys.directory / 'sources'
    return {'PIP_CONFIG_FILE': os.devnull, 'PIP_NO_INDEX': '1', 'PIP_FIND_LINKS': str(index)}


@pytest.fixture
def any_pbs(tmp_path):
    """The stand-in, or a real server, which $HPC_PBS_PREFIX names (batch_systems/real_pbs.py)."""
    prefix = os.environ.get('HPC_PBS_PREFIX')
    with RealPbs(prefix) if prefix else Pbs(tmp_path / 'pbs', accounts=['NCAR0001']) as running:
        yield running


def test_derechos_chain(any_pbs, eb, tmp_path, lmod):
    """NCCL, the plugin, PyTorch, torchvision: in this order, fetched before, installed by jobs without a network."""
    pbs = any_pbs
    toys = Toys(eb, tmp_path, 'Derecho', dict(pbs.environment, PBS_ACCOUNT='NCAR0001'))
    go = toys.directory / 'go'
    toys.write('NCCL', modules=['cuda/12.2.1'], commands=['env > %(installdir)s/environment', WAIT.format(file=go)])
    toys.write('aws-ofi-nccl', after=['NCCL'], modules=['libfabric/1.15.2.0'])
    # the stand-in is made now: later pip has no index
    toys.eb('--rehearse', 'NCCL-2.21.5-1-Derecho.eb', '-D')
    pip = locked_wheels(toys)
    top = toys.write('torchvision', after=['PyTorch'])
    before = set(pbs.jobs())
    jobs = toys.submit(top, env=dict(pip, A_SECRET='hidden'))
    assert len(jobs) == 4
    assert toys.submit(top, env=pip) == jobs, "submitted twice"
    facts = pbs.jobs()
    # a real server has other jobs, too
    assert sorted(job for job in set(facts) - before if facts[job]['Job_Name'].endswith('-1.0-Derecho')) == sorted(jobs)
    # a real server lists those that wait for a job, too
    waits = [re.search(r'afterok:([^@,]+)', facts[job].get('depend') or '') for job in jobs]
    assert [found and found.group(1) for found in waits] == [None] + jobs[:3]
    first = facts[jobs[0]]
    assert (first['Account_Name'], first['queue']) == ('NCAR0001', 'main')
    assert first['Resource_List.select'] == '1:ncpus=64:ngpus=4'
    scripts = sorted((toys.eb.prefix / 'software/.jobs').glob('*.sh'))
    assert len(scripts) == 4
    subprocess.run(['shellcheck', *map(str, scripts)], check=True)
    go.touch()
    ended = toys.wait_for_end()
    assert all('  done (' in text for text in ended.values()), ended
    assert lmod.run('module use %s; module show torchvision/1.0-Derecho' % toys.eb.modules)
    logs = [(toys.directory / ('%s-1.0-Derecho-%s.out' % (name, job))).stat() for name, job in zip(
        ('NCCL', 'aws-ofi-nccl', 'PyTorch', 'torchvision'), jobs)]
    assert [log.st_mtime for log in logs] == sorted(log.st_mtime for log in logs)
    # PBS starts jobs with another umask
    assert {oct(log.st_mode & 0o777) for log in logs} == {oct(scripts[0].stat().st_mode & 0o777)}
    environment = (toys.eb.prefix / 'software/NCCL/1.0-Derecho/environment').read_text()
    assert 'A_SECRET' not in environment and 'PIP_FIND_LINKS' not in environment


def test_refused(toys, pbs):
    """A project that is not known: what PBS says and what to do; nothing is left."""
    toys.write('base')
    easyconfig = toys.write('toy', after=['base'])
    assert 'With -x nothing is submitted' in toys.refused(easyconfig, '-x')
    # a job that only fetches was taken for one that installs
    assert 'Leave it out: --job fetches all files itself' in toys.refused(easyconfig, '--fetch')
    output = toys.refused(easyconfig, env={'PBS_ACCOUNT': 'NCAR0002'})
    assert 'Invalid account' in output and 'set a project that may use this system' in output
    # the second of two is refused: the first, which was taken, is given back
    pbs.reject('toy', 'ncpus is required. Please see https://example.org/jobs')
    output = toys.refused(easyconfig)
    assert 'toy-1.0-Derecho was refused' in output and 'No advice is known' in output
    assert len(pbs.jobs()) == 1 and not list((toys.eb.prefix / 'software/.jobs').glob('*.json'))
    # and cannot be given back: the server is away by then
    pbs.fail_after('qdel', 0)
    output = toys.run(easyconfig, '--robot=%s' % toys.directory, '--job', status=1)
    job = re.search(r'stay in the queue: (\S+)', output).group(1)
    assert 'qdel: Connection refused' in output and 'no job was' not in output
    assert 'job %s ' % job in toys.status()['base/1.0-Derecho']
    (pbs.directory / 'last-qdel').unlink()
    pbs.delete(job)
    wait_for(lambda: {job['job_state'] for job in pbs.jobs().values()} == {'F'}, "end of what was deleted")


@pytest.mark.nightly
def test_what_else_is_refused(toys, pbs):
    """No project, a queue's limit, no such queue, a closed one, resources that are not known."""
    easyconfig = toys.write('toy')
    assert 'export PBS_ACCOUNT=PROJECT' in toys.refused(easyconfig, env={'PBS_ACCOUNT': ''})
    output = toys.refused(easyconfig, '--job-target-resource=partition=short')
    assert 'Job violates queue' in output and 'walltime=' in output and 'qstat -Qf' in output
    assert 'Unknown queue' in toys.refused(easyconfig, '--job-target-resource=partition=nowhere')
    pbs.reject('toy', 'Queue is not enabled')
    assert 'the queue is closed' in toys.refused(easyconfig)
    pbs.reject('toy', 'Unknown resource: ngpus')
    assert '--job-target-resource=gpus=0' in toys.refused(easyconfig)
    for words in ('Unknown resource: nosuch', 'Unknown resource Resource_List.nosuch'):
        pbs.reject('toy', words)
        output = toys.refused(easyconfig)
        assert 'less' not in output and '[scheduler] options' in output, output
    assert not list((toys.eb.prefix / 'software/.jobs').glob('*.json'))


@pytest.mark.nightly
def test_server_away(toys, pbs):
    """qsub fails once: tried again. qstat does not answer: nothing is submitted twice in the dark."""
    easyconfig = toys.write('toy', commands=[WAIT.format(file=toys.directory / 'go')])
    pbs.fail('qsub', 1)
    assert toys.submit(easyconfig) == ['1.pbs']
    pbs.hang('qstat')
    with ThreadPoolExecutor() as both:
        output, found = both.submit(toys.refused, easyconfig), both.submit(toys.status)
    assert 'has not answered for' in output.result() and 'submitted before as job 1.pbs' in output.result()
    assert '  unknown (qstat has not answered' in found.result()['toy/1.0-Derecho']
    (pbs.directory / 'hang-qstat').unlink()
    assert len(pbs.jobs()) == 1
    (toys.directory / 'go').touch()
    assert '  done' in toys.wait_for_end()['toy/1.0-Derecho']
    # the server is not there at all
    pbs.fail('qsub', 99)
    toys.write('other')
    assert 'cannot connect to server' in toys.refused(toys.directory / 'other-1.0-Derecho.eb')
    # it goes between two submissions: what is in the queue stays there, and is known
    (pbs.directory / 'fail-qsub').unlink()
    for command in ('qsub', 'qdel'):
        pbs.fail_after(command, int(command == 'qsub'))
    top = toys.write('top', after=['other'])
    output = toys.refused(top)
    assert 'does not answer about top-1.0-Derecho: qsub: Connection refused' in output and 'no job was' not in output
    for command in ('qsub', 'qdel'):
        (pbs.directory / ('last-' + command)).unlink()
    assert 'other/1.0-Derecho' in toys.status()
    assert toys.submit(top)[-1] == '3.pbs' and len(pbs.jobs()) == 3


# the variables of qsub(1B), and of qstat(1B), that would change something here (qsub.c, qstat.c)
AWKWARD = {'PBS_DPREFIX': '# made', 'PBS_SHELL': '/bin/false', 'PBS_QSTAT_EXECONLY': '1', 'PBS_O_WORKDIR': '/nowhere'}


@pytest.mark.nightly
def test_users_environment(toys, pbs):
    """What the user has set for other jobs does not get into these, nor do limits of the login node."""
    toys.eb.command = ['prlimit', '--nofile=777:777', '--core=0:0'] + toys.eb.command
    easyconfig = toys.write('toy', commands=['ulimit -n > %s' % (toys.directory / 'limit')])
    assert toys.submit(easyconfig, env=AWKWARD) == ['1.pbs']
    assert '  done' in toys.wait_for_end()['toy/1.0-Derecho']
    assert (toys.directory / 'limit').read_text().strip() != '777'


@pytest.mark.nightly
def test_side_by_side(toys, pbs):
    """What does not need each other is built at the same time: each of two waits until the other has begun."""
    here = toys.directory
    one, other = [toys.write(name, commands=['touch %s' % (here / name), WAIT.format(file=here / waits)])
                  for name, waits in (('one', 'other'), ('other', 'one'))]
    assert toys.submit(one, other) == ['1.pbs', '2.pbs']
    assert all('  done' in text for text in toys.wait_for_end().values())


def test_scheduler_starts_none(toys, pbs):
    """In its comments, which are OpenPBS 23.06's."""
    pbs.start_none('Queue not started.')
    toys.submit(toys.write('toy'))
    for comment, meaning in (('Queue not started.', 'the partition or queue is closed'),
                             ('User has reached queue main running job limit.', "your jobs, or the project's"),
                             ('Not enough free nodes available', 'it starts when other jobs have ended')):
        pbs.start_none(comment)
        wait_for(lambda: comment in (pbs.job('1')['comment'] or ''), "the comment")
        assert 'waiting (Q, Not Running: %s)\n    %s' % (comment, meaning) in toys.status()['toy/1.0-Derecho']
    pbs.delete('1')


def test_no_node_fits(toys, pbs):
    """PBS takes it and never starts it, and says so in its comment: explained, with what to do."""
    job, = toys.submit(toys.write('toy'), '--job-target-resource=partition=main', '--job-cores=100000')
    found = toys.wait(lambda found: 'Can Never Run' in found['toy/1.0-Derecho'], "PBS's comment")
    assert 'cancel job %s' % job in found['toy/1.0-Derecho']
    pbs.delete(job)


@pytest.mark.nightly
def test_ten_comes_after_nine(toys, pbs):
    """Ids are numbers, also where jobs were submitted within a second."""
    (toys.directory / 'nothing').write_text('true\n')
    for _ in range(8):
        subprocess.run(['qsub', '-A', 'NCAR0001', str(toys.directory / 'nothing')], cwd=toys.directory, check=True,
                       stdout=subprocess.DEVNULL, env=dict(os.environ, **pbs.environment))
    toys.write('base')
    assert toys.submit(toys.write('top', after=['base'])) == ['9.pbs', '10.pbs']
    for record in (toys.eb.prefix / 'software/.jobs').glob('*.json'):
        record.write_text(re.sub(r'"time": \d+', '"time": %d' % time.time(), record.read_text()))
    assert list(toys.wait_for_end()) == ['base/1.0-Derecho', 'top/1.0-Derecho']


@pytest.mark.nightly
@FOR_ROOT
def test_disk_is_full(toys, pbs):
    """No room for the files of jobs: the reason, and neither a job nor half a file is left."""
    place = toys.directory / 'disk'
    place.mkdir()
    toys.eb.prefix = place / 'prefix'
    toys.environment.update(site(toys.directory, '[policy]\nfree_space = allow\n'))
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=8m', 'none', str(place)], check=True)
    try:
        toys.submit(toys.write('base'))
        toys.wait_for_end()
        before = set((toys.eb.prefix / 'software/.jobs').iterdir())
        state = os.statvfs(place)
        with open(place / 'filling', 'wb') as handle:
            os.posix_fallocate(handle.fileno(), 0, state.f_bavail * state.f_frsize)
        output = toys.refused(toys.write('toy', after=['base']))
        assert 'No space left on device' in output and 'no job was submitted' in output
        assert len(pbs.jobs()) == 1 and set((toys.eb.prefix / 'software/.jobs').iterdir()) == before
    finally:
        subprocess.run(['umount', '--lazy', str(place)], check=True)


def test_failures(toys, pbs):
    """Too much memory, too little time, an error: each explained, with its log; what depends on it is deleted."""
    toys.write('large', commands=[OCCUPY.format(megabytes=600, seconds=60)])
    top = toys.write('top', after=['large'])
    toys.submit(top, '--job-target-resource=memory=400M')
    # the words are in the output alone
    toys.submit(toys.write('broken', commands=['echo "No space left" "on device"; exit 1']))
    toys.submit(toys.write('homeless'), env={'HOME': '/proc/nonexistent'})
    found = toys.wait_for_end()
    assert 'your home directory does not exist on the compute node' in found['homeless/1.0-Derecho'], found
    text = found['large/1.0-Derecho']
    assert '  failed (exit status -27' in text and "it exceeded the job's memory (400 MiB)" in text
    assert 'job killed: mem' in text and '--job-target-resource=memory=' in text
    assert Path(re.search(r'log: (\S+)', text).group(1)).exists()
    text = found['top/1.0-Derecho']
    assert '  cancelled' in text and 'large/1.0-Derecho was not installed' in text
    assert '  failed' in found['broken/1.0-Derecho'] and 'the disk is full' in found['broken/1.0-Derecho']
    # on a real node, /tmp is the node's own
    log = Path(re.search(r"EasyBuild's log: (\S+)", found['broken/1.0-Derecho']).group(1))
    assert toys.eb.prefix in log.parents and 'No space left on device' in log.read_text()
    # PBS has forgotten them: their own files still tell
    pbs.forget()
    assert 'the disk is full' in toys.status()['broken/1.0-Derecho']


@pytest.mark.nightly
def test_node_fails(toys, pbs):
    """A node goes down under a build: the job is started again, finds its own old lock, and ends well."""
    begun, go = toys.directory / 'begun', toys.directory / 'go'
    easyconfig = toys.write('patient', commands=['touch %s' % begun, WAIT.format(file=go)])
    toys.submit(easyconfig)
    deadline = time.monotonic() + 120
    while not begun.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pbs.node_down('deg0001')
    go.touch()
    assert '  done' in toys.wait_for_end()['patient/1.0-Derecho']
    assert pbs.job('1')['run_count'] == 2 and pbs.job('1')['exec_host'].startswith('deg0002')
    assert toys.module('patient').exists()
    assert not list((toys.eb.prefix / 'software/.locks').iterdir())


def counting(toys, name):
    """A command that counts how often something is built."""
    return 'echo %s >> %s' % (name, toys.directory / 'built')


def chain_of_three(toys):
    """base, middle, top, each of which counts its builds."""
    toys.write('base', commands=[counting(toys, 'base')])
    toys.write('middle', after=['base'], commands=[counting(toys, 'middle')])
    return toys.write('top', after=['middle'], commands=[counting(toys, 'top')])


@pytest.mark.parametrize('records', ['kept', nightly('lost')])
def test_interrupted_submission(toys, pbs, records):
    """ssh breaks, or somebody kills it, between two jobs: the next call ends in a chain that runs once."""
    top = chain_of_three(toys)
    toys.write('base', commands=[WAIT.format(file=toys.directory / 'go'), counting(toys, 'base')])
    pbs.slow('qsub', 1)
    call = toys.eb.started('--rehearse', top, '--robot=%s' % toys.directory, '--job', cwd=toys.directory,
                           env=toys.environment)
    wait_for(lambda: pbs.jobs(), "the first job", 240)
    os.killpg(call.pid, signal.SIGKILL if records == 'lost' else signal.SIGHUP)
    call.communicate()
    (pbs.directory / 'slow-qsub').unlink()
    time.sleep(1)
    before = pbs.jobs()
    assert len(before) < 3, "the test came too late"
    if records == 'lost':
        shutil.rmtree(toys.eb.prefix / 'software/.jobs')
    (toys.directory / 'go').touch()
    toys.submit(top)
    ended = toys.wait_for_end()
    assert all('  done' in text for text in ended.values()) and toys.module('top').exists(), ended
    wait_for(lambda: all(job['job_state'] == 'F' for job in pbs.jobs().values()), "end of all jobs")
    assert sorted((toys.directory / 'built').read_text().split()) == ['base', 'middle', 'top']


def test_ctrl_c_before_the_answer(toys, pbs):
    """Ctrl-C while qsub has submitted a job and not answered: the job is cancelled like those before it."""
    easyconfig = toys.write('toy', commands=[WAIT.format(file=toys.directory / 'go')])
    pbs.answer_late()
    # tests that run in the background of a script ignore it, and so would what they start
    signal.signal(signal.SIGINT, signal.default_int_handler)
    call = toys.eb.started('--rehearse', easyconfig, '--robot=%s' % toys.directory, '--job', cwd=toys.directory,
                           env=toys.environment)
    wait_for(lambda: pbs.jobs(), "the job", 240)
    while call.poll() is None:
        # and again
        with contextlib.suppress(ProcessLookupError):
            os.killpg(call.pid, signal.SIGINT)
        time.sleep(0.3)
    output = call.communicate()[0]
    assert call.returncode and 'Cancelled by user' in output and 'no job was submitted' in output, output
    wait_for(lambda: pbs.job('1')['job_state'] == 'F', "end of the job")
    assert not list((toys.eb.prefix / 'software/.jobs').glob('*.json'))


def test_force_replaces(toys, pbs):
    """--force builds again what waits or runs: the job before is cancelled, and its files are not the new job's."""
    easyconfig = toys.write('toy', commands=[WAIT.format(file=toys.directory / 'go')])
    assert toys.submit(easyconfig) == ['1.pbs']
    assert toys.submit(easyconfig) == ['1.pbs']
    assert toys.submit(easyconfig, '--force') == ['2.pbs']
    assert pbs.job('1')['job_state'] == 'F'
    # as an earlier job left it under this name; and the second one leaves nothing
    (toys.eb.prefix / 'software/.jobs/toy-1.0-Derecho.ended').write_text('0\n')
    (toys.eb.prefix / 'software/.jobs/toy-1.0-Derecho.123456789abc.ended').write_text('0\n')
    subprocess.run(['qdel', '2.pbs'], env=dict(os.environ, **pbs.environment), check=True)
    wait_for(lambda: pbs.job('2')['job_state'] == 'F', "end of the job")
    text = toys.status()['toy/1.0-Derecho']
    assert '  cancelled (F, ' in text and 'somebody deleted it' in text, text
    pbs.forget()
    assert 'done' not in toys.status()['toy/1.0-Derecho']


def test_check_of_what_is_there(toys):
    """On a node, of what a job has installed: nothing was done, with status 0."""
    easyconfig = toys.write('toy')
    assert toys.submit(easyconfig) == ['1.pbs']
    toys.wait_for_end()
    assert toys.submit(easyconfig, '--sanity-check-only') == ['2.pbs']
    assert 'done' in toys.wait_for_end()['toy/1.0-Derecho']


def test_force_is_for_what_is_named(toys, pbs):
    """What others need is not begun again while it is built; and who waits for what is begun again is told."""
    base = toys.write('base', commands=[WAIT.format(file=toys.directory / 'go')])
    top = toys.write('top', after=['base'])
    assert toys.submit(top) == ['1.pbs', '2.pbs']
    assert toys.submit(top, '--force') == ['1.pbs', '3.pbs']
    output = toys.run(base, '--job', '--rebuild')
    assert 'top/1.0-Derecho, job 3.pbs, waits for it, and is to be cancelled, too' in output, output
    # both are named
    assert toys.submit(top) == ['4.pbs', '5.pbs']
    output = toys.run(base, top, '--robot=%s' % toys.directory, '--job', '--force')
    assert 'top/1.0-Derecho is job 7.pbs, after 6.pbs' in output, output


def test_what_is_below_is_rebuilt(toys):
    """Its job is waited for, whoever submitted it: the base's module goes, or stays the old one, until it has ended."""
    go = toys.directory / 'go'
    go.touch()
    base = toys.write('base', commands=[WAIT.format(file=go)])
    middle = toys.write('middle', after=['base'])
    assert len(toys.submit(middle)) == 2
    toys.wait_for_end()
    go.unlink()
    toys.run(base, '--job', '--rebuild')
    output = toys.run(toys.write('top', after=['middle']), '--robot=%s' % toys.directory, '--job')
    assert 'top/1.0-Derecho is job 4.pbs, after 3.pbs' in output, output
    # in one call EasyBuild sorts them with --robot only; each entry of an easystack is a call of its own
    output = toys.run(middle, base, '--job', '--rebuild')
    assert re.search(r'middle/1.0-Derecho is job (\d+).pbs, after (?!\1)\d+.pbs\n', output), output
    stack = toys.directory / 'both.yaml'
    stack.write_text('easyconfigs:\n  - %s\n  - %s\n' % (base.name, middle.name))
    output = toys.run('--easystack=%s' % stack, '--robot=%s' % toys.directory, '--job', '--rebuild')
    assert re.search(r'middle/1.0-Derecho is job \d+.pbs, after \d+.pbs\n', output), output
    go.touch()
    found = toys.wait_for_end()
    assert 'done' in found['middle/1.0-Derecho'] and toys.module('middle').exists(), found


def test_after_qdel(eb, tmp_path):
    """A job that was deleted runs until its shell has ended: that is waited for, and another job does the same."""
    with Pbs(tmp_path / 'pbs', kill_delay=10) as pbs:
        toys = Toys(eb, tmp_path, 'Derecho', dict(pbs.environment, PBS_ACCOUNT='NCAR0001'))
        busy = toys.directory / 'busy'
        # the job's shell is the first process of its session
        stop = 'kill -STOP "$(cut -d " " -f 6 /proc/$$/stat)"; touch %s; sleep 600' % busy
        easyconfig = toys.write('toy', commands=[stop])
        assert toys.submit(easyconfig) == ['1.pbs']
        wait_for(busy.exists, "the toy's command")
        subprocess.run(['qdel', '1.pbs'], env=dict(os.environ, **pbs.environment), check=True)
        assert pbs.job('1')['job_state'] == 'R'
        assert toys.submit(easyconfig) == ['2.pbs']
        assert pbs.job('1')['job_state'] == 'F'


@pytest.mark.nightly
def test_lost_answer(toys, pbs):
    """The server took the job and the connection broke: found in the queue, or not known and found the next time."""
    easyconfig = toys.write('toy', commands=[WAIT.format(file=toys.directory / 'go')])
    pbs.lose('qsub', 1)
    assert toys.submit(easyconfig) == ['1.pbs']
    other = toys.write('other', commands=[WAIT.format(file=toys.directory / 'go')])
    pbs.lose('qsub', 1)
    # the first two ask whether there is a server, and one already
    pbs.fail_after('qselect', 2)
    output = toys.refused(other)
    assert 'Could not determine whether other-1.0-Derecho was queued' in output
    assert 'no job was submitted' not in output
    (pbs.directory / 'last-qselect').unlink()
    assert toys.submit(other) == ['2.pbs'] and len(pbs.jobs()) == 2
    toys.wait(lambda found: all('  running' in text for text in found.values()), "start of the jobs")
    (toys.directory / 'go').touch()
    assert all('  done' in text for text in toys.wait_for_end().values())


@pytest.fixture
def cached(pbs):
    """NCAR's own qstat in front of PBS's, with data that are as old as the first call."""
    where = pbs.directory / 'cache'
    shutil.copytree(Path(importlib.util.find_spec('qscache').origin or
                         list(importlib.util.find_spec('qscache').submodule_search_locations)[0] + '/x').parent,
                    where / 'qscache')
    real = pbs.directory / 'real-qstat'
    (pbs.directory / 'bin/qstat').rename(real)
    (where / 'qscache/cfg/site.cfg').write_text(
        '[paths]\nTemp = %s/temp\nData = %s/data\n[pbs]\nQstat = %s\nPrefix = env\n[filters]\n[filter_help]\n'
        '[servermap]\nsite = pbs\n[history]\nFrequency = 60\n' % (where, where, real))
    start = '#!/bin/sh\nPYTHONPATH=%s exec %s -c "%%s" "$@"\n' % (where, sys.executable)
    (pbs.directory / 'bin/qstat').write_text(start % 'import sys; from qscache.qscache import main; sys.exit(main())')
    (pbs.directory / 'bin/gen_data').write_text(start % 'from qscache.gen_data import main; main()')
    for name in ('qstat', 'gen_data'):
        (pbs.directory / 'bin' / name).chmod(0o755)
    for history in ([], ['--history']):
        subprocess.run(['gen_data'] + history, env=dict(os.environ, **pbs.environment), check=True)
    return pbs


def test_qstat_is_a_cache(toys, cached):
    """A job that is younger than the cache is not submitted again, nor its lock taken."""
    environment = dict(os.environ, **cached.environment)
    easyconfig = toys.write('toy', commands=[WAIT.format(file=toys.directory / 'go')])
    assert toys.submit(easyconfig) == ['1.pbs']
    asked = subprocess.run(['qstat', '-x', '-f', '1.pbs'], env=environment, stdout=subprocess.PIPE, text=True)
    assert asked.stdout == 'qstat: Unknown Job Id 1.pbs\n', "the cache is not in the way"
    assert toys.submit(easyconfig) == ['1.pbs'] and len(cached.jobs()) == 1
    toys.wait(lambda found: '  running' in found['toy/1.0-Derecho'], "start of the job")
    # a cache that does not let itself be bypassed: nobody knows, so nothing is done
    qstat = cached.directory / 'bin/qstat'
    qstat.write_text(qstat.read_text().replace('PYTHONPATH=', 'unset QSCACHE_BYPASS; PYTHONPATH='))
    # what is in the queue is found by its mark as long as qselect is PBS's own
    with_lock = toys.run(easyconfig, '--try-amend=description=again', status=None)
    assert 'removing the stale lock' not in with_lock
    output = toys.refused(easyconfig)
    assert 'submitted before as job 1.pbs' in output and len(cached.jobs()) == 1
    assert '  unknown (' in toys.status()['toy/1.0-Derecho']


@pytest.mark.nightly
def test_daemon_dies_and_job_lives(toys, pbs):
    """A node loses its daemon, and the job on it builds on: the one that is started elsewhere waits for its end."""
    turns, go = toys.directory / 'turns', toys.directory / 'go'
    easyconfig = toys.write('toy', commands=[
        'until [ -e %s ]; do echo $HPC_JOB_TURN >> %s; sleep 0.1; done' % (go, turns)])
    toys.submit(easyconfig)
    wait_for(turns.exists, "start of the job", 240)
    pbs.node_down('deg0001', lives_on=True)
    wait_for(lambda: len(set(turns.read_text().split())) == 2, "second start", 240)
    go.touch()
    assert '  done' in toys.wait_for_end()['toy/1.0-Derecho']
    found = turns.read_text().split()
    assert found == sorted(found, key=found.index), "both were building"
    assert pbs.job('1')['run_count'] == 2


def test_awkward_names(toys, pbs, eb):
    """A directory that EasyBuild would not quote is refused; the command that is printed shows these jobs."""
    directory = toys.directory
    for name in ("it's a:b here", 'für', '100%j'):
        toys.directory = directory / name
        toys.directory.mkdir()
        found = 'only ASCII letters, digits and @+=:,./-_, found %s' % toys.directory
        assert found in toys.refused(toys.write('toy'))
    # of the easyconfig alone, whose path EasyBuild writes into the job
    for name in ('R&D', 'a b'):
        toys.directory = directory / name
        toys.directory.mkdir()
        easyconfig = toys.write('toy')
        toys.directory = directory
        assert 'Nothing was submitted; rename its directory' in toys.refused(easyconfig)
    toys.directory = directory / 'a:b'
    toys.directory.mkdir()
    output = toys.run(toys.write('toy'), '--robot=%s' % toys.directory.as_posix(), '--job')
    command = re.search(r'To see their status: (.*)', output).group(1)
    toys.wait_for_end()
    shown = subprocess.run(['bash', '-c', command], env=dict(clean_environment(), **toys.environment), text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd='/').stdout
    assert 'toy/1.0-Derecho  job 1.pbs  done' in shown, shown
    # qsub would take what stands before a colon in -o for a host
    toys.eb.prefix = Path('%s:b' % toys.eb.prefix)
    assert 'Choose another with --prefix' in toys.refused(toys.write('other'))


def test_jobs_of_an_easyconfig(toys, pbs):
    """--job-status shows its job and those before it, also when they were deleted."""
    wait = [WAIT.format(file=toys.directory / 'go')]
    toys.write('base', commands=wait)
    top = toys.write('top', after=['base'])
    other = toys.write('other', commands=wait)
    toys.submit(other)
    toys.submit(top)
    assert pbs.jobs()['3.pbs']['depend'] == 'afterok:2.pbs@pbs'
    for name in (top, 'top-1.0-Derecho', 'top/1.0-Derecho'):
        shown = toys.run('--job-status', name)
        assert 'base/1.0-Derecho' in shown and 'top/1.0-Derecho' in shown and 'other/' not in shown
    # why it is held, which PBS's own comment does not tell
    assert 'waiting (H, Dependency)\n    it starts when the jobs that it depends on have succeeded' in shown
    pbs.delete('3')
    pbs.delete('2')
    wait_for(lambda: pbs.job('2')['job_state'] == pbs.job('3')['job_state'] == 'F', "end of the jobs")
    assert pbs.job('1')['job_state'] != 'F'
    subprocess.run(['qdel', '-W', 'force', '1.pbs'], env=dict(os.environ, **pbs.environment), check=True)
    wait_for(lambda: pbs.job('1')['job_state'] == 'F', "end of the job")
    # its exit status is 265, and nobody is named
    assert re.search(r'^    somebody deleted it\n', toys.run('--job-status', other), re.M)
    (toys.directory / 'go').touch()
    # whoever installed it
    toys.module('base').parent.mkdir(parents=True, exist_ok=True)
    toys.module('base').touch()
    shown = toys.run('--job-status', top)
    assert re.search(r'base/1.0-Derecho  job 2.pbs  done \(.*but the module is installed by now', shown), shown
    assert re.search('top/1.0-Derecho  job 3.pbs  cancelled', shown), shown


@pytest.mark.nightly
def test_no_history(toys, pbs):
    """A server that keeps no history (job_history_enable false): a job's own files tell how it ended."""
    pbs.keep_history(False)
    easyconfig = toys.write('toy')
    toys.submit(easyconfig)
    assert '  done (exit status 0' in toys.wait_for_end()['toy/1.0-Derecho']
    # one that was deleted has written none
    other = toys.write('other', commands=[WAIT.format(file=toys.directory / 'go')])
    job, = toys.submit(other)
    pbs.delete(job)
    wait_for(lambda: pbs.job(job)['job_state'] == 'F', "end of the job")
    record = toys.eb.prefix / 'software/.jobs/other-1.0-Derecho.json'
    record.write_text(re.sub(r'"time": \d+', '"time": 1000000000', record.read_text()))
    assert '  failed (forgotten, ' in toys.status()['other/1.0-Derecho']
    (toys.directory / 'go').touch()
    assert toys.submit(other) != [job]
    assert '  done' in toys.wait_for_end()['other/1.0-Derecho']
    # no server: neither history nor the job itself was asked for
    pbs.fail('qstat', 1)
    assert '  unknown (' in toys.run('--job-status', other)
    assert 'Removed toy/1.0-Derecho' in toys.run('--uninstall', 'toy/1.0-Derecho')


def test_held(toys, pbs):
    """A job that waits for another one, and is held by its user or an operator as well."""
    toys.write('base', commands=[WAIT.format(file=toys.directory / 'go')])
    base, top = toys.submit(toys.write('top', after=['base']))
    for types, expected in (('u', 'waiting (H, Hold_Types = su)\n    it is held: qrls %s\n' % top),
                            ('o', 'waiting (H, Hold_Types = sou)\n    the batch system or an operator holds it')):
        subprocess.run(['qhold', '-h', types, top], env=dict(os.environ, **pbs.environment), check=True)
        shown = toys.run('--job-status', toys.directory / 'top-1.0-Derecho.eb')
        assert expected in shown, shown
    subprocess.run(['qrls', '-h', 'uo', top], env=dict(os.environ, **pbs.environment), check=True)
    assert 'waiting (H, Dependency)' in toys.run('--job-status', toys.directory / 'top-1.0-Derecho.eb')
    pbs.hide()
    shown = toys.run('--job-status', toys.directory / 'top-1.0-Derecho.eb')
    assert "unknown (qstat: nothing: servers may hide other people's jobs)" in shown, shown
    pbs.delete(top)
    pbs.delete(base)


def test_forgotten_dependency(toys, pbs):
    """A server that was killed no longer knows who waits for a job that has succeeded, and holds it (OpenPBS 23.06)."""
    toys.write('base')
    top = toys.write('top', after=['base'])
    held = toys.submit(top)[-1]
    subprocess.run(['qhold', '-h', 's', held], env=dict(os.environ, **pbs.environment), check=True)
    wait_for(lambda: '  done (' in toys.status()['base/1.0-Derecho'], "end of the first job")
    shown = toys.run('--job-status', top)
    assert 'waiting (H, Dependency)\n    the jobs that it depends on have ended' in shown, shown
    assert 'cancel job %s, and submit again' % held in shown, shown
    pbs.delete(held)


@pytest.mark.nightly
def test_moved_and_old(toys, pbs):
    """A job that PBS has moved to another server is in nobody's hands; old records are shown, too."""
    easyconfig = toys.write('toy', commands=[WAIT.format(file=toys.directory / 'go')])
    toys.submit(easyconfig)
    pbs.move('1')
    assert '  unknown (M, moved to another server' in toys.status()['toy/1.0-Derecho']
    assert 'If you know that it has ended, remove' in toys.refused(easyconfig)
    pbs.move('1', back=True)
    (toys.directory / 'go').touch()
    toys.wait_for_end()
    record, = (toys.eb.prefix / 'software/.jobs').glob('*.json')
    record.write_text(re.sub(r'"time": \d+', '"time": 1000000000', record.read_text()))
    assert 'toy/1.0-Derecho  job 1.pbs  done' in toys.run('--system=derecho', '--job-status')


# --- EasyBuild from elsewhere ---------------------------------------------------------------------------------------

def from_pip(directory):
    """`pip install .` beside EasyBuild; returns the command and what it needs in its environment."""
    environment = directory / 'venv'
    subprocess.run([str(CHECKOUT / 'hpc_pytorch/environments/make-environment'), str(environment),
                    str(CHECKOUT / 'hpc_pytorch/environments/eb.txt')], env=clean_environment(), check=True,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    source = directory / 'source'
    shutil.copytree(CHECKOUT, source, ignore=shutil.ignore_patterns('.git', '.venv*', '.local', 'build', '__pycache__'))
    subprocess.run([sys.executable, '-m', 'build', '--no-isolation', '--wheel', '--outdir', directory, source],
                   env=clean_environment(), check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wheel, = directory.glob('*.whl')
    # with Rich, which many have beside EasyBuild, it folds its lines
    for words in ['--no-index', wheel], ['rich']:
        subprocess.run([environment / 'bin/python', '-m', 'pip', 'install', '--quiet', *words],
                       env=clean_environment(), check=True, stdin=subprocess.DEVNULL)
    package, = environment.glob('lib/python3*/site-packages/hpc_pytorch')
    return environment / 'bin/eb', {'EB_PYTHON': str(environment / 'bin/python')}, package


def from_module(directory):
    """The site's own module: a tree on $PATH and $PYTHONPATH, and behind it the collection's checkout."""
    tree = directory / 'EasyBuild'
    site, = (CHECKOUT / '.venv').glob('lib/python3*/site-packages')
    shutil.copytree(site / 'easybuild', tree / 'lib/easybuild', ignore=shutil.ignore_patterns('__pycache__'))
    shutil.copytree(CHECKOUT / '.venv/easybuild/scripts', tree / 'easybuild/scripts')
    (tree / 'bin').mkdir()
    shutil.copy(CHECKOUT / '.venv/bin/eb', tree / 'bin/eb')
    return tree / 'bin/eb', {'PYTHONPATH': '%s:%s' % (tree / 'lib', CHECKOUT / '.venv/collection'),
                             'EB_PYTHON': shutil.which('python3', path='/usr/bin')}, CHECKOUT


@pytest.mark.nightly
@pytest.mark.parametrize('place', [from_pip, from_module])
def test_eb_from_elsewhere(place, toys, pbs):
    """Plain eb, from pip or from the site's module: backend and hooks work, and jobs find the same eb."""
    command, environment, top = place(toys.directory)
    where = toys.directory / 'where.cfg'
    where.write_text('[DEFAULT]\nCOLLECTION = %s\n' % top)
    modules = stand_in('derecho-2024')
    environment.update(
        EASYBUILD_CONFIGFILES='%s,%s' % (top / 'systems/derecho/easybuild.cfg', where),
        EASYBUILD_HOOKS=str(top / 'hooks/hpc_pytorch_hooks.py'), EASYBUILD_MODULES_TOOL='Lmod',
        LMOD_CMD=LMOD, MODULEPATH=str(modules), PATH='%s:%s' % (
            command.parent, pbs.environment['PATH']), EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES='1')
    easyconfig = toys.write('toy', modules=['ncarenv/23.09', 'cuda/12.2.1'])
    eb = EB(toys.directory / 'prefix', command=['eb'])
    output = eb(easyconfig, '--job', env=dict(environment, PBS_ACCOUNT=''), status=None).stdout
    assert 'export PBS_ACCOUNT=PROJECT' in output
    output = eb(easyconfig, '--job', env=dict(environment, PBS_ACCOUNT='NCAR0001', COLUMNS='80')).stdout
    assert '== toy/1.0-Derecho is job 1.pbs' in output
    # half of it would ask about another prefix
    shown = re.search(r'status: (\S+ -m hpc_pytorch\.jobs\.status .*)', output).group(1)
    assert shown.endswith(' --installpath=%s' % eb.prefix)
    deadline = time.monotonic() + 120
    while pbs.job('1')['job_state'] != 'F':
        assert time.monotonic() < deadline
        time.sleep(0.1)
    log = (toys.directory / 'toy-1.0-Derecho-1.pbs.out').read_text()
    assert pbs.job('1')['Exit_status'] == 0, log
    done = subprocess.run(shlex.split(shown), env=dict(clean_environment(), **environment), check=True, text=True,
                          stdout=subprocess.PIPE)
    assert 'toy/1.0-Derecho  job 1.pbs  done (' in done.stdout, done.stdout
    # what our hooks say at the end
    assert 'module load toy/1.0-Derecho' in log
    assert (toys.eb.prefix / 'software/toy/1.0-Derecho/easybuild/provenance/provenance.json').exists()
