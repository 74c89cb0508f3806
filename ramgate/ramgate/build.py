"""Runs a build with a broker beside it, and cleans up after both."""
import contextlib
import ctypes
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

from ramgate.broker import Broker, listen
from ramgate.build_tools import BUILD_TOOLS, build_directory, with_slots
from ramgate.command_lines import WRAPPER, gets_symlink
from ramgate.estimates import SHIPPED, Knowledge
from ramgate.limits import Limits, Problem, cores, human
from ramgate.processes import Tree, descendants, end_all, send
from ramgate.report import Progress, Report, Summary, say
from ramgate.schedule import Schedule

HERE = os.path.dirname(os.path.abspath(__file__))
WRAPPER_SOURCE = os.path.join(HERE, 'compiler_wrapper.c')
# what CMake keeps: it runs the compiler itself where no ramgate listens
LAUNCHER = os.path.join(HERE, WRAPPER)
C_COMPILERS = ('cc', 'gcc', 'clang')
LANGUAGES = ('C', 'CXX', 'Fortran', 'CUDA', 'HIP')
# PyTorch's extensions take the directory above that of the first on $PATH for the toolkit's, unless this is set
HOMES = {'nvcc': 'CUDA_HOME', 'hipcc': 'ROCM_HOME'}
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# seconds for a stopped build to end by itself
GRACE = 5
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NOT_FOUND = 127
NOT_RUNNABLE = 126


def die_with_parent():
    """End the build, too, if its `ramgate run` is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def make_wrapper(directory):
    """Compile ramgate-cc in a directory; static if possible, as it starts faster."""
    command = ['-O1', '-w', '-o', os.path.join(directory, WRAPPER), WRAPPER_SOURCE]
    for static in (['-static'], []):
        for compiler in C_COMPILERS:
            if shutil.which(compiler) and not subprocess.call(
                    [compiler] + static + command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL):
                return
    raise Problem('no C compiler (%s) on $PATH could compile %s: install gcc, or load the module that has one'
                  % (', '.join(C_COMPILERS), WRAPPER_SOURCE))


def make_symlinks(directory, slots, environ):
    """Make a link to the wrapper for each compiler on $PATH, and a script for each build tool; returns their names."""
    names = set()
    for place in environ.get('PATH', os.defpath).split(os.pathsep):
        with contextlib.suppress(OSError):
            names.update(os.listdir(place))
    names = sorted(name for name in names if gets_symlink(name) or name in BUILD_TOOLS)
    found = [name for name in names if shutil.which(name, path=environ.get('PATH'))]
    for name in found:
        path = os.path.join(directory, name)
        if name not in BUILD_TOOLS:
            os.symlink(WRAPPER, path)
            continue
        python = shlex.quote(sys.executable) + ' -I -S'
        tool = shlex.quote(shutil.which(name, path=environ.get('PATH')))
        words = [os.path.join(HERE, 'build_tools.py'), directory, str(slots)]
        with open(path, 'w') as file:
            # what a build loads may break this Python
            file.write('#!/bin/sh\n%s -c "" 2>/dev/null || exec %s "$@"\n' % (python, tool))
            file.write('exec %s %s %s "$@"\n' % (python, ' '.join(map(shlex.quote, words)), tool))
        os.chmod(path, 0o700)
    return found


def environment(directory, slots, environ):
    """Return the build's environment: links on $PATH, a launcher for CMake, slots for what runs the compilers."""
    found = dict(environ)
    for name in make_symlinks(directory, slots, environ):
        # an empty one counts as none
        if name in HOMES and not found.get(HOMES[name]):
            compiler = shutil.which(name, path=environ.get('PATH'))
            found[HOMES[name]] = os.path.dirname(os.path.dirname(compiler))
    found['RAMGATE_SOCKET'] = os.path.join(directory, 'socket')
    found['MAX_JOBS'] = found['CMAKE_BUILD_PARALLEL_LEVEL'] = str(slots)
    found['PATH'] = directory + os.pathsep + environ.get('PATH', os.defpath)
    for language in LANGUAGES:
        for kind in ('COMPILER', 'LINKER'):
            name = 'CMAKE_%s_%s_LAUNCHER' % (language, kind)
            # ccache runs inside, as a hit costs no memory
            found[name] = ';'.join([LAUNCHER] + list(filter(None, [environ.get(name)])))
    flags = environ.get('MAKEFLAGS', '')
    if '-j' not in flags:
        found['MAKEFLAGS'] = ('%s -j%d' % (flags, slots)).strip()
    found.pop('RAMGATE_WRAPPED', None)
    return found


