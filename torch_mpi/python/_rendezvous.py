"""init_method="mpi://": MPI tells the processes of any backend their ranks and where they meet.

No MASTER_ADDR, no port that another job may have, no file.
"""

import os
import resource
import socket


def register_rendezvous():
    """Have torch.distributed know the scheme."""
    from torch.distributed.rendezvous import register_rendezvous_handler
    register_rendezvous_handler("mpi", _meet)


def _meet(url, timeout=None, **_):
    """What torch asks of a scheme: yields a store, the rank and the number of ranks."""
    import datetime

    import torch.distributed as dist

    from ._register import start
    start()
    from . import _c
    rank, size = _c.world_rank(), _c.world_size()
    timeout = timeout or datetime.timedelta(minutes=30)
    backend = _c.create([], timeout)
    hosts = all_gather_text(backend, size, socket.gethostname())
    local = [other for other in range(size) if hosts[other] == hosts[rank]]
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(local.index(rank)),
                      LOCAL_WORLD_SIZE=str(len(local)))
    host = hosts[0] if len(set(hosts)) > 1 else "localhost"
    store = None
    if rank == 0:
        allow_files(size)
        store = dist.TCPStore(host, 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
    port = all_gather_text(backend, size, str(store.port if store else ""))[0]
    if store is None:
        store = dist.TCPStore(host, int(port), size, is_master=False, timeout=timeout)
    yield store, rank, size
    raise RuntimeError("torch_mpi: mpi:// cannot be asked for ranks again")


def allow_files(ranks):
    """The store has a connection to each rank: 1024 open files, the usual limit, are too few for a thousand of them."""
    wanted, (soft, hard) = ranks + 256, resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < wanted:
        raise RuntimeError("torch_mpi: %d ranks meet at the first one, which needs %d open files, but at most %d are "
                           "allowed on %s: ask its administrators for more (ulimit -Hn)" % (
                               ranks, wanted, hard, socket.gethostname()))
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def all_gather_text(backend, size, text, length=256):
    """The texts of all ranks."""
    import torch
    import torch.distributed as dist
    mine = torch.zeros(length, dtype=torch.uint8)
    data = text.encode()[:length]
    mine[:len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    everyone = [torch.zeros_like(mine) for _ in range(size)]
    backend.allgather([everyone], [mine], dist.distributed_c10d.AllgatherOptions()).wait()
    return [bytes(one.tolist()).rstrip(b"\0").decode() for one in everyone]
