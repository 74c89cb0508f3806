"""
A PBS that runs already, in the place of the stand-in: OpenPBS is in no registry, so tests do not start one.

HPC_PBS_PREFIX=/opt/pbs ./test tests/jobs/test_pbs_jobs.py -k chain, in a job's reach of its server; it needs a queue
main, the resource ngpus, job_history_enable, its commands on the PATH of its jobs and their PBS_CONF_FILE
(pbs_environment). In a network namespace: the test environment of derecho made before; the server's address on another
interface than lo, where Open MPI 4.1.4 found no network.
"""
import json
import os
import subprocess
from pathlib import Path

from batch_systems.faulty_slurm import write_faulty
from batch_systems.pbs_stand_in import patiently


class RealPbs:
    """Its commands, and what it says of jobs."""

    def __init__(self, prefix):
        self.path = '%s:%s' % (Path(prefix, 'bin'), os.environ['PATH'])

    @property
    def environment(self):
        found = {'PATH': self.path}
        if 'PBS_CONF_FILE' in os.environ:
            found['PBS_CONF_FILE'] = os.environ['PBS_CONF_FILE']
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def jobs(self):
        """All that the server knows, by id."""
        done = subprocess.run(['qstat', '-x', '-f', '-F', 'json'], env=dict(os.environ, PATH=self.path), check=True,
                              stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout).get('Jobs', {})
        for facts in found.values():
            facts.update(('Resource_List.' + name, value) for name, value in facts['Resource_List'].items())
        return found


class FaultyPbs(RealPbs):
    """Things happen to it; with the methods of the stand-in for that. Needs root, and to be on the server's machine."""

    commands = ('qsub', 'qstat', 'qselect')
    # it has one node, by whatever name
    settings = {'nodes': ['the server']}

    def __init__(self, prefix, directory):
        super().__init__(prefix)
        self.programs, self.broken = Path(prefix, 'sbin'), directory / 'broken'
        self.lives_on = True

    def __enter__(self):
        self.broken.parent.mkdir()
        # which() is to find the real ones
        os.environ['PATH'] = self.path
        write_faulty(self.broken, self.commands)
        return self

    @property
    def environment(self):
        return dict(super().environment, PATH='%s:%s' % (self.broken, self.path))

    def fail(self, command, _):
        (self.broken / ('fail-' + command)).touch()

    def lose(self, command, _):
        (self.broken / ('lose-' + command)).touch()

    def call(self, *words):
        """Run one of PBS's programs."""
        return subprocess.run(words, env=dict(os.environ, PATH=self.path), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode

    def delete(self, job):
        self.call('qdel', job)

    def node_down(self, _, lives_on=False):
        """The node's daemon dies."""
        self.lives_on = lives_on
        self.call('pkill', '-KILL', '-x', 'pbs_mom')

    def node_up(self, _):
        """It is back, and keeps what runs there, or has it queued again."""
        self.call(self.programs / 'pbs_mom', '-p' if self.lives_on else '-r')

    def restart_controller(self):
        """The server dies, and comes back with the state that it has written."""
        self.call('pkill', '-KILL', '-x', 'pbs_server.bin')
        self.call(self.programs / 'pbs_server')
        patiently(lambda: self.call('qstat', '-B') == 0, "the server", 300)
