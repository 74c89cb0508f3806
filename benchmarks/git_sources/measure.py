"""
What fetching a source tree from git costs: this collection's way, and EasyBuild's own full clone.

    .venv/bin/python benchmarks/git_sources/measure.py

Makes repositories with a deep history and nested submodules in a temporary directory, serves them on this machine, and
counts what passes. See README.rst.
"""
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from easybuild.tools.filetools import get_source_tarball_from_git
from easybuild.tools.options import set_up_configuration

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from hpc_pytorch.source import git_sources  # noqa: E402

# submodules have a tenth of the history
COMMITS, ROUNDS = 3000, 3
URL = 'git://127.0.0.1:9419/'
AUTHOR = 'A <a@example.org> %d +0000'


def received():
    """Bytes that came through this machine's own network so far; nothing else should use it meanwhile."""
    return int(Path('/sys/class/net/lo/statistics/rx_bytes').read_text())


def git(directory, *words, **options):
    return subprocess.run(['git', '-C', str(directory), *words], check=True, stdout=subprocess.PIPE, text=True,
                          **options).stdout.strip()


def make_repository(directory, name, commits, files, submodules=()):
    """A repository whose commits each change some of its files; submodules: (name, commit). Returns both of its own."""
    repository = directory / (name + '.git')
    git(directory, 'init', '--quiet', '--bare', '-b', 'main', str(repository))
    git(repository, 'config', 'uploadpack.allowAnySHA1InWant', 'true')
    chance = random.Random(name)
    stream = []
    for number in range(commits):
        stream.append('commit refs/heads/main\ncommitter %s\ndata 1\nx\n' % (AUTHOR % (1700000000 + number)))
        for index in range(files) if number == 0 else chance.sample(range(files), 3):
            text = ''.join('%064x\n' % chance.getrandbits(256) for _ in range(60))
            stream.append('M 644 inline src/%d.txt\ndata %d\n%s\n' % (index, len(text), text))
    if submodules:
        text = ''.join('[submodule "{0}"]\n\tpath = third_party/{0}\n\turl = {1}{0}.git\n'.format(part, URL)
                       for part, _ in submodules)
        stream.append('M 644 inline .gitmodules\ndata %d\n%s\n' % (len(text), text))
        stream += ['M 160000 %s third_party/%s\n' % (commit, part) for part, commit in submodules]
    git(repository, 'fast-import', '--quiet', input=''.join(stream))
    return name, git(repository, 'rev-parse', 'main')


def make_all(directory):
    """PyTorch's shape: ten submodules, each with two of its own, thirty in all."""
    outer = [make_repository(directory, 'part%d' % number, COMMITS // 10, 30, [
        make_repository(directory, 'part%d_%d' % (number, index), COMMITS // 10, 30) for index in range(2)])
        for number in range(10)]
    return make_repository(directory, 'torch', COMMITS, 300, outer)[1]


def ours(commit, directory):
    git_sources.make({'url': URL + 'torch.git'}, commit, directory + '/tree', directory + '/torch.tar.gz')


def easybuilds(commit, directory):
    get_source_tarball_from_git('torch.tar.xz', directory, {
        'url': URL.rstrip('/'), 'repo_name': 'torch', 'commit': commit, 'recursive': True})


def main():
    with tempfile.TemporaryDirectory() as top:
        with contextlib.redirect_stdout(open(os.devnull, 'w')):
            set_up_configuration(silent=True, args=['--prefix=' + top, '--tmpdir=' + top,
                                                    '--allow-use-as-root-and-accept-consequences'])
        commit = make_all(Path(top))
        server = subprocess.Popen(['git', 'daemon', '--reuseaddr', '--export-all', '--listen=127.0.0.1', '--port=9419',
                                   '--max-connections=64', '--base-path=' + top], stderr=subprocess.DEVNULL)
        while subprocess.run(['git', 'ls-remote', URL + 'torch.git'], capture_output=True).returncode:
            time.sleep(0.1)
        try:
            for number in range(ROUNDS):
                for title, fetch in (('this collection', ours), ('EasyBuild', easybuilds)):
                    with tempfile.TemporaryDirectory() as directory, \
                            contextlib.redirect_stdout(open(os.devnull, 'w')):
                        before, begin = received(), time.monotonic()
                        fetch(commit, directory)
                        taken = (received() - before) / 1e6, time.monotonic() - begin
                    print('%-16s %6.1f MB %6.1f s' % ((title,) + taken), flush=True)
        finally:
            server.terminate()
            server.wait()


if __name__ == '__main__':
    main()
