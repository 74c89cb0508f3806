"""Tell torch.distributed about the backend.

From 2.14 on every backend is a plugin, and ``Backend.register_backend`` is the way in. Before, torch itself has a
place for this very backend, ``distributed_c10d.ProcessGroupMPI``, which a build with MPI fills; it is filled here.
"""

import atexit
import datetime
import os
import sys
import warnings

from ._barrier import extend_monitored_barrier
from ._rendezvous import register_rendezvous

# Who starts MPI processes, and the variable by which the other family's programs would know their number.
FOREIGN_SIZE = {
    "Open MPI": ["PMI_SIZE", "MPI_LOCALNRANKS"],
    "MPICH": ["OMPI_COMM_WORLD_SIZE"],
}

# Of these a launcher of MPI programs sets at least one in each process.
LAUNCHED = {"PMI_RANK", "PMI_FD", "PMI_JOBID", "PMI_CONTROL_PORT", "PMIX_RANK", "OMPI_COMM_WORLD_RANK",
            "MV2_COMM_WORLD_RANK", "PALS_RANKID"}
# Whose code gave a rank that is not MPI's → what mends it.
GIVEN_BY = {
    "lightning": "Lightning asks mpi4py for the ranks: install that",
    "pytorch_lightning": "Lightning asks mpi4py for the ranks: install that",
}

_state = {"registered": False, "started": False, "failed": False}


class MPIUnavailable(RuntimeError):
    """The MPI library cannot be used; the message says why and what to do."""


def _release(version):
    return tuple(int(part) for part in version.split(".")[:2])


def _load():
    """The compiled module, or MPIUnavailable."""
    import torch
    from . import _built
    if _release(torch.__version__) < _release(_built.oldest_torch):
        raise MPIUnavailable("torch_mpi: expected PyTorch %s or newer, found %s; install a newer one" % (
            _built.oldest_torch, torch.__version__))
    if _built.torch_version.split("+")[0] != torch.__version__.split("+")[0]:  # would load at times, and then crash
        raise MPIUnavailable("torch_mpi: it was built for torch %s and this is %s; install it again" % (
            _built.torch_version, torch.__version__))
    try:
        from . import _c
    except ImportError as error:
        if "torch_mpi was built for" in str(error):  # its own check of the MPI library
            raise MPIUnavailable(str(error))
        raise MPIUnavailable("torch_mpi: %s; load the MPI it was built for, the one of %s, or install it again" % (
            error, _built.compiler))
    return _c


def register():
    """Make "mpi" a backend of torch.distributed; done once, at import.

    Also the entry point of the group ``torch.backends``. Where the MPI library cannot be used it prints why, once, and
    ``is_mpi_available()`` stays False; as it does for processes that MPI did not start, since programs that choose by
    it would take "mpi" under torchrun.
    """
    import torch.distributed as dist
    if _state["registered"] or not dist.is_available():
        return
    _state["registered"] = True
    c10d = dist.distributed_c10d
    if "ProcessGroupMPI" in vars(c10d) or c10d._MPI_AVAILABLE:
        warnings.warn("torch_mpi: this PyTorch was built with MPI; torch_mpi takes the place of its own backend")
    try:
        compiled = _load()
    except MPIUnavailable as error:
        warnings.warn("%s. The mpi backend is not available." % error)
        return
    compiled.set_platform(_platform())
    extend_monitored_barrier()
    register_rendezvous()
    c10d._MPI_AVAILABLE = True  # what init_process_group looks at
    dist.is_mpi_available = is_mpi_available
    c10d.ProcessGroupMPI = ProcessGroupMPI
    dist.Backend.backend_capability["mpi"] = ["cpu", "cuda"]
    if hasattr(dist.Backend, "_ensure_backend_registered"):  # from 2.14 on
        dist.Backend.register_backend(
            "mpi", _plugin, extended_api=True, devices=dist.Backend.backend_capability["mpi"],
            _backend_type=dist.ProcessGroup.BackendType.MPI)


def is_mpi_available():
    """Has MPI started this process? "mpi" by name works in any, alone where it has not."""
    # pytorch-srun sets all that torchrun does, and this
    torchrun = "TORCHELASTIC_RUN_ID" in os.environ and "HPC_RANKS_BY" not in os.environ
    return _state["started"] or not torchrun and not LAUNCHED.isdisjoint(os.environ)


