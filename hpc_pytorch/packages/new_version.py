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
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from hpc_pytorch import UsersProblem, collection_path, write_atomically
from hpc_pytorch.machine import systems
from hpc_pytorch.machine.collection_files import named_file, own_uv, plain_values
from hpc_pytorch.machine.versions import release
from hpc_pytorch.packages import upstream_patches
from hpc_pytorch.packages.gpu_code import cuda_of
from hpc_pytorch.packages.known_errors import table
from hpc_pytorch.packages.lock_files import LOCK_PARAMETERS

# Packages of which each version is made for one version of PyTorch: their own metadata say which.
COMPANIONS = ('torchvision', 'torchaudio', 'torchtext')
# What PyTorch itself asks for, in one version; its name changed with 2.10.
BROUGHT = re.compile(r'^(?:pytorch-)?triton-rocm==[^\s;]+', re.M)
# pip's settings, as uv's environment variables. Files and indexes of one's own (find-links, extra-index-url) are not
# among them: the same lock has to come out on every machine.
PIP_SETTINGS = {'index-url': 'UV_DEFAULT_INDEX', 'cert': 'SSL_CERT_FILE'}
# What in an easyconfig belongs to one version, and does not follow from it.
BY_HAND = re.compile(r'\.whl|\.sif|docker://|git_config|^package_urls = ', re.M)


def pip_settings():
    """What pip was told of indexes, mirrors and certificates, as uv's variables; the user's own stay."""
    listing = subprocess.run([sys.executable, '-m', 'pip', 'config', 'list'], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True)
    variables = {}
    for key, value in re.findall(r'^[\w:]+\.([\w-]+)=(.+)$', listing.stdout, re.M):
        variable = PIP_SETTINGS.get(key)
        if variable and variable not in os.environ:
            variables[variable] = ast.literal_eval(value)
    return variables


