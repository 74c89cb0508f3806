"""Run by MPI processes: works whose futures are waited for at once, which complete while the future is made.

usage: futures.py COUNT
"""

import os
import sys

import torch
import torch.distributed as dist
import torch_mpi  # noqa: F401

dist.init_process_group("mpi")
tensor = torch.ones(4)
for _ in range(int(sys.argv[1])):
    work = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, async_op=True)
    work.get_future().wait()
work = dist.all_reduce(tensor, async_op=True)


def fail(_):
    """What a program may do wrong; nobody but it may suffer."""
    raise ValueError("a callback that fails")


future = work.get_future().then(fail)
try:
    future.wait()
except Exception as error:
    assert "a callback that fails" in str(error)
dist.barrier()
os.write(1, b"rank %d: all futures ended\n" % dist.get_rank())
dist.destroy_process_group()
