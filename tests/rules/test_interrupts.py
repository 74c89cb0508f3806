"""Ctrl-C, and a batch system's signal, in the middle of a command that ignores them."""
import os
import signal
import subprocess
import time

import pytest
from common import CHECKOUT, clean_environment

from ramgate.processes import stat

# what EasyBuild does before an installation, and a command as the ones of an installation are
PROGRAM = '''
import sys
from easybuild.tools import config
from easybuild.tools.filetools import register_lock_cleanup_signal_handlers
from hpc_pytorch.packages import locked_environment, progress
from hpc_pytorch.rules import interrupts

config.init_build_options()
register_lock_cleanup_signal_handlers()
interrupts.SECONDS = 1
interrupts.limit_waiting()
progress.print_msg = lambda *args, **kwargs: None
with progress.progress("compiling to byte code", None):
    locked_environment.ask("sh", "-c", "trap '' INT TERM; echo $$ > $0; while :; do sleep 0.1; done", sys.argv[1])
'''


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_ends(tmp_path, number):
    """Whoever typed it has the prompt back, and nothing runs on."""
    note = tmp_path / 'pid'
    process = subprocess.Popen([str(CHECKOUT / '.venv/bin/python'), '-c', PROGRAM, str(note)],
                               cwd=CHECKOUT, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, start_new_session=True)
    try:
        while process.poll() is None and not (note.exists() and note.read_text()):
            time.sleep(0.05)
        process.send_signal(number)
        said = process.communicate(timeout=60)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert note.exists() and process.returncode, said
    # a zombie runs no more
    assert not stat(int(note.read_text())), said
