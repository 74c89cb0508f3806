#!/usr/bin/env python3
"""Training with FSDP2: each rank keeps a part of the weights. An example to start from.

    pytorch-run --nodes 2 --requeue 5 train_fsdp.py --steps 2000

All ranks write checkpoints together, while training goes on. Started again, it goes on from the last one, also on
another number of ranks. SIGUSR1 and SIGTERM make it save and end with status 85: the job script then requeues it.
To make it yours, replace `make_model` and `batch`; the rest can stay.
"""
import argparse
import glob
import os
import shutil
import signal
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

REQUEUE = 85
signals = []


def make_model(width, layers):
    model = nn.Sequential(nn.Linear(16, width))
    for _ in range(layers):
        model.append(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)))
    return model.append(nn.Linear(width, 1))


def batch(step, size):
    """Return a step's inputs, of all ranks, from its number, and what is to be learnt: their sum."""
    inputs = torch.randn(size, 16, generator=torch.Generator().manual_seed(step))
    return inputs, inputs.sum(dim=1, keepdim=True)


class Training:
    """What is saved, and where: step-<steps done>, which is whole when it has `.metadata`."""

    def __init__(self, model, directory):
        self.model, self.optimizer, self.steps = model, torch.optim.AdamW(model.parameters(), lr=3e-3), 0
        self.directory, self.writing = directory, None
        # in the background ranks talk to each other, too, and must not get into the training's way
        self.group = dist.new_group(backend='gloo')

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {'model': model, 'optimizer': optimizer, 'steps': self.steps}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state['model'], optim_state_dict=state['optimizer'])
        self.steps = state['steps']

    def whole(self):
        """Newest first."""
        found = glob.glob(os.path.join(self.directory, 'step-*', '.metadata'))
        return sorted(map(os.path.dirname, found), reverse=True)

    def load(self):
        found = [self.whole()[:1]]
        dist.broadcast_object_list(found, src=0)
        for path in found[0]:
            dcp.load({'training': self}, checkpoint_id=path)
            if dist.get_rank() == 0:
                print("resuming after step %d, on %d ranks" % (self.steps, dist.get_world_size()), flush=True)

    def save(self):
        """Begin to; two whole ones are kept."""
        if self.writing:
            self.writing.result()
        self.writing = dcp.async_save({'training': self}, process_group=self.group,
                                      checkpoint_id=os.path.join(self.directory, 'step-%09d' % self.steps))
        for old in self.whole()[2:] if dist.get_rank() == 0 else []:
            shutil.rmtree(old)


def train(options, device):
    """Train until the last step, or until asked to leave; whether it is done."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = make_model(options.width, options.layers).to(device)
    mesh = init_device_mesh(device.type, (ranks,))
    for part in [*model, model]:
        fully_shard(part, mesh=mesh)
    training = Training(model, options.checkpoints)
    training.load()
    leaving = torch.zeros(1, device=device)
    while training.steps < options.steps and not leaving:
        inputs, targets = [part[rank::ranks].to(device) for part in batch(training.steps, options.batch_size)]
        loss = nn.functional.mse_loss(model(inputs), targets)
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        training.steps += 1
        if training.steps % 10 == 0:
            # for all ranks at the same step
            leaving[0], loss = bool(signals), loss.detach() / ranks
            dist.all_reduce(leaving, dist.ReduceOp.MAX)
            dist.all_reduce(loss)
            if rank == 0:
                print("step %d, loss %.5g" % (training.steps, loss.item()), flush=True)
        if training.steps % options.save_every == 0 or leaving or training.steps == options.steps:
            training.save()
    if training.writing:
        training.writing.result()
    return training.steps >= options.steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (('steps', 500), ('batch-size', 64), ('width', 64), ('layers', 2), ('save-every', 50)):
        parser.add_argument('--' + name, type=int, default=default)
    parser.add_argument('--checkpoints', default='checkpoints', metavar='DIRECTORY')
    options = parser.parse_args()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda *_: signals.append(True))
    gpu = torch.cuda.is_available()
    device = torch.device('cuda', int(os.environ['LOCAL_RANK'])) if gpu else torch.device('cpu')
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group('cpu:gloo,cuda:nccl' if gpu else 'gloo')
    done = train(options, device)
    dist.destroy_process_group()
    sys.exit(0 if done else REQUEUE)


if __name__ == '__main__':
    main()
