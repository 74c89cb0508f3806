"""
``./eb --new-version VERSION EASYCONFIG``: an easyconfig and its lock files for another version, from those of this one.
``./eb --renew EASYCONFIG``: make the lock files of the same version again, with what the indexes have today.

A lock file is made by uv from an .in file of the same name, with the command in the .in file itself; so people can do
by hand what this does. Easyconfig and locks are written when all of it has worked. Where a version stands elsewhere, in
the names of wheels, in a git commit or an image, nothing is written.
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

from hpc_pytorch import UsersProblem, collection_path, write_atomically
from hpc_pytorch.machine import systems
from hpc_pytorch.machine.collection_files import locked_program, named_file, plain_values
from hpc_pytorch.machine.versions import release
from hpc_pytorch.packages.lock_files import LOCK_PARAMETERS

# Packages of which each version is made for one version of PyTorch: their own metadata say which.
COMPANIONS = ('torchvision', 'torchaudio', 'torchtext')
# What PyTorch itself asks for, in one version; its name changed with 2.10.
BROUGHT = re.compile(r'^(?:pytorch-)?triton-rocm==[^\s;]+', re.M)
# EasyBuild's options that may stand on the command line out of habit; nothing of theirs is used.
NOT_OURS = ('--allow-use-as-root', '--prefix=', '--sourcepath=', '--tmpdir=', '--robot')
# pip's settings, as uv's environment variables. Files and indexes of one's own (find-links, extra-index-url) are not
# among them: the same lock has to come out on every machine.
PIP_SETTINGS = (('index-url', 'UV_DEFAULT_INDEX'), ('cert', 'SSL_CERT_FILE'))
# uv's words -> ours; the first that fits
REASONS = tuple((re.compile(pattern, re.S | re.I), words) for pattern, words in (
    (r'Because (\S+) requires Python (\S+)', "{0} wants Python {1}"),
    (r'no version of (\S+?)==([^\s,]+)', "the indexes have no {0} {1}"),
    (r'no wheels with a matching (Python|platform)', "it has no wheel for the Python or the processor of this system"),
    (r'requested Python version .* does not satisfy Python(\S+) and (\S+) depends', "{1} wants Python {0}"),
    (r'(?:Failed to fetch|error sending request for url \()[^`(]*[`(]?([^`)]+)', "{0} could not be reached"),
))
# What in an easyconfig belongs to one version, and does not follow from it.
BY_HAND = re.compile(r'\.whl|\.sif|docker://|git_config|^package_urls = ', re.M)


def pip_settings():
    """What pip was told of indexes, mirrors and certificates, as uv's variables; the user's own stay."""
    said = subprocess.run([sys.executable, '-m', 'pip', 'config', 'list'], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True).stdout
    told = {}
    for line in said.splitlines():
        key, equals, value = line.partition('=')
        if equals:
            told[key.split('.')[-1]] = ast.literal_eval(value)
    return {variable: told[name] for name, variable in PIP_SETTINGS if name in told and variable not in os.environ}


def uv(words, directory):
    """Run uv in a directory; it asks the indexes that pip was configured with."""
    variables = dict(os.environ, UV_NO_PROGRESS='1', UV_PYTHON_DOWNLOADS='never', **pip_settings())
    done = subprocess.run([locked_program('uv', 'uv')] + words, cwd=directory, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, env=variables)
    if done.returncode:
        for pattern, text in REASONS:
            found = pattern.search(done.stderr)
            if found:
                raise UsersProblem(text.format(*found.groups()))
        raise UsersProblem("uv says: %s" % ' '.join(done.stderr.split())[:600])
    return done.stdout


def command_of(path):
    """The words after `uv` with which the lock of an .in file is made, from the file's own comment."""
    found = re.search(r'^#\s+uv (pip compile .*)$', read(path), re.M)
    if not found:
        raise UsersProblem("%s has no comment with the command that makes its lock: 'uv pip compile ...'" % path)
    return shlex.split(found.group(1))


def option(words, name, default):
    return words[words.index(name) + 1] if name in words else default


def read(path):
    return Path(path).read_text(encoding='utf-8')


def replaced(text, old, new):
    """A text with one version in the place of another, wherever it stands as a whole word."""
    return re.sub(r'(?<![\d.])%s(?![\d]|\.\d)' % re.escape(old), new, text)


