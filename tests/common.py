"""
What all tests share: the checkout, ./eb as a user calls it, and shells with a modules tool.

EasyBuild is always run as a program, or as a fork of one. Nothing that the developer has configured gets in.
"""
import atexit
import fcntl
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from preloaded_eb import Preloaded

from hpc_pytorch.machine.modules import LMOD_PLACES

CHECKOUT = Path(__file__).resolve().parent.parent
SCRIPTS = CHECKOUT / 'hpc_pytorch/scripts'
# Debian's, or the one that ./eb has unpacked beside the checkout
LMOD = next(filter(os.path.exists, LMOD_PLACES), LMOD_PLACES[0])
LMOD_ROOT = Path(LMOD).parent.parent
# what tests keep between runs because making it again only costs time: fetched files, made stand-ins, images
CACHE = CHECKOUT / '.local' / 'test-cache'
# what is fetched and unpacked, is large and stays the same, for all checkouts; $HOME may be read-only
USERS_CACHE = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache')
FETCHED = CACHE / 'fetched'
if os.access(USERS_CACHE if USERS_CACHE.exists() else USERS_CACHE.parent, os.W_OK):
    FETCHED = USERS_CACHE / 'hpc-pytorch-tests'
# EasyBuild keeps its temporary directory when it fails, which tests make it do; the name is short because sockets of
# MPI lie in there, and anyone may look in, because some tests run as another user
TEMPORARY = tempfile.mkdtemp(prefix='hpc-')
os.chmod(TEMPORARY, 0o1777)
atexit.register(shutil.rmtree, TEMPORARY, ignore_errors=True)
# mpi4py and torch_mpi are one file of a minute each: stand-ins do not optimise it, the next run of the tests finds it
# compiled, and the next installation, too, as paths below its prefix are the same from its build directory
CCACHE = {'CCACHE_DIR': str(FETCHED / 'ccache'), 'CCACHE_NOHASHDIR': '1',
          'STAND_IN_COMPILER_LAUNCHER': str(CHECKOUT / 'tests/without-optimising')}

# nohup, and a shell that starts the tests in the background, make them and all that they start ignore these; with a
# handler of their own the tests still do, and what they start does not
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


# Without root there is no mounting, no cgroup, no other user and no daemon of Slurm's. CI leaves nothing out.
NOT_ROOT = os.geteuid() != 0 and not os.environ.get('CI')
FOR_ROOT = pytest.mark.skipif(NOT_ROOT, reason='needs root')


def nightly(*values):
    """A case of pytest.mark.parametrize that only ./test nightly runs."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def slow(*values):
    """A case that `./test quick` leaves out, because another one is like it."""
    return pytest.param(*values, marks=pytest.mark.slow)


def needs_root():
    """The same for what a test needs in its midst, and for fixtures."""
    if NOT_ROOT:
        pytest.skip('needs root')


def needs_program(*names):
    """Skip the test where ./test could not install these; CI leaves nothing out."""
    missing = [name for name in names if not shutil.which(name)]
    if missing and not os.environ.get('CI'):
        pytest.skip('needs ' + ' '.join(missing))


@contextmanager
def locked(path):
    """One process at a time, of this run of the tests and of others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open('%s.lock' % path, 'w') as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def kept(place, make):
    """What tests keep: made by one process, whole or not at all, by a function that is given another path."""
    with locked(place):
        if not place.exists():
            partial = place.with_name(place.name + '.partial')
            shutil.rmtree(partial, ignore_errors=True)
            make(partial)
            partial.rename(place)
    return place


