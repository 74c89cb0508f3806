"""End within seconds: EasyBuild's own handlers of signals wait for the running command, which may ignore Ctrl-C."""
import functools
import os
import signal
import threading
import time

from ramgate.processes import descendants, send, stat

# for commands to clean up
SECONDS = 5


def limit_waiting():
    """Add to the handlers that EasyBuild has: what still runs some seconds later is killed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, functools.partial(handle, signal.getsignal(number)))


def handle(before, number, frame):
    # not a daemon: Python waits for it at the end
    threading.Thread(target=end, args=(descendants(os.getpid()),)).start()
    before(number, frame)


def end(processes):
    """Wait for processes, and kill those that do not end, with what they started; not what cleans up, such as qdel."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and any(map(stat, processes)):
        time.sleep(0.1)
    send(processes + [child for process in processes for child in descendants(process)], signal.SIGKILL)
