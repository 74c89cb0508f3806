"""
measure.py start | train | checkpoint | serve: what the checks time on every rank (pytorch-srun measure.py train)

  start       a new Python that imports PyTorch, on every rank at once
  train       steps of DistributedDataParallel on data that is there already; each rank alone first, so that a slow
              node shows; and which cores and devices each rank has
  checkpoint  a file of each rank, written, read from disk and compared; in the directory where it is started

  serve       how soon vLLM answers, and how many tokens a second it makes, with a tiny model

Prints a line of JSON for each unit.
"""
import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time

RANK = int(os.environ['RANK'])
LOCAL_RANK = int(os.environ['LOCAL_RANK'])


class Ranks:
    """PyTorch, this rank's device, and the other ranks."""

    def __init__(self):
        import torch
        import torch.distributed as dist
        self.torch, self.dist = torch, dist
        self.device = torch.device('cpu')
        if torch.cuda.is_available():
            self.device = torch.device('cuda', LOCAL_RANK % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        dist.init_process_group('gloo' if self.device.type == 'cpu' else 'nccl')

    def gather(self, mine):
        """Gather the values of all ranks, in their order."""
        found = [None] * self.dist.get_world_size()
        self.dist.all_gather_object(found, mine)
        return found

    def seconds(self, action, times=1):
        """Measure so many calls, until the device is done; all ranks begin together."""
        self.dist.barrier()
        begin = time.perf_counter()
        for _ in range(times):
            action()
        if self.device.type == 'cuda':
            self.torch.cuda.synchronize()
        return time.perf_counter() - begin


def report(unit, right, values, ranks=()):
    """Print what was measured, in one piece, as several ranks may write at once."""
    result = {'unit': unit, 'right': right, 'values': values, 'ranks': ranks}
    os.write(1, ('measured: %s\n' % json.dumps(result)).encode())


def start(_):
    begin = time.perf_counter()
    subprocess.run([sys.executable, '-c', 'import torch'], check=True)
    report('s', True, {'import': time.perf_counter() - begin})


def own_device():
    """Return the number of this rank's GPU on the node, as its launcher has given it."""
    for name in ('ROCR_VISIBLE_DEVICES', 'CUDA_VISIBLE_DEVICES'):
        devices = os.environ.get(name, '').split(',')
        if devices != ['']:
            return devices[LOCAL_RANK % len(devices)]
    return '-'


def train(given):
    """Samples a second: of each rank alone, then of all together; whether all have the same weights."""
    ranks = Ranks()
    nn = ranks.torch.nn
    layers = [nn.Linear(given.width, given.width) for _ in range(4)]
    model = nn.Sequential(*layers).to(ranks.device)
    inputs = ranks.torch.rand(given.batch_size, given.width, device=ranks.device)
    optimizer = ranks.torch.optim.SGD(model.parameters(), lr=0.01)
    trained = model

    def step():
        optimizer.zero_grad()
        nn.functional.mse_loss(trained(inputs), inputs).backward()
        optimizer.step()

    samples = given.steps * given.batch_size
    # what comes first takes longer
    ranks.seconds(step, 2)
    alone = min(ranks.seconds(step, given.steps) for _ in range(3))
    # it gives all ranks the weights of the first one
    trained = nn.parallel.DistributedDataParallel(model)
    ranks.seconds(step, 2)
    together = max(ranks.gather(ranks.seconds(step, given.steps)))
    weights = ranks.gather(sum(weight.double().sum().item() for weight in model.parameters()))
    about = ranks.gather({
        'rank': RANK,
        'host': os.environ.get('SLURMD_NODENAME', socket.gethostname()),
        'cores': sorted(os.sched_getaffinity(0)),
        'device': own_device(),
        'speed': samples / alone,
    })
    if RANK == 0:
        each = samples / together
        values = {'total': len(about) * each, 'each': each}
        report('samples/s', len(set(weights)) == 1, values, about)
    ranks.dist.destroy_process_group()


def checkpoint(given):
    """GB/s of all ranks; reading is from the disk, as far as the system can be made to forget."""
    ranks = Ranks()
    path = 'checkpoint-%d.pt' % RANK
    random = ranks.torch.Generator().manual_seed(RANK)
    weights = ranks.torch.rand(given.megabytes << 18, generator=random)
    found = []

    def write():
        with open(path, 'wb') as handle:
            ranks.torch.save(weights, handle)
            handle.flush()
            os.fsync(handle.fileno())
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def read():
        found.append(ranks.torch.load(path, map_location='cpu', weights_only=True))

    size = ranks.dist.get_world_size() * weights.numel() * 4 / 1e9
    writing = max(ranks.gather(ranks.seconds(write)))
    reading = max(ranks.gather(ranks.seconds(read)))
    os.remove(path)
    same = all(ranks.gather(ranks.torch.equal(found[0], weights)))
    if RANK == 0:
        report('GB/s', same, {'write': size / writing, 'read': size / reading})
    ranks.dist.destroy_process_group()


def serve(_):
    done = subprocess.run(['pytorch-check', 'vllm'], stdout=subprocess.PIPE, universal_newlines=True)
    print(done.stdout)
    first, speed = re.search(r'first token after (\S+) s, then (\S+) tokens/s', done.stdout).groups()
    report('s', True, {'first_token': float(first)})
    report('tokens/s', True, {'tokens': float(speed)})


MEASURES = {'start': start, 'train': train, 'checkpoint': checkpoint, 'serve': serve}
parser = argparse.ArgumentParser()
parser.add_argument('what', choices=list(MEASURES))
parser.add_argument('--steps', type=int, default=50)
parser.add_argument('--batch-size', type=int, default=1024)
parser.add_argument('--width', type=int, default=2048)
parser.add_argument('--megabytes', type=int, default=1024)
options = parser.parse_args()
MEASURES[options.what](options)
