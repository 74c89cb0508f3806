"""Load the compiled module, and start and end MPI in this process."""

import atexit
import datetime
import os
import sys

# MPI that torch_mpi is built for → variables in which the other one's mpirun sets the number of processes.
FOREIGN_SIZE = {"Open MPI": ["PMI_SIZE", "MPI_LOCALNRANKS"], "MPICH": ["OMPI_COMM_WORLD_SIZE"]}

state = {"started": False, "failed": False}


class MPIUnavailable(RuntimeError):
    """The MPI library cannot be used; the message says why and what to do."""


def load():
    import torch

    from . import _built
    # it would load at times, and then crash
    if _built.torch_version.split("+")[0] != torch.__version__.split("+")[0]:
        raise MPIUnavailable("torch_mpi: it was built for torch %s and this is %s; install it again" % (
            _built.torch_version, torch.__version__))
    try:
        from . import _c
    except ImportError as error:
        raise MPIUnavailable("torch_mpi: %s; load the MPI it was built for, the one of %s, or install it again" % (
            error, _built.compiler))
    return _c


def start(timeout=datetime.timedelta(minutes=30)):
    """Initialise MPI, once, and have it ended with the process. All processes must call it."""
    # init_process_group("mpi") does; programs that make "mpi" groups beside another default group call it themselves
    compiled = load()
    compiled.start(timeout)
    if state["started"]:
        return
    state["started"] = True
    # sys.last_value would do, but pytest and others set it for exceptions that they handle
    hook = sys.excepthook

    def note_failure(*error):
        state["failed"] = True
        hook(*error)

    sys.excepthook = note_failure
    atexit.register(lambda: compiled.stop(failed=state["failed"]))
    if compiled.world_size() == 1:
        refuse_foreign_mpirun(compiled.library_version())


def refuse_foreign_mpirun(version):
    """Raise if another MPI's mpirun started this process: each process would be alone, unnoticed."""
    family = "Open MPI" if "Open MPI" in version else "MPICH"
    for name in FOREIGN_SIZE[family]:
        if os.environ.get(name, "1") != "1":
            raise MPIUnavailable(
                "torch_mpi: was built for %s, but another MPI started this program (%s=%s): each process is alone. "
                "Use the mpirun that belongs to %s" % (family, name, os.environ[name], version))
