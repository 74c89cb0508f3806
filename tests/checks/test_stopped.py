"""./eb --check that is stopped, or that stops by itself (hpc_pytorch/jobs/check_modules.py)."""
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


REFUSED = """
import os
from hpc_pytorch import UsersProblem
from hpc_pytorch.jobs import check_modules
os.environ['HPC_SYSTEM'] = 'workstation'
given, _, reframes = check_modules.parse(['--check', '--references', 'typo.json'])
try:
    check_modules.act(given, reframes)
except UsersProblem as problem:
    print(problem)
"""


def test_references_of_no_file():
    """Nothing would be compared: one line, before any check."""
    said = subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', REFUSED], cwd=CHECKOUT, check=True, text=True,
                          stdout=subprocess.PIPE, timeout=100).stdout
    assert said.startswith('typo.json cannot be read: ') and said.count('\n') == 1, said