def _plugin(options, _):
    """What torch asks for a group from 2.14 on: its backend, or the whole group.

    With TORCH_DISTRIBUTED_DEBUG=DETAIL torch compares the calls of the ranks over a group of gloo, which needs a store
    and the rank. Where "mpi" is the default it has neither, and would fail; a whole group it takes as it is.
    """
    import torch
    import torch.distributed as dist
    backend = ProcessGroupMPI.create(options.global_ranks_in_group)
    has_store = dist.get_backend() != dist.Backend.MPI if dist.is_initialized() else options.group_rank >= 0
    if has_store:
        return backend
    group = dist.ProcessGroup(options.store, backend.rank(), backend.size())
    group._set_default_backend(dist.ProcessGroup.BackendType.MPI)
    for device in dist.Backend.backend_capability["mpi"]:
        group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.MPI, backend)
    if options.process_group.bound_device_id is not None:
        group.bound_device_id = options.process_group.bound_device_id
    return group


def _platform():
    """Whose pointers GPU tensors hold: ROCm builds of torch call their devices cuda."""
    import torch
    return "hip" if torch.version.hip else "cuda" if torch.version.cuda else "other"


class ProcessGroupMPI:
    """What torch expects under this name: something with ``create``."""

    @staticmethod
    def create(ranks):
        """A group of these ranks of the default group, of all processes when there are none."""
        from . import _c
        asked = _asked()
        if ranks and not _state["started"]:
            # MPI_Init waits for all processes, which may be waiting for this one somewhere else.
            raise MPIUnavailable(
                "torch_mpi: the default process group is not of the mpi backend, so MPI has not been started yet, and "
                "that takes all processes: call torch_mpi.start() on all of them before this group is made")
        start(asked["timeout"])
        _check(asked, _c.world_rank(), _c.world_size(), ranks)
        return _c.create(list(ranks), asked["timeout"])


def _asked():
    """What the caller of init_process_group or new_group gave: torch does not pass it on to this backend.

    It is read from torch's own functions that lead here, whose names and arguments are the same from 2.1 to 2.15.
    """
    asked = {"timeout": None, "rank": -1, "world_size": -1, "by": ""}
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        if asked["rank"] != -1 and not asked["by"] and module.split(".")[0] not in ("torch", "torch_mpi"):
            asked["by"] = "%s, line %d" % (module, frame.f_lineno)
        if module == "torch.distributed.distributed_c10d":
            known = frame.f_locals
            if frame.f_code.co_name == "_new_process_group_helper":
                asked["timeout"] = known["timeout"]
            elif frame.f_code.co_name == "init_process_group":
                asked.update(rank=known["rank"], world_size=known["world_size"])
        frame = frame.f_back
    if asked["timeout"] is None:
        import torch.distributed as dist
        asked["timeout"] = dist.distributed_c10d.default_pg_timeout
    return asked


def _check(asked, rank, size, ranks):
    """MPI decides on rank and size; another number is an error."""
    import torch.distributed as dist
    said = [("rank=%d" % asked["rank"], asked["rank"], rank), ("world_size=%d" % asked["world_size"],
                                                               asked["world_size"], size)]
    said += [("%s=%s in the environment" % (name, os.environ[name]), int(os.environ[name]), value)
             for name, value in [("RANK", rank), ("WORLD_SIZE", size)] if os.environ.get(name, "").isdigit()]
    for what, value, truth in said:
        if value in (-1, truth):
            continue
        by = " by " + asked["by"] if asked["by"] and " in the environment" not in what else ""
        mend = ("" if LAUNCHED & set(os.environ) else "start the program with mpirun or srun, and ") + "leave that out"
        raise MPIUnavailable("torch_mpi: rank and size come from MPI: this is rank %d of %d, but %s was given%s; %s" % (
            rank, size, what, by, GIVEN_BY.get(asked["by"].split(".")[0], mend)))
    if ranks and dist.is_initialized() and dist.get_rank() != rank:
        raise MPIUnavailable(
            "torch_mpi: this process is rank %d in MPI, but rank %d in the default process group; both must number "
            "the processes alike" % (rank, dist.get_rank()))


def start(timeout=datetime.timedelta(minutes=30)):
    """Initialise MPI, once, and see to it that the process ends it. All processes must call it.

    init_process_group("mpi") does. Only programs that make "mpi" groups beside a default group of another backend need
    to call it themselves.
    """
    compiled = _load()
    compiled.start(timeout)
    if _state["started"]:
        return
    _state["started"] = True
    hook = sys.excepthook

    def note(*error):
        _state["failed"] = True
        hook(*error)
    sys.excepthook = note  # sys.last_value would do, had not pytest and others set it for what they handle
    atexit.register(lambda: compiled.stop(failed=_state["failed"]))
    if compiled.world_size() > 1:
        return
    family = "Open MPI" if "Open MPI" in compiled.library_version() else "MPICH"
    for name in FOREIGN_SIZE[family]:
        if os.environ.get(name, "1") != "1":
            raise MPIUnavailable(
                "torch_mpi: was built for %s, but another MPI started this program (%s=%s): each process is alone. "
                "Use the mpirun that belongs to %s" % (family, name, os.environ[name], compiled.library_version()))
