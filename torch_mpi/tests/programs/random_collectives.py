"""Run by MPI processes: random collectives on random sub-groups, each compared with what gloo gives.

usage: random_collectives.py [COUNT [SEED]]

The default group is gloo's, so this is also how the two live together. All ranks draw the same plan. Up to eight
operations on MPI are under way at a time, on whatever groups came by, and are waited for in the order of their group.
"""

import os
import random
import sys
import tempfile

import torch
import torch.distributed as dist
import torch_mpi
from mpi_environment import rank_and_size

OPS = dist.ReduceOp
TYPES = [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.int8, torch.float16]
SIZES = [0, 1, 2, 3, 7, 64, 1000, 4096, 20000]
UNDER_WAY = 8


class Step:
    """One collective of the plan and the inputs of every member."""

    def __init__(self, chosen, number, groups):
        self.number = number
        self.members, self.gloo, self.mpi = groups[chosen.randrange(len(groups))]
        self.kind = chosen.choice(sorted(KINDS))
        self.dtype = chosen.choice(TYPES)
        self.count = chosen.choice(SIZES)
        self.op = chosen.choice([OPS.SUM, OPS.MIN, OPS.MAX, OPS.PRODUCT])
        self.root = chosen.choice(self.members)
        self.transposed = chosen.random() < 0.2
        self.tag = chosen.randrange(5)
        self.plain = False

    def tensor(self, rank, parts=1):
        """The input of this rank."""
        generator = torch.Generator().manual_seed(self.number * 100 + rank)
        made = torch.randint(0, 3, (self.count * parts,), generator=generator).to(self.dtype)
        if self.transposed and self.count % 2 == 0 and self.count:
            made = made.reshape(2, -1)
            if not self.plain:
                made = made.t().contiguous().t()  # the same values, another layout
        return made

    def __str__(self):
        return "step %d: %s of %d %s in %s" % (self.number, self.kind, self.count, self.dtype, self.members)


def all_reduce(step, group, me):
    tensor = step.tensor(me)
    return dist.all_reduce(tensor, op=step.op, group=group, async_op=True), [tensor]


def broadcast(step, group, me):
    tensor = step.tensor(me)
    return dist.broadcast(tensor, step.root, group=group, async_op=True), [tensor]


def reduce(step, group, me):
    tensor = step.tensor(me)
    work = dist.reduce(tensor, step.root, op=step.op, group=group, async_op=True)
    return work, [tensor] if me == step.root else []


def all_gather(step, group, me):
    outputs = [torch.zeros_like(step.tensor(rank)) for rank in step.members]
    return dist.all_gather(outputs, step.tensor(me), group=group, async_op=True), outputs


def gather(step, group, me):
    outputs = [torch.zeros_like(step.tensor(rank)) for rank in step.members] if me == step.root else None
    return dist.gather(step.tensor(me), outputs, step.root, group=group, async_op=True), outputs or []


def scatter(step, group, me):
    output = torch.zeros_like(step.tensor(me))
    inputs = [step.tensor(rank) for rank in step.members] if me == step.root else None
    return dist.scatter(output, inputs, step.root, group=group, async_op=True), [output]


def all_to_all_single(step, group, me):
    source = step.tensor(me, len(step.members)).reshape(-1).contiguous()
    target = torch.zeros_like(source)
    return dist.all_to_all_single(target, source, group=group, async_op=True), [target]


def send_recv(step, group, me):
    place, size = step.members.index(me), len(step.members)
    source = step.tensor(me)
    tensor = torch.zeros(source.shape, dtype=source.dtype)
    if size == 1:
        return None, []
    works = [dist.isend(source, step.members[(place + 1) % size], group=group, tag=step.tag),
             dist.irecv(tensor, step.members[(place - 1) % size], group=group, tag=step.tag)]

    class Both:
        @staticmethod
        def wait():
            for work in works:
                work.wait()
    return Both, [tensor]


def barrier(step, group, me):
    return dist.barrier(group=group, async_op=True), []


KINDS = {one.__name__: one for one in (
    all_reduce, broadcast, reduce, all_gather, gather, scatter, all_to_all_single, send_recv, barrier)}


def main():
    """Draw the plan, carry it out on both, compare."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    me, size = rank_and_size()
    meeting = os.environ.get("MEETING_FILE") or os.path.join(tempfile.gettempdir(), "meeting")
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=me, world_size=size)
    torch_mpi.start()
    chosen = random.Random(seed)
    groups = []
    for _ in range(8):
        members = sorted(chosen.sample(range(size), chosen.randint(1, size)))
        groups.append((members, dist.new_group(members, backend="gloo"), dist.new_group(members, backend="mpi")))
    under_way = []

    def finish(step, expected, work, found):
        if work is not None:
            work.wait()
        for right, one in zip(expected, found):
            if not torch.equal(right, one):
                raise AssertionError("rank %d, %s, %s: gloo gives %s, mpi %s" % (me, step, step.op, right, one))

    done = 0
    for number in range(count):
        step = Step(chosen, number, groups)
        if me not in step.members:
            continue
        step.plain = True  # gloo sends contiguous memory only, and gathered other wrongly in 2.1
        work, expected = KINDS[step.kind](step, step.gloo, me)
        step.plain = False
        if work is not None:
            work.wait()
        under_way.append((step, expected) + KINDS[step.kind](step, step.mpi, me))
        done += 1
        if len(under_way) == UNDER_WAY:
            for one in under_way:
                finish(*one)
            under_way.clear()
    for one in under_way:
        finish(*one)
    dist.barrier()
    dist.destroy_process_group()
    print("rank %d: %d collectives agree with gloo" % (me, done))


if __name__ == "__main__":
    main()
