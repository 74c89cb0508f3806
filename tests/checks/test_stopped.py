"""./eb --check that is stopped: what it cannot end (hpc_pytorch/jobs/check_modules.py)."""
import subprocess

from common import CHECKOUT

# a process that waits for a file that never comes: the kernel lets no signal through to it
PROGRAM = """
import subprocess
from hpc_pytorch.jobs import check_modules
check_modules.processes.send = lambda *_: None
with subprocess.Popen(['sleep', '60'], env={'HPC_CHECK': 'of the test'}) as process:
    while b'HPC_CHECK' not in check_modules.processes.read(process.pid, 'environ'):
        pass
    check_modules.kill_marked(b'HPC_CHECK=of the test')
    process.kill()
print(process.pid)
"""


def test_what_cannot_be_killed():
    """It is named, and not waited for."""
    said = subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', PROGRAM], cwd=CHECKOUT, check=True, text=True,
                          stdout=subprocess.PIPE, timeout=100).stdout
    line, pid = said.splitlines()
    assert line.startswith('Process %s cannot be killed' % pid)
