"""Run by MPI processes: what happens when something goes wrong. usage: faults.py CASE

Prints what the test looks for; a case that is not survived ends the processes.
"""

import datetime
import fcntl
import os
import signal
import stat
import struct
import subprocess
import sys
import termios
import threading
import time

import torch
import torch.distributed as dist
import torch_mpi

CPU = torch.device("cpu")


def start(seconds):
    """The default group with this timeout; returns rank and size."""
    dist.init_process_group("mpi", timeout=datetime.timedelta(seconds=seconds))
    return dist.get_rank(), dist.get_world_size()


def outcome(function, *arguments, **options):
    """The error that a call ends with, as text, and how long it took."""
    begin = time.monotonic()
    try:
        function(*arguments, **options)
    except RuntimeError as error:
        return "%s: %s" % (type(error).__name__, str(error).splitlines()[0]), time.monotonic() - begin
    return "no error", time.monotonic() - begin


def report(text, seconds=None):
    """One line, whole, however many ranks write."""
    where = "" if seconds is None else " [%.1f s]" % seconds
    os.write(1, ("rank %d: %s%s\n" % (dist.get_rank(), text, where)).encode())


def unread(pipe):
    """How many bytes in it nobody has read yet."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]


def report_together(text, seconds):
    """Like report; nobody ends, and thereby ends the others, before all have said theirs and mpirun has heard it."""
    report(text, seconds)
    deadline = time.monotonic() + 30
    while stat.S_ISFIFO(os.fstat(1).st_mode) and unread(1):
        assert time.monotonic() < deadline, "nobody reads"
        time.sleep(0.001)
    flag = os.environ["FLAG_FILE"]
    open("%s.%d" % (flag, dist.get_rank()), "w").close()
    while not all(os.path.exists("%s.%d" % (flag, rank)) for rank in range(dist.get_world_size())):
        assert time.monotonic() < deadline, "a rank says nothing"
        time.sleep(0.001)


def absent():
    """Rank 1 stays away from a collective. Rank 0 times out; rank 1 hears about it at its next call."""
    rank, _ = start(2)
    if rank == 0:
        report(*outcome(dist.all_reduce, torch.ones(5)))
        report(*outcome(dist.all_reduce, torch.ones(5)))
    else:
        time.sleep(4)
        report(*outcome(dist.broadcast, torch.ones(5), 0))
    sys.stdout.flush()


def notice():
    """Ranks whose own timeout is long end together with the one that times out first."""
    rank, size = start(100)
    if rank == 0:
        dist.group.WORLD._get_backend(CPU)._set_timeout(datetime.timedelta(seconds=2))
        report_together(*outcome(dist.all_reduce, torch.ones(5)))
    elif rank == 1:
        report_together(*outcome(dist.recv, torch.ones(5), 0))
    else:
        report_together(*outcome(dist.barrier))


def asynchronous():
    """Nobody waits for the work: its future still ends with the error."""
    rank, _ = start(2)
    if rank == 0:
        future = dist.all_reduce(torch.ones(5), async_op=True).get_future()
        report(*outcome(future.wait))
    else:
        time.sleep(4)


def received():
    """A receive that times out is taken back, and the group is as good as before."""
    rank, _ = start(1)
    if rank == 0:
        report(*outcome(dist.recv, torch.zeros(3), 1))
    else:
        time.sleep(1.5)
    dist.group.WORLD._get_backend(CPU)._set_timeout(datetime.timedelta(seconds=60))
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    report("sum %d" % tensor[0].item())
    dist.destroy_process_group()


def killed():
    """Rank 1 is killed in the middle of collectives; the others end within the timeout."""
    rank, _ = start(5)
    report("started")
    for turn in range(10 ** 9):
        if rank == 1 and turn == 100:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(10))


def raised():
    """Rank 1 ends by an exception; the others do not wait for it."""
    rank, _ = start(300)
    report("started")
    if rank == 1:
        raise ValueError("something is wrong here")
    dist.all_reduce(torch.ones(10))


def unheard():
    """Rank 1 ends by an exception while its mpirun is busy, which sometimes drops then what it has not read."""
    rank, _ = start(300)
    if rank == 1:
        launcher = os.getppid()
        os.kill(launcher, signal.SIGSTOP)
        subprocess.Popen(["sh", "-c", "sleep 0.5; kill -CONT %d" % launcher])
        raise ValueError("something is wrong here")
    dist.all_reduce(torch.ones(10))


def aborted():
    """Rank 1 aborts the group; the others end with its reason."""
    rank, _ = start(300)
    if rank == 1:
        time.sleep(0.5)
        dist.group.WORLD._get_backend(CPU).abort()
    report_together(*outcome(dist.all_reduce, torch.ones(10)))


def truncated():
    """A message that is longer than the tensor it meets."""
    rank, _ = start(300)
    if rank == 0:
        dist.send(torch.ones(10), 1)
        report_together(*outcome(dist.barrier))
    elif rank == 1:
        report_together(*outcome(dist.recv, torch.ones(5), 0))


def monitored():
    """The monitored barrier names who is late, tells that one too, and the group stays usable."""
    rank, size = start(60)
    if rank == size - 1:
        time.sleep(2)
    barrier = dist.monitored_barrier if rank == 0 else torch_mpi.monitored_barrier
    report(*outcome(barrier, timeout=datetime.timedelta(seconds=1), wait_all_ranks=True))
    dist.barrier()
    dist.monitored_barrier()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    report("sum %d" % tensor[0].item())
    dist.destroy_process_group()


def threads():
    """Four threads, each on a group of its own, at once."""
    rank, size = start(60)
    groups = [dist.new_group() for _ in range(4)]
    wrong = []

    def work(number):
        for turn in range(300):
            tensor = torch.full((turn * 10 + 1,), float(rank + number))
            dist.all_reduce(tensor, group=groups[number])
            if tensor[-1].item() != sum(range(size)) + size * number:
                wrong.append((number, turn))
    each = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for one in each:
        one.start()
    for one in each:
        one.join()
    report("threads agree" if not wrong else "wrong: %s" % wrong[:5])
    dist.destroy_process_group()


def dropped():
    """Works nobody keeps: the memory lives as long as MPI needs it, and the end of the program waits for them."""
    rank, size = start(60)
    right, left = (rank + 1) % size, (rank - 1) % size
    for _ in range(20):
        dist.isend(torch.full((100000,), float(rank)), right)
    tensor = torch.zeros(100000)
    for _ in range(20):
        dist.recv(tensor, left)
        assert tensor.eq(left).all()
    report("all arrived")


def delivered():
    """What rank 0 sent arrives although rank 0 makes no further call and waits for rank 1 by other means."""
    rank, _ = start(60)
    flag = os.environ["FLAG_FILE"]
    for turn in range(50):
        mine = "%s.%d" % (flag, turn)
        for length in (1, 1000, 3000):
            dist.reduce(torch.ones(length), 1)
        if rank == 1:
            open(mine, "w").close()
        deadline = time.monotonic() + 20
        while not os.path.exists(mine):
            assert time.monotonic() < deadline, "rank 1 still waits"
            time.sleep(0.001)
    report("delivered")
    dist.destroy_process_group()


def subset():
    """A group whose other member never makes it: an error within the timeout, not a hang."""
    rank, size = start(60)
    if rank == 0:
        report(*outcome(dist.new_group, [0, 1], timeout=datetime.timedelta(seconds=1)))
    dist.barrier()
    dist.destroy_process_group()


def inherited():
    """A group of which one rank failed is destroyed by the others; their next groups have nothing of it."""
    rank, size = start(60)
    for turn in range(5):
        group = dist.new_group(timeout=datetime.timedelta(milliseconds=300))
        if rank == 0:
            # each of them leaves messages that nobody receives
            outcome(dist.broadcast, torch.full((3,), 100.0), 0, group=group)
            outcome(dist.barrier, group=group)
        dist.destroy_process_group(group)
        del group
        others = dist.new_group([1, 2])
        if rank:
            tensor = torch.full((3,), float(rank))
            dist.broadcast(tensor, 1, group=others)
            dist.all_reduce(tensor, group=others)
            assert tensor.tolist() == [2.0] * 3, tensor
            dist.destroy_process_group(others)
        dist.barrier()
    report_together("nothing inherited", 0)


def leftover():
    """A rank reports to a monitored barrier when rank 0 has given up and destroyed the group: the message does not end
    up in the next group, whose barrier would then pass although nobody is there."""
    rank, size = start(60)
    flag = os.environ["FLAG_FILE"]
    for turn in range(5):
        group = dist.new_group()
        mine = "%s.%d" % (flag, turn)
        while rank != 0 and not os.path.exists(mine):
            pass
        seconds = 5 if rank else 0.02
        report(*outcome(torch_mpi.monitored_barrier, group, datetime.timedelta(seconds=seconds)))
        dist.destroy_process_group(group)
        if rank == 0:
            open(mine, "w").close()
        group = dist.new_group(timeout=datetime.timedelta(seconds=5))
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [size] * 2, tensor
        dist.destroy_process_group(group)
    report("nothing left over")
    dist.destroy_process_group()


def contradicted():
    """rank and world_size that differ from MPI's."""
    try:
        dist.init_process_group("mpi", rank=5, world_size=7)
    except RuntimeError as error:
        os.write(1, ("%s\n" % error).encode())


def availability():
    """What torch says about the backend, and what a lone process can do with it."""
    print("available", dist.is_mpi_available(), "imported", "torch_mpi" in sys.modules, flush=True)
    dist.init_process_group("mpi")
    print("rank", dist.get_rank(), "of", dist.get_world_size(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
