"""Run by MPI processes: how much of an all_reduce is left to wait for when the program has done something else.

Prints the share of the time that it takes when it is waited for at once.
"""

import sys
import time

import torch
import torch.distributed as dist
import torch_mpi  # noqa: F401

SIZE, TURNS = 8 << 20, 7


def timed(function):
    """How long it takes, in seconds."""
    begin = time.monotonic()
    function()
    return time.monotonic() - begin


def main():
    """The least of several, as other programs only make it longer."""
    dist.init_process_group("mpi")
    tensor = torch.ones(SIZE)
    dist.all_reduce(tensor)
    at_once, later = [], []
    for _ in range(TURNS):
        dist.barrier()
        at_once.append(timed(lambda: dist.all_reduce(tensor)))
        dist.barrier()
        work = dist.all_reduce(tensor, async_op=True)
        time.sleep(3 * max(at_once))
        later.append(timed(work.wait))
    slowest = torch.tensor([min(later) / min(at_once)])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        sys.stdout.write("left to wait for: %.4f\n" % slowest.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
