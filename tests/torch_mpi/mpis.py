"""The MPIs of this machine, and an environment in which their programs run as they do for a user."""

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
TORCH = "2.13.0"
CACHE = CHECKOUT / ".local" / "test-cache" / "torch_mpi"

# Name → the suffix of Debian's programs for it and the options its mpirun needs here.
MPIS = {
    "mpich": [],
    "openmpi": ["--oversubscribe", "--bind-to", "none"],
}


def environment(**more):
    """A clean one: nobody's PYTHONPATH, one thread a rank, root may start Open MPI."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "OMPI_", "PMI_", "TORCH", "MPI"))}
    kept.update(OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **more)
    return kept
