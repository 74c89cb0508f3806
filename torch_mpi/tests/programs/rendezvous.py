"""Run by MPI processes: init_method="mpi://" with any backend. usage: rendezvous.py BACKEND"""

import os
import resource
import sys

import torch
import torch.distributed as dist

for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
    assert name not in os.environ
backend, = sys.argv[1:]
FILES, FEW = resource.RLIMIT_NOFILE, 200
resource.setrlimit(FILES, (FEW, resource.getrlimit(FILES)[1]))
dist.init_process_group(backend, init_method="mpi://")
assert dist.get_backend() == backend
tensor = torch.tensor([float(dist.get_rank())])
dist.all_reduce(tensor)
assert tensor.item() == sum(range(dist.get_world_size()))
if backend == "gloo":
    # the first one has a connection to each rank
    assert (resource.getrlimit(FILES)[0] > FEW) == (dist.get_rank() == 0), resource.getrlimit(FILES)
    assert os.environ["LOCAL_RANK"] == os.environ["RANK"] == str(dist.get_rank())
    both = dist.new_group(backend="mpi")
    dist.all_reduce(tensor, group=both)
os.write(1, b"rank %d: met with %s\n" % (dist.get_rank(), backend.encode()))
dist.barrier()
dist.destroy_process_group()
