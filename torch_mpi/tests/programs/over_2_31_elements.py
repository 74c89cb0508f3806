"""Run by two MPI processes: tensors of more than 2³¹ elements. Takes about 7 GB of memory; not part of ./test."""

import torch
import torch.distributed as dist
import torch_mpi  # noqa: F401

COUNT = 2 ** 31 + 77

dist.init_process_group("mpi")
me = dist.get_rank()
tensor = torch.full((COUNT,), me + 1, dtype=torch.int8)
dist.all_reduce(tensor)
assert tensor[0] == tensor[-1] == tensor[2 ** 30] == 3, "all_reduce"
tensor[-1] = 7 + me
dist.broadcast(tensor, 1)
assert tensor[-1] == 8, "broadcast"
if me == 0:
    tensor.fill_(5)
    dist.send(tensor, 1)
else:
    dist.recv(tensor, 0)
assert tensor[0] == tensor[-1] == tensor[COUNT // 2] == 5, "send"
dist.destroy_process_group()
print("rank %d: large tensors are right" % me)
