#!/usr/bin/env python3
"""
A small transformer language model with FSDP2: each rank keeps a part of the weights. An example to start from.

    pytorch-run --nodes 2 --requeue 5 train_fsdp.py --steps 2000

All ranks write checkpoints together, while training goes on. Started again, it goes on from the last one, also on
another number of ranks. SIGUSR1 and SIGTERM make it save and end with status 85: the job script then requeues it.
To make it yours, replace `Model` and `batch`; the rest can stay.
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

WORDS, LENGTH, REQUEUE = 64, 32, 85
signals = []


class Model(nn.Module):
    """Says which word comes next; returns the loss."""

    def __init__(self, width, layers):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0, batch_first=True,
                                                               norm_first=True) for _ in range(layers))
        self.out = nn.Linear(width, WORDS)
        self.register_buffer('later', torch.full((LENGTH, LENGTH), float('-inf')).triu(1))

    def forward(self, text):
        hidden = self.words(text[:, :-1]) + self.places.weight
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.later)
        return nn.functional.cross_entropy(self.out(hidden).flatten(0, 1), text[:, 1:].flatten())


def batch(step, size):
    """Return a step's sentences, of all ranks, from its number: but for one in eight, a word follows from the last."""
    numbers = torch.Generator().manual_seed(step)
    text = torch.randint(WORDS, (size, LENGTH + 1), generator=numbers)
    follows = torch.rand(size, LENGTH + 1, generator=numbers) > 1 / 8
    for place in range(1, LENGTH + 1):
        text[:, place] = torch.where(follows[:, place], (3 * text[:, place - 1] + 1) % WORDS, text[:, place])
    return text


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
    model = Model(options.width, options.layers).to(device)
    mesh = init_device_mesh(device.type, (ranks,))
    for part in [*model.layers, model]:
        fully_shard(part, mesh=mesh)
    training = Training(model, options.checkpoints)
    training.load()
    leaving = torch.zeros(1, device=device)
    while training.steps < options.steps and not leaving:
        text = batch(training.steps, options.batch_size)[rank::ranks].to(device)
        loss = model(text)
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
                print("step %d, loss %.5f" % (training.steps, loss.item()), flush=True)
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
