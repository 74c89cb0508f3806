"""Each system's easystack has all that the collection has for it, and ./eb takes it."""
import re
from pathlib import Path

import pytest
from batch_systems.real_slurm import Slurm
from common import CHECKOUT, needs_root, nightly

from hpc_pytorch.machine import systems

EASYSTACKS = sorted(CHECKOUT.glob('systems/*/easystack*.yaml'))


def listed(path):
    """The easyconfigs of an easystack."""
    head, *names = [line for line in path.read_text().splitlines() if not line.startswith('#')]
    assert head == 'easyconfigs:'
    return [re.match(r'  - (\S+\.eb)$', name).group(1) for name in names]


@pytest.mark.parametrize('name', systems.names())
def test_have_all(name):
    """Every easyconfig of the system is in one: that for today's machine, or that for the machine of another year."""
    system = systems.load(name)
    expected = {path.name for path in CHECKOUT.glob('easyconfigs/*/*/*.eb') if systems.is_for(path.name, system)}
    assert Path(system.directory, 'easystack.yaml') in EASYSTACKS
    found = [easyconfig for path in EASYSTACKS if path.parent.name == name for easyconfig in listed(path)]
    assert len(found) == len(set(found)) and set(found) == expected


@pytest.mark.parametrize('path', EASYSTACKS, ids=str)
def test_order(path):
    """With --rebuild --job, only what is listed later waits for the job of what it depends on."""
    names = listed(path)
    for place, name in enumerate(names):
        text = next(CHECKOUT.glob('easyconfigs/*/*/' + name)).read_text()
        needed = ['%s-%s%s.eb' % found for found in re.findall(r"\('([\w.+-]+)', '([^']+)'(?:, '([^']*)')?\),", text)]
        assert not set(needed) & set(names[place:]), name


@pytest.mark.slow
@pytest.mark.parametrize('path', [path if path.stem == 'easystack' else nightly(path) for path in EASYSTACKS],
                         ids=lambda path: '%s-%s' % (path.parent.name, path.stem))
def test_modules_are_those_of_its_time(eb, on_arm, path):
    """A dry run on the stand-in finds all modules that the easyconfigs load, on an Arm machine, too."""
    words = ('--rehearse', '--easystack=%s' % path, '--dry-run', '--robot')
    output = eb(*words, env=on_arm).stdout
    for easyconfig in listed(path):
        assert re.search(r'\[ \] \S*/%s ' % re.escape(easyconfig), output), output


@pytest.mark.slow
def test_two_easyconfigs_as_jobs(toys, tmp_path):
    """One file, one job for each module, in the right order; a second call submits nothing twice."""
    needs_root()
    toys.write('first', commands=['true'])
    toys.write('second', after=['first'])
    stack = tmp_path / 'both.yaml'
    stack.write_text('easyconfigs:\n  - second-1.0-ARCHER2.eb\n  - first-1.0-ARCHER2.eb\n')
    with Slurm(tmp_path / 'slurm', nodes=1, cpus=128, memory=524288, partitions=('standard',)) as slurm:
        toys.environment = dict(slurm.environment, SBATCH_ACCOUNT='project')
        words = ('--easystack=%s' % stack, '--robot=%s' % tmp_path, '--job')
        output = toys.run(*words)
        jobs = re.findall(r'^== (\S+) is job (\S+?)(?:,| already|$)', output, re.M)
        assert [module.split('/')[0] for module, _ in jobs][:2] == ['first', 'second'] and len(set(jobs)) == 2, output
        found = toys.wait_for_end()
        assert all('  done' in text.split('\n')[0] or 'installed' in text for text in found.values()), found
    assert toys.module('second').exists()
