"""measure.py: steps of DistributedDataParallel on data that is there already, on every rank (pytorch-srun measure.py);
each rank alone first, so that a slow node shows; and which cores and devices each rank has. Prints a line of JSON.
"""
import argparse
import json
import os
import socket
import time

import torch
import torch.distributed as dist
from torch import nn

LOCAL_RANK = int(os.environ['LOCAL_RANK'])


def own_device():
    """Return the number of this rank's GPU on the node, as its launcher has given it."""
    for name in ('ROCR_VISIBLE_DEVICES', 'CUDA_VISIBLE_DEVICES'):
        devices = os.environ.get(name, '').split(',')
        if devices != ['']:
            return devices[LOCAL_RANK % len(devices)]
    return '-'


def train(given):
    """Samples a second: of each rank alone, then of all together; whether all have the same weights."""
    gpu = torch.cuda.is_available()
    device = torch.device('cuda', LOCAL_RANK % torch.cuda.device_count()) if gpu else torch.device('cpu')
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group('nccl' if gpu else 'gloo')
    # or PyTorch guesses the GPU, and says so
    own = [device.index] if gpu else None
    layers = [nn.Linear(given.width, given.width) for _ in range(4)]
    model = nn.Sequential(*layers).to(device)
    inputs = torch.rand(given.batch_size, given.width, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trained = model

    def gather(mine):
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, mine)
        return found

    def seconds(steps):
        """Measure so many steps, until the device is done; all ranks begin together."""
        dist.barrier(device_ids=own)
        begin = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.mse_loss(trained(inputs), inputs).backward()
            optimizer.step()
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    samples = given.steps * given.batch_size
    # what comes first takes longer
    seconds(2)
    alone = min(seconds(given.steps) for _ in range(3))
    # it gives all ranks the weights of the first one
    trained = nn.parallel.DistributedDataParallel(model)
    seconds(2)
    together = max(gather(seconds(given.steps)))
    weights = gather(sum(weight.double().sum().item() for weight in model.parameters()))
    about = gather({
        'rank': dist.get_rank(),
        'host': os.environ.get('SLURMD_NODENAME', socket.gethostname()),
        'cores': sorted(os.sched_getaffinity(0)),
        'device': own_device(),
        'speed': samples / alone,
    })
    if dist.get_rank() == 0:
        each = samples / together
        values = {'total': len(about) * each, 'each': each}
        result = {'unit': 'samples/s', 'right': len(set(weights)) == 1, 'gpu': gpu, 'values': values, 'ranks': about}
        print('measured: %s' % json.dumps(result))
    dist.barrier(device_ids=own)
    dist.destroy_process_group()


parser = argparse.ArgumentParser()
parser.add_argument('--steps', type=int, default=50)
parser.add_argument('--batch-size', type=int, default=1024)
parser.add_argument('--width', type=int, default=2048)
train(parser.parse_args())
