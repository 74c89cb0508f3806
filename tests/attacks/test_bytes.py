"""Other bytes in each file that is read: README.rst says how to go on for an hour."""
import subprocess
from pathlib import Path

import pytest
from common import CHECKOUT, clean_environment


@pytest.mark.slow
def test_bytes():
    """See read_damaged.py."""
    program = Path(__file__).with_name('read_damaged.py')
    done = subprocess.run([CHECKOUT / '.venv' / 'bin' / 'python', '-I', program], env=clean_environment(), text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(done.stdout)
    assert done.returncode == 0, done.stdout
