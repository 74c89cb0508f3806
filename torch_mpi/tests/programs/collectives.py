"""Run by MPI processes: every collective, with the types, operations and layouts a tensor can have.

Each result is compared with what all ranks' inputs give, which every rank can compute: inputs depend on the rank and a
seed alone. Ends with an exception on the first difference.

usage: collectives.py [GROUPS] ; so many groups are made and destroyed in the end.
"""

import functools
import itertools
import sys

import torch
import torch.distributed as dist
import torch_mpi  # noqa: F401

OPS = dist.ReduceOp
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
TINY = [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
        if hasattr(torch, name)]
EVERY = INTEGERS + UNSIGNED + FLOATS + COMPLEX + TINY + [torch.bool, torch.complex32]

# Layouts of a tensor of 24 elements: how it is made from a contiguous one.
LAYOUTS = {
    "contiguous": lambda t: t.reshape(2, 3, 4),
    "transposed": lambda t: t.reshape(4, 6).t().contiguous().t(),
    "strided": lambda t: torch.stack([t, t], dim=1)[:, 0],
    "offset": lambda t: torch.cat([t[:5], t])[5:],
    "expanded copy": lambda t: t.reshape(4, 6).contiguous().as_strided((4, 6), (6, 1)),
}


def values(dtype, rank, count=24, small=True):
    """Small whole numbers of this rank, exact in every type and in their sums and products."""
    generator = torch.Generator().manual_seed(1000 + rank)
    numbers = torch.randint(0, 3 if small else 100, (count,), generator=generator)
    if dtype == torch.bool:
        return numbers > 1
    if dtype.is_complex:
        imaginary = torch.randint(0, 3, (count,), generator=generator)
        return torch.complex(numbers.double(), imaginary.double()).to(dtype)
    return numbers.to(dtype)


def plain(tensor):
    """In a type in which everything can be computed and compared."""
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128)
    if tensor.dtype.is_floating_point:
        return tensor.to(torch.float64)
    return tensor.to(torch.int64)


def same(found, expected, *what):
    """Both tensors are equal, averages but for the rounding of their type, or the end."""
    rounding = torch.finfo(found.dtype).eps if OPS.AVG in what and found.dtype in FLOATS + COMPLEX else 0
    if OPS.AVG in what and found.dtype in TINY:  # the sum is rounded, too: these do not have every number up to 10
        rounding = 2 * torch.finfo(found.dtype).eps
    if found.dtype == torch.complex32:
        rounding = torch.finfo(torch.float16).eps
    found = plain(found).reshape(-1)
    expected = plain(expected).reshape(-1).to(found.dtype)
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=rounding, atol=0):
        raise AssertionError("rank %d: %s: found %s, expected %s" % (dist.get_rank(), what, found, expected))


def reduced(op, inputs):
    """What a reduction of these inputs gives."""
    dtype = inputs[0].dtype
    if dtype == torch.bool:
        combine = {OPS.SUM: torch.logical_or, OPS.MAX: torch.logical_or, OPS.BOR: torch.logical_or,
                   OPS.PRODUCT: torch.logical_and, OPS.MIN: torch.logical_and, OPS.BAND: torch.logical_and,
                   OPS.BXOR: torch.logical_xor}[op]
        return functools.reduce(combine, inputs)
    wide = [plain(one) for one in inputs]
    combine = {OPS.SUM: torch.add, OPS.AVG: torch.add, OPS.PRODUCT: torch.mul, OPS.MIN: torch.minimum,
               OPS.MAX: torch.maximum, OPS.BAND: torch.bitwise_and, OPS.BOR: torch.bitwise_or,
               OPS.BXOR: torch.bitwise_xor}[op]
    result = functools.reduce(combine, wide)
    if op == OPS.AVG:
        whole = not dtype.is_floating_point and not dtype.is_complex
        result = torch.div(result, len(inputs), rounding_mode="trunc") if whole else result / len(inputs)
    return result.to(dtype)


