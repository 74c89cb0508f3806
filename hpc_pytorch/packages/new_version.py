"""
``./eb --new-version VERSION EASYCONFIG``: an easyconfig and its lock files for another version, from those of this one.
``./eb --renew EASYCONFIG``: make the lock files of the same version again, with what the indexes have today.

A lock file is made by uv from an .in file of the same name, with the command in the .in file itself; so people can do
by hand what this does. Easyconfig and locks are written when all of it has worked. Where a version stands elsewhere, in
the names of wheels, in a git revision or an image, nothing is written.
"""
import argparse
import ast
import difflib
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hpc_pytorch import UsersProblem, collection_path
from hpc_pytorch.machine import systems
from hpc_pytorch.machine.collection_files import locked_program, named_file, plain_values
from hpc_pytorch.machine.versions import version_key
from hpc_pytorch.packages.lock_files import LOCK_PARAMETERS

# Packages of which each version is made for one version of PyTorch: their own metadata say which.
COMPANIONS = ('torchvision', 'torchaudio', 'torchtext')
# What PyTorch itself asks for, in one version; its name changed with 2.10.
BROUGHT = re.compile(r'^(?:pytorch-)?triton-rocm==[^\s;]+', re.M)
# EasyBuild's options that may stand on the command line out of habit; nothing of theirs is used.
NOT_OURS = ('--allow-use-as-root', '--prefix=', '--sourcepath=', '--tmpdir=', '--robot')
# pip's settings, as uv's environment variables. Files and indexes of one's own (find-links, extra-index-url) are not
# among them: the same lock has to come out on every machine.
PIPS_WORDS = (('index-url', 'UV_DEFAULT_INDEX'), ('cert', 'SSL_CERT_FILE'))
# uv's words -> ours; the first that fits
REASONS = tuple((re.compile(pattern, re.S | re.I), words) for pattern, words in (
    (r'Because (\S+) requires Python (\S+)', "{0} wants Python {1}"),
    (r'no version of (\S+?)==([^\s,]+)', "the indexes have no {0} {1}"),
    (r'no wheels with a matching (Python|platform)', "it has no wheel for the Python or the processor of this system"),
    (r'requested Python version .* does not satisfy Python(\S+) and (\S+) depends', "{1} wants Python {0}"),
    (r'(?:Failed to fetch|error sending request for url \()[^`(]*[`(]?([^`)]+)', "{0} could not be reached"),
))

# Options of PyTorch's build that ended: {name: the first version without it}. The C++ ABI: pytorch/pytorch#149888
# (March 2025); Caffe2 as in hpc_pytorch/source/build_options.py.
ENDED = {'_GLIBCXX_USE_CXX11_ABI': '2.8', 'BUILD_CAFFE2': '2.4'}

# What in an easyconfig belongs to one version, and does not follow from it.
BY_HAND = re.compile(r'\.whl|\.sif|docker://|git_config|^package_urls = ', re.M)


def indexes():
    """What pip was told of indexes, mirrors and certificates, in uv's words; what uv itself was told stays."""
    said = subprocess.run([sys.executable, '-m', 'pip', 'config', 'list'], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True).stdout
    told = {key.split('.')[-1]: ast.literal_eval(value) for key, _, value in
            (line.partition('=') for line in said.splitlines() if '=' in line)}
    told = {uvs: told[pips] for pips, uvs in PIPS_WORDS if pips in told}
    return dict({name: value for name, value in told.items() if name not in os.environ}, UV_NO_PROGRESS='1',
                UV_PYTHON_DOWNLOADS='never')


def uv(words, directory):
    """Run uv in a directory; what it prints. It asks the indexes that pip was configured with."""
    done = subprocess.run([locked_program('uv', 'uv')] + words, cwd=directory, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                          env=dict(os.environ, **indexes()))
    if done.returncode:
        for pattern, text in REASONS:
            found = pattern.search(done.stderr)
            if found:
                raise UsersProblem(text.format(*found.groups()))
        raise UsersProblem("uv says: %s" % ' '.join(done.stderr.split())[:600])
    return done.stdout


