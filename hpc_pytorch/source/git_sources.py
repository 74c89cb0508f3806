"""
Source trees from git: one commit, a branch or a tag, with its submodules, as a tarball that is the same every time.

Only the wanted commit is fetched, not the history; submodules in parallel. What was fetched before a connection broke
is kept in the working directory, and the next call goes on from there. Needs git 2.14.

Standard library only, Python 3.6.
"""
import gzip
import os
import re
import shutil
import subprocess
import tarfile

from hpc_pytorch import UsersProblem, fsync
from hpc_pytorch.packages.lock_files import sha256_of

TRIES = 3
# Beside a tarball: its SHA256.
NOTE = '.sha256'
# What trees from 2.7 on clone while they build, as it is no submodule: (directory, repository, files of which one names
# the tag, whether a build with these options needs it). From tools/optional_submodules.py and build_pytorch_libs.py.
PINS = os.path.join('.ci', 'docker', 'ci_commit_pins')
CLONED = (
    ('third_party/nccl', 'https://github.com/NVIDIA/nccl', (PINS + '/nccl.txt', PINS + '/nccl-cu12.txt'),
     lambda asked: (asked.get('USE_CUDA'), asked.get('USE_NCCL', '1'), asked.get('USE_SYSTEM_NCCL', '0')) == (
         '1', '1', '0')),
    ('third_party/eigen', 'https://gitlab.com/libeigen/eigen', ('third_party/eigen_pin.txt',),
     lambda asked: asked.get('USE_SYSTEM_EIGEN_INSTALL') not in ('1', 'ON')),
)
COMMIT = re.compile(r'[0-9a-f]{40}$')


def git(directory, *words):
    """Run git in a directory; returns what it prints. It asks nobody for passwords."""
    done = subprocess.run(('git', '-C', directory) + words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True,
                          env=dict(os.environ, GIT_TERMINAL_PROMPT='0', LC_ALL='C'))
    if done.returncode:
        raise UsersProblem("git %s: %s" % (words[0], done.stderr.strip() or 'exit status %d' % done.returncode))
    return done.stdout


def again(directory, *words):
    """Run git, and again when it fails: connections break."""
    for left in reversed(range(TRIES)):
        try:
            return git(directory, *words)
        except UsersProblem:
            if not left:
                raise


def resolve(url, revision):
    """The commit that a branch, a tag or a commit's name means at this moment."""
    if COMMIT.match(revision):
        return revision
    names = ['refs/tags/%s^{}' % revision, 'refs/tags/' + revision, 'refs/heads/' + revision]
    lines = again('.', 'ls-remote', '--', url, *names).splitlines()
    found = {name: commit for commit, name in (line.split('\t') for line in lines)}
    for name in names:
        if name in found:
            return found[name]
    hint = ": a commit's name needs all of its 40 digits" if re.match(r'[0-9a-f]{5,39}$', revision) else ""
    raise UsersProblem("%s has no branch and no tag %s%s" % (url, revision, hint))


def check(url, revision, commit):
    """Stop when a branch or a tag is no longer the commit that it was when the easyconfig was written."""
    now = resolve(url, revision)
    if commit and now != commit:
        raise UsersProblem("%s of %s is %s now, and the easyconfig says %s: it was moved. If you want the new one, "
                           "write it into the easyconfig" % (revision, url, now, commit))
    return now


def checkout(url, commit, directory):
    """Fetch a commit and its submodules into a directory, which may have some of it already."""
    os.makedirs(directory, exist_ok=True)
    git(directory, 'init', '--quiet')
    try:
        git(directory, 'cat-file', '-e', commit + '^{commit}')
    except UsersProblem:
        try:
            again(directory, 'fetch', '--quiet', '--depth', '1', '--', url, commit)
        except UsersProblem as problem:
            raise UsersProblem("%s cannot be fetched from %s (%s). What has arrived is kept; try again to go on"
                               % (commit, url, problem))
    git(directory, 'checkout', '--quiet', '--force', commit)
    git(directory, 'submodule', '--quiet', 'sync', '--recursive')
    try:
        again(directory, 'submodule', '--quiet', 'update', '--init', '--recursive', '--force', '--depth', '1',
              '--jobs', '8')
    except UsersProblem as problem:
        raise UsersProblem("a submodule of %s cannot be fetched: it was moved or removed, or the connection broke "
                           "(%s). What has arrived is kept; try again to go on" % (commit, problem))


def unfetched(tree):
    """The rows of CLONED that a tree has a pin for and no files; the third column is what the pin says."""
    rows = []
    for name, url, pins, needed in CLONED:
        pin = next(filter(os.path.isfile, (os.path.join(tree, path) for path in pins)), None)
        if pin and not os.path.exists(os.path.join(tree, name)):
            with open(pin) as handle:
                rows.append((name, url, handle.read().strip(), needed))
    return rows


def fetch_cloned(tree):
    """Fetch what the build would clone, at what its pins say."""
    for name, url, revision, _ in unfetched(tree):
        directory = os.path.join(tree, name)
        try:
            checkout(url, resolve(url, revision), directory + '.part')
        except UsersProblem as problem:
            raise UsersProblem("%s, which the build would clone: %s" % (name, problem))
        os.rename(directory + '.part', directory)


def pack(directory, name, tarball):
    """A tree without git's own files as a tarball: the same bytes for the same commit, whoever packs it."""
    moment = int(git(directory, 'log', '-1', '--format=%ct'))

    def plain(member):
        member.uid = member.gid = 0
        member.uname = member.gname = ''
        member.mtime = moment
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member

    part = tarball + '.part'
    with open(part, 'wb') as raw, gzip.GzipFile('', 'wb', 6, raw, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode='w', format=tarfile.GNU_FORMAT) as archive:
            for top, directories, files in os.walk(directory):
                directories[:] = sorted(entry for entry in directories if entry != '.git')
                links = [entry for entry in directories if os.path.islink(os.path.join(top, entry))]
                for entry in sorted(set(files) - {'.git'}) + links:
                    path = os.path.join(top, entry)
                    archive.add(path, os.path.join(name, os.path.relpath(path, directory)), recursive=False,
                                filter=plain)
    fsync(part)
    with open(tarball + NOTE, 'w') as note:
        note.write(sha256_of(part) + '\n')
    os.rename(part, tarball)


def checksum(tarball):
    """The SHA256 that a tarball had when it was packed here; None for another tarball."""
    if not os.path.isfile(tarball) or not os.path.isfile(tarball + NOTE):
        return None
    with open(tarball + NOTE) as note:
        return note.read().strip()


def make(source, commit, directory, tarball):
    """The tarball of a commit of a source, fetched into a directory that goes when all is packed."""
    checkout(source['url'], commit, directory)
    fetch_cloned(directory)
    pack(directory, os.path.splitext(os.path.splitext(os.path.basename(tarball))[0])[0], tarball)
    shutil.rmtree(directory)