def ops_for(dtype):
    """The operations that have a meaning for this type."""
    if dtype == torch.bool:
        return [OPS.SUM, OPS.PRODUCT, OPS.MIN, OPS.MAX, OPS.BAND, OPS.BOR, OPS.BXOR]
    if dtype.is_complex:
        return [OPS.SUM, OPS.AVG]
    if dtype.is_floating_point:
        return [OPS.SUM, OPS.AVG, OPS.PRODUCT, OPS.MIN, OPS.MAX]
    if dtype in UNSIGNED:  # torch itself does not divide these
        return [OPS.SUM, OPS.PRODUCT, OPS.MIN, OPS.MAX, OPS.BAND, OPS.BOR, OPS.BXOR]
    return [OPS.SUM, OPS.AVG, OPS.PRODUCT, OPS.MIN, OPS.MAX, OPS.BAND, OPS.BOR, OPS.BXOR]


def check_reductions(group, members):
    """all_reduce, reduce and reduce_scatter of every type with every operation."""
    size, me = len(members), dist.get_rank(group)
    for dtype in EVERY:
        for op in ops_for(dtype):
            inputs = [values(dtype, rank) for rank in members]
            expected = reduced(op, inputs)
            tensor = inputs[me].clone()
            dist.all_reduce(tensor, op=op, group=group)
            same(tensor, expected, "all_reduce", dtype, op)
            for root in range(size):
                tensor = inputs[me].clone()
                dist.reduce(tensor, members[root], op=op, group=group)
                same(tensor, expected if me == root else inputs[me], "reduce", dtype, op)
            parts = [values(dtype, rank, 6 * size) for rank in members]
            whole = reduced(op, parts)
            output = torch.empty(6, dtype=dtype)
            dist.reduce_scatter_tensor(output, parts[me].clone(), op=op, group=group)
            same(output, whole[6 * me:6 * me + 6], "reduce_scatter_tensor", dtype, op)
            output = torch.empty(6, dtype=dtype)
            dist.reduce_scatter(output, list(parts[me].clone().chunk(size)), op=op, group=group)
            same(output, whole[6 * me:6 * me + 6], "reduce_scatter", dtype, op)


def check_lengths(group, members):
    """MPI libraries go other ways for long tensors, and so does this backend: in parts, in a ring, by messages."""
    me = dist.get_rank(group)
    for count in (1, 511, 400003):
        inputs = [values(torch.float32, rank, count) for rank in members]
        output = torch.empty(count * len(members))
        dist.all_gather_into_tensor(output, inputs[me], group=group)
        same(output, torch.cat(inputs), "all_gather", count)
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        for count in (1, 511, 1024 * len(members), 100003):
            inputs = [values(dtype, rank, count) for rank in members]
            tensor = inputs[me].clone()
            dist.all_reduce(tensor, group=group)
            same(tensor, reduced(OPS.SUM, inputs), "all_reduce", dtype, count)


def check_premultiplied(group, members):
    """PREMUL_SUM, with a number and with a tensor as the factor."""
    me = dist.get_rank(group)
    for factor in (2.0, torch.tensor([2.0])):
        op = dist._make_nccl_premul_sum(factor)
        inputs = [values(torch.float32, rank) for rank in members]
        tensor = inputs[me].clone()
        dist.all_reduce(tensor, op=op, group=group)
        same(tensor, 2 * sum(inputs), "PREMUL_SUM")


def check_refused(group):
    """Operations without a meaning, and lists of another length, are refused on all ranks; the group stays usable."""
    size = dist.get_world_size(group)
    calls = {"has no meaning for %s" % name: functools.partial(dist.all_reduce, torch.zeros(3, dtype=dtype), op, group)
             for name, dtype, op in [("Float", torch.float32, OPS.BAND), ("Bool", torch.bool, OPS.AVG),
                                     ("BFloat16", torch.bfloat16, OPS.BOR)]}
    # one tensor with room for all is not meant; alone that would be right
    outputs = [torch.zeros(3 * size)] * (2 if size == 1 else 1)
    calls["one list of %d output tensors" % size] = functools.partial(dist.all_gather, outputs, torch.zeros(3), group)
    for text, call in calls.items():
        try:
            call()
        except RuntimeError as error:
            assert text in str(error), error
        else:
            raise AssertionError("accepted, not refused: " + text)
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    same(tensor, torch.full((1,), float(dist.get_world_size(group))))


