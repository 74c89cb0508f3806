"""
Chains of three under random faults: submissions are killed, answers get lost, nodes and their daemons die, jobs are
deleted, the file system of the prefix and of the logs has no room, or no files, left. Whoever types the same again has
every module at the end, built by one job at a time and never again.

On the PBS stand-in and on a real Slurm, whose controller dies, too. One chain of each in ./test nightly, whose seed a
failure shows; for longer:
HPC_FAULTS_SECONDS=3600 HPC_FAULTS_SEED=1 ./test nightly tests/jobs/test_random_faults.py -s
$HPC_PBS_PREFIX: a real PBS in the place of the stand-in (batch_systems/real_pbs.py).
"""
import contextlib
import os
import random
import signal
import subprocess
import time

import pytest
from common import FOR_ROOT, stand_in
from attacks.test_disk import Disk
from batch_systems.faulty_slurm import FaultySlurm
from batch_systems.pbs_stand_in import Failed, Pbs
from batch_systems.real_pbs import FaultyPbs
from small_software import Toys, site

pytestmark = [pytest.mark.slow, pytest.mark.nightly, FOR_ROOT]
SECONDS = float(os.environ.get('HPC_FAULTS_SECONDS', '0'))
SEED = int(os.environ.get('HPC_FAULTS_SEED', '0')) or random.randrange(1, 10 ** 6)
# what is installed is small, too
SMALL_DISK = '[policy]\nfree_space = allow\n'
MODULES = ('base', 'middle', 'top')


class Chain:
    """One chain in a prefix of its own, and the faults that it meets."""

    def __init__(self, toys, system, disk, chance):
        self.toys, self.system, self.disk, self.chance = toys, system, disk, chance
        self.story = disk.place.with_name('story')
        for before, name in zip((None,) + MODULES, MODULES):
            # what a build tells: who, and whether the module was there already
            line = 'if [ -e %s ]; then echo again %s; fi >> %s; echo %%s %s $HPC_JOB_TURN >> %s' % (
                toys.module(name), name, self.story, name, self.story)
            self.top = toys.write(name, after=[before] if before else [], commands=[
                line % 'begin', 'sleep %.1f' % chance.uniform(0, 3), line % 'end'])

    def submit(self):
        """What a user types; killed at some time, or the disk is full from then on, or neither."""
        call = self.toys.eb.started('--rehearse', self.top, '--robot=%s' % self.toys.directory, '--job',
                                    cwd=self.toys.directory, env=self.toys.environment)
        number = self.chance.choice([None, None, None, 'disk', signal.SIGKILL, signal.SIGHUP])
        if number:
            with contextlib.suppress(subprocess.TimeoutExpired):
                call.wait(self.chance.uniform(1, 10))
        if number == 'disk':
            self.fill()
        elif number:
            # it may have ended just now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(call.pid, number)
        output = call.communicate()[0]
        self.disk.mend()
        assert 'Traceback' not in output, output

    def fill(self):
        """No room, or no more files."""
        self.chance.choice([self.disk.fill, self.disk.crowd])(self.chance)

    def fault(self):
        """Something happens."""
        kinds = ['lose', 'fail', 'node', 'daemon', 'delete', 'disk', 'nothing']
        if not isinstance(self.system, Pbs):
            kinds.append('controller')
        kind = self.chance.choice(kinds)
        print('   ', kind, end='')
        if kind in ('lose', 'fail'):
            getattr(self.system, kind)(self.chance.choice(self.system.commands), 1)
        elif kind == 'controller':
            self.system.restart_controller()
        elif kind in ('node', 'daemon'):
            node = self.chance.choice(self.system.settings['nodes'])
            self.system.node_down(node, lives_on=kind == 'daemon')
            self.system.node_up(node)
        elif kind == 'disk':
            self.fill()
            time.sleep(self.chance.uniform(0, 8))
            self.disk.mend()
        elif kind == 'delete':
            jobs = [job for job, facts in self.system.jobs().items() if facts['job_state'] != 'F']
            with contextlib.suppress(Failed):
                if jobs:
                    self.system.delete(self.chance.choice(jobs))

    def run(self):
        """Until the chain is there."""
        for attempt in range(20):
            self.submit()
            while any(job['job_state'] not in 'FM' for job in self.system.jobs().values()):
                if attempt < 6 and self.chance.random() < 0.2:
                    self.fault()
                time.sleep(self.chance.uniform(0, 2))
            if self.toys.module('top').exists():
                return
        raise AssertionError("not there after 20 attempts: %s" % self.toys.status())

    def check(self):
        """One at a time, and never again."""
        builders = {}
        for word, name, *turn in (line.split() for line in self.story.read_text().splitlines()):
            assert word != 'again', "%s was there, and was built again" % name
            seen = builders.setdefault(name, [])
            assert turn[0] not in seen[:-1], "two jobs built %s at the same time" % name
            if turn[0] not in seen:
                seen.append(turn[0])
        assert set(builders) == set(MODULES) and all(self.toys.module(name).exists() for name in MODULES)


def any_pbs(place):
    """The stand-in, or a real server, which $HPC_PBS_PREFIX names."""
    prefix = os.environ.get('HPC_PBS_PREFIX')
    return FaultyPbs(prefix, place) if prefix else Pbs(place, accounts=['NCAR0001'])


# by the suffix of the toys: what starts the batch system
SYSTEMS = {'Derecho': any_pbs, 'ARCHER2': FaultySlurm}
Pbs.commands = ('qsub', 'qstat', 'qselect')


@pytest.mark.timeout(SECONDS + 3600)
@pytest.mark.parametrize('suffix', SYSTEMS)
def test_random_faults(eb, tmp_path, suffix):
    """See above."""
    chance, deadline, tried = random.Random(SEED), time.monotonic() + SECONDS, 0
    print('seed', SEED)
    # the one that --rehearse takes for these easyconfigs
    stand_in(suffix.lower())
    while not tried or time.monotonic() < deadline:
        place = tmp_path / str(tried)
        place.mkdir()
        disk = Disk(place / 'disk')
        try:
            # after the disk, which nodes see only when it was there before them
            with SYSTEMS[suffix](place / 'system') as system:
                eb.prefix = disk.place / 'prefix'
                environment = dict(system.environment, PBS_ACCOUNT='NCAR0001', SBATCH_ACCOUNT='x01',
                                   **site(place, SMALL_DISK))
                if suffix == 'ARCHER2':
                    environment['PATH'] = '%s:%s' % (system.broken, os.environ['PATH'])
                chain = Chain(Toys(eb, disk.place, suffix, environment), system, disk, chance)
                chain.run()
                chain.check()
        finally:
            subprocess.run(['umount', '--lazy', str(disk.place)], check=True)
        tried += 1
        print('\n%d tried, %d held' % (tried, tried), flush=True)
