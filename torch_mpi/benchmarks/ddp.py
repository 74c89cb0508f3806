"""A step of DistributedDataParallel with 25 million parameters: torch_mpi and gloo in the same processes, in turn.

usage: mpirun -n RANKS python ddp.py [STEPS]

Prints the median step of both, and of one step the timeline: when each bucket's reduction began and ended, beside when
the backward pass had its last gradient.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LAYERS, WIDTH, BATCH, TURNS = 12, 1443, 64, 5


def model():
    """The same on all ranks."""
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(LAYERS)]
    return torch.nn.Sequential(*layers)


class Training:
    """A model on one group; notes what happens when in a step."""

    def __init__(self, group):
        net = model()
        self.notes, self.group = [], group
        next(net.parameters()).register_hook(lambda gradient: self.note("the last gradient is there"))
        self.net = DistributedDataParallel(net, process_group=group)
        self.net.register_comm_hook(None, self.reduce)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.data = torch.randn(BATCH, WIDTH)

    def note(self, what):
        """It happens now."""
        self.notes.append((time.perf_counter(), what))

    def reduce(self, _, bucket):
        """What DDP does without a hook, and the notes."""
        title = "bucket %d, %.1f MB" % (bucket.index(), bucket.buffer().nbytes / 1e6)
        self.note(title + " begins")
        work = dist.all_reduce(bucket.buffer().div_(self.group.size()), group=self.group, async_op=True)

        def ended(future):
            self.note(title + " ended")
            return future.value()[0]
        return work.get_future().then(ended)

    def step(self):
        """Train one step; its seconds."""
        self.notes.clear()
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.net(self.data).square().mean()
        self.note("backward begins")
        loss.backward()
        self.note("backward ended")
        self.optimizer.step()
        return time.perf_counter() - begin


def main():
    steps = int(sys.argv[1]) if sys.argv[1:] else 5
    dist.init_process_group("gloo", init_method="mpi://")
    torch.set_num_threads(1)
    trainings = {"gloo": Training(dist.group.WORLD), "mpi": Training(dist.new_group(backend="mpi"))}
    found = {name: [] for name in trainings}
    for turn in range(TURNS + 1):
        for name, training in trainings.items():
            dist.barrier()
            times = [training.step() for _ in range(steps)]
            if turn:  # the first one warms up
                found[name] += times
    if dist.get_rank() == 0:
        middle = {name: sorted(times)[len(times) // 2] * 1e3 for name, times in found.items()}
        print("step of %.1f million parameters, %d ranks: gloo %.0f ms, mpi %.0f ms, %.2f" % (
            sum(one.numel() for one in model().parameters()) / 1e6, dist.get_world_size(), middle["gloo"],
            middle["mpi"], middle["gloo"] / middle["mpi"]))
        for name, training in trainings.items():
            print("\n%s\n%8s" % (name, "ms"))
            begin = next(when for when, what in training.notes if what == "backward begins")
            for when, what in sorted(training.notes):
                print("%8.1f  %s" % ((when - begin) * 1e3, what))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
