"""The operations of raw.c through torch.distributed; prints the same lines.

usage: operations.py BACKEND LEVEL [SIZE LENGTH]...

LEVEL ``functions`` times ``torch.distributed.all_reduce`` and its like, what a user calls. LEVEL ``group`` times the
same method of the process group, without the Python around it. BACKEND ``builtin`` is PyTorch's own ProcessGroupMPI
from the module that ``$BUILTIN_MPI`` names, ``fake`` does nothing and so shows what torch itself costs.
"""

import importlib.util
import os
import sys
import time

import torch
import torch.distributed as dist

TIMES = 10  # as in raw.c


def start(backend):
    if backend == "builtin":
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        spec = importlib.util.spec_from_file_location("builtin_mpi", os.environ["BUILTIN_MPI"])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        c10d = dist.distributed_c10d
        c10d.ProcessGroupMPI, c10d._MPI_AVAILABLE = module.ProcessGroupMPI, True
        dist.init_process_group("mpi")
    elif backend == "mpi":
        import torch_mpi  # noqa: F401
        dist.init_process_group("mpi")
    else:
        names = [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")]
        rank, size = next((int(os.environ[a]), int(os.environ[b])) for a, b in names if a in os.environ)
        if backend == "fake":
            from torch.testing._internal.distributed.fake_pg import FakeStore
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        else:
            dist.init_process_group(backend, init_method="file://" + os.environ["GLOO_FILE"], rank=rank,
                                    world_size=size)


def operations(backend, level, bytes_, rank, size):
    """Name → function without arguments."""
    elements = bytes_ // 4
    source, target = torch.ones(elements), torch.ones(elements * size)
    part, other, group = target[:elements], rank ^ 1, dist.group.WORLD
    if level == "functions":
        def send_recv():
            for step in range(2):
                dist.send(source, other) if rank % 2 == step else dist.recv(part, other)
        all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        return {"all_reduce": lambda: dist.all_reduce(part), "all_gather": lambda: all_gather(target, source),
                "send_recv": send_recv}
    reduce_options, gather_options = dist.AllreduceOptions(), dist.distributed_c10d.AllgatherOptions()
    for options in (reduce_options, gather_options):
        if hasattr(options, "asyncOp"):
            options.asyncOp = False
    parts, sources, targets = [part], [source], [list(target.chunk(size))]

    def send_recv():
        for step in range(2):
            (group.send(sources, other, 0) if rank % 2 == step else group.recv(parts, other, 0)).wait()
    gather = getattr(group, "all_gather_single", None) or group._allgather_base
    if backend == "builtin":  # all_gather into a list is all it can do
        gather = lambda output, input_, options: group.allgather(targets, sources, options)  # noqa: E731
    return {"all_reduce": lambda: group.allreduce(parts, reduce_options).wait(),
            "all_gather": lambda: gather(target, source, gather_options).wait(), "send_recv": send_recv}


def main():
    backend, level = sys.argv[1:3]
    start(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    for bytes_, length in zip(map(int, sys.argv[3::2]), map(int, sys.argv[4::2])):
        for name, run in operations(backend, level, bytes_, rank, size).items():
            times = []
            for turn in range(-1, TIMES):
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(length):
                    run()
                if turn >= 0:
                    times.append((time.perf_counter() - begin) / length)
            median = torch.tensor([sorted(times)[TIMES // 2] * 1e6], dtype=torch.float64)
            dist.all_reduce(median, op=dist.ReduceOp.MAX)
            if rank == 0:
                print("%s %d %.2f" % (name, bytes_, median.item()), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
