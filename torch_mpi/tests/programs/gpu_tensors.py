"""Every kind of operation on GPU tensors, on the imitated device of fake_cuda.cpp or a real one; run by mpirun.

Kernels on that device run only when somebody waits for them. So each tensor is filled on the stream just before the
operation, and its memory is looked at right after it, without waiting for the device.
"""

import os

if "FAKE_CUDA" in os.environ:
    import fake_cuda as gpu  # before torch, which looks for a device only once
else:
    import real_cuda as gpu
import torch
import torch.distributed as dist

if "FAKE_CUDA" in os.environ:
    torch.cuda._lazy_init = lambda: None
    torch.cuda.get_device_capability = lambda device=None: (9, 0)


def on_device(value, count=6):
    """A tensor whose contents are still to come."""
    if "FAKE_CUDA" not in os.environ:
        torch.cuda._sleep(1000000)
    return torch.zeros(count).to("cuda").fill_(value)


def column(value):
    """Every other element of one."""
    return on_device(value, 12).view(6, 2).select(1, 0)


def check(what, tensor, expected):
    """Is it there, now?"""
    found = gpu.peek(tensor)
    wanted = torch.as_tensor(expected, dtype=found.dtype).expand_as(found)
    assert torch.equal(found, wanted), (what, found, wanted)


def rows(tensors):
    """Each tensor with the number of its rank."""
    return [(tensor, float(rank)) for rank, tensor in enumerate(tensors)]


def operations(rank, size, make):
    """(name, what to do; it returns the tensors that have changed, each with its expected value)."""
    total = float(sum(range(1, size + 1)))
    own, other = rank + 1.0, rank ^ 1

    def all_reduce(op=dist.ReduceOp.SUM, expected=total, **how):
        tensor = make(own)
        work = dist.all_reduce(tensor, op=op, **how)
        if work is not None:
            work.wait()
        return [(tensor, expected)]

    def future():
        tensor = make(own)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True).get_future().wait()
        return [(tensor, total / size)]

    def reduce(op, expected):
        tensor = make(own)
        dist.reduce(tensor, 0, op=op)
        return [(tensor, expected)] if rank == 0 else []

    def broadcast():
        tensor = make(own)
        dist.broadcast(tensor, 0)
        return [(tensor, 1.0)]

    def all_gather():
        tensors = [make(9.0) for _ in range(size)]
        dist.all_gather(tensors, make(float(rank)))
        return rows(tensors)

    def gather():
        tensors = [make(9.0) for _ in range(size)] if rank == 0 else None
        dist.gather(make(float(rank)), tensors, dst=0)
        return rows(tensors or [])

    def scatter():
        tensor = make(9.0)
        dist.scatter(tensor, [make(float(to)) for to in range(size)] if rank == 0 else None, src=0)
        return [(tensor, float(rank))]

    def reduce_scatter(op, expected):
        tensor = make(9.0)
        dist.reduce_scatter(tensor, [make(own) for _ in range(size)], op=op)
        return [(tensor, expected)]

    def all_to_all():
        tensors = [make(9.0) for _ in range(size)]
        dist.all_to_all(tensors, [make(float(rank)) for _ in range(size)])
        return rows(tensors)

    def send_receive():
        sent, received = make(float(rank)), make(9.0)
        works = [dist.isend(sent, other), dist.irecv(received, other)]
        for work in works:
            work.wait()
        return [(received, float(other))]

    three_times = dist._make_nccl_premul_sum(3.0)
    yield "all_reduce", all_reduce
    yield "all_reduce AVG", lambda: all_reduce(dist.ReduceOp.AVG, total / size)
    yield "all_reduce PREMUL_SUM", lambda: all_reduce(three_times, 3 * total)
    yield "all_reduce AVG asynchronous", lambda: all_reduce(dist.ReduceOp.AVG, total / size, async_op=True)
    yield "all_reduce AVG by its future", future
    yield "reduce AVG", lambda: reduce(dist.ReduceOp.AVG, total / size)
    yield "reduce PREMUL_SUM", lambda: reduce(three_times, 3 * total)
    yield "broadcast", broadcast
    yield "all_gather", all_gather
    yield "gather", gather
    yield "scatter", scatter
    yield "reduce_scatter", lambda: reduce_scatter(dist.ReduceOp.SUM, total)
    yield "reduce_scatter AVG", lambda: reduce_scatter(dist.ReduceOp.AVG, total / size)
    yield "reduce_scatter PREMUL_SUM", lambda: reduce_scatter(three_times, 3 * total)
    yield "all_to_all", all_to_all
    yield "send and receive", send_receive


def one_piece(rank, size):
    """Collectives of one tensor, whose parts belong to the ranks."""
    whole = on_device(9.0, size * 3)
    dist.all_gather_into_tensor(whole, on_device(float(rank), 3))
    check("all_gather_into_tensor", whole, torch.arange(size).repeat_interleave(3))
    part = on_device(9.0, 3)
    dist.reduce_scatter_tensor(part, on_device(rank + 1.0, size * 3), op=dist.ReduceOp.AVG)
    check("reduce_scatter_tensor", part, sum(range(1, size + 1)) / size)
    swapped = on_device(9.0, size)
    dist.all_to_all_single(swapped, on_device(float(rank), size))
    check("all_to_all_single", swapped, torch.arange(size))


def uneven(rank, size):
    """Parts of different lengths: rank 0 has one element, rank 1 two, and so on."""
    lengths = list(range(1, size + 1))
    tensors = [on_device(9.0, length) for length in lengths]
    dist.all_gather(tensors, on_device(float(rank), lengths[rank]))
    for tensor, expected in rows(tensors):
        check("uneven all_gather", tensor, expected)
    received = on_device(9.0, sum(lengths))
    dist.all_to_all_single(received, on_device(float(rank), lengths[rank] * size), lengths, [lengths[rank]] * size)
    check("uneven all_to_all_single", received, [float(i) for i, length in enumerate(lengths) for _ in range(length)])


def several(rank, size):
    """Several at once."""
    tensors = [on_device(rank + 1.0), column(rank + 1.0)]
    with dist._coalescing_manager(async_ops=True) as works:
        for tensor in tensors:
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    works.wait()
    for tensor in tensors:
        check("coalesced all_reduce", tensor, sum(range(1, size + 1)) / size)


def copied(operation):
    """Does it go through the host?"""
    before = gpu.pinned_allocations()
    operation()
    return gpu.pinned_allocations() > before


def main():
    """All of them, on contiguous tensors and on others."""
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    for stream in (0, 1):  # which of the device's streams this program's thread uses
        gpu.use_stream(stream)
        for layout in (on_device, column):
            for name, run in operations(rank, size, layout):
                for tensor, expected in run():
                    check((name, layout.__name__, stream), tensor, expected)
        for more in (one_piece, uneven, several):
            more(rank, size)
    print("rank %d: GPU tensors are right; copied through pinned memory: collectives %s, messages %s" % (
        rank, copied(lambda: dist.broadcast(on_device(1.0), 0)),
        copied(lambda: dist.send(on_device(1.0), 1) if rank == 0 else dist.recv(on_device(9.0), 0))))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    assert os.environ.get("FAKE_CUDA", "open") in ("open", "closed")
    main()
