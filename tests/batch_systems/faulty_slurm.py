"""A real Slurm to which things happen, with the methods of the PBS stand-in (pbs_stand_in.py) for that."""
import shutil

from batch_systems.real_slurm import Slurm, wait_for

# In the place of a command: the next call meets no controller, or its answer is lost.
COMMAND = """#!/bin/bash
here=${{0%/*}}
if mv "$here/fail-{name}" "$here/failed" 2> /dev/null; then
    echo "{name}: error: Unable to contact slurm controller (connect failure)" >&2
    exit 1
fi
if mv "$here/lose-{name}" "$here/lost" 2> /dev/null; then
    {path} "$@" > /dev/null 2>&1
    echo "{name}: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
    exit 1
fi
exec {path} "$@"
"""


def write_faulty(directory, commands):
    """Write into a directory what takes the place of commands."""
    directory.mkdir()
    for name in commands:
        path = directory / name
        path.write_text(COMMAND.format(name=name, path=shutil.which(name)))
        path.chmod(0o755)


class FaultySlurm(Slurm):
    """Its commands may fail, its nodes and daemons may die."""

    commands = ('sbatch', 'squeue', 'scontrol', 'scancel')

    def __init__(self, directory):
        super().__init__(directory, nodes=3, cpus=128, memory=524288, partitions=('standard',))
        self.broken = self.directory / 'broken'

    @property
    def settings(self):
        return {'nodes': self.nodes}

    def configure(self):
        super().configure()
        write_faulty(self.broken, self.commands)

    def fail(self, command, _):
        (self.broken / ('fail-' + command)).touch()

    def lose(self, command, _):
        (self.broken / ('lose-' + command)).touch()

    def jobs(self):
        """What has not ended, as PBS would tell it."""
        rows = [line.split() for line in self.output('squeue', '-h', '-o', '%A %t').splitlines()]
        return {job: {'job_state': state} for job, state in rows}

    def delete(self, job):
        self.output('scancel', '--quiet', job)

    def node_down(self, node, lives_on=False):
        """The node is lost with what runs on it, or only its daemon dies."""
        if lives_on:
            self.kill_node(node)
        else:
            self.output('scontrol', 'update', 'nodename=' + node, 'state=down', 'reason=test')

    def node_up(self, node):
        if not any(node in daemon.args for daemon in self.daemons):
            self.start_node(node)
        self.output('scontrol', 'update', 'nodename=' + node, 'state=resume')

    def restart_controller(self):
        """It dies, and comes back with the state that it has written."""
        controller = self.controller
        controller.kill()
        controller.wait()
        self.daemons.remove(controller)
        self.daemon('slurmctld', '-D', '-f', self.directory / 'slurm.conf')
        # daemons are ended in the opposite order
        self.daemons.insert(1, self.daemons.pop())
        wait_for(lambda: 'UP' in self.output('scontrol', 'ping'), "the controller")
