"""Run by MPI processes: DistributedDataParallel on the GPU gives what it gives on the CPU."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(device, rank):
    """The parameters after some steps on data of this rank."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)).double().to(device)
    net = DistributedDataParallel(net, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(100 + rank)
    for _ in range(10):
        loss = net(torch.randn(16, 32, dtype=torch.float64).to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cat([one.detach().cpu().flatten() for one in net.parameters()])


dist.init_process_group("mpi")
me = dist.get_rank()
torch.cuda.set_device(me % torch.cuda.device_count())
torch.testing.assert_close(train("cuda", me), train("cpu", me))
os.write(1, b"rank %d: as on the CPU\n" % me)
dist.barrier()
dist.destroy_process_group()
