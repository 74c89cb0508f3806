"""A small training run with DistributedDataParallel over gloo: what the tests start where users start theirs."""
import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

arguments = argparse.ArgumentParser()
# as the example of the page is called; there are no GPUs here, and the model is made up
arguments.add_argument('--gpu', action='store_true')
arguments.add_argument('--modelpath')
arguments.add_argument('--steps', type=int, default=5)
options = arguments.parse_args()


def say(text):
    """A line in one piece, as other ranks write to the same place."""
    os.write(1, (text + "\n").encode())


def train():
    """All of the work; what refers to the process group is gone when this returns."""
    torch.set_num_threads(1)
    dist.init_process_group('gloo')
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    # every rank has other data of the same function, so that only the sum of all gradients is right
    torch.manual_seed(rank)
    data = torch.randn(64, 8)
    truth = data @ torch.arange(8.0).reshape(8, 1)
    for step in range(options.steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(data), truth)
        loss.backward()
        optimizer.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    everyones = [torch.zeros_like(weights) for _ in range(size)]
    dist.all_gather(everyones, weights)
    assert all(torch.equal(weights, other) for other in everyones), "the ranks have different weights"
    members = [None] * size
    dist.all_gather_object(members, os.environ.get('SLURMD_NODENAME', '?'))
    if "NCCL_DEBUG" in os.environ:
        say("debug " + os.environ["NCCL_DEBUG"])
    say("rank %d of %d on %s, local %s of %s, port %s, nodes %d, job %s, private %s" % (
        rank, size, os.environ.get('SLURMD_NODENAME', '?'), os.environ['LOCAL_RANK'], os.environ['LOCAL_WORLD_SIZE'],
        os.environ['MASTER_PORT'], len(set(members)), os.environ.get('SLURM_JOB_ID', '?'),
        os.environ.get('MIOPEN_USER_DB_PATH')))


train()
# gloo's threads end with the last reference to the group; one that still runs while Python ends aborts the process
gc.collect()
dist.destroy_process_group()
