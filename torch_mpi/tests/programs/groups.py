"""Run by MPI processes: the ways in which groups of this backend come about. usage: groups.py CASE

Each case ends with an all_reduce in every group it made, and prints what the groups are.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch_mpi
from mpi_environment import rank_and_size


def meet(backend):
    """The default group, of a backend that needs a store."""
    rank, size = rank_and_size()
    dist.init_process_group(backend, init_method="file://" + os.environ["MEETING_FILE"], rank=rank, world_size=size)


def alone():
    """The backend of all groups."""
    dist.init_process_group("mpi")
    return [dist.group.WORLD, dist.new_group(), dist.new_group([0])]


def beside():
    """The backend of groups beside a default group of gloo."""
    meet("gloo")
    if "early" in sys.argv:
        torch_mpi.start()
    return [dist.group.WORLD, dist.new_group(backend="mpi"), dist.new_group([0], backend="mpi")]


def others():
    """Other backends of groups beside a default group of this one, as samplers and checkpoints make them."""
    dist.init_process_group("mpi")
    first = dist.new_group(backend="gloo")
    dist.monitored_barrier(first)
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, dist.get_rank(), group=first)
    assert found == list(range(dist.get_world_size())), found
    alone = dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
    return [dist.group.WORLD, first, dist.new_group([0], backend="gloo"), alone]


def by_device():
    """The backend for one kind of device; gloo for the other."""
    meet("cpu:mpi,cuda:gloo")
    return [dist.group.WORLD, dist.new_group(), dist.new_group([0])]


def main():
    """Make the groups, use them and end them."""
    groups = globals()[sys.argv[1]]()
    for group in groups:
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [group.size()] * 3, tensor
            assert dist.get_process_group_ranks(group)[group.rank()] == dist.get_rank()
    assert [group.size() for group in groups[:2]] == [dist.get_world_size()] * 2
    os.write(1, b"rank %d: all groups are right\n" % dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
