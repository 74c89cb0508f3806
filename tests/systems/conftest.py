"""The stand-ins, made once for all tests below here."""
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent.parent
MAKE = CHECKOUT / 'tests' / 'stand_ins' / 'make'


def make(*arguments, script=MAKE, **options):
    """Run the script that makes stand-ins."""
    return subprocess.run([sys.executable, '-I', str(script), *map(str, arguments)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=900, **options)


class StandIns:
    """Where the stand-ins of the checkout are; each is made when it is first asked for."""

    def __init__(self):
        self.made = {}

    def __getitem__(self, name):
        """The module directory of a system."""
        if name not in self.made:
            done = make(name)
            assert done.returncode == 0, done.stderr
            self.made[name] = Path(done.stdout.strip())
        return self.made[name]


@pytest.fixture(scope='session')
def stand_ins():
    """Module directories by the name of the system."""
    return StandIns()
