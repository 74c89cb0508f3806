"""
A backend for EasyBuild's --job on systems with PBS Pro or OpenPBS.

Needed because: upstream's PbsPython needs pbs_python, which is dead.
Remove when: upstream has one.
"""
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import which
from easybuild.tools.job.backend import JobBackend

from hpc_pytorch.jobs.submission import SystemJobs
from hpc_pytorch.machine.batch_systems import SCHEDULERS


class PbsPro(SystemJobs, JobBackend):
    """Support for --job on systems with PBS Pro."""

    scheduler = SCHEDULERS['pbs']

    def _check_version(self):
        """Accept any version since select statements (2007)."""
        for command in ('qsub', 'qstat', 'qselect', 'qdel'):
            if which(command) is None:
                raise EasyBuildError("Required command '%s' not found", command)