def replaced(text, old, new):
    """A text with one version in the place of another, wherever it stands as a whole word."""
    return re.sub(r'(?<![\d.])%s(?![\d]|\.\d)' % re.escape(old), new, text)


def command_of(path):
    """The words after `uv` with which the lock of an .in file is made, from the file's own comment."""
    found = re.search(r'^#\s+uv (pip compile .*)$', Path(path).read_text(encoding='utf-8'), re.M)
    if not found:
        raise UsersProblem("%s has no comment with the command that makes its lock: 'uv pip compile ...'" % path)
    return shlex.split(found.group(1))


def option(words, name, default):
    return words[words.index(name) + 1] if name in words else default


class Change:
    """One easyconfig with its lock files, for a version; everything is made in a directory of its own first."""

    def __init__(self, easyconfig, version, work):
        self.easyconfig, self.work = easyconfig, work
        self.text = Path(easyconfig).read_text(encoding='utf-8')
        values = plain_values(self.text)
        self.old = values['version']
        self.system = systems.load(systems.choose(None, {}, '', [easyconfig])[0])
        self.version, _, build = version.partition('+')
        self.check_target()
        self.pythons = values.get('python_versions', [])
        names = [name % {'version': self.old} for key in LOCK_PARAMETERS for name in values.get(key, [])]
        # others belong to several versions, such as those of the build tools
        self.inputs = [self.input_of(name) for name in names if self.version == self.old or self.old in name]
        if not self.inputs or BY_HAND.search(self.text):
            raise UsersProblem("it names wheels, an image, a git revision or addresses of packages, which only "
                               "you can change: copy it, and edit the copy")
        self.least = option(command_of(self.inputs[0]), '--python-version', '3.9')
        texts = ''.join(Path(path).read_text(encoding='utf-8') for path in self.inputs)
        # what follows the version of PyTorch in the .in files, such as +rocm7.1
        self.old_build = (re.findall(r'^torch==[^\s;+]+(\+\S+)', texts, re.M) or [''])[0]
        if build and not self.old_build:
            raise UsersProblem("its wheels are those of PyPI, which has none of +%s" % build)
        self.build = '+' + build if build else self.old_build
        if self.version == 'latest':
            self.version = self.newest()
            self.check_target()
        elif self.version != self.old:
            found = self.cuda_of(self.for_a_python(['torch==' + self.version + self.build]))
            if self.cuda_limit() and found > self.cuda_limit():
                raise UsersProblem("its wheels bring CUDA %d, and the driver of %s takes %d (cuda in system.cfg)"
                                   % (found, self.system.name, self.cuda_limit()))

    def renamed(self, text):
        """A text with the new version, and the new build, such as rocm7.1, in the place of the old."""
        text = replaced(text, self.old, self.version)
        return text if self.build == self.old_build else text.replace(self.old_build[1:], self.build[1:])

    def check_target(self):
        """Stop where the new easyconfig would take the place of one that somebody has made."""
        target = replaced(self.easyconfig, self.old, self.version)
        if self.version != self.old and os.path.exists(target):
            raise UsersProblem("%s exists already; to make its locks again: ./eb --renew %s"
                               % (target, shlex.quote(os.path.basename(target))))

    def input_of(self, lock):
        """The .in file from which a lock is made."""
        path = named_file(self.easyconfig, os.path.splitext(lock)[0] + '.in')
        if path is None:
            raise UsersProblem("%s has no .in file, so it cannot be made again: write one beside it, with the command "
                               "in a comment as in the others" % lock)
        return path

    def for_a_python(self, requirements):
        """What uv makes of a few requirements for the oldest of the easyconfig's Pythons that they know."""
        later = sorted((name for name in self.pythons if version_key(name) > version_key(self.least)), key=version_key)
        for newer in later + [None]:
            try:
                return self.resolved(requirements)
            except UsersProblem as problem:
                if newer is None or 'wants Python' not in str(problem):
                    raise
                print("%s: Python %s is left out" % (problem, self.least))
                self.least = newer

    def cuda_limit(self):
        """The newest CUDA that the system's driver takes; None where wheels for CUDA do not matter, or nobody knows."""
        return self.system.node['cuda'] if 'PyTorchHPC' not in self.text else None

    @staticmethod
    def cuda_of(found):
        """Which CUDA comes with these packages: its first number, 0 without one."""
        local = re.search(r'\+cu(\d\d)', found['torch'])
        names = [found[name] for name in sorted(found) if name.startswith('nvidia-cuda-runtime')]
        return int((local.group(1) if local else (names or ['0'])[0]).split('.')[0])

    def newest(self):
        """The newest version that the indexes have for this Python, and that the system's driver takes."""
        wanted = 'torch'
        while True:
            found = self.resolved([wanted])
            version = found['torch'].split('+')[0]
            if not self.cuda_limit() or self.cuda_of(found) <= self.cuda_limit():
                return version
            wanted = 'torch<' + version

    def resolved(self, requirements):
        """What uv makes of a few requirements, asking the indexes that the locks are made from: {name: version}."""
        Path(self.work, 'question.in').write_text('\n'.join(requirements) + '\n', encoding='utf-8')
        words = [word for path in self.inputs for word in command_of(path)]
        index = option(words, '--extra-index-url', None)
        words = ['--universal', '--fork-strategy', 'fewest', '--python-version', self.least]
        words += ['--extra-index-url', self.renamed(index)] if index else []
        said = uv(['pip', 'compile', '--quiet', 'question.in'] + words, self.work)
        return dict(re.findall(r'^([\w.-]+)==([^\s;]+)', said, re.M))

    def new_input(self, text):
        """An .in file for the new version; companions are those that say that they are made for it."""
        text = self.renamed(text)
        text = re.sub(r'(--python-version )\S+', lambda found: found.group(1) + max(
            self.least, found.group().split()[1], key=version_key), text)
        pinned = [name for name in COMPANIONS if re.search(r'^%s==' % name, text, re.M)]
        if self.version == self.old or not (pinned or BROUGHT.search(text)):
            return text
        torch = 'torch==' + self.version + self.build
        pairs = self.resolved([torch])
        brought = ['%s==%s' % pair for pair in pairs.items() if BROUGHT.match('%s==%s' % pair)]
        text = BROUGHT.sub(''.join(brought), text)
        for name in pinned:
            try:
                text = re.sub(r'^(%s==)[^\s;]+' % name, r'\g<1>' + self.resolved([torch, name])[name], text, flags=re.M)
            except UsersProblem as problem:
                if 'could not be reached' in str(problem):
                    raise
                print("the indexes have no %s that goes with %s: left out" % (name, torch))
                text = re.sub(r'^%s==.*\n' % name, '', text, flags=re.M)
        return text

    def make_locks(self):
        """All .in files and locks of the new version; {path: text}."""
        made = {}
        for path in self.inputs:
            text = self.new_input(Path(path).read_text(encoding='utf-8'))
            name = self.renamed(os.path.basename(path))
            names = (name, os.path.splitext(name)[0] + '.lock')
            # another easyconfig of the new version has the same build tools
            there = [os.path.join(os.path.dirname(path), file) for file in names]
            if self.version != self.old and all(map(os.path.exists, there)):
                made.update((file, open(file, encoding='utf-8').read()) for file in there)
                continue
            Path(self.work, name).write_text(text, encoding='utf-8')
            words = command_of(os.path.join(self.work, name))
            uv(words + ['--quiet'], self.work)
            for file in names:
                with open(os.path.join(self.work, file), encoding='utf-8') as handle:
                    # the command in its first lines is the one that people type
                    made[os.path.join(os.path.dirname(path), file)] = handle.read().replace(' --quiet\n', '\n')
        return made

    def make(self):
        """Everything; a source whose checksum nobody knows has none yet."""
        made = self.make_locks()
        if self.version != self.old:
            text = self.renamed(self.text)
            fitting = [name for name in self.pythons if version_key(name) >= version_key(self.least)]
            text = re.sub(r'^(python_versions = )\[[^]]*\]', r'\g<1>%r' % fitting, text, flags=re.M)
            text = self.without_ended(text)
            print("Read its comments and description, which are still those of %s." % self.old)
            if re.search(r"^sources = ", text, re.M):
                text = re.sub(r"^checksums = \[.*?\]\n", '', text, flags=re.M | re.S)
            made[replaced(self.easyconfig, self.old, self.version)] = text
        return made

    def without_ended(self, text):
        """The easyconfig without options, and comments on them, that this version no longer has."""
        for name in [name for name, end in ENDED.items() if version_key(self.version) >= version_key(end)]:
            for line in re.findall(r"^ *'(?:[^'\n]*-D)?%s=[^'\n]*',.*\n" % name, text, re.M):
                print("PyTorch %s has no %s: left out %s" % (self.version, name, line.strip().rstrip(',')))
                text = re.sub(r'(^ *#.*\n)*' + re.escape(line), '', text, flags=re.M)
        return text


