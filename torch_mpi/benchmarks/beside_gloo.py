"""torch_mpi and gloo in the same processes, in turn: what one gains on a machine on which others work, too.

usage: mpirun -n RANKS python beside_gloo.py [BYTES]...

Prints a line for each operation and size: the median microseconds of both, and how many times faster torch_mpi is.
"""

import sys
import time

import torch
import torch.distributed as dist

TURNS, SECONDS = 5, 0.4  # for each of both


def operations(bytes_, rank, size, group):
    """Name → function without arguments."""
    source, target, other = torch.ones(bytes_ // 4), torch.ones(bytes_ // 4 * size), rank ^ 1

    def send_recv():
        for step in range(2 if other < size else 0):
            dist.send(source, other, group=group) if rank % 2 == step else dist.recv(source, other, group=group)
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return {"all_reduce": lambda: dist.all_reduce(source, group=group),
            "all_gather": lambda: all_gather(target, source, group=group), "send_recv": send_recv}


def microseconds(run, group):
    """The mean of some in a row, of the slowest rank; rank 0 decides when it is enough."""
    run()
    dist.barrier(group=group)
    begin, count, enough = time.perf_counter(), 0, torch.zeros(1)
    while not enough.item():
        for _ in range(5):
            run()
        count += 5
        enough.fill_(time.perf_counter() - begin > SECONDS)
        dist.broadcast(enough, 0, group=group)
    taken = torch.tensor([(time.perf_counter() - begin) / count * 1e6], dtype=torch.float64)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX, group=group)
    return taken.item()


def main():
    dist.init_process_group("gloo", init_method="mpi://")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    groups = {"gloo": dist.group.WORLD, "mpi": dist.new_group(backend="mpi")}
    for bytes_ in [int(one) for one in sys.argv[1:]] or [8 << 3 * step for step in range(8)]:
        runs = {name: operations(bytes_, rank, size, group) for name, group in groups.items()}
        for operation in runs["mpi"]:
            found = {name: [] for name in groups}
            for _ in range(TURNS):
                for name, group in groups.items():
                    found[name].append(microseconds(runs[name][operation], group))
            gloo, mpi = (sorted(found[name])[TURNS // 2] for name in ("gloo", "mpi"))
            if rank == 0:
                print("%-11s %10d  gloo %10.1f  mpi %10.1f  %6.2f" % (operation, bytes_, gloo, mpi, gloo / mpi),
                      flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
