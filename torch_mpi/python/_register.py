"""Register the backend with torch.distributed.

From 2.14 on every backend is a plugin, and ``Backend.register_backend`` is the way in. Before, torch itself has a
place for this very backend, ``distributed_c10d.ProcessGroupMPI``, which a build with MPI fills; it is filled here.
"""

import functools
import os
import sys
import traceback
import warnings

from ._process import MPIUnavailable, load, start, state
from ._rendezvous import meet, rendezvous

# mpirun, srun and their like set at least one of these in each process that uses MPI.
STARTED_BY_MPI = {"PMI_RANK", "PMI_FD", "PMI_JOBID", "PMI_CONTROL_PORT", "PMIX_RANK", "OMPI_COMM_WORLD_RANK",
                  "MV2_COMM_WORLD_RANK", "PALS_RANKID"}
DEVICES = ["cpu", "cuda"]

_registered = False


def register():
    """Make "mpi" a backend of torch.distributed, once; warn with the reason where the MPI library cannot be used."""
    global _registered
    import torch
    import torch.distributed as dist
    if _registered or not dist.is_available():
        return
    _registered = True
    c10d = dist.distributed_c10d
    if "ProcessGroupMPI" in vars(c10d) or c10d._MPI_AVAILABLE:
        warnings.warn("torch_mpi: this PyTorch was built with MPI; torch_mpi takes the place of its own backend")
    try:
        compiled = load()
    except MPIUnavailable as error:
        warnings.warn("%s. The mpi backend is not available." % error)
        return
    # ROCm builds of torch call their devices cuda
    compiled.set_platform("hip" if torch.version.hip else "cuda" if torch.version.cuda else "other")
    extend_monitored_barrier()
    extend_groups()
    dist.register_rendezvous_handler("mpi", rendezvous)
    c10d._MPI_AVAILABLE = True  # what init_process_group looks at
    dist.is_mpi_available = is_mpi_available
    c10d.ProcessGroupMPI = ProcessGroupMPI
    dist.Backend.backend_capability["mpi"] = DEVICES
    if hasattr(dist.Backend, "_ensure_backend_registered"):  # from 2.14 on
        dist.Backend.register_backend("mpi", create_for_plugin, extended_api=True, devices=DEVICES,
                                      _backend_type=dist.ProcessGroup.BackendType.MPI)


def is_mpi_available():
    """Return True if MPI started this process: programs choose by this; by name, "mpi" works anywhere."""
    # pytorch-srun sets all that torchrun does, and this
    torchrun = "TORCHELASTIC_RUN_ID" in os.environ and "HPC_RANKS_BY" not in os.environ
    return state["started"] or not torchrun and not STARTED_BY_MPI.isdisjoint(os.environ)


def extend_monitored_barrier():
    """Make torch.distributed.monitored_barrier, which knows gloo alone, accept groups of this backend."""
    import torch.distributed as dist
    original = dist.distributed_c10d.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        if group == dist.GroupMember.NON_GROUP_MEMBER or dist.get_backend(group) != dist.Backend.MPI:
            return original(group, timeout, wait_all_ranks)
        group = dist.group.WORLD if group is None else group
        arguments = [] if timeout is None else [timeout]
        return group.monitored_barrier(*arguments, wait_all_ranks=wait_all_ranks)

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored_barrier


