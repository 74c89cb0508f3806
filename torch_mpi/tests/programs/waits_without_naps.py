"""Run by MPI processes: how often a rank naps while it waits, though nothing else wants its core.

Between two operations it sleeps, as a program does that waits for its data. Prints the naps of the first try in which
nothing else wanted a core for long, or of the last of 300.
"""

import resource
import sys
import time

import torch
import torch.distributed as dist
import torch_mpi  # noqa: F401

OPERATIONS = 20


def departures():
    """How often this thread has given up its core."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def main():
    dist.init_process_group("mpi")
    tensor = torch.ones(1 << 20)
    for _ in range(300):
        before = departures()
        for _ in range(OPERATIONS):
            time.sleep(0.001)
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        naps = torch.tensor(departures() - before - OPERATIONS)
        dist.all_reduce(naps, dist.ReduceOp.MAX)
        if naps < 5 * OPERATIONS:
            break
    if dist.get_rank() == 0:
        sys.stdout.write("naps in %d operations: %d\n" % (OPERATIONS, naps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