def profile_path(options):
    """Find the profile to read and keep; `auto`: beside the build directory, or in it if that is not writable."""
    if options.profile not in (None, 'auto'):
        return options.profile
    place = os.path.realpath(build_directory(options.command))
    home = os.path.realpath(os.path.expanduser('~'))
    beside = os.path.dirname(place)
    if place == home:
        if options.profile:
            raise Problem('--profile auto keeps nothing in your home directory: build in another one, or name a file')
        return None
    within = beside in ('/', home) or not os.access(beside, os.W_OK)
    path = os.path.join(place, 'ramgate.json') if within else place + '.ramgate.json'
    # once it is there, it serves builds without the option, too
    return path if options.profile or os.path.exists(path) else None


class Build:
    def __init__(self, options):
        self.command = options.command
        self.cores = options.jobs or cores()
        # mistakes in what the user gave are found before anything starts
        self.limits = Limits(options.memory)
        self.profile = profile_path(options)
        self.knowledge = Knowledge(self.profile, options.like + [SHIPPED])
        summary = Summary()
        self.watchers = [Progress(summary, self.profile)]
        if options.report:
            self.watchers.append(Report(options.report, summary))
        self.broker = self.control = self.process = None

    def run(self):
        """Returns the exit status as a shell gives it."""
        if self.command[0] != WRAPPER and not shutil.which(self.command[0]):
            known = os.path.exists(self.command[0])
            say('%s: %s' % (self.command[0], 'not executable' if known else 'not found'))
            return NOT_RUNNABLE if known else NOT_FOUND
        if os.path.exists(os.environ.get('RAMGATE_SOCKET', '')):
            # two of them would hold each other's compilers
            say('runs within another ramgate, whose limits and options hold')
            return subprocess.call(self.command)
        directory = tempfile.mkdtemp(prefix='ramgate.')
        try:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            for number in STOPPING + (signal.SIGALRM,):
                signal.signal(number, self.stop)
            for line in self.limits.warnings() + self.knowledge.warnings:
                say(line)
            make_wrapper(directory)
            with contextlib.closing(listen(directory)) as listener:
                self.start_broker(listener, directory)
            constraint = self.limits.tightest(0)
            say('%s free of %s (%s), %d compilers at a time'
                     % (human(constraint.free), human(constraint.limit), constraint.name, self.cores))
            return self.run_command(environment(directory, self.cores, os.environ))
        finally:
            self.end()
            shutil.rmtree(directory, ignore_errors=True)

    def start_broker(self, listener, directory):
        """In a process of its own: if it dies, the build goes on."""
        reader, self.control = os.pipe()
        top = os.getpid()
        self.broker = os.fork()
        if self.broker:
            os.close(reader)
            return
        status = 1
        try:
            os.close(self.control)
            for number in STOPPING:
                signal.signal(number, signal.SIG_IGN)
            # a connection for each compiler that waits
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            schedule = Schedule(self.knowledge, self.cores, self.limits.tightest(0))
            tree = Tree(top, directory)
            Broker(self.limits, schedule, os.getcwd(), tree, self.watchers).serve(listener, reader)
            if self.profile:
                self.knowledge.save(self.profile)
            status = 0
        except Exception:
            sys.excepthook(*sys.exc_info())
        finally:
            if os.getppid() != top:
                # `ramgate run` was killed
                shutil.rmtree(directory, ignore_errors=True)
            os._exit(status)

    def run_command(self, environ):
        command = with_slots(self.command, self.cores, environ)
        try:
            # the jobserver of a make above us comes through
            self.process = subprocess.Popen(command, env=environ, preexec_fn=die_with_parent, close_fds=False)
        except OSError as error:
            say('%s: %s' % (command[0], error.strerror))
            return NOT_RUNNABLE
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self.process.pid:
                self.process.returncode = status
                return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            if pid == self.broker:
                self.broker = None
                # those that it held would wait for ever
                send(descendants(os.getpid()), signal.SIGCONT)

    def stop(self, number, _):
        """End the compilers and the build tool, which is killed if it has not ended some seconds later."""
        self.tell_broker(b'k')
        if self.process and self.process.returncode is None:
            # Popen would take the exit status for which run_command waits, if it has just ended
            others = {signal.SIGALRM: signal.SIGKILL, signal.SIGHUP: signal.SIGTERM}
            send([self.process.pid], others.get(number, number))
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
        end_all(lambda: descendants(os.getpid()))
