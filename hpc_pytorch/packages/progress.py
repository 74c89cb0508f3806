"""Lines about long steps: what begins, and every ten seconds that it goes on."""
import threading
import time
from contextlib import contextmanager

from easybuild.tools.build_log import print_msg

# seconds between two lines about the same; a log of hours stays short
INTERVAL = 10


@contextmanager
def progress(what, log):
    """Print what the next lines do, a gerund phrase."""
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
