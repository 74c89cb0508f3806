"""Source trees from git, from a local server with a repository of PyTorch's shape."""
import os
import socket
import subprocess
import time

import pytest

from hpc_pytorch import UsersProblem
from hpc_pytorch.source import git_sources

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


def content(tree):
    """What a checked-out tree has."""
    return (tree / 'setup.py').read_text(), (tree / 'third_party' / 'part' / 'part.h').read_text()


@pytest.mark.parametrize('tag', [True, False])
def test_commit_and_tag(server, tmp_path, tag):
    """Each means the commit it should, without history; one that is not there is named."""
    second = server.commit('torch', 'setup.py', 'second')
    git_sources.checkout(server.url + 'torch', 'refs/tags/v1' if tag else second, str(tmp_path / 'tree'))
    assert content(tmp_path / 'tree') == ('first' if tag else 'second', 'one')
    assert git(tmp_path / 'tree', 'rev-list', '--count', 'HEAD') == '1'
    with pytest.raises(UsersProblem, match='refs/tags/nothing cannot be fetched from'):
        git_sources.checkout(server.url + 'torch', 'refs/tags/nothing', str(tmp_path / 'tree'))


def test_commit_on_no_branch(server, tmp_path):
    """One that only its name leads to."""
    lost = server.commit('torch', 'setup.py', 'lost')
    git(server.directory / 'torch', 'reset', '--quiet', '--hard', server.first)
    git_sources.checkout(server.url + 'torch', lost, str(tmp_path / 'tree'))
    assert content(tmp_path / 'tree') == ('lost', 'one')


def test_connection_cut_and_submodule_moved(server, tmp_path):
    """What arrived is kept, and the next call goes on from there."""
    url, tree = server.url + 'torch', tmp_path / 'tree'
    part = server.directory / 'part'
    part.rename(server.directory / 'away')
    with pytest.raises(UsersProblem, match="(?s)submodule.*kept; run the same command"):
        git_sources.checkout(url, server.first, str(tree))
    assert (tree / 'setup.py').read_text() == 'first'
    (server.directory / 'away').rename(part)
    git_sources.checkout(url, server.first, str(tree))
    assert content(tree) == ('first', 'one')


def test_no_server(server, tmp_path):
    """A server that is away is told, and the next call goes on."""
    url = server.url + 'torch'
    server.stop()
    with pytest.raises(UsersProblem, match='(?s)cannot be fetched from'):
        git_sources.checkout(url, server.first, str(tmp_path / 'tree'))
    server.start()
    git_sources.checkout(url, server.first, str(tmp_path / 'tree'))
    assert content(tmp_path / 'tree') == ('first', 'one')


def test_what_the_build_would_clone(server, tmp_path, monkeypatch):
    """NCCL, which is no submodule from 2.7 on, at the tag that the tree names; without it the build is refused."""
    git(server.directory, 'init', '--quiet', '-b', 'main', 'nccl')
    git(server.directory / 'nccl', 'config', 'uploadpack.allowAnySHA1InWant', 'true')
    server.commit('nccl', 'makefile', 'as pinned')
    git(server.directory / 'nccl', 'tag', 'v2.27.5-1')
    server.commit('nccl', 'makefile', 'later')
    (server.directory / 'torch' / git_sources.PINS).mkdir(parents=True)
    commit = server.commit('torch', os.path.join(git_sources.PINS, 'nccl.txt'), 'v2.27.5-1\n')
    for name, value in (('COUNT', '1'), ('KEY_0', 'url.%snccl.insteadOf' % server.url),
                        ('VALUE_0', 'https://github.com/NVIDIA/nccl')):
        monkeypatch.setenv('GIT_CONFIG_' + name, value)
    tree = str(tmp_path / 'tree')
    git_sources.checkout(server.url + 'torch', commit, tree)
    assert [(name, tag) for name, _, tag in git_sources.unfetched(tree)] == [('third_party/nccl', 'v2.27.5-1')]
    for asked in ({'USE_CUDA': '0'}, {'USE_CUDA': '1', 'USE_SYSTEM_NCCL': '1'}):
        git_sources.check_pins(tree, asked)
    with pytest.raises(UsersProblem, match='would clone third_party/nccl.*add NCCL'):
        git_sources.check_pins(tree, {'USE_CUDA': '1'})

    git_sources.fetch_cloned(tree)
    assert (tmp_path / 'tree/third_party/nccl/makefile').read_text() == 'as pinned'
    git_sources.check_pins(tree, {'USE_CUDA': '1'})
