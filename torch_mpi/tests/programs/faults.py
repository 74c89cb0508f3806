"""Run by MPI processes: what happens when something goes wrong. usage: faults.py CASE...

Prints what the test looks for; a case that is not survived ends the processes. Several cases: one after the other, each
on a new default group; then all ranks end with status 3, which ends nobody else, as all work is done.
"""

import datetime
import faulthandler
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
import torch_mpi  # noqa: F401

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


def say(text):
    """One line, whole, however many ranks write, that begins with the case."""
    os.write(1, ("[%s] %s\n" % (os.environ["CASE"], text)).encode())


def report(text, seconds=None):
    """What this rank found."""
    say("rank %d: %s%s" % (dist.get_rank(), text, "" if seconds is None else " [%.1f s]" % seconds))


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


def endless():
    """Rank 1 computes on and on while the others wait in a collective: it is named before the timeout."""
    rank, _ = start(300)
    end = time.monotonic() + 65
    while rank == 1 and time.monotonic() < end:
        pass
    dist.all_reduce(torch.ones(5))
    dist.destroy_process_group()


def notice():
    """Ranks whose own timeout is long end together with the one that times out first."""
    rank, size = start(100)
    if rank == 0:
        dist.group.WORLD._get_backend(CPU).set_timeout(datetime.timedelta(seconds=2))
        report_together(*outcome(dist.all_reduce, torch.ones(5)))
    elif rank == 1:
        report_together(*outcome(dist.recv, torch.ones(5), 0))
    else:
        report_together(*outcome(dist.all_reduce, torch.ones(5)))


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
    dist.group.WORLD._get_backend(CPU).set_timeout(datetime.timedelta(seconds=60))
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
        mpirun = os.getppid()
        os.kill(mpirun, signal.SIGSTOP)
        subprocess.Popen(["sh", "-c", "sleep 0.5; kill -CONT %d" % mpirun])
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


def calls_that_differ(mine, ones):
    """What rank 1 calls, and what the others do: what differs → a function of the group. `mine`: on rank 1."""
    number = 8 if mine else 4
    real = torch.float64 if mine else torch.float32
    size = dist.get_world_size()
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def exchange(group):
        splits = [number] * size
        dist.all_to_all_single(ones(sum(splits)), ones(sum(splits)), splits, splits, group=group)
    return {
        "size of all_reduce": lambda group: dist.all_reduce(ones(number), group=group),
        "fewer of all_reduce": lambda group: dist.all_reduce(ones(2 if mine else 4), group=group),
        "large all_reduce": lambda group: dist.all_reduce(ones(number << 18), group=group),
        "type of all_reduce": lambda group: dist.all_reduce(ones(4, dtype=real), group=group),
        "operation of all_reduce": lambda group: dist.all_reduce(
            ones(4), dist.ReduceOp.MAX if mine else dist.ReduceOp.MIN, group=group),
        "size of broadcast": lambda group: dist.broadcast(ones(number), 0, group=group),
        "root of broadcast": lambda group: dist.broadcast(ones(4), int(mine), group=group),
        "size of reduce": lambda group: dist.reduce(ones(number), 0, group=group),
        "size of all_gather": lambda group: gather(ones(number * size), ones(number), group=group),
        "list of all_gather": lambda group: dist.all_gather(
            [ones(number + rank) for rank in range(size)], ones(number + dist.get_rank()), group=group),
        "size of reduce_scatter": lambda group: scatter(ones(number), ones(number * size), group=group),
        "type of scatter": lambda group: dist.scatter(
            ones(4, dtype=real), None if dist.get_rank() else [ones(4, dtype=real)] * size, 0, group=group),
        "splits of all_to_all": exchange,
        "the collective": lambda group: (dist.barrier if mine else lambda group: dist.all_reduce(
            ones(4), group=group))(group=group),
    }


