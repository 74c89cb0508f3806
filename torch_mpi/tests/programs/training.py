"""Run by MPI processes: what trains on a process group trains on this one, with the same result as on gloo.

usage: training.py BACKEND OUTPUT ; writes the losses and the parameters' sums of rank 0.
"""

import json
import sys

import torch
import torch.distributed as dist
from mpi_environment import rank_and_size
from torch.nn.parallel import DistributedDataParallel


def model():
    """Small, the same on all ranks."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(),
                               torch.nn.Linear(64, 4))


def train(net, optimizer, rank):
    """Losses of a few steps on data of this rank."""
    torch.manual_seed(100 + rank)
    losses = []
    for _ in range(5):
        inputs = torch.randn(16, 32)
        loss = net(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(round(total.item(), 5))
    return losses


def with_ddp(rank):
    """DistributedDataParallel, small buckets so that several reductions are under way."""
    net = DistributedDataParallel(model(), bucket_cap_mb=0.01)
    return train(net, torch.optim.SGD(net.parameters(), lr=0.1), rank)


def with_ddp_hook(rank):
    """A communication hook that compresses to half precision: futures with callbacks in Python."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    net = DistributedDataParallel(model(), bucket_cap_mb=0.01)
    net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return [round(loss, 3) for loss in train(net, torch.optim.SGD(net.parameters(), lr=0.1), rank)]


def with_zero(rank):
    """ZeroRedundancyOptimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer
    net = DistributedDataParallel(model())
    return train(net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01), rank)


def with_fsdp(rank):
    """FullyShardedDataParallel, the first one."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    return train(net, torch.optim.Adam(net.parameters(), lr=0.01), rank)


def with_fully_shard(rank):
    """fully_shard, the second one, on a device mesh."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    net, mesh = model(), init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return train(net, torch.optim.Adam(net.parameters(), lr=0.01), rank)


def with_dtensor(rank):
    """DTensor: the first layer split by columns, the second by rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(5)
    first, second, inputs = torch.randn(8, 16), torch.randn(16, 8), torch.randn(4, 8)
    result = (distribute_tensor(inputs, mesh, [Replicate()]) @ distribute_tensor(first, mesh, [Shard(1)])
              @ distribute_tensor(second, mesh, [Shard(0)])).full_tensor()
    torch.testing.assert_close(result, inputs @ first @ second)
    moved = distribute_tensor(first, mesh, [Shard(0)]).redistribute(mesh, [Shard(1)])
    torch.testing.assert_close(moved.full_tensor(), first)
    return []


def with_functional(rank):
    """Functional collectives, which wait by a tensor."""
    from torch.distributed import _functional_collectives as functional
    group = dist.group.WORLD
    total = functional.all_reduce(torch.full((3,), float(rank)), "sum", group)
    everything = functional.all_gather_tensor(torch.full((3,), float(rank)), 0, group)
    return [total.sum().item(), everything.sum().item()]


CASES = [with_ddp, with_ddp_hook, with_zero, with_fsdp, with_fully_shard, with_dtensor, with_functional]


def main():
    """Run all cases."""
    backend, output = sys.argv[1:]
    rank, size = rank_and_size()
    if backend == "mpi":
        import torch_mpi  # noqa: F401
        dist.init_process_group("mpi")
    else:
        dist.init_process_group("gloo", init_method="file://" + output + ".meeting", rank=rank, world_size=size)
    results = {}
    for case in CASES:
        try:
            results[case.__name__] = case(rank)
        except ImportError as error:  # what this version of torch does not have
            results[case.__name__] = str(error)
        dist.barrier()
    if rank == 0:
        with open(output, "w") as out:
            json.dump(results, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