class Change:
    """One easyconfig with its lock files, for a version; everything is made in a directory of its own first."""

    def __init__(self, easyconfig, version, work):
        self.easyconfig, self.work = easyconfig, work
        self.text = read(easyconfig)
        values = plain_values(self.text)
        self.old = values['version']
        self.pythons = values.get('python_versions', [])
        self.system = systems.load(systems.choose(None, {}, '', [easyconfig])[0])
        self.version, _, build = version.partition('+')
        self.check_target()
        self.inputs = self.find_inputs(values)
        # the oldest Python that the locks are made for
        self.least = option(command_of(self.inputs[0]), '--python-version', '3.9')
        # what follows the version of PyTorch in the .in files, such as +rocm7.1
        texts = ''.join(map(read, self.inputs))
        self.old_build = (re.findall(r'^torch==[^\s;+]+(\+\S+)', texts, re.M) or [''])[0]
        if build and not self.old_build:
            raise UsersProblem("its wheels are those of PyPI, which has none of +%s" % build)
        self.build = '+' + build if build else self.old_build
        self.check_version()

    def check_target(self):
        """Stop where the new easyconfig would take the place of one that somebody has made."""
        target = replaced(self.easyconfig, self.old, self.version)
        if self.version != self.old and os.path.exists(target):
            raise UsersProblem("%s exists already; to make its locks again: ./eb --renew %s"
                               % (target, shlex.quote(os.path.basename(target))))

    def find_inputs(self, values):
        """The .in files of the locks that are made anew: other locks belong to several versions."""
        inputs = []
        for parameter in LOCK_PARAMETERS:
            for name in values.get(parameter, []):
                name = name % {'version': self.old}
                if self.version == self.old or self.old in name:
                    inputs.append(self.input_of(name))
        if not inputs or BY_HAND.search(self.text):
            raise UsersProblem("it names wheels, an image, a git commit or addresses of packages, which cannot be "
                               "updated automatically: copy the easyconfig and edit it")
        return inputs

    def input_of(self, lock):
        """The .in file from which a lock is made."""
        path = named_file(self.easyconfig, os.path.splitext(lock)[0] + '.in')
        if path is None:
            raise UsersProblem("%s has no .in file, so it cannot be made again: write one beside it, with the command "
                               "in a comment as in the others" % lock)
        return path

    def check_version(self):
        """Find out which version is the newest, or whether this one is there for the system's driver."""
        if self.version == 'latest':
            self.version = self.newest()
            self.check_target()
        elif self.version != self.old:
            found = self.cuda_of(self.resolved_for_a_python(['torch==' + self.version + self.build]))
            if self.cuda_limit() and found > self.cuda_limit():
                raise UsersProblem("its wheels bring CUDA %d, and the driver of %s takes %d (cuda in system.cfg)"
                                   % (found, self.system.name, self.cuda_limit()))

    def newest(self):
        """The newest version that the indexes have for this Python, and that the system's driver takes."""
        wanted = 'torch'
        while True:
            found = self.resolved([wanted])
            version = found['torch'].split('+')[0]
            if not self.cuda_limit() or self.cuda_of(found) <= self.cuda_limit():
                return version
            wanted = 'torch<' + version

    def cuda_limit(self):
        """The newest CUDA that the system's driver takes; None where wheels for CUDA do not matter, or nobody knows."""
        return None if 'PyTorchHPC' in self.text else self.system.node['cuda']

    @staticmethod
    def cuda_of(found):
        """Which CUDA comes with these packages: its first number, 0 without one."""
        local = re.search(r'\+cu(\d\d)', found['torch'])
        if local:
            return int(local.group(1))
        runtimes = [name for name in sorted(found) if name.startswith('nvidia-cuda-runtime')]
        return int(found[runtimes[0]].split('.')[0]) if runtimes else 0

    def resolved_for_a_python(self, requirements):
        """What uv makes of a few requirements for the oldest of the easyconfig's Pythons that they know."""
        later = [name for name in self.pythons if release(name) > release(self.least)]
        for newer in sorted(later, key=release) + [None]:
            try:
                return self.resolved(requirements)
            except UsersProblem as problem:
                if newer is None or 'wants Python' not in str(problem):
                    raise
                print("%s: Python %s is left out" % (problem, self.least))
                self.least = newer

    def resolved(self, requirements):
        """What uv makes of a few requirements, asking the indexes that the locks are made from: {name: version}."""
        Path(self.work, 'question.in').write_text('\n'.join(requirements) + '\n', encoding='utf-8')
        words = ['pip', 'compile', '--quiet', 'question.in', '--universal', '--fork-strategy', 'fewest']
        words += ['--python-version', self.least]
        for path in self.inputs:
            index = option(command_of(path), '--extra-index-url', None)
            if index:
                words += ['--extra-index-url', self.renamed(index)]
                break
        return dict(re.findall(r'^([\w.-]+)==([^\s;]+)', uv(words, self.work), re.M))

    def renamed(self, text):
        """A text with the new version, and the new build, such as rocm7.1, in the place of the old."""
        text = replaced(text, self.old, self.version)
        return text if self.build == self.old_build else text.replace(self.old_build[1:], self.build[1:])

    def new_input(self, text):
        """An .in file for the new version; companions are those that say that they are made for it."""
        text = self.renamed(text)
        for python in re.findall(r'--python-version (\S+)', text):
            newer = max(self.least, python, key=release)
            text = text.replace('--python-version ' + python, '--python-version ' + newer)
        pinned = [name for name in COMPANIONS if re.search(r'^%s==' % name, text, re.M)]
        if self.version == self.old or not (pinned or BROUGHT.search(text)):
            return text
        torch = 'torch==' + self.version + self.build
        brought = ['%s==%s' % pair for pair in self.resolved([torch]).items()]
        text = BROUGHT.sub(''.join(filter(BROUGHT.match, brought)), text)
        for name in pinned:
            text = self.with_companion(text, name, torch)
        return text

    def with_companion(self, text, name, torch):
        """An .in file with the companion's version that is made for this PyTorch, or without it if there is none."""
        try:
            version = self.resolved([torch, name])[name]
        except UsersProblem as problem:
            if 'could not be reached' in str(problem):
                raise
            print("the indexes have no %s that goes with %s: left out" % (name, torch))
            return re.sub(r'^%s==.*\n' % name, '', text, flags=re.M)
        return re.sub(r'^(%s==)[^\s;]+' % name, r'\g<1>' + version, text, flags=re.M)

    def make_locks(self):
        """All .in files and locks of the new version; {path: text}."""
        made = {}
        for path in self.inputs:
            name = self.renamed(os.path.basename(path))
            names = (name, os.path.splitext(name)[0] + '.lock')
            targets = [os.path.join(os.path.dirname(path), file) for file in names]
            # another easyconfig of the new version has the same build tools
            if self.version != self.old and all(map(os.path.exists, targets)):
                made.update((target, read(target)) for target in targets)
                continue
            Path(self.work, name).write_text(self.new_input(read(path)), encoding='utf-8')
            uv(command_of(os.path.join(self.work, name)) + ['--quiet'], self.work)
            for file, target in zip(names, targets):
                # the command in its first lines is the one that people type
                made[target] = read(os.path.join(self.work, file)).replace(' --quiet\n', '\n')
        return made

    def make(self):
        """Everything; a source whose checksum nobody knows has none yet."""
        made = self.make_locks()
        if self.version != self.old:
            fitting = [name for name in self.pythons if release(name) >= release(self.least)]
            text = re.sub(r'^(python_versions = )\[[^]]*\]', r'\g<1>%r' % fitting, self.renamed(self.text), flags=re.M)
            print("Read its comments and description, which are still those of %s." % self.old)
            if has_sources(text):
                text = re.sub(r"^checksums = \[.*?\]\n", '', text, flags=re.M | re.S)
                text, patches = re.subn(r"^patches = \[.*?\]\n", '', text, flags=re.M | re.S)
                if patches:
                    print("Its patches are left out: choose those of %s, as docs/reference/patches.rst does for %s."
                          % (self.version, self.old))
            made[replaced(self.easyconfig, self.old, self.version)] = text
        return made


