"""init_method="mpi://": MPI tells the processes of any backend their ranks and where they meet.

No MASTER_ADDR, no port that another job may have, no file.
"""

import datetime
import os
import resource
import socket

from ._process import load, start

MAX_TEXT = 256


def rendezvous(url, timeout=None, **_):
    """Yield a store, the rank and the number of ranks, as torch expects from a scheme."""
    start()
    rank = load().world_rank()
    store, hosts = meet(timeout or datetime.timedelta(minutes=30))
    here = hosts[rank]
    os.environ["RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = str(len(hosts))
    os.environ["LOCAL_RANK"] = str(hosts[:rank].count(here))
    os.environ["LOCAL_WORLD_SIZE"] = str(hosts.count(here))
    yield store, rank, len(hosts)


def meet(timeout):
    """Return a new store of all ranks, which listens where the first one runs, and the host of each; all call it."""
    from torch.distributed import TCPStore
    backend = load().create([], timeout)
    rank, size = backend.rank(), backend.size()
    here, port = socket.gethostname(), 0
    if rank == 0:
        allow_files(size)
        store = TCPStore("localhost", 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
        port = store.port
    hosts, ports = zip(*[text.split() for text in all_gather_text(backend, "%s %d" % (here, port))])
    if rank != 0:
        host = "localhost" if here == hosts[0] else hosts[0]
        store = TCPStore(host, int(ports[0]), size, is_master=False, timeout=timeout)
    return store, hosts


def allow_files(ranks):
    """Raise the limit of open files: the store has a connection to each rank, and the usual 1024 are too few."""
    needed = ranks + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < needed:
        raise RuntimeError("torch_mpi: %d ranks meet at the first one, which needs %d open files, but at most %d are "
                           "allowed on %s: ask its administrators for more (ulimit -Hn)" % (
                               ranks, needed, hard, socket.gethostname()))
    if 0 <= soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def all_gather_text(backend, text):
    import torch
    import torch.distributed as dist
    data = text.encode()[:MAX_TEXT].ljust(MAX_TEXT, b"\0")
    mine = torch.tensor(list(data), dtype=torch.uint8)
    everyone = [torch.zeros_like(mine) for _ in range(backend.size())]
    backend.allgather([everyone], [mine], dist.distributed_c10d.AllgatherOptions()).wait()
    return [bytes(one.tolist()).rstrip(b"\0").decode() for one in everyone]
