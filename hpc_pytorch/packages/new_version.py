"""
``./eb --new-version VERSION EASYCONFIG``: an easyconfig and its lock files for another version, from those of this one.
``./eb --renew EASYCONFIG``: make the lock files of the same version again, with what the indexes have today.

A lock file is made by uv from an .in file of the same name, with the command in the .in file itself; so people can do
by hand what this does. What only a person can know of the new version is named line by line (new_version.cfg).
"""
import argparse
import ast
import contextlib
import difflib
import glob
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from hpc_pytorch import UsersProblem, collection_path, write_atomically
from hpc_pytorch.machine import systems
from hpc_pytorch.machine.collection_files import named_file, own_uv, plain_values
from hpc_pytorch.machine.versions import release
from hpc_pytorch.packages import images, upstream_patches
from hpc_pytorch.packages.gpu_code import cuda_of
from hpc_pytorch.packages.known_errors import table
from hpc_pytorch.packages.lock_files import LOCK_PARAMETERS, UNKNOWN, normal_name, sha256_of_stream

# Packages of which each version is made for one version of PyTorch: their own metadata say which.
COMPANIONS = ('torchvision', 'torchaudio', 'torchtext')
# What PyTorch itself asks for, in one version; its name changed with 2.10.
BROUGHT = re.compile(r'^(?:pytorch-)?triton-rocm==[^\s;]+', re.M)
# pip's settings, as uv's environment variables. Files and indexes of one's own (find-links, extra-index-url) are not
# among them: the same lock has to come out on every machine.
PIP_SETTINGS = {'index-url': 'UV_DEFAULT_INDEX', 'cert': 'SSL_CERT_FILE'}
NO_METADATA = '[[dependency-metadata]]\nname = "%s"\nrequires-dist = []\n'
VERSION = re.compile(r'v?(\d+(?:\.\d+)*[\w.-]*)(\+[\w.]+)?$')
# Comments of an easyconfig that name versions are true for its own.
COMMENTS = re.compile(r'^ *#.*\n(?: *#.*\n)*|(?<=\S)  # .*', re.M)
NUMBER = re.compile(r'\d\.\d')
REPOSITORY = re.compile(r'https://github\.com/[\w.-]+/[\w.-]+(?=/(?:archive|releases)/)')


# -- what is asked

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


def uv(command, directory):
    """Run a command of uv's in a directory, in bash as people would; uv asks the indexes that pip was told of."""
    program = own_uv()
    if program is None:
        raise UsersProblem("uv is not found; install it: pip install uv")
    variables = dict(os.environ, UV_NO_PROGRESS='1', UV_PYTHON_DOWNLOADS='never', **pip_settings())
    done = subprocess.run(['bash', '-c', shlex.quote(program) + ' ' + command], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, env=variables,
                          cwd=directory)
    if done.returncode == 0:
        return done.stdout
    for known in table('uv_errors', re.S | re.I):
        found = known.pattern.search(done.stderr)
        if found:
            raise UsersProblem(known.cause.format(*found.groups()))
    raise UsersProblem("uv says: %s" % ' '.join(done.stderr.split())[:600])


def newest_tag(repository, old):
    """The newest release that a git repository has; its tags must be called as this version is."""
    done = subprocess.run(['git', 'ls-remote', '--tags', '--refs', repository], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    tags = re.findall(r'refs/tags/v?(\d[\d.]*(?:-\d+)?)$', done.stdout, re.M)
    if done.returncode or old not in tags:
        why = 'cannot be reached' if done.returncode else 'has no tags that say it'
        raise UsersProblem("%s %s: name the version instead of `latest`" % (repository, why))
    return max(tags, key=lambda tag: release(tag) + [int(tag.partition('-')[2] or 0)])


def sha256_of_url(url):
    """The SHA256 of what lies at an address; zeros where that is not reached."""
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=60) as stream:
        return sha256_of_stream(stream)
    return UNKNOWN


# -- texts

