"""A local git server with a repository of PyTorch's shape."""
import os
import socket
import subprocess
import time

import pytest


WHO = {'GIT_AUTHOR_NAME': 'a', 'GIT_AUTHOR_EMAIL': 'a@example.org', 'GIT_COMMITTER_NAME': 'a',
       'GIT_COMMITTER_EMAIL': 'a@example.org'}


def git(directory, *words):
    """Run git as somebody who commits."""
    return subprocess.run(['git', '-C', str(directory), *words], check=True, stdout=subprocess.PIPE, text=True,
                          env=dict(os.environ, **WHO)).stdout.strip()


class Server:
    """git daemon on this machine, with a repository that has a submodule."""

    def __init__(self, directory):
        self.directory = directory
        with socket.socket() as listener:
            listener.bind(('127.0.0.1', 0))
            self.port = listener.getsockname()[1]
        self.url = 'git://127.0.0.1:%d/' % self.port
        for name in ('part', 'torch'):
            git(directory, 'init', '--quiet', '-b', 'main', name)
            git(directory / name, 'config', 'uploadpack.allowAnySHA1InWant', 'true')
            # EasyBuild's git_config puts .git behind the name
            (directory / (name + '.git')).symlink_to(name)
        self.commit('part', 'part.h', 'one')
        self.start()
        git(directory / 'torch', 'submodule', '--quiet', 'add', self.url + 'part', 'third_party/part')
        self.first = self.commit('torch', 'setup.py', 'first')
        git(directory / 'torch', 'tag', '-a', '-m', 'tag', 'v1')

    def start(self):
        """Start it, and wait until it answers."""
        self.process = subprocess.Popen(['git', 'daemon', '--reuseaddr', '--export-all', '--listen=127.0.0.1',
                                         '--port=%d' % self.port, '--base-path=%s' % self.directory],
                                        stderr=subprocess.DEVNULL, start_new_session=True)
        end = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(('127.0.0.1', self.port)).close()
                return
            except OSError:
                assert time.monotonic() < end, "git daemon does not answer"
                time.sleep(0.05)

    def stop(self):
        """End it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, 15)
            self.process.wait()

    def commit(self, repository, name, text):
        """A commit; returns its name."""
        (self.directory / repository / name).write_text(text)
        git(self.directory / repository, 'add', '-A')
        git(self.directory / repository, 'commit', '--quiet', '-m', text)
        return git(self.directory / repository, 'rev-parse', 'HEAD')


@pytest.fixture
def server(tmp_path):
    """One that runs until the test ends."""
    (tmp_path / 'server').mkdir()
    server = Server(tmp_path / 'server')
    yield server
    server.stop()
