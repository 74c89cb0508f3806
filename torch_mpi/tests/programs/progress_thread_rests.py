"""Run by MPI processes: how often other threads take a core while every operation is waited for.

Prints a line for each kind of operation: how often one did, and how many milliseconds all of them took.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch_mpi  # noqa: F401

TURNS = 2000


def switches():
    """How often the threads that this process started went to sleep."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        if task.name != Path("/proc/self").resolve().name:
            status = (task / "status").read_text()
            total += int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return total


def main():
    """The sum of both ranks."""
    dist.init_process_group("mpi")
    other = dist.get_rank() ^ 1
    tensor = torch.ones(64 << 10)

    def message():
        if other:
            dist.send(tensor, other)
        else:
            dist.recv(tensor, other)

    operations = {"message": message}
    if hasattr(dist.AllreduceOptions(), "asyncOp"):  # else the backend cannot know that it will be waited for
        operations["all_reduce"] = lambda: dist.all_reduce(tensor)
    for name, operation in operations.items():
        dist.barrier()
        before, begin = switches(), time.monotonic()
        for _ in range(TURNS):
            operation()
        found = torch.tensor([switches() - before, (time.monotonic() - begin) * 1000], dtype=torch.float64)
        dist.all_reduce(found)
        if dist.get_rank() == 0:
            sys.stdout.write("%s: %d times in %d ms\n" % (name, *found.tolist()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
