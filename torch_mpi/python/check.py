"""Show what works in torch.distributed on MPI here, and how fast: a table, in about a minute on any number of ranks.

    mpirun -n 2 python -m torch_mpi.check

Ends with 1 when a result is wrong.
"""

import datetime
import sys
import time

import torch
import torch.distributed as dist

SIZES = [("8 B", 8), ("64 KB", 64 << 10), ("16 MB", 16 << 20)]
TYPES = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.float16, torch.bfloat16]
OPERATIONS = ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
SECONDS = 0.3  # for each operation and size


class Operations:
    """Each method calls one operation on tensors of so many elements, and returns its result and the expected one."""

    def __init__(self, rank, size, device):
        self.rank, self.size, self.device = rank, size, device

    def filled(self, count, kind, value=None):
        """Return what this rank gives: a small number, which every type can hold."""
        value = self.rank % 8 if value is None else value
        return torch.full((count,), value, dtype=kind, device=self.device)

    def lists(self, count, kind):
        """Return a list of output tensors and the list that is expected."""
        outputs = [self.filled(count, kind, 9) for _ in range(self.size)]
        expected = [self.filled(count, kind, rank % 8) for rank in range(self.size)]
        return outputs, torch.stack(expected)

    def all_reduce(self, count, kind):
        tensor = self.filled(count, kind)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor, self.filled(count, kind, min(self.size - 1, 7))

    def broadcast(self, count, kind):
        tensor, root = self.filled(count, kind), self.size - 1
        dist.broadcast(tensor, root)
        return tensor, self.filled(count, kind, root % 8)

    def all_gather(self, count, kind):
        outputs, expected = self.lists(count, kind)
        dist.all_gather(outputs, self.filled(count, kind))
        return torch.stack(outputs), expected

    def reduce_scatter(self, count, kind):
        output = self.filled(count, kind, 9)
        inputs = [self.filled(count, kind)] * self.size
        dist.reduce_scatter(output, inputs, op=dist.ReduceOp.MAX)
        return output, self.filled(count, kind, min(self.size - 1, 7))

    def all_to_all(self, count, kind):
        outputs, expected = self.lists(count, kind)
        dist.all_to_all(outputs, [self.filled(count, kind)] * self.size)
        return torch.stack(outputs), expected

    def send_recv(self, count, kind):
        """Around the ring."""
        tensor = self.filled(count, kind, 9)
        left, right = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        works = [dist.irecv(tensor, left), dist.isend(self.filled(count, kind), right)]
        for work in works:
            work.wait()
        return tensor, self.filled(count, kind, left % 8)


def over_ranks(value, op):
    """Return the minimum or the maximum of a number over all ranks."""
    tensor = torch.tensor([float(value)], dtype=torch.float64)
    dist.all_reduce(tensor, op=op)
    return tensor.item()


def wrong_types(operation):
    """Return the names of the types for which the result of a rank is wrong."""
    wrong = []
    for kind in TYPES:
        try:
            right = torch.equal(*operation(1000, kind))
        except RuntimeError as error:
            sys.stderr.write("%s: %s\n" % (kind, str(error).splitlines()[0]))
            right = False
        if not over_ranks(right, dist.ReduceOp.MIN):
            wrong.append(str(kind).replace("torch.", ""))
    return wrong


def microseconds(operation, length, ranks):
    """Return how long one takes, of the slowest rank; a dash where it needs too much memory."""
    if length * ranks > 1 << 30:
        return "-"
    count, taken, turns = max(length // 4, 1), 0.0, 0
    operation(count, torch.float32)
    while taken < SECONDS:
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(3):
            operation(count, torch.float32)
        taken += over_ranks(time.perf_counter() - begin, dist.ReduceOp.MAX)
        turns += 3
    return "%.0f" % (taken / turns * 1e6)


def main():
    """Check everything and print the table."""
    import torch_mpi
    dist.init_process_group("mpi", timeout=datetime.timedelta(minutes=2))
    rank, size = dist.get_rank(), dist.get_world_size()
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices.append("cuda:%d" % (rank % torch.cuda.device_count()))
    lines = ["%s; torch %s, %d ranks; microseconds" % (torch_mpi.library_version(), torch.__version__, size)]
    row = "%-5s %-15s %-8s" + "%10s" * len(SIZES)
    lines.append(row % ("on", "operation", "right", *[title for title, _ in SIZES]))
    all_right = True
    for device in devices:
        operations = Operations(rank, size, device)
        for name in OPERATIONS:
            operation = getattr(operations, name)
            wrong = wrong_types(operation)
            times = [microseconds(operation, length, size) for _, length in SIZES]
            verdict = "NO: " + " ".join(wrong) if wrong else "yes"
            lines.append(row % (device.split(":")[0], name, verdict, *times))
            all_right = all_right and not wrong
    if len(devices) > 1:
        way = "passed to MPI as they are" if torch_mpi.gpu_aware() else "copied through pinned memory"
        lines.append("GPU tensors are " + way)
    if size == 1:
        lines.append("One rank shows little: start it with mpirun or srun.")
    if rank == 0:
        print("\n".join(lines), flush=True)
    dist.destroy_process_group()
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
