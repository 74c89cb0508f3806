"""Commands of the machine that are asked something."""
import re
import signal
import subprocess

from ramgate import processes

# colours, titles and the like, which terminals take for commands
TERMINAL_CODES = re.compile(r'\x1b\[[0-?]*[ -/]*[@-~]|\x1b\].*?(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]')


def run(command, timeout=None, stderr=subprocess.STDOUT, **options):
    """Run a command without input; `stdout` has what it prints, errors too; `options` are those of subprocess."""
    # some modules print Latin-1
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
                          universal_newlines=True, errors='backslashreplace', **options) as process:
        try:
            answers = process.communicate(timeout=timeout)
        except BaseException:
            # children of one that hangs would outlive it; what was not to end in time may be dpkg
            below = processes.descendants(process.pid) if timeout else []
            processes.send([process.pid] + below, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, *answers)
