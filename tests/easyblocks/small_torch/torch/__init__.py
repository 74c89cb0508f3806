"""A small torch."""
from torch import __config__, distributed  # noqa: F401
from torch._C import mpi_available, rank_sum  # noqa: F401
