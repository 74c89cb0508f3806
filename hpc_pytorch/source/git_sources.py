"""
Source trees from git, as `git_config` in an easyconfig names them: EasyBuild would clone the whole history.

Only one commit is fetched, with its submodules, in parallel, and with what the build would clone by itself. What
arrived before a connection broke is kept, and the next call goes on from there. Needs git 2.14.

Standard library only, Python 3.6.
"""
import os
import subprocess

from hpc_pytorch import UsersProblem

# What trees from 2.7 on clone while they build, as it is no submodule: (directory, repository, files of which one names
# the tag). From tools/optional_submodules.py and build_pytorch_libs.py.
PINS = os.path.join('.ci', 'docker', 'ci_commit_pins')
NCCL, EIGEN = os.path.join('third_party', 'nccl'), os.path.join('third_party', 'eigen')
CLONED = (
    (NCCL, 'https://github.com/NVIDIA/nccl', (PINS + '/nccl.txt', PINS + '/nccl-cu12.txt')),
    (EIGEN, 'https://gitlab.com/libeigen/eigen', ('third_party/eigen_pin.txt',)),
)


def commit_of(source):
    """The commit that a source of an easyconfig names; None for released tarballs."""
    return source.get('git_config', {}).get('commit') if isinstance(source, dict) else None


def git(directory, *words):
    """Run git in a directory; it asks nobody for passwords."""
    done = subprocess.run(('git', '-C', directory) + words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True,
                          env=dict(os.environ, GIT_TERMINAL_PROMPT='0', LC_ALL='C'))
    if done.returncode:
        raise UsersProblem("git %s: %s" % (words[0], done.stderr.strip() or 'exit status %d' % done.returncode))


def checkout(url, revision, directory):
    """Fetch a commit or a tag, and its submodules, into a directory that may have some of it already."""
    os.makedirs(directory, exist_ok=True)
    git(directory, 'init', '--quiet')
    try:
        git(directory, 'fetch', '--quiet', '--depth', '1', '--', url, revision)
    except UsersProblem as problem:
        raise UsersProblem("%s cannot be fetched from %s (%s). What has arrived is kept; run the same command to resume"
                           % (revision, url, problem))
    git(directory, 'checkout', '--quiet', '--force', 'FETCH_HEAD')
    git(directory, 'submodule', '--quiet', 'sync', '--recursive')
    try:
        git(directory, 'submodule', '--quiet', 'update', '--init', '--recursive', '--force', '--depth', '1',
            '--jobs', '8')
    except UsersProblem as problem:
        raise UsersProblem("a submodule of %s cannot be fetched: it was moved or removed, or the connection broke "
                           "(%s). What has arrived is kept; run the same command to resume" % (revision, problem))


def unfetched(tree):
    """The (directory, repository, tag) of CLONED that a tree has a pin for and no files."""
    missing = []
    for name, url, pins in CLONED:
        pin = next(filter(os.path.isfile, (os.path.join(tree, path) for path in pins)), None)
        if pin and not os.path.exists(os.path.join(tree, name)):
            with open(pin) as handle:
                missing.append((name, url, handle.read().strip()))
    return missing


def fetch_cloned(tree):
    """Fetch what the build would clone, at what its pins say."""
    for name, url, tag in unfetched(tree):
        directory = os.path.join(tree, name)
        checkout(url, tag, directory + '.part')
        os.rename(directory + '.part', directory)


def check_pins(tree, asked):
    """Stop if a build with these options would clone another repository."""
    cuda = asked.get('USE_CUDA') == '1'
    needed = {
        NCCL: cuda and asked.get('USE_NCCL', '1') == '1' and asked.get('USE_SYSTEM_NCCL', '0') == '0',
        EIGEN: asked.get('USE_SYSTEM_EIGEN_INSTALL') not in ('1', 'ON'),
    }
    missing = [name for name, _, _ in unfetched(tree) if needed[name]]
    if missing:
        raise UsersProblem("The build would clone %s. Use a source with git_config, or the release tarball, which have "
                           "it%s" % (', '.join(missing), ", or add NCCL to the dependencies" * (NCCL in missing)))
