#!/usr/bin/env python3
"""Training on any number of GPUs or CPU cores with DistributedDataParallel: an example to start from.

    srun -N2 -n16 ... pytorch-srun train.py --epochs 10 --snapshots snapshots

Runs unchanged on CPUs (gloo), CUDA and ROCm (NCCL, RCCL); torchrun starts it, too. It can be killed at any moment:
started again, it resumes from the last snapshot, and ends with the weights of an uninterrupted run: data and random
numbers of a step depend only on its number.

SIGUSR1, which job scripts request two minutes before their time limit, and SIGTERM make it save and end with status 85:
pytorch-run --requeue N then requeues the job.

To make it yours, replace `make_model` and `make_data`; the rest can stay.
"""
import argparse
import gc
import glob
import hashlib
import itertools
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# if the last one is damaged, there is one before it
KEEP = 2
# what a killed one has left there is written again
PARTIAL = '.snapshot'
# the exit status on which the job script queues the job again
REQUEUE = 85
# not empty when a signal has asked this rank to leave
signals = []


def make_data(size, seed):
    inputs = torch.rand(size, 16, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, torch.sin(inputs.sum(dim=1, keepdim=True)))


def make_model():
    """Return a small network; with dropout, because random numbers have to survive being killed, too."""
    return torch.nn.Sequential(
        torch.nn.Linear(16, 64),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(64, 1),
    )


def save_snapshot(directory, steps, state):
    """Write a snapshot so that its name appears only when all of it is on the disk; then remove the oldest."""
    partial = os.path.join(directory, PARTIAL)
    with open(partial, 'wb') as handle:
        torch.save(state, handle)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(partial, os.path.join(directory, 'snapshot-%09d.pt' % steps))
    for old in snapshots(directory)[KEEP:]:
        os.remove(old)


def snapshots(directory):
    return sorted(glob.glob(os.path.join(glob.escape(directory), 'snapshot-*.pt')), reverse=True)


def newest_snapshot(directory):
    """Return the newest snapshot that can be read, which the first rank looks for; None without any."""
    found = [None]
    for path in snapshots(directory) if dist.get_rank() == 0 else []:
        try:
            torch.load(path, map_location='cpu', weights_only=True)
            found = [path]
            break
        except Exception as problem:
            print("%s is damaged, using the one before it: %s" % (path, problem), file=sys.stderr, flush=True)
    dist.broadcast_object_list(found, src=0)
    return found[0]


def start():
    """Join the others; returns this rank's device."""
    if not torch.cuda.is_available():
        dist.init_process_group('gloo')
        return torch.device('cpu')
    # on AMD's GPUs it is called cuda, and RCCL nccl, all the same
    device = torch.device('cuda', int(os.environ['LOCAL_RANK']) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group('nccl')
    return device


def leaving(device):
    """True on all ranks if any was asked to leave; all call this after the same step."""
    answer = torch.tensor(float(bool(signals)), device=device)
    dist.all_reduce(answer, dist.ReduceOp.MAX)
    return bool(answer)


def prepare(model, loader, device):
    """Run one pass that does not count, or the first step after a restart would not be what it was to be."""
    # DistributedDataParallel reorders its messages after its first pass, and the last bit of a sum depends on the order
    inputs, targets = next(iter(loader))
    torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device)).backward()


def train(options, device):
    """Train until the last epoch, from the last snapshot on; returns the model, or None if it was asked to leave."""
    rank = dist.get_rank()
    size = dist.get_world_size()
    first = rank == 0
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(make_model().to(device), device_ids=[device] if device.type == 'cuda' else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    data = make_data(options.samples, options.seed)
    sampler = DistributedSampler(data, seed=options.seed)
    loader = DataLoader(data, options.batch_size, sampler=sampler, pin_memory=device.type == 'cuda')
    done, steps = 0, options.epochs * len(loader)
    os.makedirs(options.snapshots, exist_ok=True)
    path = newest_snapshot(options.snapshots)
    if path:
        state = torch.load(path, map_location=device, weights_only=True)
        model.module.load_state_dict(state['model'])
        optimizer.load_state_dict(state['optimizer'])
        done = state['steps']
        if first:
            print("resuming after step %d, from %s" % (done, path), flush=True)
            if state['ranks'] != size:
                print("there were %d ranks, now there are %d: an epoch has %d steps, and %d of %d are done; for more: "
                      "--epochs" % (state['ranks'], size, len(loader), done, steps), flush=True)
    prepare(model, loader, device)
    optimizer.zero_grad()
    for epoch in range(done // len(loader), options.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in itertools.islice(loader, done % len(loader), None):
            torch.manual_seed(options.seed + done * size + rank)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            done += 1
            leave = done < steps and done % 10 == 0 and leaving(device)
            if first and (leave or done % options.save_every == 0 or done == steps):
                save_snapshot(options.snapshots, done, {
                    'model': model.module.state_dict(),
                    'optimizer': optimizer.state_dict(),
                    'steps': done,
                    'ranks': size,
                })
            if leave:
                return None
        if first:
            print("epoch %d, step %d, loss %.6f" % (epoch + 1, done, loss.item()), flush=True)
    return model.module


def fingerprint(model):
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--epochs', type=int, default=10)
    parser.add_argument('--samples', type=int, default=2048)
    parser.add_argument('--batch-size', type=int, default=32, help="of each rank")
    parser.add_argument('--learning-rate', type=float, default=1e-3)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--snapshots', default='snapshots', metavar='DIRECTORY')
    parser.add_argument('--save-every', type=int, default=50, metavar='STEPS')
    options = parser.parse_args()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda *_: signals.append(True))
    device = start()
    model = train(options, device)
    status = 0 if model else REQUEUE
    if model and dist.get_rank() == 0:
        print("trained on %d ranks (%s); weights %s" % (dist.get_world_size(), device.type, fingerprint(model)))
    # DistributedDataParallel is part of a circle of objects; its threads must have ended before the process does
    del model
    gc.collect()
    dist.barrier(device_ids=[device.index] if device.type == 'cuda' else None)
    dist.destroy_process_group()
    sys.exit(status)


if __name__ == '__main__':
    main()
