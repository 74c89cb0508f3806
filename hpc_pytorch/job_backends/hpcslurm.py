"""EasyBuild's Slurm backend for --job, with all that a system, the software and the user ask for.

Needed because: upstream's asks for cores and time only, exports the environment, and may leave held jobs behind.
Differs from upstream's in: account, partition, QOS, memory, GPUs; a readable script; nothing exported nor sent twice.
Remove when: upstream takes these from its configuration.
"""
from easybuild.tools.job.backend import JobBackend

from hpc_pytorch.jobs.submission import SystemJobs
from hpc_pytorch.machine.batch_systems import SCHEDULERS


class HPCSlurm(SystemJobs, JobBackend):
    scheduler = SCHEDULERS['slurm']