def command_of(path):
    """The words after `uv` with which the lock of an .in file is made, from the file's own comment."""
    found = re.search(r'^#\s+uv (pip compile .*)$', read(path), re.M)
    if not found:
        raise UsersProblem("%s has no comment with the command that makes its lock: 'uv pip compile ...'" % path)
    return found.group(1)


def option(path, name):
    """The value of an option in the command of an .in file; None where it is not there."""
    found = re.search(name + r' (\S+)', command_of(path))
    return found and found.group(1)


def read(path):
    return Path(path).read_text(encoding='utf-8')


def replaced(text, old, new):
    """A text with one version in the place of another, wherever it stands as a whole word."""
    return re.sub(r'(?<![\d.])%s(?![\d]|\.\d)' % re.escape(old), new, text)


def in_words(build):
    """How descriptions call a build: ROCm 7.1 of +rocm7.1, CUDA 12.8 of +cu128."""
    return re.sub(r'cu(\d+)(\d)', r'CUDA \1.\2', build[1:]).replace('rocm', 'ROCm ')


def in_collection(path):
    return path.startswith(collection_path('easyconfigs'))


def without_comments(text):
    """An easyconfig without the comments that name versions, which are not true for another one."""
    return COMMENTS.sub(lambda found: '' if NUMBER.search(found.group()) else found.group(), text)


class NothingNewer(UsersProblem):
    """The version is the newest; that is no error."""