def check_movements(group, members):
    """Collectives that only move data, with every type and every layout on both sides."""
    size, me = len(members), dist.get_rank(group)
    cases = [(dtype, "contiguous", "contiguous") for dtype in EVERY]
    cases += [(torch.float32, one, other) for one, other in itertools.product(LAYOUTS, LAYOUTS)]
    for dtype, first, second in cases:
        made = [values(dtype, rank, small=False) for rank in members]
        source, target = LAYOUTS[first], LAYOUTS[second]
        mine = source(made[me])
        expected = [source(one).reshape(-1) for one in made]

        def empty():
            return target(torch.zeros(24, dtype=dtype))

        for root in range(size):
            tensor = source(made[me].clone()) if me == root else empty()
            dist.broadcast(tensor, members[root], group=group)
            same(tensor, expected[root], "broadcast", dtype, first, second)
            outputs = [empty() for _ in members] if me == root else None
            dist.gather(mine, outputs, members[root], group=group)
            for output, right in zip(outputs or [], expected):
                same(output, right, "gather", dtype, first, second)
            output = empty()
            everything = [source(one) for one in made] if me == root else None
            dist.scatter(output, everything, members[root], group=group)
            same(output, expected[me], "scatter", dtype, first, second)
        outputs = [empty() for _ in members]
        dist.all_gather(outputs, mine, group=group)
        for output, right in zip(outputs, expected):
            same(output, right, "all_gather", dtype, first, second)
        output = torch.empty(24 * size, dtype=dtype)
        dist.all_gather_into_tensor(output, mine.contiguous(), group=group)
        same(output, torch.cat([plain(one) for one in expected]), "all_gather_into_tensor", dtype)
        outputs = [empty() for _ in members]
        dist.all_to_all(outputs, [source(values(dtype, 10 * me + other)) for other in range(size)], group=group)
        for other, output in enumerate(outputs):
            same(output, source(values(dtype, 10 * other + me)).reshape(-1), "all_to_all", dtype, first, second)


def check_in_place(group, members):
    """Outputs that are views of one tensor, and inputs that are parts of the output."""
    size, me = len(members), dist.get_rank(group)
    whole = torch.zeros(size * 5)
    whole[5 * me:5 * me + 5] = me + 1
    dist.all_gather_into_tensor(whole, whole[5 * me:5 * me + 5], group=group)
    same(whole, torch.arange(1, size + 1).repeat_interleave(5), "all_gather in place")
    whole = torch.zeros(size * 5)
    dist.all_gather(list(whole.chunk(size)), torch.full((5,), float(me)), group=group)
    same(whole, torch.arange(size).repeat_interleave(5), "all_gather into views")
    whole = torch.arange(size * 5.0)
    dist.reduce_scatter_tensor(whole[5 * me:5 * me + 5], whole, group=group)
    same(whole[5 * me:5 * me + 5], size * torch.arange(5.0 * me, 5.0 * me + 5), "reduce_scatter in place")


def check_uneven(group, members):
    """Parts of different length, empty ones among them."""
    size, me = len(members), dist.get_rank(group)
    lengths = [(3 * rank) % 5 for rank in range(size)]
    outputs = [torch.zeros(length) for length in lengths]
    dist.all_gather(outputs, torch.full((lengths[me],), float(me)), group=group)
    for rank, output in enumerate(outputs):
        same(output, torch.full((lengths[rank],), float(rank)), "all_gather uneven")
    output = torch.zeros(lengths[me])
    dist.reduce_scatter(output, [torch.full((length,), 1.0) for length in lengths], group=group)
    same(output, torch.full((lengths[me],), float(size)), "reduce_scatter uneven")
    sends = [(me + other) % 3 for other in range(size)]
    source = torch.cat([torch.full((count, 2), 10.0 * me + other) for other, count in enumerate(sends)])
    target = torch.zeros(sum(sends), 2)  # (me + other) % 3 is symmetric
    dist.all_to_all_single(target, source, sends, sends, group=group)
    same(target, torch.cat([torch.full((count, 2), 10.0 * other + me) for other, count in enumerate(sends)]),
         "all_to_all_single uneven")
    target = torch.zeros(size * 3)
    dist.all_to_all_single(target, torch.arange(size * 3.0) + 100 * me, group=group)
    same(target, torch.cat([torch.arange(3.0) + 100 * other + 3 * me for other in range(size)]), "all_to_all_single")
    lists = [torch.full((me + other,), float(me)) for other in range(size)]
    outputs = [torch.zeros(me + other) for other in range(size)]
    dist.all_to_all(outputs, lists, group=group)
    for other, output in enumerate(outputs):
        same(output, torch.full((me + other,), float(other)), "all_to_all uneven")


