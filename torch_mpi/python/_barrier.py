"""monitored_barrier: torch.distributed's own function knows gloo alone, and offers no way to add a backend."""

import functools


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """Like torch.distributed.monitored_barrier: a barrier that names the rank that did not come.

    Rank 0 raises an error that names the first missing rank (all of them with ``wait_all_ranks``), the others one that
    points to rank 0. ``timeout`` is a ``datetime.timedelta``; without one it is that of the group.
    """
    import torch.distributed as dist
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        return
    group = dist.group.WORLD if group is None else group
    group.monitored_barrier(*([] if timeout is None else [timeout]), wait_all_ranks=wait_all_ranks)


def extend_monitored_barrier():
    """Have torch.distributed.monitored_barrier accept groups of this backend; others go where they went before."""
    import torch.distributed as dist
    original = dist.distributed_c10d.monitored_barrier

    @functools.wraps(original)
    def either(group=None, timeout=None, wait_all_ranks=False):
        member = group != dist.GroupMember.NON_GROUP_MEMBER
        chosen = monitored_barrier if member and dist.get_backend(group) == dist.Backend.MPI else original
        return chosen(group, timeout, wait_all_ranks)

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = either