def has_sources(text):
    return re.search(r'^sources = ', text, re.M)


def find(name):
    """The path of an easyconfig, from a path or the name of one of the collection's."""
    if os.path.isfile(name):
        return os.path.abspath(name)
    found = list(Path(collection_path('easyconfigs')).glob('*/*/' + glob.escape(os.path.basename(name))))
    if not found:
        raise UsersProblem("no easyconfig is called %s" % name)
    return str(found[0])


def show(change, made):
    """Print what is new: the easyconfig's difference, and versions that changed in the locks."""
    for path, text in sorted(made.items()):
        new = text.splitlines(True)
        if path.endswith('.eb'):
            print(''.join(difflib.unified_diff(change.text.splitlines(True), new, change.easyconfig, path)))
        elif not os.path.exists(path):
            print("new: %s (%d lines)" % (path, len(new)))
        else:
            lines = difflib.unified_diff(read(path).splitlines(True), new, path, path, n=0)
            print(''.join(line for line in lines if not re.match(r'[-+]\s+--hash|@@', line)) or 'same: ' + path)


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
    for made, text in change.make().items():
        write_atomically(os.path.join(directory, os.path.basename(made)), text)
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
        change = Change(path, given.new_version or plain_values(read(path))['version'], work)
        made = change.make()
        show(change, made)
        for target, text in made.items():
            write_atomically(target, text)
    except UsersProblem as problem:
        print("ERROR: %s: %s; nothing was written" % (given.easyconfig, problem), file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    target = replaced(path, change.old, change.version)
    name = shlex.quote(os.path.basename(target))
    if target in made and has_sources(made[target]):
        print("Its source has no checksum yet. Fetch and hash it: ./eb --inject-checksums --force " + name)
    print("To try it: ./eb --rehearse -x " + name)
    return 0