def check_empty(group):
    """Tensors without elements pass through everything."""
    size, me = dist.get_world_size(group), dist.get_rank(group)
    empty = torch.empty(0, 3)
    dist.all_reduce(empty, group=group)
    dist.all_gather([torch.empty(0, 3) for _ in range(size)], empty, group=group)
    dist.all_to_all_single(torch.empty(0, 3), empty, group=group)
    dist.reduce_scatter_tensor(torch.empty(0), torch.empty(0), group=group)
    first = dist.get_process_group_ranks(group)[0]
    dist.broadcast(empty, first, group=group)
    if size > 1 and me < 2:
        other = dist.get_process_group_ranks(group)[1 - me]
        dist.send(empty, other, group=group) if me == 0 else dist.recv(empty, other, group=group)


def check_point_to_point(group, members):
    """send and receive: tags out of order, any source, batches, strided memory."""
    size, me = len(members), dist.get_rank(group)
    right, left = members[(me + 1) % size], members[(me - 1) % size]
    if size == 1:
        return
    sends = [dist.isend(torch.full((4,), 10.0 * me + tag), right, group=group, tag=tag) for tag in range(3)]
    for tag in (2, 0, 1):
        tensor = torch.zeros(4)
        assert dist.recv(tensor, left, group=group, tag=tag) == left
        same(tensor, torch.full((4,), 10.0 * ((me - 1) % size) + tag), "recv with a tag")
    for send in sends:
        send.wait()
    if me == 0:
        seen = set()
        for _ in range(size - 1):
            tensor = torch.zeros(2)
            source = dist.recv(tensor, group=group, tag=7)
            same(tensor, torch.full((2,), float(source)), "recv from any source")
            seen.add(source)
        assert seen == set(members[1:]), seen
    else:
        dist.send(torch.full((2,), float(members[me])), members[0], group=group, tag=7)
    target = torch.zeros(3, 4)
    batch = [dist.P2POp(dist.isend, torch.arange(12.0).reshape(4, 3).t() + me, right, group=group),
             dist.P2POp(dist.irecv, target, left, group=group)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    same(target, (torch.arange(12.0).reshape(4, 3).t() + (me - 1) % size).reshape(-1), "batch_isend_irecv")


def check_asynchronous(group, members):
    """Many operations under way at once, waited for in another order; futures and their callbacks."""
    size, me = len(members), dist.get_rank(group)
    tensors = [torch.full((1000 * (i + 1),), float(i + me)) for i in range(20)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    for i in reversed(range(20)):
        works[i].wait()
        same(tensors[i], torch.full_like(tensors[i], float(size * i + sum(range(size)))), "all_reduce async")
        assert works[i].is_completed() and works[i].is_success()
    tensor = torch.full((50000,), float(me))
    future = dist.all_reduce(tensor, group=group, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2).wait()  # nobody waits for the work itself
    same(doubled, torch.full_like(doubled, 2.0 * sum(range(size))), "future")
    done = dist.barrier(group=group, async_op=True)
    done.wait()
    done.wait()


def check_coalesced(group, members):
    """The coalescing manager, as FSDP and DTensor use it."""
    from torch.distributed.distributed_c10d import _coalescing_manager
    size, me = len(members), dist.get_rank(group)
    tensors = [torch.full((i + 1,), float(me)) for i in range(4)]
    with _coalescing_manager(group=group, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    manager.wait()
    for tensor in tensors:
        same(tensor, torch.full_like(tensor, float(sum(range(size)))), "coalesced all_reduce")
    outputs = [torch.zeros(2 * size), torch.zeros(3 * size)]
    with _coalescing_manager(group=group):
        dist.all_gather_into_tensor(outputs[0], torch.full((2,), float(me)), group=group)
        dist.all_gather_into_tensor(outputs[1], torch.full((3,), float(me)), group=group)
    same(outputs[1], torch.arange(size).repeat_interleave(3), "coalesced all_gather")
    outputs = [torch.zeros(2), torch.zeros(3)]
    with _coalescing_manager(group=group):
        dist.reduce_scatter_tensor(outputs[0], torch.ones(2 * size), group=group)
        dist.reduce_scatter_tensor(outputs[1], torch.ones(3 * size), group=group)
    same(outputs[1], torch.full((3,), float(size)), "coalesced reduce_scatter")


def check_sparse(group, members):
    """Sums of sparse tensors with different entries on each rank, none among them."""
    size, me = len(members), dist.get_rank(group)
    tensors = [torch.sparse_coo_tensor([[rank, 2]], torch.ones(2, 3) * (rank + 1), (size + 3, 3))
               if rank != 1 else torch.sparse_coo_tensor(torch.zeros(1, 0), torch.zeros(0, 3), (size + 3, 3))
               for rank in range(size)]
    mine = tensors[me].clone()
    dist.all_reduce(mine, group=group)
    same(mine.to_dense(), sum(one.to_dense() for one in tensors), "sparse all_reduce")


def check_objects(group, members):
    """Collectives of Python objects."""
    size, me = len(members), dist.get_rank(group)
    found = [None] * size
    dist.all_gather_object(found, {"rank": me, "text": "x" * me}, group=group)
    assert found == [{"rank": rank, "text": "x" * rank} for rank in range(size)], found
    objects = ["a", 1, {"b": 2}] if me == 0 else [None] * 3
    dist.broadcast_object_list(objects, members[0], group=group)
    assert objects == ["a", 1, {"b": 2}], objects
    mine = [None]
    dist.scatter_object_list(mine, list(range(size)) if me == 0 else None, members[0], group=group)
    assert mine == [me], mine
    gathered = [None] * size if me == 0 else None
    dist.gather_object(me, gathered, members[0], group=group)
    assert me or gathered == list(range(size)), gathered


def check_barriers(group):
    """Barriers, the monitored one too."""
    dist.barrier(group=group)
    for wait_all_ranks in (False, True):
        dist.monitored_barrier(group, wait_all_ranks=wait_all_ranks)


def check_group(group, members):
    """Everything, in one group."""
    check_reductions(group, members)
    check_lengths(group, members)
    check_premultiplied(group, members)
    check_refused(group)
    check_movements(group, members)
    check_in_place(group, members)
    check_uneven(group, members)
    check_empty(group)
    check_point_to_point(group, members)
    check_asynchronous(group, members)
    check_coalesced(group, members)
    check_sparse(group, members)
    check_objects(group, members)
    check_barriers(group)


def check_many_groups(world, count):
    """Made and destroyed; overlapping; made by members only."""
    for turn in range(count):
        members = sorted({turn % len(world), (turn + 1) % len(world)})
        group = dist.new_group(members)
        if dist.get_rank() in members:
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=group)
            same(tensor, torch.tensor([float(len(members))]), "group", turn)
            dist.destroy_process_group(group)


def main():
    """In the group of all, in a subset, in one of a single rank."""
    dist.init_process_group("mpi")
    me, world = dist.get_rank(), list(range(dist.get_world_size()))
    groups = [(dist.group.WORLD, world)]
    for members in ([world[-1]], world[1:], world[::2]):
        groups.append((dist.new_group(members), members))
    for group, members in groups:
        if me in members and members:
            check_group(group, members)
    check_many_groups(world, int(sys.argv[1]) if len(sys.argv) > 1 else 100)
    dist.barrier()
    dist.destroy_process_group()
    print("rank %d: all collectives are right" % me)


if __name__ == "__main__":
    main()
