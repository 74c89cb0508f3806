"""Lines about long steps: what begins, and every half minute that it goes on."""
import os
import tempfile
import threading
import time
from contextlib import contextmanager, suppress

from easybuild.tools.build_log import print_msg

# seconds between two lines about the same; a log of hours stays short
INTERVAL = 30


def bytes_in(*directories):
    """The size of what lies there now, and in the temporary directory, where pip puts files first."""
    total = 0
    for directory in directories + (tempfile.gettempdir(),):
        for where, _, names in os.walk(directory):
            for name in names:
                # it may be moved meanwhile
                with suppress(OSError):
                    total += os.lstat(os.path.join(where, name)).st_size
    return total


def fetched(*directories):
    """Return a function that tells what has come since now, as `progress` wants it."""
    before = bytes_in(*directories)
    return lambda: "%.0f MB so far" % ((bytes_in(*directories) - before) / 1e6)


@contextmanager
def progress(what, log, how_far=None):
    """Print what the next lines do. `what`: a gerund phrase; `how_far`: optional callable returning progress."""
    def repeat():
        while not ended.wait(INTERVAL):
            amount = ': ' + how_far() if how_far else ''
            print_msg("still %s, for %d s%s", what, time.time() - begin, amount, log=log)

    print_msg(what, log=log)
    begin, ended = time.time(), threading.Event()
    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
