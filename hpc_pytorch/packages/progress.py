"""
What is being done, said when it begins and again while it lasts, so that nobody waits without knowing for what.

Python 3.6; runs inside EasyBuild.
"""
import threading
import time
from contextlib import contextmanager

from easybuild.tools.build_log import print_msg

# seconds between two lines about the same; a log of hours stays short
INTERVAL = 30


@contextmanager
def telling(what, log):
    """Say what the next lines do; `what` reads well with `for 30 s` behind it."""
    def repeat():
        while not ended.wait(INTERVAL):
            print_msg("still %s, for %d s", what, time.time() - begin, log=log)

    print_msg(what, log=log)
    begin, ended = time.time(), threading.Event()
    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