def disagreeing():
    """Rank 1 calls something else than the others, and another rank is late each time; who comes first goes on."""
    rank, size = start(300)
    made = []

    def ones(*arguments, **options):
        made.append(torch.ones(*arguments, **options))
        return made[-1]
    calls = calls_that_differ(rank == 1, ones)
    for late in (None, 0, 2):
        for what, call in calls.items():
            group = dist.new_group()
            dist.barrier()
            time.sleep(0.05 if rank == late else 0)
            begin, text, wrong, too_many = time.monotonic(), "no error", "", 0
            files = ["%s-%s-%s.%d" % (os.environ["FLAG_FILE"], late, what, other) for other in (1, 2)]
            while text == "no error" and time.monotonic() < begin + 200:  # who needs nothing of rank 1 goes on
                made.clear()
                too_many += all(map(os.path.exists, files))
                text, _ = outcome(call, group)
                if text == "no error" and any(((one != 1) & (one != size)).any() for one in made):
                    wrong = ", after a wrong result"
            named = "the ranks disagree: " in text
            if rank:
                open(files[rank - 1], "w").close()
            elif too_many > 10:
                wrong = ", but not at once when the others were"
            report("%s, %s is late: %s%s" % (what, late, "told" if named else text, wrong), time.monotonic() - begin)
            assert text != "no error" and "Timed out" not in text  # which ends all ranks
            dist.barrier()
    report_together("all said", 0)


def falls_short():
    """Rank 2 sends less than rank 0, which is not beside it, receives of it; or nothing; rank 0 nothing to itself."""
    rank, size = start(300)
    for short, length in ((2, 1), (2, 0), (0, 0)):
        group = dist.new_group()
        sends = [torch.ones(length if (rank, other) == (short, 0) else 2) for other in range(size)]
        text, seconds = outcome(dist.all_to_all, [torch.zeros(2) for _ in range(size)], sends, group)
        report(text, seconds)
        dist.barrier()


def gone():
    """Rank 1 ends with status 0 while the others call a collective; the one beside it notices, and tells the others."""
    rank, _ = start(300)
    dist.all_reduce(torch.ones(10))
    if rank == 1:
        return
    report(*outcome(dist.all_reduce, torch.ones(10)))


def gone_silently():
    """The same while the others wait for a message of it, or want to send it one."""
    rank, _ = start(300)
    dist.barrier()
    if rank == 1:
        return
    if rank == 0:
        report(*outcome(dist.recv, torch.ones(10), 1))
    else:
        report(*outcome(dist.send, torch.ones(1 << 22), 1))


def gone_later():
    """Who ends when it has done its part is no fault: what it sent arrives, however late."""
    rank, size = start(300)
    for turn in range(20):
        dist.broadcast(torch.full((1000,), float(turn)), 1)
    if rank == 1:
        dist.send(torch.full((1 << 10,), 7.0), 0)
        dist.isend(torch.full((1 << 22,), 8.0), 0, tag=1)
        return
    time.sleep(2)
    if rank == 0:
        for tag, length in [(0, 1 << 10), (1, 1 << 22)]:
            tensor = torch.zeros(length)
            dist.recv(tensor, 1, tag=tag)
            assert tensor.eq(7.0 + tag).all()
    report("all arrived")


def monitored():
    """The monitored barrier names who is late, tells that one too, and the group stays usable."""
    rank, size = start(60)
    if rank == 1:  # which gives up, and comes again while the others are still in the first
        outcome(dist.monitored_barrier, timeout=datetime.timedelta(seconds=0.5))
    else:
        time.sleep(rank)
        dist.monitored_barrier()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=10))
    if rank == size - 1:
        time.sleep(2)
    report(*outcome(dist.monitored_barrier, timeout=datetime.timedelta(seconds=1), wait_all_ranks=True))
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
    dist.barrier()
    dist.destroy_process_group()


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
        report(*outcome(dist.monitored_barrier, group, datetime.timedelta(seconds=seconds)))
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
        say(error)


def late_first():
    """A member of a new group times out and leaves; the first member, which comes later, does not wait for ever."""
    rank, _ = start(300)
    flag = os.environ["FLAG_FILE"]
    while rank == 0 and not os.path.exists(flag):
        time.sleep(0.01)
    report(*outcome(dist.new_group, [0, 1], timeout=datetime.timedelta(seconds=1)))
    if rank == 1:
        open(flag, "w").close()
    dist.barrier()
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=60))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    report("the next group has %d" % tensor.item())
    dist.destroy_process_group()


