"""
./eb --survey beside a batch system, and in its jobs: the tests' real Slurm, and the stand-in of PBS.

Of machine/survey.py and new_system.py, which test_survey.py tests without a batch system; and of
batch_systems/compute_node.py. Commands of Slurm are there beside those of PBS, and have no answer.
"""
import os
import re
import subprocess

import pytest

from batch_systems.pbs_stand_in import Pbs
from batch_systems.real_slurm import Slurm, wait_for
from common import CHECKOUT, clean_environment, needs_root
from hpc_pytorch.machine import inspection, new_system, survey, systems

pytestmark = pytest.mark.slow

LOGIN = ('batch system', 'partitions', 'whole nodes')


@pytest.fixture(scope='module')
def slurm(tmp_path_factory):
    """One node that says it is ARCHER2's."""
    needs_root()
    with Slurm(tmp_path_factory.mktemp('slurm') / 's', nodes=1, cpus=256, memory=262144, partitions=('standard', 'gpu'),
               exclusive=('standard',)) as running:
        yield running


def surveyed(system, path, *words, **environ):
    """What ./eb prints, and the findings by their names, if it wrote them."""
    done = subprocess.run([str(CHECKOUT / 'eb'), '--system', system, '--survey', str(path), *words], text=True,
                          env=dict(clean_environment(), **environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert 'Traceback' not in done.stdout, done.stdout
    return done.stdout, findings(path) if path.exists() else None


def findings(path):
    """What a survey has written: {name: (result, what was found)}."""
    return {name: (result, found) for result, name, found in re.findall(
        r'^(same|differs|not asked|noted) +(\S.*?)  +(.*)$', path.read_text(), re.M)}


def seen_by_job(path, kind):
    """A job's answer: its table, and what is otherwise there than on the login node."""
    table = path.read_text()
    assert ', in a job (' in table and 'differ' in table.splitlines()[-1], table
    found = findings(path)
    assert found['batch system'] == ('same', kind)
    # the tests' machine, whatever the batch system says of it
    assert int(found['cores'][1].split(',')[0]) <= os.cpu_count() and found['memory'][0] != 'not asked'
    assert found['partitions'] == ('not asked', 'only on login nodes')
    return found


def test_slurm(slurm, tmp_path):
    """On the login node, where nothing that Slurm says is otherwise; and in a job, which asks what others cannot."""
    _, found = surveyed('archer2', tmp_path / 'login.txt', **slurm.environment)
    assert not [name for name in LOGIN if found[name][0] != 'same'], found
    assert found['cores'][1] == 'only in jobs: --job'
    path = tmp_path / 'in a job.txt'
    said, _ = surveyed('archer2', path, '--job', SBATCH_ACCOUNT='x01', **slurm.environment)
    assert 'will write %s\n' % path in said
    wait_for(lambda: not slurm.output('squeue', '-h'), "end of the survey's job", 300)
    assert seen_by_job(path, 'slurm')['paths in jobs'][0] == 'same'


@pytest.mark.parametrize('name, where, old, new', [
    ('whole nodes', 'slurm', 'oversubscribe=exclusive', 'oversubscribe=no'),
    ('partitions', 'system', 'partition = standard', 'partition = normal'),
    ('partitions', 'system', 'partition = standard', 'partition = standard\nbuild_partition = serial'),
])
def test_planted_in_slurm(slurm, tmp_path, name, where, old, new):
    """Something is otherwise in Slurm, or we believe something else: this is found, and nothing besides."""
    text = (CHECKOUT / 'systems/archer2/system.cfg').read_text()
    assert where == 'slurm' or old in text
    (tmp_path / 'system.cfg').write_text(text.replace(old, new, 1))
    machine = inspection.Machine(systems.load_file(str(tmp_path / 'system.cfg')),
                             environ=dict(clean_environment(), **slurm.environment))
    if where == 'slurm':
        slurm.output('scontrol', 'update', 'partitionname=standard', new)
    try:
        found = [survey.ask(probe, machine) for probe in inspection.PROBES if probe.name in LOGIN]
    finally:
        if where == 'slurm':
            slurm.output('scontrol', 'update', 'partitionname=standard', old)
    # nothing can be asked about a partition that is not there
    wrong = [one.name for one in found if one.result == 'differs']
    assert wrong == [name], found
    assert name == 'partitions' or not [one for one in found if one.result == 'not asked'], found


def test_pbs(tmp_path):
    """The same with qstat and qsub."""
    with Pbs(tmp_path / 'pbs', accounts=['NCAR0001'], queues={'main': 12 * 3600}) as pbs:
        _, found = surveyed('derecho', tmp_path / 'login.txt', **pbs.environment)
        assert found['partitions'][0] == 'same'
        path = tmp_path / 'job.txt'
        said, _ = surveyed('derecho', path, '--job', PBS_ACCOUNT='NCAR0001', **pbs.environment)
        assert 'Job 1.pbs will write' in said
        wait_for(lambda: pbs.job(1)['job_state'] == 'F', "end of the survey's job", 300)
        seen_by_job(path, 'pbs')
    # queues of another machine
    with Pbs(tmp_path / 'other', queues={'workq': 3600}) as pbs:
        _, found = surveyed('derecho', tmp_path / 'login.txt', **pbs.environment)
        assert found['partitions'][0] == 'differs' and found['partitions'][1].startswith('workq, expected')


def test_draft_from_slurm(slurm, tmp_path):
    """The batch system's part of a description, as Slurm says it; it fits the schema."""
    machine = inspection.Machine(systems.load('workstation'), environ=dict(clean_environment(), **slurm.environment))
    (tmp_path / 'system.cfg').write_text(new_system.system_text('eighth', new_system.describe('eighth', machine, [])))
    drafted = systems.load_file(str(tmp_path / 'system.cfg'))
    assert drafted.scheduler['kind'] == 'slurm' and drafted.scheduler['partition'] in ('standard', 'gpu')
    threads = drafted.node['cores'] * drafted.node['threads_per_core']
    assert (threads, drafted.node['memory'], drafted.node['gpus']) == (256, 256 << 30, 0)
    # in a job, of its own node
    everywhere = machine.partitions()
    machine.environ['SLURMD_NODENAME'] = slurm.output('sinfo', '--noheader', '--format=%N').split()[0]
    assert machine.partitions() == everywhere