def uv(words, directory):
    """Run uv in a directory; it asks the indexes that pip was configured with."""
    variables = dict(os.environ, UV_NO_PROGRESS='1', UV_PYTHON_DOWNLOADS='never', **pip_settings())
    program = own_uv()
    if program is None:
        raise UsersProblem("uv is not found; install it: pip install uv")
    done = subprocess.run([program] + words, cwd=directory, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, env=variables)
    if done.returncode == 0:
        return done.stdout
    for known in table('uv_errors', re.S | re.I):
        found = known.pattern.search(done.stderr)
        if found:
            raise UsersProblem(known.cause.format(*found.groups()))
    raise UsersProblem("uv says: %s" % ' '.join(done.stderr.split())[:600])


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
        self.easyconfig = easyconfig
        self.work = work
        self.text = read(easyconfig)
        values = plain_values(self.text)
        self.old = values['version']
        self.pythons = sorted(values.get('python_versions', []), key=release)
        self.system = systems.load(systems.choose(None, {}, '', [easyconfig])[0])
        self.version, _, build = version.partition('+')
        self.check_target()
        self.inputs = self.find_inputs(values)
        # the oldest Python that the locks are made for
        self.least = option(command_of(self.inputs[0]), '--python-version', '3.9')
        # what follows the version of PyTorch in the .in files, such as +rocm7.1
        texts = ''.join(map(read, self.inputs))
        pinned = re.search(r'^torch==[^\s;+]+(\+\S+)', texts, re.M)
        self.old_build = pinned.group(1) if pinned else ''
        if build and not pinned:
            raise UsersProblem("its wheels are those of PyPI, which has none of +%s" % build)
        self.build = '+' + build if build else self.old_build
        self.check_version()

    @property
    def renewed(self):
        """True if the version stays."""
        return self.version == self.old

    @property
    def target(self):
        """The easyconfig of the new version."""
        return replaced(self.easyconfig, self.old, self.version)

    @property
    def torch(self):
        """The new PyTorch, as .in files name it."""
        return 'torch==' + self.version + self.build

    def check_target(self):
        """Stop where the new easyconfig would take the place of one that somebody has made."""
        if not self.renewed and os.path.exists(self.target):
            raise UsersProblem("%s exists already; to make its locks again: ./eb --renew %s"
                               % (self.target, shlex.quote(os.path.basename(self.target))))

    def find_inputs(self, values):
        """The .in files of the locks that are made anew: other locks belong to several versions."""
        locks = []
        for parameter in LOCK_PARAMETERS:
            locks += values.get(parameter, [])
        names = [name % {'version': self.old} for name in locks]
        names = [name for name in names if self.renewed or self.old in name]
        if not names or BY_HAND.search(self.text):
            raise UsersProblem("it names wheels, an image, a git commit or addresses of packages, which cannot be "
                               "updated automatically: copy the easyconfig and edit it")
        return [self.input_of(name) for name in names]

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
        elif not self.renewed:
            found = cuda_of(self.resolved_for_a_python(self.torch))
            if found > self.cuda_limit():
                raise UsersProblem("its wheels bring CUDA %d, and the driver of %s takes %d (cuda in system.cfg)"
                                   % (found, self.system.name, self.cuda_limit()))

    def newest(self):
        """The newest version that the indexes have for this Python, and that the system's driver takes."""
        wanted = 'torch'
        while True:
            found = self.resolved(wanted)
            version = found['torch'].split('+')[0]
            if cuda_of(found) <= self.cuda_limit():
                return version
            wanted = 'torch<' + version

    def cuda_limit(self):
        """The newest CUDA that the system's driver takes; no limit where PyTorch is compiled, or nobody knows it."""
        if 'PyTorchHPC' in self.text:
            return math.inf
        return self.system.node['cuda'] or math.inf

    def resolved_for_a_python(self, requirement):
        """What uv makes of a requirement for the oldest of the easyconfig's Pythons that it knows."""
        for newer in self.pythons + [None]:
            if newer and release(newer) <= release(self.least):
                continue
            try:
                return self.resolved(requirement)
            except UsersProblem as problem:
                if newer is None or 'requires Python' not in str(problem):
                    raise
                print("%s: Python %s is left out" % (problem, self.least))
                self.least = newer

    def resolved(self, *requirements):
        """What uv makes of a few requirements, asking the indexes that the locks are made from: {name: version}."""
        question = Path(self.work, 'question.in')
        question.write_text('\n'.join(requirements) + '\n', encoding='utf-8')
        words = ['pip', 'compile', '--quiet', question.name, '--universal', '--fork-strategy', 'fewest']
        words += ['--python-version', self.least]
        indexes = [option(command_of(path), '--extra-index-url', None) for path in self.inputs]
        for index in list(filter(None, indexes))[:1]:
            words += ['--extra-index-url', self.renamed(index)]
        return dict(re.findall(r'^([\w.-]+)==([^\s;]+)', uv(words, self.work), re.M))

    def renamed(self, text):
        """A text with the new version, and the new build, such as rocm7.1, in the place of the old."""
        text = replaced(text, self.old, self.version)
        if self.build != self.old_build:
            text = text.replace(self.old_build[1:], self.build[1:])
        return text

    def new_input(self, text):
        """An .in file for the new version; companions are those that say that they are made for it."""
        text = self.renamed(text)
        for python in re.findall(r'--python-version (\S+)', text):
            newer = max(self.least, python, key=release)
            text = text.replace('--python-version ' + python, '--python-version ' + newer)
        if self.renewed:
            return text
        if BROUGHT.search(text):
            for pair in self.resolved(self.torch).items():
                line = '%s==%s' % pair
                if BROUGHT.match(line):
                    text = BROUGHT.sub(line, text)
        for name in COMPANIONS:
            if re.search(r'^%s==' % name, text, re.M):
                text = self.with_companion(text, name)
        return text

    def with_companion(self, text, name):
        """An .in file with the companion's version that is made for this PyTorch, or without it if there is none."""
        try:
            version = self.resolved(self.torch, name)[name]
        except UsersProblem as problem:
            if 'could not be reached' in str(problem):
                raise
            print("the indexes have no %s that goes with %s: left out" % (name, self.torch))
            return re.sub(r'^%s==.*\n' % name, '', text, flags=re.M)
        return re.sub(r'^(%s==)[^\s;]+' % name, r'\g<1>' + version, text, flags=re.M)

    def make_locks(self):
        """All .in files and locks of the new version; {path: text}."""
        made = {}
        for path in self.inputs:
            source = Path(path).with_name(self.renamed(os.path.basename(path)))
            lock = source.with_suffix('.lock')
            # another easyconfig of the new version has the same build tools
            if not self.renewed and source.exists() and lock.exists():
                made.update({str(source): read(source), str(lock): read(lock)})
                continue
            draft = Path(self.work, source.name)
            draft.write_text(self.new_input(read(path)), encoding='utf-8')
            uv(command_of(draft) + ['--quiet'], self.work)
            made[str(source)] = read(draft)
            # the command in its first lines is the one that people type
            made[str(lock)] = read(draft.with_suffix('.lock')).replace(' --quiet\n', '\n')
        return made

    def make(self):
        """Everything; a source whose checksum nobody knows has none yet."""
        made = self.make_locks()
        if not self.renewed:
            made[self.target] = self.new_easyconfig()
        return made

    def new_easyconfig(self):
        """The text of the easyconfig for the new version."""
        print("Read its comments and description, which are still those of %s." % self.old)
        text = self.renamed(self.text)
        pythons = re.search(r'^python_versions = (\[[^]]*\])', text, re.M).group(1)
        fitting = [name for name in ast.literal_eval(pythons) if release(name) >= release(self.least)]
        text = text.replace(pythons, str(fitting))
        if has_sources(text):
            text = re.sub(r"^checksums = \[.*?\]\n", '', text, flags=re.M | re.S)
            text = self.with_patches(text)
        return text

    def with_patches(self, text):
        """An easyconfig with the patches that are proposed for the new version; prints the table of the others."""
        taken = plain_values(self.text).get('patches')
        if not taken:
            return text
        upstream_patches.fetch(self.easyconfig, self.work)
        reasons = upstream_patches.reasons_before(os.path.basename(self.easyconfig))
        files = upstream_patches.read_distribution(self.work)
        take, table = upstream_patches.propose(taken, reasons, self.version, files)
        print("Its patches are a proposal. For docs/patches.cfg, once you have decided and tried them:\n\n[%s]\n%s\n"
              % (os.path.basename(self.target), table))
        lines = 'patches = [\n%s]\n' % ''.join('    %r,\n' % patch for patch in take)
        return re.sub(r'^patches = \[.*?\]\n', lines if take else '', text, flags=re.M | re.S)


