"""What is attacked at random must hold: README.rst says how to go on for an hour."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from common import CHECKOUT, EB
from small_software import Toy, sha256

from hpc_pytorch import UsersProblem
from hpc_pytorch.machine import systems
from hpc_pytorch.packages import lock_files, wheel_tags
from hpc_pytorch.source import built_wheels, interrupted_builds


def attack(attempt, times):
    """So many attempts at least, each with a chance of its own; none may fail."""
    first, end = int(os.environ.get('ATTACK_FIRST', 0)), time.monotonic() + float(os.environ.get('ATTACK_SECONDS', 0))
    tried, fallen = 0, []
    while tried < times or time.monotonic() < end:
        number = first + tried
        tried += 1
        try:
            attempt(random.Random(number))
        except Exception as error:
            fallen.append('ATTACK_FIRST=%d: %s: %s' % (number, type(error).__name__, error))
    print('\n%d tried, %d held' % (tried, tried - len(fallen)))
    assert not fallen, '\n'.join(fallen[:10])


FACTS = {'name': 'PyTorch', 'options': ['USE_MPI=1']}
NOTE = {'facts': FACTS, 'source': '/tmp', 'cmake_output': '', 'asked': {'USE_MPI': '1'}, 'sha256': '0' * 64}


def find_left(path):
    """As the easyblock does."""
    shutil.copy(path, path.with_name(interrupted_builds.NOTE))
    left = interrupted_builds.find(path.parent)
    return left and (interrupted_builds.differences(FACTS, left['facts']), left['source'], left['cmake_output'])


def find_built(path):
    """As the easyblock does."""
    where = path.parent / built_wheels.identity(FACTS)
    where.mkdir(exist_ok=True)
    shutil.copy(path, where / built_wheels.NOTE)
    (where / 'x.whl').touch()
    note = built_wheels.read_note(where)
    return built_wheels.find([path.parent], FACTS), note and note['asked'].items()


# a file, and what reads it
READERS = {
    'lock': ((CHECKOUT / 'locks' / 'mpi4py-build.lock').read_bytes(), lock_files.read_lock),
    'system.cfg': ((CHECKOUT / 'systems' / 'lumi' / 'system.cfg').read_bytes(), systems.load_file),
    'unfinished': (json.dumps(NOTE).encode(), find_left),
    'built': (json.dumps(NOTE).encode(), find_built),
    'name': (b'torch-2.4.0+cu121-cp312-cp312-manylinux_2_28_x86_64.whl', lambda path: wheel_tags.why_not(
        path.read_bytes().decode(errors='replace'), wheel_tags.ask_python(sys.executable))),
}


@pytest.mark.parametrize('name', READERS)
def test_bytes(tmp_path, name):
    """Read all the same, or refused in words; never a traceback."""
    content, read = READERS[name]

    def attempt(chance):
        damaged = bytearray(content)
        for _ in range(chance.randrange(1, 4)):
            begin = chance.randrange(len(damaged) + 1)
            damaged[begin:begin + chance.randrange(30)] = bytes(
                chance.choice([chance.randrange(256), chance.choice(content)]) for _ in range(chance.randrange(30)))
        path = tmp_path / name
        path.write_bytes(damaged[:chance.choice([len(damaged), chance.randrange(len(damaged) + 1)])])
        try:
            read(path)
        except UsersProblem as problem:
            assert str(problem)

    attack(attempt, 20 if name == 'name' else 200)


class Index(BaseHTTPRequestHandler):
    """An index of one package that answers as chance will have it."""

    def log_message(self, *_):
        """Tests print nothing."""

    def do_GET(self):
        """The page is whole; what happens to the file is the attack."""
        wheel, chance = self.server.wheel, self.server.chance
        content = wheel.read_bytes()
        if self.path.startswith('/simple'):
            content = ('<a href="/%s">%s</a>' % (wheel.name, wheel.name)).encode()
            return self.answer(200, content, len(content))
        end = chance.randrange(len(content))
        return self.answer(*chance.choice([
            (200, content[:end], len(content)), (200, content[:end], end), (200, content + b'more', len(content) + 4),
            (200, content[:end] + b'x' + content[end + 1:], len(content)), (200, b'', 0), (503, b'', 0),
            (200, b'<html>Log in first</html>', 25), (206, content[end:], len(content) - end)]))

    def answer(self, status, content, length):
        """Send so many bytes, whatever their number is said to be."""
        self.send_response(status)
        self.send_header('Content-Type', 'text/html' if self.path.startswith('/simple') else 'application/zip')
        self.send_header('Content-Length', str(length))
        self.end_headers()
        self.wfile.write(content)


@pytest.mark.slow
def test_index(tmp_path):
    """What is fetched is the locked file, or nothing is."""
    toy = Toy(tmp_path)
    server = ThreadingHTTPServer(('127.0.0.1', 0), Index)
    server.wheel = toy.wheels[0]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    lock = tmp_path / 'one.lock'
    lock.write_text('toy==1.0 --hash=sha256:%s\n' % sha256(server.wheel))

    def attempt(chance):
        server.chance = chance
        target = tmp_path / 'fetched'
        shutil.rmtree(target, ignore_errors=True)
        # as Pip.download calls it
        done = subprocess.run([sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps', '--require-hashes',
                               '--dest', target, '--only-binary', ':all:', '--no-cache-dir', '--retries', '0',
                               '-r', lock],
                              env={'PATH': os.environ['PATH'], 'PIP_CONFIG_FILE': os.devnull,
                                   'PIP_INDEX_URL': 'http://127.0.0.1:%d/simple' % server.server_port},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        fetched = list(target.glob('*')) if target.exists() else []
        assert [sha256(path) for path in fetched] == ([] if done.returncode else [sha256(server.wheel)]), done.stdout

    attack(attempt, 5)
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_kill(tmp_path, lmod):
    """Killed with signal 9 at random, again and again; the next call ends well and no lock stays."""
    toy, eb = Toy(tmp_path), EB(tmp_path / 'prefix')
    eb.sources = tmp_path / 'sources'
    begin = time.monotonic()
    eb(toy.easyconfig, env=toy.online)
    duration = time.monotonic() - begin

    def attempt(chance):
        for _ in range(3):
            running = eb.started(toy.easyconfig, '--rebuild', env=toy.online)
            try:
                running.communicate(timeout=duration * chance.uniform(0.1, 1))
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                running.communicate()
        eb(toy.easyconfig, '--rebuild', env=toy.online)
        assert not list((eb.prefix / 'software' / '.locks').iterdir())
        lmod.run("module use %s; module load toy; python -c 'import toy, other'" % eb.modules)

    attack(attempt, 1)
