"""A backend for EasyBuild's --job on systems with PBS Pro or OpenPBS.

Needed because: upstream's PbsPython needs pbs_python, which is dead.
Remove when: upstream has one.
"""
from easybuild.tools.job.backend import JobBackend

from hpc_pytorch.jobs.submission import SystemJobs
from hpc_pytorch.machine.batch_systems import SCHEDULERS


class PbsPro(SystemJobs, JobBackend):
    scheduler = SCHEDULERS['pbs']