def extend_groups():
    """Make groups of "mpi" and of other backends work beside each other."""
    import torch.distributed as dist
    c10d = dist.distributed_c10d
    original = c10d._new_group_with_tag

    @functools.wraps(original)
    def new_group(ranks=None, timeout=None, backend=None, *others, **options):
        default = c10d._get_default_group()
        default_backend, store = c10d._world.pg_map[default]
        # all processes are here, members or not
        wanted, limit = str(backend or default_backend).lower(), timeout or c10d.default_pg_timeout
        if default_backend == "mpi" and wanted != "mpi" and not isinstance(store, dist.TCPStore):
            if options.get("use_local_synchronization"):
                raise MPIUnavailable(
                    "torch_mpi: the first group of another backend beside a default group of mpi takes all ranks: make "
                    "one without use_local_synchronization before, for example new_group(backend=\"gloo\")")
            # the store that torch leaves out there; most programs make no such group, and open no port
            c10d._world.pg_map[default] = default_backend, meet(limit)[0]
        elif "mpi" in wanted and not state["started"]:
            # MPI's start would wait without end for one that does not come
            c10d._store_based_barrier(dist.get_rank(), store, "torch_mpi", dist.get_world_size(), limit)
            start(limit)
        return original(ranks, timeout, backend, *others, **options)

    c10d._new_group_with_tag = new_group


def create_for_plugin(options, _):
    """Return what torch asks for from 2.14 on: the backend of a group, or the whole group."""
    # With DETAIL torch compares the calls of the ranks over a group of gloo, which needs a store and the rank. Where
    # "mpi" is the default it has neither, and would fail; a whole group it takes as it is.
    import torch
    import torch.distributed as dist
    backend = ProcessGroupMPI.create(options.global_ranks_in_group)
    has_store = dist.get_backend() != dist.Backend.MPI if dist.is_initialized() else options.group_rank >= 0
    if has_store:
        return backend
    kind = dist.ProcessGroup.BackendType.MPI
    group = dist.ProcessGroup(options.store, backend.rank(), backend.size())
    group._set_default_backend(kind)
    for device in DEVICES:
        group._register_backend(torch.device(device), kind, backend)
    if options.process_group.bound_device_id is not None:
        group.bound_device_id = options.process_group.bound_device_id
    return group


class ProcessGroupMPI:
    """Stands where torch expects its own class of this name, of which it calls ``create``."""

    @staticmethod
    def create(ranks):
        """Create a group of these ranks of the default group; of all processes when there are none."""
        from torch.distributed.distributed_c10d import default_pg_timeout
        compiled = load()
        if ranks and not state["started"]:
            # MPI_Init waits for all processes, which may be waiting for this one somewhere else.
            raise MPIUnavailable(
                "torch_mpi: the default process group is not of the mpi backend, so MPI has not been started yet, and "
                "that takes all processes: call torch_mpi.start() on all of them before this group is made")
        timeout = arguments_of("_new_process_group_helper").get("timeout") or default_pg_timeout
        start(timeout)
        refuse_other_ranks(compiled.world_rank(), compiled.world_size(), ranks)
        return compiled.create(list(ranks), timeout)


def arguments_of(function):
    """Return the local variables of a function of torch.distributed among the callers: torch does not pass them on."""
    # the names and arguments of the two functions that are looked for are the same from 2.1 to 2.15
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        module = frame.f_globals.get("__name__")
        if frame.f_code.co_name == function and module == "torch.distributed.distributed_c10d":
            return frame.f_locals
    return {}


def refuse_other_ranks(rank, size, ranks):
    """Raise if somebody gave another rank or size than MPI, which decides."""
    import torch.distributed as dist
    call = arguments_of("init_process_group")
    given = [("rank=%d", call.get("rank", -1), rank), ("world_size=%d", call.get("world_size", -1), size)]
    for name, true in [("RANK", rank), ("WORLD_SIZE", size)]:
        if os.environ.get(name, "").isdigit():
            given.append((name + "=%d in the environment", int(os.environ[name]), true))
    for what, value, true in given:
        if value not in (-1, true):
            raise MPIUnavailable(
                "torch_mpi: rank and size come from MPI: this is rank %d of %d, but %s was given; start the program "
                "with mpirun or srun, and leave that out" % (rank, size, what % value))
    if ranks and dist.is_initialized() and dist.get_rank() != rank:
        raise MPIUnavailable("torch_mpi: this process is rank %d in MPI, but rank %d in the default process group; "
                             "both must number the processes alike" % (rank, dist.get_rank()))
