"""monitored_barrier for groups of this backend: torch.distributed's own function is written for gloo alone."""

import datetime


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """Like torch.distributed.monitored_barrier: a barrier that names the rank that did not come.

    Rank 0 raises an error that names the first missing rank (all of them with ``wait_all_ranks``), the others one that
    points to rank 0. ``timeout`` is a ``datetime.timedelta``; without one it is that of the group.
    """
    import torch.distributed as dist
    group = dist.group.WORLD if group is None else group
    if group is None or group == dist.GroupMember.NON_GROUP_MEMBER:
        return
    group.monitored_barrier(timeout or datetime.timedelta(0), wait_all_ranks)