def has_sources(text):
    return re.search(r'^sources = ', text, re.M)


def find(name):
    """The path of an easyconfig, from a path or the name of one of the collection's."""
    if os.path.isfile(name):
        return os.path.abspath(name)
    pattern = '*/*/' + glob.escape(os.path.basename(name))
    for found in Path(collection_path('easyconfigs')).glob(pattern):
        return str(found)
    raise UsersProblem("no easyconfig is called %s" % name)


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
            shown = [line for line in lines if not re.match(r'[-+]\s+--hash|@@', line)]
            print(''.join(shown) or 'same: ' + path)


def main(arguments):
    parser = argparse.ArgumentParser(prog='./eb', description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument('--new-version', metavar='VERSION', help="such as 2.9.1, 2.9.1+rocm6.4, or latest")
    what.add_argument('--renew', action='store_true', help="the same version, as the indexes are today")
    parser.add_argument('easyconfig', metavar='EASYCONFIG')
    # options of EasyBuild may stand on the command line out of habit
    given, _ = parser.parse_known_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix='new-version-') as work:
            write(find(given.easyconfig), given.new_version, work)
    except UsersProblem as problem:
        print("ERROR: %s: %s; nothing was written" % (given.easyconfig, problem), file=sys.stderr)
        return 1
    return 0


def write(path, version, work):
    """Make all files in the directory `work`, show them, write them, and say what to do next."""
    change = Change(path, version or plain_values(read(path))['version'], work)
    made = change.make()
    show(change, made)
    for target, text in made.items():
        write_atomically(target, text)
    name = shlex.quote(os.path.basename(change.target))
    if has_sources(made.get(change.target, '')):
        print("Its source has no checksum yet. Fetch and hash it: ./eb --inject-checksums --force " + name)
    print("To try it: ./eb --rehearse -x " + name)
