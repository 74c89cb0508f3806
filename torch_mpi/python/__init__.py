"""The MPI backend of torch.distributed for official PyTorch wheels.

``torch.distributed.init_process_group("mpi")`` works after ``import torch_mpi``; from torch 2.5 on, and wherever the
``.pth`` file of this package is read, without that import too. See README.rst.
"""

from ._barrier import monitored_barrier
from ._register import MPIUnavailable, register, start

__all__ = ["MPIUnavailable", "gpu_aware", "library_version", "monitored_barrier", "register", "start"]


def library_version():
    """What the MPI library of this process says it is."""
    from . import _c
    return _c.library_version()


def gpu_aware():
    """Whether GPU tensors are handed to MPI as they are; asked after init_process_group."""
    from . import _c
    return _c.gpu_aware()


register()
