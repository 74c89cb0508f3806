"""What each rank costs the first host in TCPStore, which init_method="mpi://" and torchrun alike have ranks meet in.

usage: python rendezvous.py [CLIENTS]...

Prints for each number of clients what one costs the process with the store: CPU time to come, leave an address, be
told who is the first (as NCCL's ranks do) and wait for all; memory; and CPU time to hear of another rank's address (as
gloo's ranks do of every other's). CPU time, as that differs less on a machine on which others work.
"""

import concurrent.futures
import datetime
import multiprocessing
import os
import resource
import sys

import torch.distributed as dist

PROCESSES, THREADS = 4, 64
KEYS = 16  # of the addresses, so many are read by each client


def spent():
    """Seconds of CPU time and bytes of memory of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/statm") as handle:
        pages = int(handle.read().split()[1])
    return usage.ru_utime + usage.ru_stime, pages * os.sysconf("SC_PAGE_SIZE")


def serve(pipe):
    """Have a store; tell what has been spent whenever asked."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    while pipe.recv():
        pipe.send(spent())


def clients(port, ranks, size, ready, pipe):
    """All of these ranks, many at the same time as those of a job are."""
    def meet(rank):
        store = dist.TCPStore("localhost", port, is_master=False, wait_for_workers=False,
                              timeout=datetime.timedelta(minutes=20))
        store.set("address/%d" % rank, "x" * 128)
        if store.add("here", 1) == size:
            store.set("all", "here")
        return store

    def hear(store):
        for rank in range(min(size, KEYS)):
            store.get("address/%d" % rank)

    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        ready.wait()
        stores = list(pool.map(meet, ranks))
        list(pool.map(lambda store: store.get("all"), stores))
        ready.wait()
        ready.wait()
        list(pool.map(hear, stores))
        ready.wait()
    pipe.recv()


def measure(size):
    """CPU seconds and bytes for each client to meet, and CPU seconds to hear one address."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,))
    server.start()
    port, ready = here.recv(), multiprocessing.Barrier(PROCESSES + 1)
    ends = [multiprocessing.Pipe() for _ in range(PROCESSES)]
    started = [multiprocessing.Process(target=clients, args=(port, range(one, size, PROCESSES), size, ready, end))
               for one, (_, end) in enumerate(ends)]
    for process in started:
        process.start()
    found = []
    for _ in range(2):
        here.send(True)
        before = here.recv()
        ready.wait()
        ready.wait()
        here.send(True)
        found.append([after - earlier for earlier, after in zip(before, here.recv())])
    for end, _ in ends:
        end.send(True)
    for process in started:
        process.join()
    here.send(False)
    server.join()
    (meeting, memory), (hearing, _) = found
    return meeting / size, memory / size, hearing / size / min(size, KEYS)


def main():
    """One line for each number of clients."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    print("%8s %22s %14s %25s" % ("clients", "us each to meet", "KB each", "us for each address heard"))
    for size in [int(one) for one in sys.argv[1:]] or [64, 256, 1024, 4096]:
        meeting, memory, hearing = measure(size)
        print("%8d %22.1f %14.1f %25.2f" % (size, meeting * 1e6, memory / 1e3, hearing * 1e6), flush=True)


if __name__ == "__main__":
    main()
