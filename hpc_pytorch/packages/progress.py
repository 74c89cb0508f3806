"""What is being done, said when it begins and again while it lasts, so that nobody waits without knowing for what."""
import glob
import os
import tempfile
import threading
import time
from contextlib import contextmanager, suppress

from easybuild.tools.build_log import print_msg

# seconds between two lines about the same; a log of hours stays short
INTERVAL = 30


def bytes_in(*directories):
    """How much lies there now, and in the temporary directory, where pip puts files first."""
    total = 0
    for directory in directories + (tempfile.gettempdir(),):
        for where, _, names in os.walk(directory):
            for name in names:
                # it may be moved meanwhile
                with suppress(OSError):
                    total += os.lstat(os.path.join(where, name)).st_size
    return total


def fetched(*directories):
    """For `telling`: what has come since now."""
    before = bytes_in(*directories)
    return lambda: "%.0f MB so far" % ((bytes_in(*directories) - before) / 1e6)


def files_like(pattern, words):
    """For `telling`: how many files or directories are like this (`**`: at any depth), in the words that count them."""
    def count():
        found = len(glob.glob(pattern, recursive=True))
        return words % found if found else ''
    return count


@contextmanager
def telling(what, log, how_far=None):
    """Say what the next lines do; `what` reads well with `for 30 s` behind it, and `how_far` tells the rest."""
    def repeat():
        while not ended.wait(INTERVAL):
            progress = how_far() if how_far else ''
            print_msg("still %s, for %d s%s", what, time.time() - begin, progress and ': ' + progress, log=log)

    print_msg(what, log=log)
    begin, ended = time.time(), threading.Event()
    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
