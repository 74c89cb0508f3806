"""What the tests of Bede share."""
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope='session')
def on_arm(tmp_path_factory):
    """The environment in which EasyBuild takes this machine for an aarch64 one."""
    library = tmp_path_factory.mktemp('arm') / 'arm.so'
    subprocess.run(['gcc', '-shared', '-fPIC', '-O1', '-Wall', '-Werror', '-o', library,
                    Path(__file__).parent / 'arm.c'], check=True)
    return {'LD_PRELOAD': str(library)}
