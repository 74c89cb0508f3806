"""
What fetching a source tree from git costs: this collection's way, and EasyBuild's own full clone.

    .venv/bin/python benchmarks/git_sources/measure.py

Makes repositories with a deep history and nested submodules in a temporary directory, serves them on this machine, and
counts what passes. See README.rst.
"""
import argparse
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
HERE = '127.0.0.1'
WHO = 'A <a@example.org> %d +0000'


def received():
    """Bytes that came through this machine's own network so far; nothing else should use it meanwhile."""
    return int(Path('/sys/class/net/lo/statistics/rx_bytes').read_text())


def git(directory, *words, **options):
    return subprocess.run(['git', '-C', str(directory), *words], check=True, stdout=subprocess.PIPE,
                          **options).stdout.decode().strip()


def make_repository(directory, name, commits, files, submodules, url):
    """A repository whose commits each change some of its files; submodules: their commits by name. Returns its own."""
    repository = directory / (name + '.git')
    git(directory, 'init', '--quiet', '--bare', '-b', 'main', str(repository))
    git(repository, 'config', 'uploadpack.allowAnySHA1InWant', 'true')
    chance = random.Random(name)
    stream = []

    def content():
        return ''.join('%064x\n' % chance.getrandbits(256) for _ in range(60))

    for number in range(commits):
        author = WHO % (1700000000 + number)
        stream.append('commit refs/heads/main\ncommitter %s\ndata 1\nx\n' % author)
        changed = range(files) if number == 0 else chance.sample(range(files), 3)
        for index in changed:
            text = content()
            stream.append('M 644 inline src/%d.txt\ndata %d\n%s\n' % (index, len(text), text))
        if number == commits - 1 and submodules:
            text = ''.join('[submodule "%s"]\n\tpath = third_party/%s\n\turl = %s%s.git\n' % (part, part, url, part)
                           for part in submodules)
            stream.append('M 644 inline .gitmodules\ndata %d\n%s\n' % (len(text), text))
            for part, commit in submodules.items():
                stream.append('M 160000 %s third_party/%s\n' % (commit, part))
    stream.append('reset refs/tags/v1\nfrom refs/heads/main\n')
    git(repository, 'fast-import', '--quiet', input=''.join(stream).encode())
    return git(repository, 'rev-parse', 'main')


def make_all(directory, commits, url):
    """PyTorch's shape: ten submodules, each with two of its own, thirty in all."""
    outer = {}
    for number in range(10):
        inner = {'part%d_%d' % (number, index): make_repository(directory, 'part%d_%d' % (number, index), commits // 10,
                                                                30, {}, url) for index in range(2)}
        outer['part%d' % number] = make_repository(directory, 'part%d' % number, commits // 10, 30, inner, url)
    return make_repository(directory, 'torch', commits, 300, outer, url)


def serve(directory):
    """git daemon on a free port; returns the process and the port."""
    with socket.create_server((HERE, 0)) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen(['git', 'daemon', '--reuseaddr', '--export-all', '--listen=' + HERE, '--port=%d' % port,
                                '--max-connections=64', '--base-path=%s' % directory], stderr=subprocess.DEVNULL)
    while True:
        try:
            socket.create_connection((HERE, port)).close()
            return process, port
        except OSError:
            time.sleep(0.05)


def ours(url, commit, directory):
    from hpc_pytorch.source import git_sources
    git_sources.make({'url': url + 'torch.git'}, commit, str(directory / 'tree'), str(directory / 'torch.tar.gz'))


def easybuilds(url, commit, directory):
    from easybuild.tools.filetools import get_source_tarball_from_git
    from easybuild.tools.options import set_up_configuration
    set_up_configuration(silent=True, args=['--prefix=%s' % directory, '--tmpdir=%s' % directory,
                                            '--allow-use-as-root-and-accept-consequences'])
    get_source_tarball_from_git('torch.tar.xz', str(directory), {
        'url': url.rstrip('/'), 'repo_name': 'torch', 'commit': commit, 'recursive': True})


WAYS = {'this collection': ours, 'EasyBuild': easybuilds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--commits', type=int, default=3000, help="depth of the history (submodules: a tenth)")
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--way', nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        way, url, commit = arguments.way
        with tempfile.TemporaryDirectory() as directory:
            WAYS[way](url, commit, Path(directory))
        return
    directory = Path(tempfile.mkdtemp())
    process, port = serve(directory)
    url = 'git://%s:%d/' % (HERE, port)
    try:
        commit = make_all(directory, arguments.commits, url)
        for number in range(arguments.rounds):
            for way in WAYS:
                before, begin = received(), time.monotonic()
                subprocess.run([sys.executable, __file__, '--way', way, url, commit], check=True,
                               stdout=subprocess.DEVNULL, env=dict(os.environ, EASYBUILD_TMPDIR=str(directory)))
                print('%-16s %6.1f MB %6.1f s' % (
                    way, (received() - before) / 1e6, time.monotonic() - begin), flush=True)
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == '__main__':
    main()