def stand_in(name):
    """The modules of a stand-in, made if need be, which takes pip's index: before tests that take that away."""
    made = subprocess.run([CHECKOUT / 'hpc_pytorch/stand_ins' / 'make.py', name], env=clean_environment(), check=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    return made.stdout.strip()


def unpack_package(name, directory):
    """The files of one of Debian's packages, which is not installed."""
    directory.mkdir(parents=True)
    subprocess.run(['apt-get', '-qq', 'download', name], cwd=directory, check=True)
    package = next(directory.glob('*.deb'))
    subprocess.run(['dpkg', '-x', str(package), str(directory)], check=True)
    package.unlink()


def program_of_shell(name):
    """A shell, of Debian's package, which need not be installed."""
    def unpack(partial):
        for package in ('zsh', 'tcsh', 'fish', 'libpcre2-32-0'):
            unpack_package(package, partial / package)

    return next(path for path in kept(CACHE / 'shells', unpack).glob('%s/**/bin/%s' % (name, name)))


def clean_environment():
    """The developer's environment without what configures EasyBuild, modules or Python."""
    prefixes = ('EASYBUILD_', 'HPC_', 'LMOD_', 'MODULE', '_ModuleTable', 'PYTHON', '__LMOD', 'EBROOT')
    environment = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    for name in ('VIRTUAL_ENV', 'LOADEDMODULES', '_LMFILES_', 'BASH_ENV'):
        environment.pop(name, None)
    # the tests' own environment must not be the Python that is installed for
    environment['PATH'] = os.pathsep.join(part for part in environment['PATH'].split(os.pathsep)
                                          if not part.startswith(str(Path(sys.prefix) / 'bin')))
    return environment


PRELOADED = Preloaded([CHECKOUT / '.venv/bin/python'])
# the options of subprocess.run that a forked ./eb knows
FORKED = {'env', 'text', 'stdin', 'stdout', 'stderr', 'cwd', 'user'}


def run(args, timeout, **options):
    """subprocess.run for what EB.call returns; ./eb itself is forked, where nothing forbids it."""
    if args[0] == str(CHECKOUT / 'eb') and not set(options) - FORKED and not options.get('user'):
        done = PRELOADED.run(args[1:], options['env'], options['cwd'], timeout)
        if done:
            return subprocess.CompletedProcess(args, *done)
    return subprocess.run(args, timeout=timeout, **options)


class EB:
    """./eb with a prefix of the test's own."""

    def __init__(self, prefix, command=None):
        self.prefix = Path(prefix)
        self.command = [str(part) for part in command or [CHECKOUT / 'eb']]
        self.sources = CACHE / 'sources'

    def call(self, arguments, env, cwd, **more):
        """What a process of it is started with."""
        options = ['--prefix=%s' % self.prefix, '--sourcepath=%s' % self.sources, '--tmpdir=%s' % TEMPORARY]
        # EasyBuild folds long lines at the terminal's width, which tests do not want to know about; mpi4py is one file,
        # which takes minutes to optimise
        environment = dict(clean_environment(), COLUMNS='10000', CFLAGS='-O0 -g0')
        environment.update(CCACHE, CCACHE_BASEDIR=str(self.prefix), PATH='/usr/lib/ccache:' + environment['PATH'])
        environment.update(env)
        return dict(more, args=self.command + [str(word) for word in arguments] + options, env=environment, text=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    cwd=cwd or self.prefix.parent)

    def __call__(self, *arguments, status=0, env=(), cwd=None, timeout=3000, user=None):
        """Run it; `status` is the exit status that is expected, None for any. Returns the process with its output."""
        done = run(timeout=timeout, **self.call(arguments, env, cwd, user=user))
        assert status is None or done.returncode == status, done.stdout
        assert 'Traceback' not in done.stdout, done.stdout
        return done

    def fetch(self, *arguments, **options):
        """Fetch the sources."""
        # into one place at a time: a second run would take what the first has begun for something left over
        with locked(CACHE / 'fetching'):
            return self('--fetch', *arguments, **options)

    def fetch_from_github(self, *arguments):
        """The same for what github.com alone has; skips the test only where not even its name is known."""
        done = self.fetch(*arguments, status=None)
        if done.returncode:
            try:
                socket.getaddrinfo('github.com', 443)
            except OSError as problem:
                pytest.skip('its source is not in %s, and github.com has no address here: %s' % (self.sources, problem))
        assert done.returncode == 0, done.stdout

    def started(self, *arguments, env=(), cwd=None):
        """A process of it, the leader of a group of its own."""
        return subprocess.Popen(**self.call(arguments, env, cwd, start_new_session=True))

    @property
    def modules(self):
        """The directory to `module use`."""
        return self.prefix / 'modules' / 'all'


def unpacked_environment_modules():
    """Environment Modules, which Debian does not install beside Lmod, unpacked for the tests."""
    place = kept(CACHE / 'environment-modules', lambda partial: unpack_package('environment-modules', partial))
    return place / 'usr/lib' / ('%s-linux-gnu' % os.uname().machine) / 'modulecmd.tcl'


class ModulesTool:
    """A shell with one of the two modules tools."""

    def __init__(self, name):
        self.name = name
        if name == 'Lmod':
            self.start = 'source %s/init/bash' % shlex.quote(str(LMOD_ROOT))
            self.for_easybuild = {}
        else:
            needs_program('tclsh')
            program = unpacked_environment_modules()
            self.start = 'eval "$(%s bash autoinit)"' % shlex.quote(str(program))
            self.for_easybuild = {'EASYBUILD_MODULES_TOOL': 'EnvironmentModules', 'EASYBUILD_MODULE_SYNTAX': 'Tcl',
                                  'MODULES_CMD': str(program)}

    def run(self, script, env=(), status=0, **options):
        """Run a script in a bash that has the `module` command."""
        done = subprocess.run(['bash', '-c', 'set -u +u; %s\n%s' % (self.start, script)],
                              env=dict(clean_environment(), **dict(env)), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
        assert status is None or done.returncode == status, done.stdout
        return done.stdout
