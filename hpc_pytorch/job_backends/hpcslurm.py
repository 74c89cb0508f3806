"""
EasyBuild's Slurm backend for --job, with all that a system, the software and the user ask for.

Needed because: upstream's asks for cores and time only, exports the environment, and leaves held jobs behind when one
of several is refused.
Differs from upstream's in: account, partition, QOS, memory, GPUs; a script that can be read; nothing exported; nothing
submitted twice.
Remove when: upstream takes these from its configuration.
"""
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.job.slurm import Slurm
from easybuild.tools.run import RunShellCmdError

from hpc_pytorch.jobs.submission import SystemJobs
from hpc_pytorch.machine.batch_systems import SCHEDULERS


class HPCSlurm(SystemJobs, Slurm):
    """Support for --job on systems with Slurm."""

    scheduler = SCHEDULERS['slurm']

    def _check_version(self):
        """Check that there is a cluster: a host may have the commands without one."""
        try:
            super()._check_version()
        except RunShellCmdError as error:
            raise EasyBuildError("sbatch could not be run (%s): is this a host of the cluster?", error.output.strip())
