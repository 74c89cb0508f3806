"""Builds of a few lines for ramgate to run, by a ninja of the tests' own environment."""
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent

# a compiler: writes its object slowly, does what the source says: `memory MB`, `sleep S`, `die`, `say TEXT`, `fail`
COMPILER = '''
import os, signal, sys, time
arguments = sys.argv[1:]
source, output = arguments[arguments.index('-c') + 1], arguments[arguments.index('-o') + 1]
words = open(source).read().split(chr(10))
held = []
with open(output, 'w') as file:
    file.write('partial')
    file.flush()
    for line in words:
        word, _, rest = line.partition(' ')
        if word == 'memory':
            for _ in range(int(rest)):
                held.append(bytearray(b'x' * 2 ** 20))
                time.sleep(0.004)
        elif word == 'sleep':
            time.sleep(float(rest))
        elif word == 'wait':
            while not os.path.exists(rest):
                time.sleep(0.01)
        elif word == 'once' and not os.path.exists(output + '.tried'):
            open(output + '.tried', 'w').close()
            if rest == 'die':
                os.kill(os.getpid(), signal.SIGKILL)
            sys.stderr.write(rest + chr(10))
            sys.exit(1)
        elif word == 'fail':
            sys.stderr.write(rest + chr(10))
            sys.exit(1)
    file.seek(0)
    file.truncate()
    file.write('object of ' + ';'.join(words))
'''


class Build:
    """A directory with a build.ninja whose jobs do what they are told."""

    def __init__(self, directory):
        self.directory = directory
        directory.mkdir()
        (directory / 'tmp').mkdir()
        (directory / 'compiler.py').write_text(COMPILER)
        self.objects = []

    def source(self, name, *lines):
        """A source with these lines."""
        (self.directory / (name + '.cpp')).write_text('\n'.join(lines))
        self.objects.append(name + '.o')
        return self.directory / (name + '.o')

    def write(self, wrapper='ramgate-cc'):
        """build.ninja."""
        lines = ['rule cc', '  command = %s %s -S compiler.py -c $in -o $out' % (wrapper, shlex.quote(sys.executable))]
        lines += ['build %s: cc %s' % (name, name.replace('.o', '.cpp')) for name in self.objects]
        (self.directory / 'build.ninja').write_text('\n'.join(lines + ['']))

    def environment(self, **more):
        """The developer's, with ninja of the tests' environment; temporary files in the test's directory."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ['PATH']])
        return dict(dict(os.environ, PATH=path, PYTHONPATH=str(TOP), TMPDIR=str(self.directory / 'tmp')), **more)

    def start(self, *options, command=('ninja',), **more):
        """ramgate run, as a process."""
        self.write()
        return subprocess.Popen([sys.executable, '-m', 'ramgate', 'run', *[str(option) for option in options], '--',
                                 *command],
                                cwd=self.directory, env=self.environment(**more), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *options, status=0, **named):
        """ramgate run to its end: its output."""
        process = self.start(*options, **named)
        output = process.communicate(timeout=300)[0]
        assert process.returncode == status, output
        assert 'Traceback' not in output, output
        self.clean()
        return output

    def clean(self):
        """Nothing is left running or lying around."""
        eventually(lambda: not self.processes())
        assert not list((self.directory / 'tmp').iterdir())

    def report(self):
        """What report.json says."""
        return json.loads((self.directory / 'report' / 'report.json').read_text())

    def processes(self):
        """Processes that work in this directory."""
        found = []
        for entry in Path('/proc').iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / 'cwd').startswith(str(self.directory)) \
                        and (entry / 'stat').read_text().rpartition(')')[2].split()[0] != 'Z':
                    found.append(int(entry.name))
            except OSError:
                pass
        return found


def eventually(condition, seconds=60):
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, 'it never came'
        time.sleep(0.02)


@pytest.fixture
def c_compiler():
    """What ramgate compiles its wrapper with. CI leaves nothing out."""
    if not shutil.which('cc') and not os.environ.get('CI'):
        pytest.skip('needs cc')


@pytest.fixture
def build(tmp_path, c_compiler):
    """An empty build."""
    return Build(tmp_path / 'build')


@pytest.fixture
def nvcc(request):
    """The machine's; in the collection else the one that its stand-ins take from PyPI."""
    found = shutil.which('nvcc')
    wheels = TOP.parent / 'hpc_pytorch' / 'stand_ins' / 'cuda.txt'
    if not found and wheels.exists():
        place = Path(request.config.cache.mkdir('cuda'))
        found = place / 'nvidia' / 'cu13' / 'bin' / 'nvcc'
        if not found.exists():
            subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', '--no-deps', '--target', str(place), '-r',
                            str(wheels)], check=True)
    if not found:
        pytest.skip('needs nvcc')
    return str(found)


@pytest.fixture
def as_root():
    """Without root there is no cgroup and no other user. CI leaves nothing out."""
    if os.geteuid() and not os.environ.get('CI'):
        pytest.skip('needs root')


@pytest.fixture
def top():
    """The directory of the package and of the benchmarks."""
    return TOP


@pytest.fixture(name='eventually')
def eventually_():
    """Wait until something holds."""
    return eventually
