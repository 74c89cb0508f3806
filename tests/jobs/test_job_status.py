"""./eb --job-status where the batch system says little: what a job's own files, and the jobs before it, still tell."""
import json
import shlex
import subprocess

import pytest
from common import CHECKOUT

from hpc_pytorch import parse
from hpc_pytorch.share.batch_scripts import first_that_fits

# describes a record, whatever is given on the command line of it, in a directory
PROGRAM = """
import json, sys, time
from types import SimpleNamespace
from hpc_pytorch.jobs import status
from hpc_pytorch.machine.batch_systems import Look
place, given, state = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
status.module_directory = lambda: place + '/modules/all'
status.files_of = lambda record: place + '/toy.token'
status.mark_of = lambda name: 'mark'
look = Look(state, 'CANCELLED', '') if state else None
status.SCHEDULERS['pbs'] = SimpleNamespace(look=lambda job: look, find=lambda name, mark: [], forgets_after=300)
record = dict(name='toy', module='toy/1.0', token='token', scheduler='pbs', job='7', after=[],
              time=int(time.time()) - 3600, log=place + '/toy-{job}.out')
record.update(given)
look = status.state_of(record)
print(status.describe(record, look, {record['job']: (record['module'], look)}))
"""


@pytest.fixture
def described(tmp_path):
    """What is printed of a job of an hour ago that the batch system does not know, or of which it says little."""
    (tmp_path / 'modules/all/toy').mkdir(parents=True)

    def run(state='', **record):
        return subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', PROGRAM, tmp_path, json.dumps(record), state],
                              cwd=CHECKOUT, check=True, text=True, stdout=subprocess.PIPE, timeout=100).stdout
    return run


def test_forgotten(described, tmp_path):
    """A batch system without history: one line why, and one on what to look at, which only a job that began has."""
    text = described()
    assert 'cancelled (forgotten' in text and 'it never began' in text and 'somebody deleted it' in text
    assert 'somebody deleted it, or a job failed that it depended on; submit again' in described(after=['6'])
    (tmp_path / 'toy-7.out').write_text('== building\n')
    text = described(log=str(tmp_path / 'toy-7.out'))
    assert 'failed (forgotten' in text and 'cause: the batch system keeps no record of it' in text
    assert 'what to do: look at the end of its log' in text


def test_full_disk(described, tmp_path):
    """The job could not write its status, and the module is there: it is done. Without the module it has failed."""
    (tmp_path / 'toy.token.ended').touch()
    (tmp_path / 'toy.token.out').touch()
    assert 'failed (forgotten' in described()
    (tmp_path / 'modules/all/toy/1.0.lua').touch()
    assert 'done (forgotten, but the module is installed by now)' in described()


def test_interrupted_submission(described):
    """Nothing of it is in the queue: unknown at first, as it may still come, and then no job at all; it has no log."""
    text = described(job=None)
    assert 'failed (not submitted, the submission was interrupted: submit again)' in text and '{job}' not in text
    assert 'unknown (not submitted' in described(job=None, time=2 ** 40)


def test_cancelled(described):
    """Of a job that it depended on nothing is known any more: perhaps nobody deleted this one."""
    assert described('cancelled').endswith('    somebody deleted it\n')
    assert 'somebody deleted it, or a job failed that it depended on' in described('cancelled', after=['6'])


def test_log_of_others(described, tmp_path):
    """The job's own log cannot be read: the error in EasyBuild's, which ends with what it tidied up."""
    log = tmp_path / 'toy.token.failed/toy-1.0/1/easybuild.log'
    log.parent.mkdir(parents=True)
    log.write_text('== 2026-11-26 build_log.py:233 ERROR EasyBuild encountered an error: no room\n'
                   + '== 2026-11-26 filetools.py:434 INFO Lock removed\n' * 3)
    text = described('failed')
    assert 'encountered an error: no room' in text and 'INFO' not in text


def test_check_that_failed(described, tmp_path):
    """EasyBuild's error begins with what the check found in order: the probe that failed is named, too, and once."""
    text = 'ERROR: Sanity check failed: pytorch-check (output: import   works: PyTorch\nmpi      FAILS: status 1:\n'
    log = tmp_path / 'toy.token.failed/toy-1.0/1/easybuild.log'
    log.parent.mkdir(parents=True)
    for path in (tmp_path / 'log', log):
        path.write_text(text + 'srun: error\ncompile  works\n' * 3)
    said = described('failed', log=str(tmp_path / 'log'))
    assert said.count('    ERROR: Sanity') == said.count('    mpi      FAILS: status 1:') == 1


# shows what it finds in a prefix
SHOW = """
import sys
from hpc_pytorch.jobs import records, status
records.install_path = status.install_path = lambda kind: '%s/%s' % (sys.argv[1], kind)
status.state_of = lambda record: status.Look('done', '', '')
status.show_jobs([])
"""


def test_any_age(tmp_path):
    """Records of months ago, or of a clock that is ahead, are shown and stay."""
    jobs = tmp_path / 'software/.jobs'
    jobs.mkdir(parents=True)
    for name, when in (('old', 10 ** 9), ('ahead', 2 ** 40)):
        record = dict(name=name, module=name, token='t', scheduler='pbs', log='/nowhere', easyconfig='x.eb', time=when,
                      after=[], job='7')
        (jobs / (name + '.json')).write_text(json.dumps(record))
    said = subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', SHOW, tmp_path], cwd=CHECKOUT, check=True,
                          text=True, stdout=subprocess.PIPE, timeout=100).stdout
    assert [line.split('  ')[0] for line in said.splitlines()] == ['old', 'ahead'], said
    assert len(list(jobs.iterdir())) == 2


def test_command_of_plain_eb(tmp_path):
    """What plain eb prints works in a shell whose python3 does not have the collection."""
    environment = {'PATH': '/usr/bin:/bin', 'PYTHONPATH': str(CHECKOUT), 'EASYBUILD_PREFIX': str(tmp_path),
                   'EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES': '1'}
    program = 'from hpc_pytorch.jobs import status; print(status.status_command())'
    command = [str(CHECKOUT / '.venv/bin/python'), '-c', program]
    for _ in range(2):
        output = subprocess.run(command, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout
        command = shlex.split(output)
    assert 'No jobs were submitted in %s/software' % tmp_path in output, output


def test_refused_by_a_policy():
    """As where a partition takes only jobs with GPUs, which Slurm does not say."""
    said = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    remedy = first_that_fits(parse(CHECKOUT / 'hpc_pytorch/jobs/states.cfg'), 'refused: ', said)['remedy']
    assert 'walltime=' in remedy and '--job-target-resource=gpus=1' in remedy