def find(name):
    if os.path.isfile(name):
        return os.path.abspath(name)
    found = list(Path(collection_path('easyconfigs')).glob('*/*/' + glob.escape(os.path.basename(name))))
    if not found:
        raise UsersProblem("no easyconfig is called %s" % name)
    return str(found[0])


def show(change, made):
    """What is new, in a few lines: the easyconfig's difference, and versions that changed in the locks."""
    for path, text in sorted(made.items()):
        new = text.splitlines(True)
        if path.endswith('.eb'):
            print(''.join(difflib.unified_diff(change.text.splitlines(True), new, change.easyconfig, path)))
        elif not os.path.exists(path):
            print("new: %s (%d lines)" % (path, len(new)))
        else:
            lines = difflib.unified_diff(Path(path).read_text(encoding='utf-8').splitlines(True), new, path, path, n=0)
            print(''.join(line for line in lines if not re.match(r'[-+]\s+--hash|@@', line)) or 'same: ' + path)


def write(made):
    for path, text in made.items():
        handle, part = tempfile.mkstemp(dir=os.path.dirname(path), prefix='.new-')
        with os.fdopen(handle, 'w', encoding='utf-8') as file:
            file.write(text)
        os.chmod(part, 0o644)
        os.replace(part, path)


def try_version(easyconfig, version, directory):
    """
    Write an easyconfig of another version and its lock files into a directory; returns the easyconfig's path, None
    where it has no lock files or is on a path that only EasyBuild knows.
    """
    try:
        path = find(easyconfig)
    except UsersProblem:
        return None
    if 'lock_files' not in Path(path).read_text(encoding='utf-8'):
        return None
    change = Change(path, version, directory)
    write({os.path.join(directory, os.path.basename(made)): text for made, text in change.make().items()})
    return os.path.join(directory, replaced(os.path.basename(path), change.old, change.version))


