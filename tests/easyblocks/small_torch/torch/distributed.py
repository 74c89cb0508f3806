"""The backends that a small torch knows."""
from torch import __config__
from torch._C import mpi_available as is_mpi_available  # noqa: F401


def is_gloo_available():
    """It only says so."""
    return True


def is_nccl_available():
    """Whether CMake took it."""
    return any('USE_NCCL=' + yes in __config__.show() for yes in ('ON', '1'))
