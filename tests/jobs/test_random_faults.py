"""
Chains of three under random faults: submissions are killed, answers get lost, nodes and their daemons die, jobs are
deleted. Whoever types the same again has every module at the end, built by one job at a time and never again.

One chain in ./test; for longer: HPC_FAULTS_SECONDS=3600 HPC_FAULTS_SEED=1 ./test tests/jobs/test_random_faults.py -s
"""
import contextlib
import os
import random
import signal
import subprocess
import time

import pytest
from batch_systems.pbs_stand_in import Failed, Pbs
from small_software import Toys

pytestmark = pytest.mark.slow
SECONDS = float(os.environ.get('HPC_FAULTS_SECONDS', '0'))
SEED = int(os.environ.get('HPC_FAULTS_SEED', '0')) or random.randrange(1, 10 ** 6)
MODULES = ('base', 'middle', 'top')


class Chain:
    """One chain in a prefix of its own, and the faults that it meets."""

    def __init__(self, toys, pbs, chance):
        self.toys, self.pbs, self.chance = toys, pbs, chance
        self.story = toys.directory / 'story'
        for before, name in zip((None,) + MODULES, MODULES):
            # what a build tells: who, and whether the module was there already
            line = 'if [ -e %s ]; then echo again %s; fi >> %s; echo %%s %s $HPC_JOB_TURN >> %s' % (
                toys.module(name), name, self.story, name, self.story)
            self.top = toys.write(name, after=[before] if before else [], commands=[
                line % 'begin', 'sleep %.1f' % chance.uniform(0, 3), line % 'end'])

    def submit(self):
        """What a user types; killed at some time, or not."""
        call = self.toys.eb.started('--rehearse', self.top, '--robot=%s' % self.toys.directory, '--job',
                                    cwd=self.toys.directory, env=self.toys.environment)
        if self.chance.random() < 0.4:
            with contextlib.suppress(subprocess.TimeoutExpired):
                call.wait(self.chance.uniform(1, 10))
            # it may have ended just now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(call.pid, self.chance.choice([signal.SIGKILL, signal.SIGHUP]))
        output = call.communicate()[0]
        assert 'Traceback' not in output, output

    def fault(self):
        """Something happens."""
        kind = self.chance.choice(['lose', 'fail', 'node', 'daemon', 'delete', 'nothing'])
        print('   ', kind, end='')
        if kind in ('lose', 'fail'):
            getattr(self.pbs, kind)(self.chance.choice(['qsub', 'qstat', 'qselect']), 1)
        elif kind in ('node', 'daemon'):
            node = self.chance.choice(self.pbs.settings['nodes'])
            self.pbs.node_down(node, lives_on=kind == 'daemon')
            self.pbs.node_up(node)
        elif kind == 'delete':
            jobs = [job for job, facts in self.pbs.jobs().items() if facts['job_state'] != 'F']
            with contextlib.suppress(Failed):
                if jobs:
                    self.pbs.delete(self.chance.choice(jobs))

    def run(self):
        """Until the chain is there."""
        for attempt in range(20):
            self.submit()
            while any(job['job_state'] not in 'FM' for job in self.pbs.jobs().values()):
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


def test_random_faults(eb, tmp_path):
    """See above."""
    chance, deadline, tried = random.Random(SEED), time.monotonic() + SECONDS, 0
    print('seed', SEED)
    while not tried or time.monotonic() < deadline:
        place = tmp_path / str(tried)
        place.mkdir()
        with Pbs(place / 'pbs', accounts=['NCAR0001']) as pbs:
            eb.prefix = place / 'prefix'
            chain = Chain(Toys(eb, place, 'Derecho', dict(pbs.environment, PBS_ACCOUNT='NCAR0001')), pbs, chance)
            chain.run()
            chain.check()
        tried += 1
        print('\n%d tried, %d held' % (tried, tried), flush=True)
