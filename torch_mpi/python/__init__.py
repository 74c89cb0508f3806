"""The MPI backend of torch.distributed for official PyTorch wheels.

``torch.distributed.init_process_group("mpi")`` works after ``import torch_mpi``; from torch 2.5 on, and wherever the
``.pth`` file of this package is read, without that import too. See README.rst.
"""

from ._process import MPIUnavailable, load, start
from ._register import register

__all__ = ["MPIUnavailable", "gpu_aware", "library_version", "register", "start"]


def library_version():
    """Return what the MPI library of this process calls itself."""
    return load().library_version()


def gpu_aware():
    """Return True if GPU tensors are passed to MPI as they are; call it after init_process_group."""
    return load().gpu_aware()


register()
