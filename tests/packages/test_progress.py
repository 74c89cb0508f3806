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