def main(arguments):
    parser = argparse.ArgumentParser(prog='./eb', description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument('--new-version', metavar='VERSION', help="such as 2.9.1, 2.9.1+rocm6.4, or latest")
    what.add_argument('--renew', action='store_true', help="the same version, as the indexes are today")
    parser.add_argument('easyconfig', metavar='EASYCONFIG')
    given = parser.parse_args([word for word in arguments if not word.startswith(NOT_OURS)])
    work = tempfile.mkdtemp(prefix='new-version-')
    try:
        path = find(given.easyconfig)
        change = Change(path, given.new_version or plain_values(
            Path(path).read_text(encoding='utf-8'))['version'], work)
        made = change.make()
        show(change, made)
        write(made)
    except UsersProblem as problem:
        print("ERROR: %s: %s; nothing was written" % (given.easyconfig, problem), file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    name = os.path.basename(replaced(path, change.old, change.version))
    if any(re.search(r'^sources = ', text, re.M) and not re.search(r'^checksums = ', text, re.M)
           for file, text in made.items() if file.endswith('.eb')):
        print("Its source has no checksum yet. Fetch and hash it: ./eb --inject-checksums --force " + shlex.quote(name))
    print("To try it: ./eb --rehearse -x %s" % shlex.quote(name))
    return 0
