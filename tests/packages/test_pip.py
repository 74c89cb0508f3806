"""Fetching as users' networks make it: a proxy whose certificate authority is the site's own, lines that break off."""
import os
import random
import re
import socket
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from common import EB
from small_software import Toy, make_wheel

pytestmark = pytest.mark.slow
HOST = 'index.test'


class Index(BaseHTTPRequestHandler):
    """A package index that breaks off the first answer with a file of some size after nine tenths of it."""
    protocol_version = 'HTTP/1.1'

    def log_message(self, *_):
        """Tests print nothing."""

    def do_GET(self):
        """A page for each package, and the files."""
        kind, name = self.path.strip('/').split('/')
        if kind == 'simple':
            files = [path.name for path in self.server.directory.glob(name + '-*')]
            content = ''.join('<a href="/files/%s">%s</a>' % (file, file) for file in files).encode()
            return self.answer(200, content, {'Content-Type': 'text/html'})
        content = (self.server.directory / name).read_bytes()
        begin = int(re.match(r'bytes=(\d+)-', self.headers.get('Range', 'bytes=0-')).group(1))
        headers = {'ETag': '"%s"' % name, 'Accept-Ranges': 'bytes'}
        if begin:
            headers['Content-Range'] = 'bytes %d-%d/%d' % (begin, len(content) - 1, len(content))
        cut = len(content) > 1e6 and not begin
        self.server.sent += len(content) * 9 // 10 if cut else len(content) - begin
        return self.answer(206 if begin else 200, content[begin:], headers, cut)

    def answer(self, status, content, headers, cut=False):
        """Send it, or nine tenths of it."""
        self.send_response(status)
        for name, value in dict(headers, **{'Content-Length': str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content[:len(content) * 9 // 10] if cut else content)
        self.close_connection = cut


class Proxy(BaseHTTPRequestHandler):
    """A proxy that takes every host for the index."""

    def log_message(self, *_):
        """Tests print nothing."""

    def do_CONNECT(self):
        """Pass on what comes, in both directions, until one side is done."""
        with socket.create_connection(self.server.target) as other:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=self.copy, args=(other, self.connection))
            back.start()
            self.copy(self.connection, other)
            back.join()
        self.close_connection = True

    @staticmethod
    def copy(source, target):
        """Bytes from one side to the other."""
        try:
            for block in iter(lambda: source.recv(65536), b''):
                target.sendall(block)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def started(handler, **attributes):
    """A server at a port of its own."""
    server = ThreadingHTTPServer(('127.0.0.1', 0), handler)
    server.daemon_threads = True
    vars(server).update(attributes)
    return server


@pytest.fixture
def site(tmp_path):
    """A proxy, an index behind it that the site's own authority vouches for, and a toy in it."""
    (tmp_path / 'toy').mkdir()
    toy = Toy(tmp_path / 'toy')
    content = bytes(random.Random(1).choices(b'0123456789', k=2 * 10 ** 6)).decode()
    toy.wheels[0] = make_wheel(toy.index, 'toy', text='digits = "%s"\n' % content)
    toy.write()
    authority, key = tmp_path / 'authority.pem', tmp_path / 'key.pem'
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-keyout', key, '-out', authority,
                    '-days', '2', '-subj', '/CN=' + HOST, '-addext', 'subjectAltName=DNS:' + HOST], check=True,
                   stderr=subprocess.DEVNULL)
    index = started(Index, directory=toy.index, sent=0)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, key)
    index.socket = context.wrap_socket(index.socket, server_side=True)
    proxy = started(Proxy, target=index.server_address)
    for server in (index, proxy):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    toy.server = index
    toy.network = {'PIP_CONFIG_FILE': os.devnull, 'PIP_FIND_LINKS': '', 'PIP_EXTRA_INDEX_URL': '',
                   'PIP_NO_CACHE_DIR': '1', 'PIP_INDEX_URL': 'https://%s/simple' % HOST, 'PIP_CERT': str(authority),
                   'PIP_PROXY': 'http://127.0.0.1:%d' % proxy.server_port}
    yield toy
    for server in (index, proxy):
        server.shutdown()
        server.server_close()


def test_proxy_authority_and_a_line_that_breaks(site, tmp_path):
    """The authority is the user's pip's; of a file that broke off only the rest is fetched; without it, it is said."""
    eb = EB(tmp_path / 'prefix')
    eb.sources = tmp_path / 'sources'
    untrusted = eb(site.easyconfig, env=dict(site.network, PIP_CERT='/etc/ssl/certs/ca-certificates.crt'), status=None)
    assert '%s: this machine does not trust its certificate' % HOST in untrusted.stdout
    away = eb(site.easyconfig, env=dict(site.network, PIP_PROXY='http://127.0.0.1:9'), status=None)
    assert '%s: the proxy cannot be reached' % HOST in away.stdout and not list(eb.modules.glob('toy/*'))
    assert not site.server.sent
    eb(site.easyconfig, '--fetch', env=site.network)
    assert site.server.sent < 1.1 * sum(wheel.stat().st_size for wheel in site.wheels)