def exit_status():
    """Rank 1 ends with a status while the others wait for it."""
    rank, _ = start(300)
    report("started")
    if rank == 1:
        sys.exit(3)
    dist.all_reduce(torch.ones(10))


def handled():
    """What pytest leaves behind after a test that failed as expected: no reason to end anybody."""
    start(300)
    sys.last_value = ValueError("handled")
    dist.barrier()
    report("all is well")
    dist.destroy_process_group()


def interrupted():
    """Ctrl-C in a rank that waits."""
    rank, _ = start(300)
    dist.barrier()
    if rank == 0:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        try:
            dist.all_reduce(torch.ones(10))
        except KeyboardInterrupt:
            report("interrupted", time.monotonic() - begin)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        try:
            dist.new_group([0, 1])
        except KeyboardInterrupt:
            report("interrupted again", time.monotonic() - begin)
        open(os.environ["FLAG_FILE"] + ".interrupted", "w").close()
    while not os.path.exists(os.environ["FLAG_FILE"] + ".interrupted"):
        time.sleep(0.01)
    if rank == 1:
        dist.all_reduce(torch.ones(10))  # the one that rank 0 has begun
    dist.barrier()
    dist.destroy_process_group()


def forked():
    """Children of a process that calls MPI all the time look at a work that they inherited."""
    start(300)
    work = dist.irecv(torch.ones(10), dist.get_rank() ^ 1)
    threading.Thread(target=work.wait).start()
    stuck = 0
    for _ in range(30):
        child = os.fork()
        if child == 0:
            faulthandler.register(signal.SIGALRM, chain=True)
            signal.alarm(60)
            found = work.is_completed(), outcome(work.wait)[0]
            os._exit(0 if not found[0] and "cannot be used any more" in found[1] else 1)
        stuck += os.waitpid(child, 0)[1] != 0
        if stuck:
            break
    report("stuck %d" % stuck)
    dist.barrier()
    dist.send(torch.ones(10), dist.get_rank() ^ 1)
    dist.barrier()
    dist.destroy_process_group()


def half_posted():
    """Rank 1 cannot send the last part of an all_to_all, nor start the second of two reductions."""
    rank, size = start(300)
    os.environ["MPI_DOES"] = "fail"
    group = dist.new_group(timeout=datetime.timedelta(seconds=20))
    report(outcome(dist.all_to_all_single, torch.zeros(4), torch.ones(4), [2, 2], [2, 2], group=group)[0])
    outputs, inputs = [torch.zeros(3), torch.zeros(3)], [torch.ones(3 * size), torch.ones(3 * size)]
    options = dist.ReduceScatterOptions()
    name = next(name for name in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced")
                if hasattr(dist.group.WORLD, name))
    report(outcome(lambda: getattr(dist.group.WORLD, name)(outputs, inputs, options).wait())[0])
    report_together(*outcome(dist.all_reduce, torch.ones(3)))


def arrived_meanwhile():
    """A message arrives between the timeout of its receive and the cancelling."""
    rank, _ = start(300)
    os.environ["MPI_DOES"] = "deliver"
    tensor = torch.zeros(3)
    if rank == 0:
        dist.group.WORLD._get_backend(CPU).set_timeout(datetime.timedelta(milliseconds=100))
        report(outcome(dist.recv, tensor, 1)[0] + " %s" % tensor.tolist())
        dist.group.WORLD._get_backend(CPU).set_timeout(datetime.timedelta(seconds=300))
    else:
        time.sleep(1)
        dist.send(torch.ones(3), 0)
    dist.barrier()
    del os.environ["MPI_DOES"]
    dist.destroy_process_group()


def availability():
    """What torch says about the backend, and what a lone process can do with it."""
    print("available", dist.is_mpi_available(), "imported", "torch_mpi" in sys.modules, flush=True)
    dist.init_process_group("mpi")
    print("rank", dist.get_rank(), "of", dist.get_world_size(), flush=True)
    dist.destroy_process_group()


def main(cases):
    """Run them."""
    flag = os.environ.get("FLAG_FILE", "")
    for case in cases:
        os.environ.update(CASE=case, FLAG_FILE=flag + "." + case)
        globals()[case]()
    if len(cases) > 1:
        sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1:])
