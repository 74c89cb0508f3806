"""A package index at its worst: README.rst says how to go on for an hour."""
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from attacks.attempts import attack
from attacks.target import Target

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


class Index(BaseHTTPRequestHandler):
    """An index that answers as chance will have it, and now and then well."""

    def log_message(self, *_):
        """Tests print nothing."""

    def do_GET(self):
        """A page for each package, and its file."""
        chance, kind, name = self.server.chance, *self.path.strip('/').split('/')
        if kind == 'simple':
            wheel = next(path for path in self.server.wheels if path.name.startswith(name + '-'))
            content = ('<a href="/files/%s">%s</a>' % (wheel.name, wheel.name)).encode()
        else:
            content = next(path for path in self.server.wheels if path.name == name).read_bytes()
        end = chance.randrange(len(content))
        size = len(content)
        ways = [(200, content[:end], size), (200, content[:end], end), (200, content + b'more', size + 4),
                (200, content[:end] + b'x' + content[end + 1:], size), (200, b'', 0), (503, b'', 0), (404, b'', 0),
                (200, b'<html>Log in first</html>', 25), (206, content[end:], size - end), (302, b'', 0),
                (200, content, -5), (999, b'', 0), 'trickle', 'hang', 'reset', 'nonsense']
        way = chance.choice(ways) if chance.random() < self.server.share else (200, content, len(content))
        try:
            if isinstance(way, str):
                getattr(self, way)(content, chance)
            else:
                self.answer(*way)
        except ConnectionError:
            pass

    def answer(self, status, content, length):
        """Send so many bytes, whatever their number is said to be."""
        self.send_response(status)
        self.send_header('Content-Type', 'text/html' if self.path.startswith('/simple') else 'application/zip')
        self.send_header('Content-Length', str(length))
        if status == 302:
            self.send_header('Location', self.path)
        self.end_headers()
        self.wfile.write(content)

    def trickle(self, content, chance):
        """All of it, a few bytes at a time."""
        self.answer(200, b'', len(content))
        size = max(1, len(content) // 20)
        for begin in range(0, len(content), size):
            time.sleep(chance.uniform(0, 0.2))
            self.wfile.write(content[begin:begin + size])

    def hang(self, content, chance):
        """Some of it, and then nothing any more."""
        self.answer(200, content[:chance.randrange(len(content))], len(content))
        self.server.over.wait(60)

    def reset(self, content, chance):
        """The connection is gone."""
        self.answer(200, content[:chance.randrange(len(content))], len(content))
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))

    def nonsense(self, _, chance):
        """Not even HTTP."""
        self.wfile.write(bytes(chance.randrange(256) for _ in range(chance.randrange(300))))


def test_index(tmp_path):
    """What is fetched is the locked file, or nothing is, and why is said."""
    target = Target(tmp_path)
    server = ThreadingHTTPServer(('127.0.0.1', 0), Index)
    server.daemon_threads = True
    server.wheels = target.toy.wheels
    threading.Thread(target=server.serve_forever, daemon=True).start()
    network = dict(target.toy.offline, PIP_INDEX_URL='http://127.0.0.1:%d/simple' % server.server_port,
                   PIP_DEFAULT_TIMEOUT='1', PIP_RETRIES='1', PIP_NO_CACHE_DIR='1')

    def attempt(chance):
        server.chance, server.share, server.over = chance, chance.choice([0.1, 0.3, 1]), threading.Event()
        target.forget(chance)
        done = target.eb(target.toy.easyconfig, '--fetch', env=network, status=None)
        server.over.set()
        assert done.returncode == 0 or 'Fetching failed: ' in done.stdout, done.stdout
        if done.returncode == 0:
            assert len(list(target.eb.sources.glob('t/toy/*/*.whl'))) == 2
        target.check_fetch()

    attack(attempt, 1)
    server.shutdown()
    server.server_close()
