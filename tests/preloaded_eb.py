"""
./eb as tests call it: half of each call is importing EasyBuild, so a process that has done this once forks for each.

    python -I -O preloaded_eb.py FD     # the process; it ends when the other end of the socket FD is closed
"""
import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from array import array

# what has taken effect before the fork, in Python or while EasyBuild is imported
EARLY = ('HOME', 'LANG', 'LC_', 'LD_', 'MALLOC_', 'PYTHON', 'TZ', 'XDG_')


def early(environment):
    """Return the part of an environment that a forked call must have in common with the process."""
    return {name: value for name, value in environment.items() if name.startswith(EARLY)}


class Preloaded:
    """The process, as the tests see it; it is started by the first call."""

    def __init__(self, command):
        self.command = command
        self.socket = None
        self.environment = {}
        self.lock = threading.Lock()

    def start(self, environment):
        """Start the process; the first call's environment is its own."""
        self.socket, its = socket.socketpair()
        self.environment = early(environment)
        with its:
            process = subprocess.Popen([*self.command, '-I', '-O', __file__, str(its.fileno())], env=environment,
                                       pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, cwd='/')
        atexit.register(process.wait)
        atexit.register(self.socket.close)

    def run(self, arguments, environment, directory, timeout):
        """Return the status and the output of ./eb; None where it must have a process of its own."""
        with self.lock:
            if not self.socket:
                self.start(environment)
        if early(environment) != self.environment:
            return None
        ours, its = socket.socketpair()
        output, write = os.pipe()
        with ours, its, os.fdopen(output, encoding='utf-8') as printed:
            with self.lock:
                self.socket.sendmsg([b'.'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array('i', [its.fileno(), write]))])
            its.close()
            os.close(write)
            answers = ours.makefile('rw')
            print(json.dumps([arguments, environment, str(directory)]), file=answers, flush=True)
            pid = int(answers.readline())
            watch = threading.Timer(timeout, os.kill, [pid, signal.SIGKILL])
            watch.start()
            try:
                return int(answers.readline()), printed.read()
            finally:
                watch.cancel()


# -- the process

def requests(listening):
    """Fork for each request; yields, in a process of its own, the socket and the descriptor for what it prints."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, ancillary, _, _ = listening.recvmsg(1, socket.CMSG_SPACE(2 * array('i').itemsize))
        if not message:
            os._exit(0)
        fds = array('i', ancillary[0][2])
        if os.fork() == 0:
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return socket.socket(fileno=fds[0]), fds[1]
        for fd in fds:
            os.close(fd)


def become_eb(listening):
    """Return in a process whose arguments, environment, directory and output are those of the request."""
    asked, output = requests(listening)
    answers = asked.makefile('rw')
    arguments, environment, directory = json.loads(answers.readline())
    pid = os.fork()
    if pid:
        os.close(output)
        print(pid, file=answers, flush=True)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(status, file=answers, flush=True)
        os._exit(0)
    answers.close()
    asked.close()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.argv = ['eb'] + arguments


def main_of_easybuild(main):
    """Remember the environment first, which EasyBuild does when it is imported: ./eb has changed it by then."""
    remembered = sys.modules['easybuild.tools.environment'].ORIG_OS_ENVIRON
    now = dict(os.environ)
    remembered.clear()
    remembered.update(now)
    return main()


if __name__ == '__main__':
    import easybuild.main

    easybuild.main.main_with_hooks = functools.partial(main_of_easybuild, easybuild.main.main_with_hooks)
    become_eb(socket.socket(fileno=int(sys.argv[1])))
    from hpc_pytorch import start
    sys.exit(start.main())