class Change:
    """One easyconfig with its lock files, for a version; everything is made in a directory of its own first."""

    def __init__(self, easyconfig, version, work):
        self.easyconfig = easyconfig
        self.work = work
        self.text = read(easyconfig)
        self.values = plain_values(self.text)
        self.old = self.values['version']
        self.pythons = self.values.get('python_versions', [])
        self.system = systems.load(systems.choose(None, {}, '', [easyconfig])[0])
        # old words and what takes their place; what a person has to add
        self.words = {}
        self.by_hand = []
        self.renewed = version is None
        self.find_inputs()
        self.name, self.old_build = self.find_package()
        self.build = self.old_build
        self.version = self.old if self.renewed else self.find_version(version)
        self.words[self.old] = self.version
        if self.build != self.old_build:
            self.words[self.old_build[1:]] = self.build[1:]
            self.words[in_words(self.old_build)] = in_words(self.build)
        if not self.renewed and os.path.exists(self.target):
            raise UsersProblem("%s exists already; to make its locks again: ./eb --renew %s"
                               % (self.target, shlex.quote(os.path.basename(self.target))))

    # where files are written

    def place(self, path):
        """Where a file for the new version goes: beside that of the old one if that is ours and can be written to."""
        directory = os.path.dirname(path)
        if in_collection(path) and not in_collection(self.easyconfig):
            directory = os.path.dirname(self.easyconfig)
        if not os.access(directory, os.W_OK):
            directory = os.getcwd()
        return os.path.join(directory, self.changed(os.path.basename(path)))

    @property
    def target(self):
        """The easyconfig of the new version."""
        return self.place(self.easyconfig)

    # which version

    def find_inputs(self):
        """Find the .in files of the locks that are made anew: a new version leaves locks of several versions alone."""
        self.inputs = []
        for parameter in LOCK_PARAMETERS:
            for name in self.values.get(parameter, []):
                name = name % {'version': self.old}
                if self.renewed or self.old in name:
                    path = named_file(self.easyconfig, os.path.splitext(name)[0] + '.in')
                    self.inputs.append(path) if path else print("%s has no .in file: it stays as it is" % name)
        if self.renewed and not self.inputs:
            raise UsersProblem("it has no lock files that are made from .in files")
        # the index of PyTorch's own that its wheels come from, and the oldest Python of its locks
        indexes = [option(path, '--extra-index-url') for path in self.inputs]
        self.index = next(filter(None, indexes), None)
        self.least = min(self.pythons, key=release, default='3.9')
        for path in self.inputs[:1]:
            self.least = option(path, '--python-version') or self.least

    def find_package(self):
        """The package whose version the easyconfig has, and what follows it in .in files, such as +rocm7.1."""
        pinned = re.search(r'^([A-Za-z][\w.-]*)==%s(\+[\w.]+)?(?![\w.])' % re.escape(self.old),
                           ''.join(map(read, self.inputs)), re.M)
        if pinned:
            return pinned.group(1), pinned.group(2) or ''
        if 'PYPI_SOURCE' in self.text:
            return normal_name(self.values['name']), ''
        # its wheels have the versions of its source
        built = self.values['name'] == 'PyTorch' and 'SingularityContainer' not in self.text
        return 'torch' if built else None, ''

    def find_version(self, asked):
        """The version that is asked for, as it is called where it is published."""
        found = VERSION.match(asked)
        if asked != 'latest' and not found:
            raise UsersProblem("expected a version such as 2.14.1, 2.9.1+rocm6.4, or latest, found %r" % asked)
        version, build = found.groups() if found else (asked, None)
        if build and not self.old_build:
            raise UsersProblem("its wheels are those of PyPI, which has none of %s" % build)
        self.build = build or self.old_build
        if self.name:
            version = self.version_of_package(version)
        elif not re.search('^sources = ', self.text, re.M):
            raise UsersProblem("its version is this collection's own; copy the easyconfig to change what it names")
        elif version == 'latest':
            repository = REPOSITORY.search(self.text)
            if not repository:
                raise UsersProblem("nothing says which version is the newest: name it instead of `latest`")
            version = newest_tag(repository.group(), self.old)
        if version == self.old and self.build == self.old_build or release(version) < release(self.old) and not found:
            what = "it has %s already" if found else "%s is the newest"
            raise NothingNewer((what + "; to make its locks again: ./eb --renew %s") % (
                self.old, shlex.quote(os.path.basename(self.easyconfig))))
        return version

    def version_of_package(self, version):
        """Ask the indexes; without PyTorch's own, take the versions of the user's and the locks for those."""
        self.version = version
        try:
            return self.asked_version(version)
        except UsersProblem as problem:
            if not self.index or self.index not in str(problem):
                raise
            print("Cannot reach %s; asking your own index for versions." % self.index)
            self.index = None
            if self.values.get('lock_files_instead'):
                print("The wheels are those of your own index, too, as in lock_files_instead.")
                self.take_other_locks()
            return self.asked_version(version)

    def take_other_locks(self):
        """Take the locks for the user's own index in the place of those for PyTorch's."""
        self.text = re.sub(r'^(?:lock_files|extra_index_urls) = .*\n', '', self.text, flags=re.M)
        self.text = re.sub(r'^lock_files_instead', 'lock_files', self.text, flags=re.M)
        self.values = plain_values(self.text)
        self.find_inputs()
        self.build = self.old_build = ''

    def asked_version(self, version):
        found = self.with_fitting_pythons(self.name + '==' + (self.newest() if version == 'latest' else version))
        cuda = cuda_of(found)
        if cuda > self.cuda_limit():
            raise UsersProblem("its wheels bring CUDA %d, and the driver of %s takes %d (cuda in system.cfg)"
                               % (cuda, self.system.name, self.cuda_limit()))
        return found[self.name].split('+')[0]

    def newest(self):
        """The newest version that the indexes have for the oldest Python, and that the system's driver takes."""
        wanted = self.name
        while True:
            found = self.resolved(wanted)
            version = found[self.name].split('+')[0]
            if cuda_of(found) <= self.cuda_limit():
                return version
            wanted = self.name + '<' + version

    def with_fitting_pythons(self, requirement):
        """What uv makes of a requirement; leaves out the Pythons that have no wheels for it."""
        if self.index:
            requirement += self.build
        fitting, problem = [], None
        for python in self.pythons:
            try:
                self.ask([requirement], '--only-binary :all: --python-version ' + python)
                fitting.append(python)
            except UsersProblem as why:
                if 'could not be reached' in str(why):
                    raise
                problem = why
        # what has no wheels is built for any
        if problem and fitting:
            left_out = [python for python in self.pythons if python not in fitting]
            print("Left out: Python %s (%s)" % (' and '.join(left_out), problem))
            self.pythons = fitting
        self.least = max(self.least, min(self.pythons, key=release, default=self.least), key=release)
        return self.resolved(requirement)

    def cuda_limit(self):
        """The newest CUDA that the system's driver takes; no limit where PyTorch is compiled, or nobody knows it."""
        if 'PyTorchHPC' in self.text or self.name != 'torch':
            return math.inf
        return self.system.node['cuda'] or math.inf


    def resolved(self, *requirements):
        """What uv makes of a few requirements for all machines, from the oldest Python on: {name: version}."""
        lock = self.ask(requirements, '--universal --fork-strategy fewest --python-version ' + self.least)
        found = dict(re.findall(r'^([\w.-]+)==([^\s;]+)', lock, re.M))
        # where PyTorch's own index is not reached, these are PyPI's, and its wheels will be those of the build
        if self.build and '+' not in found.get('torch', '+'):
            found['torch'] += self.build
        return found

    def ask(self, requirements, options):
        """The lock of a few requirements, from the indexes that the locks are made from."""
        Path(self.work, 'question.in').write_text('\n'.join(requirements) + '\n', encoding='utf-8')
        # of packages that may have to be built uv need not know what they need
        alone = self.name != 'torch'
        Path(self.work, 'question.toml').write_text(NO_METADATA % self.name * alone)
        options += ' --no-deps' * alone
        if self.index:
            options += ' --extra-index-url ' + shlex.quote(self.changed(self.index))
        return uv('pip compile --quiet question.in --config-file question.toml ' + options, self.work)

    # files of the new version

    def changed(self, text):
        """A text with the new version, the new build such as rocm7.1, and the new companions."""
        words = self.words
        if not words:
            words = {self.old_build[1:] or ' ': self.build[1:] or ' '}
        for old, new in words.items():
            text = replaced(text, old, new)
        return text

    def new_input(self, text):
        """An .in file for the new version; companions are those that say that they are made for it."""
        text = self.changed(text)
        if self.renewed:
            return text
        for python in re.findall(r'--python-version (\S+)', text):
            newer = max(self.least, python, key=release)
            text = text.replace('--python-version ' + python, '--python-version ' + newer)
        if self.index and BROUGHT.search(text):
            for pair in self.resolved(self.torch).items():
                line = '%s==%s' % pair
                if BROUGHT.match(line):
                    text = BROUGHT.sub(line, text)
        for name in COMPANIONS:
            if re.search(r'^%s==' % name, text, re.M):
                version = self.companion(name)
                line = '%s==%s%s\n' % (name, version.split('+')[0], self.build) if version else ''
                text = re.sub(r'^%s==.*\n' % name, line, text, flags=re.M)
        return text

    @property
    def torch(self):
        """The new PyTorch, as .in files name it."""
        return 'torch==' + self.version + (self.build if self.index else '')

    def companion(self, name):
        """The version of a companion that goes with the new PyTorch; None if there is none."""
        try:
            return self.resolved(self.torch, name)[name]
        except UsersProblem as problem:
            if 'could not be reached' in str(problem):
                raise
            print("the indexes have no %s that goes with %s: left out" % (name, self.torch))
            return None

    def make_locks(self):
        """All .in files and locks of the new version; {path: text}. A lock that cannot be made is for a person."""
        made = {}
        for path in self.inputs:
            source = self.place(path)
            lock = os.path.splitext(source)[0] + '.lock'
            # another easyconfig of the new version has the same build tools
            if not self.renewed and os.path.exists(source) and os.path.exists(lock):
                made.update({source: read(source), lock: read(lock)})
                continue
            draft = Path(self.work, os.path.basename(source))
            draft.write_text(self.new_input(read(path)), encoding='utf-8')
            made[source] = read(draft)
            try:
                uv(command_of(draft) + ' --quiet', self.work)
                # the command in its first lines is the one that people type
                made[lock] = read(draft.with_suffix('.lock')).replace(' --quiet\n', '\n')
            except UsersProblem as problem:
                self.by_hand.append("%s: %s. When that is solved, run the command in %s" % (lock, problem, source))
        if self.renewed and not any(path.endswith('.lock') for path in made):
            raise UsersProblem('; '.join(self.by_hand))
        return made

    def make(self):
        """Everything: {path: text}."""
        if self.renewed:
            return self.make_locks()
        made = self.make_sources()
        made.update(self.make_locks())
        made[self.target] = self.new_easyconfig()
        return made

    def make_sources(self):
        """Find the companions that are built from the source of an address; their locks are one line each."""
        made = {}
        for name, url in self.values.get('package_urls', {}).items():
            old = re.search(r'\d+(\.\d+)+(?=\.tar)', url)
            path = old and named_file(self.easyconfig, '%s-%s.lock' % (name, old.group()))
            new = path and self.companion(name)
            if not new:
                continue
            self.words[old.group()] = new
            url = self.changed(url)
            digest = sha256_of_url(url)
            made[self.place(path)] = '# the source at %s\n%s==%s --hash=sha256:%s\n' % (url, name, new, digest)
            if digest == UNKNOWN:
                self.by_hand.append("%s: the SHA256, in the place of zeros, of %s" % (self.place(path), url))
        return made

    def new_easyconfig(self):
        """The text of the easyconfig for the new version."""
        text = self.changed(without_comments(self.text))
        if self.pythons:
            text = re.sub(r'^python_versions = \[.*?\]', 'python_versions = %s' % self.pythons, text, flags=re.M | re.S)
        text = self.with_digest(self.with_patches(text))
        if re.search(r"^checksums = \[\s*\{?\s*'", text, re.M):
            text = self.with_checksums(text)
        for number, line in enumerate(text.splitlines(), 1):
            for known in table('new_version'):
                if known.pattern.search(line.replace(self.version, '')):
                    self.by_hand.append('%s:%d: %s: %s' % (os.path.basename(self.target), number, line, known.cause))
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

    def with_checksums(self, text):
        """The checksum that the index has, where there is one file only; else none yet."""
        hashes = []
        if self.name and self.name != 'torch':
            lock = self.ask(['%s==%s' % (self.name, self.version)], '--generate-hashes')
            hashes = re.findall(r'sha256:(\w{64})', lock)
        new = ''
        if len(hashes) == 1:
            new = "checksums = ['%s']\n" % hashes[0]
        else:
            self.by_hand.append("checksums: ./eb --inject-checksums --force %s fetches and hashes its sources"
                                % self.target_name)
        return re.sub(r'^checksums = \[.*?\]\n', new, text, flags=re.M | re.S)

    def with_digest(self, text):
        """The digest of the tag that local_image names; zeros, which are refused, where the registry is not reached."""
        image = self.changed(self.values.get('local_image', ''))
        digest = images.digest_of(image) if image else UNKNOWN
        text, changed = re.subn('(docker://.*@sha256:)[0-9a-f]{64}', r'\g<1>' + digest, text)
        if changed and digest == UNKNOWN:
            command = images.ASK_DIGEST % (image or 'IMAGE:TAG')
            self.by_hand.append("the image's digest, in the place of zeros: " + command)
        return text

    @property
    def target_name(self):
        """How the new easyconfig is called on a command line."""
        return shlex.quote(os.path.basename(self.target) if in_collection(self.target) else self.target)


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
            write(Change(find(given.easyconfig), given.new_version, work))
    except UsersProblem as problem:
        newest = isinstance(problem, NothingNewer)
        print("%s%s: %s; nothing was written" % ('' if newest else 'ERROR: ', given.easyconfig, problem),
              file=sys.stdout if newest else sys.stderr)
        return 0 if newest else 1
    return 0


def write(change):
    """Make all files, show them, write them, and say what to do next."""
    made = change.make()
    show(change, made)
    for target, text in made.items():
        write_atomically(target, text)
    if change.by_hand:
        print("To be completed by hand:", *change.by_hand, sep='\n  ')
    print("To try it: ./eb --rehearse -x " + change.target_name)
