"""Runs a build with a broker beside it, and cleans up after both."""
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from ramgate.broker import Broker, listen
from ramgate.estimates import SHIPPED, Knowledge
from ramgate.limits import Limits, Problem, cores
from ramgate.processes import descendants
from ramgate.report import Progress, Report
from ramgate.schedule import Schedule

WRAPPER_SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'compiler_wrapper.c')
C_COMPILERS = ('cc', 'gcc', 'clang')
LANGUAGES = ('C', 'CXX', 'Fortran', 'CUDA', 'HIP')
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# more slots than cores, so that the broker has a choice
SLOTS = 4
# build tools that know no variable for the number of slots, only an option
SLOTS_BY_OPTION = ('ninja', 'ninja-build', 'samu', 'make', 'gmake')
# seconds for a stopped build to end by itself
GRACE = 5
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def die_with_parent():
    """A build whose `ramgate run` is killed shall end, too."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def make_wrapper(directory):
    """Compile ramgate-cc in a directory; static if possible, as it starts faster."""
    command = ['-O1', '-w', '-o', os.path.join(directory, 'ramgate-cc'), WRAPPER_SOURCE]
    for static in (['-static'], []):
        for compiler in C_COMPILERS:
            if shutil.which(compiler) and not subprocess.call(
                    [compiler] + static + command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL):
                return
    raise Problem('no C compiler (%s) on $PATH could compile %s: install gcc, or load the module that has one'
                  % (', '.join(C_COMPILERS), WRAPPER_SOURCE))


def environment(directory, slots, environ):
    """The build's environment: wrappers for CMake, slots for the program that runs the compilers."""
    found = dict(environ)
    found['RAMGATE_SOCKET'] = os.path.join(directory, 'socket')
    found['MAX_JOBS'] = found['CMAKE_BUILD_PARALLEL_LEVEL'] = str(slots)
    found['PATH'] = directory + os.pathsep + environ.get('PATH', os.defpath)
    for language in LANGUAGES:
        for kind in ('COMPILER', 'LINKER'):
            name = 'CMAKE_%s_%s_LAUNCHER' % (language, kind)
            # by name, as CMake keeps it, and the directory changes; ccache runs inside, as a hit costs no memory
            found[name] = ';'.join(['ramgate-cc'] + list(filter(None, [environ.get(name)])))
    flags = environ.get('MAKEFLAGS', '')
    if '-j' not in flags:
        found['MAKEFLAGS'] = ('%s -j%d' % (flags, slots)).strip()
    found.pop('RAMGATE_WRAPPED', None)
    return found


def with_slots(command, slots):
    """The command with the option for the number of slots, if there is no other way and the user did not give it."""
    given = any(word.startswith(('-j', '--jobs')) for word in command[1:])
    if given or os.path.basename(command[0]) not in SLOTS_BY_OPTION:
        return command
    return command[:1] + ['-j%d' % slots] + command[1:]


class Build:
    def __init__(self, options):
        self.profile = options.profile
        self.command = options.command
        self.cores = options.jobs or cores()
        # mistakes in what the user gave are found before anything starts
        self.limits = Limits(options.memory)
        self.knowledge = Knowledge(options.profile, options.like + [SHIPPED])
        self.watchers = [Progress()]
        if options.report:
            self.watchers.append(Report(options.report))
        self.broker = self.control = self.process = None

    def run(self):
        directory = tempfile.mkdtemp(prefix='ramgate.')
        try:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            for number in STOPPING + (signal.SIGALRM,):
                signal.signal(number, self.stop)
            for line in self.limits.warnings() + self.knowledge.warnings:
                sys.stderr.write('ramgate: %s\n' % line)
            make_wrapper(directory)
            with contextlib.closing(listen(directory)) as listener:
                self.start_broker(listener)
            return self.run_command(environment(directory, SLOTS * self.cores, os.environ))
        finally:
            self.end()
            shutil.rmtree(directory, ignore_errors=True)

    def start_broker(self, listener):
        """In a process of its own: if it dies, the build goes on."""
        reader, self.control = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.broker = os.fork()
        if self.broker:
            os.close(reader)
            return
        status = 1
        try:
            os.close(self.control)
            for number in STOPPING:
                signal.signal(number, signal.SIG_IGN)
            schedule = Schedule(self.knowledge, self.cores, self.limits.tightest(0))
            Broker(listener, reader, self.limits, schedule, os.getcwd(), self.watchers).serve()
            if self.profile:
                self.knowledge.save(self.profile)
            status = 0
        except Exception:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)

    def run_command(self, environ):
        """Returns the exit status as a shell gives it."""
        command = with_slots(self.command, SLOTS * self.cores)
        try:
            self.process = subprocess.Popen(command, env=environ, preexec_fn=die_with_parent)
        except OSError as error:
            raise Problem('%s: %s' % (command[0], error.strerror))
        status = self.process.wait()
        return status if status >= 0 else 128 - status

    def stop(self, number, _):
        """End the compilers and the build tool, which is killed if it has not ended some seconds later."""
        self.tell_broker(b'k')
        if number == signal.SIGALRM:
            self.process.kill()
        elif self.process:
            self.process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)
            signal.alarm(GRACE)

    def tell_broker(self, word):
        if self.control is not None:
            with contextlib.suppress(OSError):
                os.write(self.control, word)

    def end(self):
        """Let the broker write its report, and end whatever the build left running."""
        if self.broker:
            self.tell_broker(b'f')
            os.close(self.control)
            self.control = None
            os.waitpid(self.broker, 0)
        for attempt in range(100):
            left = descendants(os.getpid())
            if not left:
                return
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL if attempt else signal.SIGTERM)
                    os.kill(pid, signal.SIGCONT)
            time.sleep(0.02 if attempt else 0.2)
            with contextlib.suppress(OSError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
