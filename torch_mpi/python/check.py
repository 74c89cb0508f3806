"""What works in torch.distributed on MPI here, and how fast: a table, in about a minute on any number of ranks.

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
SECONDS = 0.3  # for each operation and size


class Checks:
    """Each method runs one operation on tensors of so many elements, and returns what came out and what should have."""

    def __init__(self, rank, size, device):
        self.rank, self.size, self.device = rank, size, device

    def filled(self, count, kind, value=None):
        """What this rank gives; small numbers, that every type holds."""
        return torch.full((count,), self.rank % 8 if value is None else value, dtype=kind, device=self.device)

    def all_reduce(self, count, kind):
        tensor = self.filled(count, kind)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor, self.filled(count, kind, min(self.size - 1, 7))

    def broadcast(self, count, kind):
        tensor, root = self.filled(count, kind), self.size - 1
        dist.broadcast(tensor, root)
        return tensor, self.filled(count, kind, root % 8)

    def all_gather(self, count, kind):
        tensors = [self.filled(count, kind, 9) for _ in range(self.size)]
        dist.all_gather(tensors, self.filled(count, kind))
        return torch.stack(tensors), torch.stack([self.filled(count, kind, one % 8) for one in range(self.size)])

    def reduce_scatter(self, count, kind):
        tensor = self.filled(count, kind, 9)
        dist.reduce_scatter(tensor, [self.filled(count, kind) for _ in range(self.size)], op=dist.ReduceOp.MAX)
        return tensor, self.filled(count, kind, min(self.size - 1, 7))

    def all_to_all(self, count, kind):
        tensors = [self.filled(count, kind, 9) for _ in range(self.size)]
        dist.all_to_all(tensors, [self.filled(count, kind) for _ in range(self.size)])
        return torch.stack(tensors), torch.stack([self.filled(count, kind, one % 8) for one in range(self.size)])

    def send_recv(self, count, kind):
        """Around the ring."""
        tensor, left = self.filled(count, kind, 9), (self.rank - 1) % self.size
        works = [dist.irecv(tensor, left), dist.isend(self.filled(count, kind), (self.rank + 1) % self.size)]
        for work in works:
            work.wait()
        return tensor, self.filled(count, kind, left % 8)


NAMES = [name for name in vars(Checks) if name not in ("filled", "__init__") and not name.startswith("__")]


def agreed(value, op):
    """The same on all ranks."""
    tensor = torch.tensor([float(value)], dtype=torch.float64)
    dist.all_reduce(tensor, op=op)
    return tensor.item()


def wrong_types(run):
    """The names of the types for which a rank got something else."""
    wrong = []
    for kind in TYPES:
        try:
            found, expected = run(1000, kind)
            right = torch.equal(found, expected)
        except RuntimeError as error:
            sys.stderr.write("%s: %s\n" % (kind, str(error).splitlines()[0]))
            right = False
        if not agreed(right, dist.ReduceOp.MIN):
            wrong.append(str(kind).replace("torch.", ""))
    return wrong


def microseconds(run, bytes_, ranks):
    """How long one takes, of the slowest rank; a dash where it needs too much memory."""
    if bytes_ * ranks > 1 << 30:
        return "-"
    count, taken, turns = max(bytes_ // 4, 1), 0.0, 0
    run(count, torch.float32)
    while taken < SECONDS:
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(3):
            run(count, torch.float32)
        taken += agreed(time.perf_counter() - begin, dist.ReduceOp.MAX)
        turns += 3
    return "%.0f" % (taken / turns * 1e6)


def main():
    """Check everything and print what was found."""
    import torch_mpi
    dist.init_process_group("mpi", timeout=datetime.timedelta(minutes=2))
    rank, size = dist.get_rank(), dist.get_world_size()
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices.append("cuda:%d" % (rank % torch.cuda.device_count()))
    lines = ["%s; torch %s, %d ranks; microseconds" % (torch_mpi.library_version(), torch.__version__, size),
             "%-5s %-15s %-8s" % ("on", "operation", "right") + "".join("%10s" % title for title, _ in SIZES)]
    all_right = True
    for device in devices:
        checks = Checks(rank, size, device)
        for name in NAMES:
            run = getattr(checks, name)
            wrong = wrong_types(run)
            all_right = all_right and not wrong
            times = [microseconds(run, bytes_, size) for _, bytes_ in SIZES]
            lines.append("%-5s %-15s %-8s" % (device.split(":")[0], name, "NO: " + " ".join(wrong) if wrong else "yes")
                         + "".join("%10s" % one for one in times))
    if rank == 0:
        if len(devices) > 1:
            lines.append("GPU tensors are " + ("handed to MPI as they are" if torch_mpi.gpu_aware() else
                                               "copied through pinned memory"))
        if size == 1:
            lines.append("One rank says little: start it with mpirun or srun.")
        print("\n".join(lines), flush=True)
    dist.destroy_process_group()
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
