"""Runs a build with a broker beside it, and cleans up after both."""
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from ramgate import jobserver
from ramgate.broker import Broker, listen
from ramgate.estimates import Knowledge
from ramgate.limits import Limits, Problem, cgroups, number
from ramgate.processes import descendants
from ramgate.schedule import Schedule

HERE = os.path.dirname(os.path.abspath(__file__))
LANGUAGES = ('C', 'CXX', 'Fortran', 'CUDA', 'HIP')
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# build tools that have no variable for the number of slots, only an option
SLOTS_BY_OPTION = ('ninja', 'ninja-build', 'samu', 'make', 'gmake')
# seconds that a stopped build has to end by itself
GRACE = 5


def die_with_parent():
    """A build whose `ramgate run` is killed is to end, too."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def cores():
    """The cores that this process may use: its affinity, less where a cgroup grants less."""
    count = len(os.sched_getaffinity(0))
    for group in cgroups():
        if group.version == 2:
            words = (open(group.file('cpu.max')).read().split() if os.path.exists(group.file('cpu.max')) else ['max'])
            quota, period = (words + ['100000'])[:2]
        else:
            place = group.directory.replace('/memory', '/cpu', 1)
            quota = number(os.path.join(place, 'cpu.cfs_quota_us')) or 'max'
            period = number(os.path.join(place, 'cpu.cfs_period_us')) or 100000
        if quota != 'max' and int(quota) > 0:
            count = min(count, max(1, int(quota) // int(period)))
    return count


def make_launcher(directory):
    """ramgate-cc in a directory: compiled where there is a C compiler, else in Python. Says whether it is compiled."""
    launcher = os.path.join(directory, 'ramgate-cc')
    for options in (['-static'], []):
        for compiler in ('cc', 'gcc', 'clang'):
            if not shutil.which(compiler):
                continue
            if subprocess.call([compiler, '-O1', '-w'] + options + ['-o', launcher, os.path.join(HERE, 'launcher.c')],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
                return True
    with open(launcher, 'w') as file:
        file.write('#!%s -IS\nimport runpy\nrunpy.run_path(%r, run_name="__main__")\n'
                   % (sys.executable, os.path.join(HERE, 'launcher.py')))
    os.chmod(launcher, 0o700)
    return False


def environment(directory, slots, environ):
    """The build's environment: launchers for CMake, slots for the program that runs the jobs."""
    found = dict(environ, RAMGATE_SOCKET=os.path.join(directory, 'socket'), MAX_JOBS=str(slots),
                 CMAKE_BUILD_PARALLEL_LEVEL=str(slots), PATH=directory + os.pathsep + environ.get('PATH', os.defpath))
    # by name, not by path: CMake keeps it, and the next run's directory is another one
    launcher = 'ramgate-cc'
    for language in LANGUAGES:
        for kind in ('COMPILER', 'LINKER'):
            name = 'CMAKE_%s_%s_LAUNCHER' % (language, kind)
            # a launcher already there (ccache) runs inside: what it finds in its cache costs no memory
            found[name] = ';'.join(word for word in (launcher, environ.get(name)) if word)
    if '-j' not in environ.get('MAKEFLAGS', ''):
        found['MAKEFLAGS'] = ' '.join(word for word in (environ.get('MAKEFLAGS'), '-j%d' % slots) if word)
    found.pop('RAMGATE_JOB', None)
    return found


def with_slots(command, slots):
    """The command with as many slots, where only an option can say so and the user has not said it."""
    given = any(word.startswith('-j') or word.startswith('--jobs') for word in command[1:])
    if os.path.basename(command[0]) in SLOTS_BY_OPTION and not given:
        return command[:1] + ['-j%d' % slots] + command[1:]
    return command


class Build:
    """One build: a private directory, the broker's process, the build's process."""

    def __init__(self, options, watchers):
        self.options, self.watchers = options, watchers
        self.jobs = options.jobs or cores()
        # everything that can be wrong with what the user gave is found out before anything starts
        self.limits = Limits(options.memory, groups=options.groups)
        self.knowledge = Knowledge(options.profile, options.scale, options.like, options.shipped)
        self.broker = self.command = self.control = None
        self.stopped = None

    def run(self):
        """Run it; the exit status."""
        directory = tempfile.mkdtemp(prefix='ramgate.')
        try:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            for number_ in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number_, self.stop)
            for line in self.limits.warnings() + self.knowledge.warnings:
                sys.stderr.write('ramgate: %s\n' % line)
            if self.options.jobserver:
                tokens = jobserver.Tokens(directory)
                self.start_broker(lambda control: jobserver.Jobserver(tokens, control, self.limits, self.jobs,
                                                                      os.getppid()))
                return self.run_command(self.options.command, jobserver.environment(tokens, self.jobs, os.environ),
                                        tokens.inherited)
            # more slots than cores, so that the broker has a choice; waiting Python launchers cost memory themselves
            slots = self.jobs * (4 if make_launcher(directory) else 2)
            listener, schedule = listen(directory), Schedule(self.knowledge, self.jobs, self.limits.tightest(0))
            self.start_broker(lambda control: Broker(listener, control, self.limits, schedule, os.getcwd(),
                                                     self.watchers))
            listener.close()
            return self.run_command(with_slots(self.options.command, slots), environment(directory, slots, os.environ))
        finally:
            self.end()
            shutil.rmtree(directory, ignore_errors=True)

    def start_broker(self, make):
        """The broker in a process of its own: should it die, the build's exit status still arrives."""
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
            for number_ in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number_, signal.SIG_IGN)
            make(reader).serve()
            if self.options.profile:
                self.knowledge.save(self.options.profile)
            status = 0
        except Exception:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)

    def run_command(self, command, environ, inherited=()):
        """The build itself; the exit status as a shell gives it."""
        try:
            self.command = subprocess.Popen(command, env=environ, preexec_fn=die_with_parent, pass_fds=inherited)
        except OSError as error:
            raise Problem('%s: %s' % (command[0], error.strerror))
        while True:
            try:
                status = self.command.wait(0.5 if self.stopped else None)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() > self.stopped + GRACE:
                    self.command.kill()
        return status if status >= 0 else 128 - status

    def stop(self, number_, _):
        """Ctrl-C and the like: pass it on, and do not wait for ever."""
        if self.stopped is None:
            self.stopped = time.monotonic()
        if self.control is not None:
            try:
                os.write(self.control, b'k')
            except OSError:
                pass
        if self.command is not None:
            self.command.send_signal(signal.SIGTERM if number_ == signal.SIGHUP else number_)

    def end(self):
        """The broker writes its report; whatever the build left running ends."""
        if self.broker:
            try:
                os.write(self.control, b'f')
            except OSError:
                pass
            os.close(self.control)
            self.control = None
            os.waitpid(self.broker, 0)
            self.broker = None
        for attempt in range(100):
            left = descendants(os.getpid())
            if not left:
                break
            for pid in left:
                try:
                    os.kill(pid, signal.SIGTERM if attempt == 0 else signal.SIGKILL)
                    os.kill(pid, signal.SIGCONT)
                except OSError:
                    pass
            time.sleep(0.02 if attempt else 0.2)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except OSError:
                pass
