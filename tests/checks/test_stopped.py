"""./eb --check that is stopped, or that stops by itself (hpc_pytorch/jobs/check_modules.py)."""
import subprocess

import pytest
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
import os, sys
from hpc_pytorch import UsersProblem
from hpc_pytorch.jobs import check_modules
os.environ['HPC_SYSTEM'] = 'workstation'
os.access = lambda *_: False
given, _, reframes = check_modules.parse(['--check', *sys.argv[1:]])
try:
    check_modules.act(given, reframes)
except UsersProblem as problem:
    print(problem)
"""


@pytest.mark.parametrize('words, expected', [
    (['--references', 'typo.json'], 'typo.json cannot be read: '),
    (['--update'], '%s/hpc_pytorch/reframe/references/workstation.json cannot be written to by you. Add --references='
                   % CHECKOUT),
])
def test_references_of_no_file(words, expected):
    """Nothing would be compared, or kept, as in a colleague's clone: one line, before any check."""
    said = subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', REFUSED, *words], cwd=CHECKOUT, check=True,
                          text=True, stdout=subprocess.PIPE, timeout=100).stdout
    assert said.startswith(expected) and said.count('\n') == 1, said
