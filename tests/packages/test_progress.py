"""What is said while something takes long."""
import subprocess

# EasyBuild is in an environment of its own
PROGRAM = '''
import time
from hpc_pytorch.packages import progress

lines = []
progress.INTERVAL = 0.01
progress.print_msg = lambda text, *values, log: lines.append(text % values if values else text)
with progress.progress("compiling mpi4py", None):
    while len(lines) < 3:
        time.sleep(0.01)
try:
    with progress.progress("fetching 2 packages", None):
        lines.append("fails")
        raise OSError("no space")
except OSError:
    lines.append("ended")
print("\\n".join(lines))
'''


def test_said_again(checkout):
    """Once at the beginning, then now and then; nothing after the end, and an error is no exception to that."""
    done = subprocess.run([str(checkout / '.venv/bin/python'), '-c', PROGRAM], cwd=checkout, check=True, timeout=600,
                          stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    assert lines[0] == 'compiling mpi4py' and lines[1].startswith('still compiling mpi4py, for ')
    assert 'fetching 2 packages' in lines and lines[-1] == 'ended'


# how far: by what lies on the disk
FAR = """
import os, sys, tempfile, time
from hpc_pytorch.packages import progress

tempfile.tempdir, store = sys.argv[1:]
lines = []
progress.INTERVAL = 0.01
progress.print_msg = lambda text, *values, log: lines.append(text % values if values else text)


def until(words):
    while not any(words in line for line in lines):
        time.sleep(0.01)


open(os.path.join(store, 'older.whl'), 'wb').write(bytes(5000000))
with progress.progress("fetching 2 packages", None, progress.fetched(store)):
    until(": 0 MB so far")
    open(os.path.join(store, 'one.whl'), 'wb').write(bytes(2000000))
    open(os.path.join(tempfile.gettempdir(), 'part'), 'wb').write(bytes(1000000))
    until(": 3 MB so far")
"""


def test_how_far(checkout, tmp_path):
    """What was fetched since the beginning, also where pip puts it first."""
    places = [tmp_path / 'temporary', tmp_path / 'store']
    for place in places:
        place.mkdir()
    subprocess.run([str(checkout / '.venv/bin/python'), '-c', FAR, *map(str, places)], cwd=checkout, check=True,
                   timeout=300)
