"""Source trees from git, from a local server with a repository of PyTorch's shape."""
import os
import shutil
import socket
import subprocess
import tarfile
import time

import pytest

from hpc_pytorch import UsersProblem
from hpc_pytorch.source import git_sources
from hpc_pytorch.packages.lock_files import sha256_of

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


def test_commit_branch_and_tag(server, tmp_path):
    """Each means the commit it should; without history."""
    url, second = server.url + 'torch', server.commit('torch', 'setup.py', 'second')
    assert git_sources.resolve(url, 'v1') == server.first
    assert git_sources.resolve(url, 'main') == second
    git_sources.checkout(url, second, str(tmp_path / 'tree'))
    assert content(tmp_path / 'tree') == ('second', 'one')
    assert git(tmp_path / 'tree', 'rev-list', '--count', 'HEAD') == '1'


def test_commit_on_no_branch(server, tmp_path):
    """One that only its name leads to."""
    lost = server.commit('torch', 'setup.py', 'lost')
    git(server.directory / 'torch', 'reset', '--quiet', '--hard', server.first)
    git_sources.checkout(server.url + 'torch', lost, str(tmp_path / 'tree'))
    assert content(tmp_path / 'tree') == ('lost', 'one')


def test_changed_tarball(server, tmp_path):
    """Its checksum is that of what was packed, not of what somebody has put there since."""
    tarball = tmp_path / 'torch-1.tar.gz'
    git_sources.make({'url': server.url + 'torch'}, server.first, str(tmp_path / 'tree'), str(tarball))
    packed = sha256_of(str(tarball))
    tarball.write_bytes(b'something else')
    assert git_sources.checksum(str(tarball)) == packed
    tarball.with_name('torch-1.tar.gz.sha256').unlink()
    assert git_sources.checksum(str(tarball)) is None


def test_rewritten_tag(server):
    """It is told, with both commits."""
    second = server.commit('torch', 'setup.py', 'second')
    git(server.directory / 'torch', 'tag', '-f', 'v1', second)
    with pytest.raises(UsersProblem, match='%s now.*%s: it was moved' % (second, server.first)):
        git_sources.check(server.url + 'torch', 'v1', server.first)
    assert git_sources.check(server.url + 'torch', 'v1', second) == second


@pytest.mark.parametrize('revision, words', [('nothing', 'no branch and no tag'), ('bad8d25', 'all of its 40 digits')])
def test_not_there(server, revision, words):
    """A clear message."""
    with pytest.raises(UsersProblem, match=words):
        git_sources.resolve(server.url + 'torch', revision)


def test_connection_cut_and_submodule_moved(server, tmp_path):
    """What arrived is kept: the next call needs the submodule only, from where it is now."""
    url, tree = server.url + 'torch', tmp_path / 'tree'
    part = server.directory / 'part'
    part.rename(server.directory / 'away')
    with pytest.raises(UsersProblem, match="(?s)submodule.*kept; try again"):
        git_sources.checkout(url, server.first, str(tree))
    assert (tree / 'setup.py').read_text() == 'first'
    (server.directory / 'away').rename(part)
    shutil.rmtree(server.directory / 'torch')
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


def test_tarball_is_always_the_same(server, tmp_path):
    """Two people, two umasks, one tarball; nothing of git in it."""
    sums = []
    for name, mask in (('one', 0o022), ('two', 0o077)):
        before = os.umask(mask)
        try:
            git_sources.checkout(server.url + 'torch', server.first, str(tmp_path / name))
        finally:
            os.umask(before)
        git_sources.pack(str(tmp_path / name), 'torch', str(tmp_path / (name + '.tar.gz')))
        sums.append(sha256_of(str(tmp_path / (name + '.tar.gz'))))
    assert sums[0] == sums[1]
    with tarfile.open(tmp_path / 'one.tar.gz') as packed:
        assert sorted(packed.getnames()) == ['torch/.gitmodules', 'torch/setup.py', 'torch/third_party/part/part.h']


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
    (name, _, revision, needed), = git_sources.unfetched(str(server.directory / 'torch'))
    assert (name, revision) == ('third_party/nccl', 'v2.27.5-1')
    assert needed({'USE_CUDA': '1'}) and not needed({'USE_CUDA': '0'})
    assert not needed({'USE_CUDA': '1', 'USE_SYSTEM_NCCL': '1'})

    git_sources.make({'url': server.url + 'torch'}, commit, str(tmp_path / 'tree'), str(tmp_path / 'torch.tar.gz'))
    with tarfile.open(tmp_path / 'torch.tar.gz') as packed:
        assert packed.extractfile('torch/third_party/nccl/makefile').read() == b'as pinned'
        assert not [member for member in packed.getnames() if '/.git/' in member]
        packed.extractall(tmp_path / 'unpacked')
    assert not git_sources.unfetched(str(tmp_path / 'unpacked' / 'torch'))
