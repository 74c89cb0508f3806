"""
What the lock files of an easyconfig name, fetched for the Python that it is installed for.

Everything is fetched by pip in EasyBuild's fetch step, so that the mirrors, proxies and caches that the user configured
for pip are used; everything after that works without a network.
"""
import glob
import os
import re
import shlex
import shutil
import sys
import tempfile
from contextlib import contextmanager

from easybuild.framework.easyconfig import CUSTOM, MANDATORY
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import build_option, source_paths
from easybuild.tools.environment import restore_env
from easybuild.tools.filetools import download_file, mkdir
from easybuild.tools.modules import get_software_root
from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import nub

from hpc_pytorch import UsersProblem, part_directory, fsync
from hpc_pytorch.machine import distribution_packages
from hpc_pytorch.machine.collection_files import named_file
from hpc_pytorch.machine.systems import current
from hpc_pytorch.packages import own_tests
from hpc_pytorch.packages.lock_files import normal_name, read_lock, sha256_of
from hpc_pytorch.packages.pip import Pip
from hpc_pytorch.packages.pip_errors import REACHED
from hpc_pytorch.packages.progress import fetched, telling
from hpc_pytorch.packages.wheel_tags import ask_python, name_and_version, why_not

# no set of wheels is so small
LEAST_ROOM = 50 * 2 ** 20
# what a file is called that lay where another was to be kept
ASIDE = re.compile(r'\.[0-9a-f]{8}\.aside$')

# Their wheels have a module for each MPI, and load the one for the MPI that lies in their own environment, or that the
# dynamic linker finds: often the machine's, and where it is, minutes of compiling are saved.
FOR_EVERY_MPI = ('mpi4py',)
# a program and the wheel, and which MPI they would run with
PROGRAM = '#include <mpi.h>\nint main(void) { return MPI_Init(0, 0); }\n'
WHEELS_MPI = """
import os, sys
sys.path.insert(0, sys.argv[1])
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(*{line.split()[-1] for line in open('/proc/self/maps') if os.path.basename(line.strip()).startswith('libmpi')})
"""

FOR_TESTS = 'pytorch-tests.lock'
# Easyconfig parameters of every easyblock that has locked packages.
PARAMETERS = {
    'lock_files': [None, "Lock files with all packages to install", MANDATORY],
    'python_versions': [None, "Pythons that the locked packages exist for, best first", MANDATORY],
    'build_from_source': [[], "Locked packages to build here, with the system's compilers and MPI; mpi4py where its "
                          "wheel does not run with that", CUSTOM],
    'build_lock_files': [[], "Lock files with what building needs; not installed", CUSTOM],
    'test_lock_files': [None, "Lock files with what PyTorch's own tests need, not installed; if none are named: %s"
                        % FOR_TESTS, CUSTOM],
    'pytorch_tests': ['', "List of PyTorch's own tests to run before it is installed: %s"
                      % ' or '.join(sorted(own_tests.LISTS)), CUSTOM],
    'mpi_lock_files': [[], "Lock files with an MPI, installed where the machine has none", CUSTOM],
    'package_urls': [{}, "Addresses of sources that no index has, by package", CUSTOM],
    'extra_index_urls': [[], "Package indexes to ask for what the user's own do not have", CUSTOM],
    'lock_files_instead': [[], "Lock files to take where extra_index_urls cannot be reached", CUSTOM],
}
# The collection's easyconfig of a Python that needs nothing of the machine, as a dependency.
OWN_PYTHON = ('Python', '3.12.14', '-standalone')


class LockedPackages:
    """The locked packages of an easyblock, and the Python and MPI they are for."""

    def __init__(self, easyblock):
        self.easyblock = easyblock
        self.cfg = easyblock.cfg
        self.python = None
        self.mpi_compilers = None

    # --- the machine ------------------------------------------------------------------------------------------------

    @property
    def system(self):
        try:
            return current(self.cfg.filename())
        except UsersProblem as problem:
            raise EasyBuildError(str(problem))

    @contextmanager
    def modules(self):
        """What this depends on is loaded, as far as it is there: fetching must know the Python that will be used."""
        names = [dep['full_mod_name'] for dep in self.cfg.dependencies()]
        there = self.easyblock.modules_tool.exist(names) if names else []
        names = [name for name, exists in zip(names, there) if exists]
        environment = os.environ.copy()
        if names:
            self.easyblock.modules_tool.load(names)
        try:
            yield
        finally:
            if names:
                restore_env(environment)

    def look_around(self):
        """Find Python and MPI, and install what building needs where that is allowed."""
        if self.python:
            return
        self.python = self.find_python()
        self.mpi_compilers = self.find_mpi_compilers()
        names = {'g++': any(map(shutil.which, (self.system.compilers['cxx'] or 'c++', 'c++'))),
                 'python%s-dev' % self.python.version: self.python.headers}
        if self.cfg['build_from_source'] and not all(names.values()):
            try:
                distribution_packages.install([name for name, there in names.items() if not there])
            except UsersProblem as problem:
                raise EasyBuildError("Building %s needs a C++ compiler and the Python.h of %s: %s",
                                     ', '.join(self.cfg['build_from_source']), self.python.path, problem)
        mpi = self.mpi_compilers[0] if self.mpi_compilers else 'none here, so the locked one'
        print_msg("Python %s at %s; MPI: %s", self.python.version, self.python.path, mpi, log=self.easyblock.log)

    def find_python(self):
        """The first Python, of those that the packages exist for, on this machine."""
        versions = self.cfg['python_versions']
        root = get_software_root('Python')
        if root:
            names = [os.path.join(root, 'bin', 'python3')]
        else:
            names = ['python3'] + ['python' + version for version in versions] + [sys.executable]
        paths = nub([path for path in map(shutil.which, names) if path])
        pythons = [python for python in map(ask_python, paths) if python]
        for python in pythons:
            if python.version in versions:
                return python
        found = ', '.join("%s (%s)" % (python.version, python.path) for python in pythons)
        own = any((dep['name'], dep['version'], dep['versionsuffix']) == OWN_PYTHON for dep in self.cfg.dependencies())
        raise EasyBuildError("%s %s needs Python %s; found: %s. Install one of them, or load its module, so that "
                             "python3.x is found%s.",
                             self.cfg.name, self.cfg.version, ' or '.join(versions), found or 'none',
                             '' if '.'.join(OWN_PYTHON[1].split('.')[:2]) not in versions else
                             "; or install the one that it depends on: eb %s-%s%s.eb" % OWN_PYTHON if own else
                             "; or add to the dependencies the one that the collection has: %s" % (OWN_PYTHON,))

    def find_mpi_compilers(self):
        compilers = self.system.compilers
        found = [shutil.which(name) for name in (compilers['mpi_c'] or 'mpicc', compilers['mpi_cxx'] or 'mpicxx')]
        return found if all(found) else None

    # --- the locks --------------------------------------------------------------------------------------------------

    def named_file(self, name):
        """A lock file or script that the easyconfig names, or that --robot-paths and the source path have."""
        return named_file(self.cfg.path, name) or self.easyblock.obtain_file(name, no_download=True)

    def cuda_architectures(self):
        """The GPUs to compile for: the user's word, else the easyconfig's."""
        return build_option('cuda_compute_capabilities') or self.cfg['cuda_compute_capabilities'] or []

    def locked(self, parameter):
        """All entries of the lock files that a parameter names."""
        try:
            return [entry for name in self.cfg[parameter] or [] for entry in read_lock(self.named_file(name))]
        except UsersProblem as problem:
            raise EasyBuildError(str(problem))

    def from_source(self, entry):
        return entry.name in [normal_name(name) for name in self.cfg['build_from_source']]

    def may_fit(self, entry):
        """Whether this package's wheel runs with the locked MPI, and may run with this machine's."""
        return entry.name in FOR_EVERY_MPI and bool(self.cfg['mpi_lock_files'])

    def to_install(self):
        """All entries of which wheels are fetched."""
        entries = [entry for entry in self.locked('lock_files') if self.may_fit(entry) or not self.from_source(entry)]
        return entries + ([] if self.mpi_compilers else self.locked('mpi_lock_files'))

    def to_build(self):
        """All entries of which sources are fetched."""
        return [entry for entry in self.locked('lock_files')
                if self.from_source(entry) and (self.mpi_compilers or not self.may_fit(entry))]

    def for_tests(self):
        """What PyTorch's own tests need, if they are asked for."""
        return self.locked('test_lock_files') if self.cfg['pytorch_tests'] else []

    def does_not_fit(self, entry, files):
        """Whether the wheel of a package that is to be built here runs with another MPI than what is compiled here."""
        if not self.may_fit(entry):
            return True
        place = tempfile.mkdtemp(prefix='fits-')
        program = os.path.join(place, 'program')
        with open(program + '.c', 'w') as handle:
            handle.write(PROGRAM)
        Pip(self.python).install([entry], files, '--only-binary', ':all:', '--no-compile', '--target', place)
        said = [run_shell_cmd(words, use_bash=False, fail_on_error=False, hidden=True) for words in (
            [self.mpi_compilers[0], '-o', program, program + '.c'], ['ldd', program],
            [self.python.path, '-I', '-c', WHEELS_MPI, place])]
        compiled = {os.path.realpath(path) for path in re.findall(r'^\s*libmpi\S* => (\S+)', said[1].output, re.M)}
        fits = not any(one.exit_code for one in said) and compiled == set(said[2].output.split())
        self.easyblock.log.info("%s runs with %s, programs with %s", entry.name, said[2].output[-500:], compiled)
        return not fits

    def check_locks(self):
        """All lock files are there, and are the locks of this version (of a copied easyconfig they may not be)."""
        name, version, tests = self.cfg.name, self.cfg.version, self.cfg['pytorch_tests']
        if tests and tests not in own_tests.LISTS:
            raise EasyBuildError("pytorch_tests: expected %s, found %r", ' or '.join(sorted(own_tests.LISTS)), tests)
        if tests and self.cfg['test_lock_files'] is None:
            self.cfg['test_lock_files'] = [FOR_TESTS]
        for lock in self.cfg['lock_files'] + self.cfg['build_lock_files'] + self.cfg['lock_files_instead']:
            try:
                self.named_file(lock)
            except EasyBuildError:
                raise EasyBuildError("The lock file %s of %s %s is missing. Make it as the .in files in the "
                                     "collection's locks directory show, and put it beside the easyconfig, or into "
                                     "a directory of --robot-paths", lock, name, version)
        for entry in self.locked('lock_files'):
            if entry.name == 'torch' and name == 'PyTorch' and entry.version.split('+')[0] != version:
                raise EasyBuildError("The lock file has torch %s, the easyconfig says %s: make a lock file for %s "
                                     "(the .in file beside it has the command) and name it in the easyconfig.",
                                     entry.version, version, version)

    # --- the files --------------------------------------------------------------------------------------------------

    def fetch(self):
        """A directory with links to all files that are needed, fetched if they are in no source path."""
        if self.easyblock.dry_run:
            versions = {}
            for entry in self.locked('lock_files'):
                versions.setdefault(entry.name, set()).add(entry.version)
            for name in sorted(versions):
                self.easyblock.dry_run_msg("  * %s %s", name, ' or '.join(sorted(versions[name])))
            return None
        with self.modules():
            self.look_around()
            try:
                return self.gathered()
            except EasyBuildError as problem:
                if not self.cfg['lock_files_instead'] or REACHED not in str(problem):
                    raise
            print_msg("%s: not reached; taking wheels of your own index instead, which may be larger",
                      ' '.join(self.cfg['extra_index_urls']), log=self.easyblock.log)
            # both stay named, as the provenance keeps all lock files
            locks = self.cfg['lock_files'], self.cfg['lock_files_instead']
            self.cfg['lock_files_instead'], self.cfg['lock_files'] = locks
            return self.gathered()

    def gathered(self):
        """Links to all files, of which those that are not here are fetched."""
        files = tempfile.mkdtemp(prefix='wheels-')
        for store in self.stores():
            self.link(store, files)
        self.complete(files)
        return files

    def stores(self):
        """Where the fetched files may lie: a directory of this easyconfig's in every source path."""
        name = '%s-%s%s-wheels' % (self.cfg.name, self.cfg.version, self.cfg['versionsuffix'])
        return [os.path.join(path, self.cfg.name[0].lower(), self.cfg.name, name) for path in source_paths()]

    def link(self, store, files):
        """Take what the locks name from a store; what is damaged, or of another lock, is left where it is."""
        locked = {}
        for entry in [entry for name in PARAMETERS if name.endswith('lock_files') for entry in self.locked(name)]:
            locked.setdefault((entry.name, entry.version), set()).update(entry.hashes)
        for path in sorted(glob.glob(os.path.join(glob.escape(store), '*.*'))):
            name = ASIDE.sub('', os.path.basename(path))
            link, hashes = os.path.join(files, name), locked.get(name_and_version(name))
            if not hashes or os.path.exists(link) or not os.path.isfile(path) or not os.access(path, os.R_OK):
                continue
            digest = sha256_of(path)
            if digest in hashes:
                os.symlink(path, link)
            elif name == os.path.basename(path):
                print_msg("%s is not used: its SHA256 is %s, and the lock file of %s %s says %s. One of the two is "
                          "damaged or of another version", path, digest, name_and_version(name)[0],
                          name_and_version(name)[1], ' or '.join(sorted(hashes)), log=self.easyblock.log)

    @staticmethod
    def source_file(entry, files):
        """The fetched source of a package that is built here, if it is there."""
        names = (entry.name, entry.name.replace('-', '_'))
        paths = [os.path.join(files, '%s-%s.tar.gz' % (name, entry.version)) for name in names]
        return next(filter(os.path.isfile, paths), None)

    def complete(self, files):
        """Download what is not there."""
        wheels = [self.absent(entries, files) for entries in (
            self.to_install(), self.locked('build_lock_files'), self.for_tests())]
        sources = [entry for entry in self.to_build() if not self.source_file(entry, files)]
        absent = sum(wheels, []) + sources
        if not absent:
            return
        store = self.writable_store(absent[0])
        with part_directory(store) as part:
            for entries in filter(None, wheels):
                self.download(entries, part, store, files)
            if sources:
                self.download_sources(sources, part, store, files)

    def absent(self, entries, files):
        """The entries that no file here is for; whether that matters depends on their markers, which pip knows."""
        if not entries or os.listdir(files) and not Pip(self.python).missing(entries, files):
            return []
        here = {name_and_version(path) for path in os.listdir(files) if not why_not(path, self.python)}
        return [entry for entry in entries if (entry.name, entry.version) not in here] or entries

    def writable_store(self, absent):
        """The first store that can be written to; there has to be room in it."""
        for store in self.stores():
            try:
                mkdir(store, parents=True)
            except EasyBuildError:
                continue
            if os.access(store, os.W_OK | os.X_OK):
                break
        else:
            raise EasyBuildError("%s %s must be fetched, and you cannot write to the source path. Put a directory of "
                                 "yours in front of it (NEW:READONLY): "
                                 "--sourcepath=$HOME/easybuild/sources:%s",
                                 absent.name, absent.version, shlex.quote(':'.join(source_paths())))
        free = shutil.disk_usage(store).free
        if free < LEAST_ROOM:
            raise EasyBuildError("The source path has too little room: %d MB are free in %s. Make room, or put another "
                                 "directory in front of it: --sourcepath=NEW:%s",
                                 free // 2 ** 20, store, shlex.quote(':'.join(source_paths())))
        return store

    def download(self, entries, part, store, files):
        """Download wheels: from the user's indexes, and if they do not have them, from the easyconfig's, too."""
        pip = Pip(self.python)
        extra = [word for url in self.cfg['extra_index_urls'] for word in ('--extra-index-url', url)]
        what = "fetching %d packages into %s" % (len({entry.name for entry in entries}), store)
        with telling(what, self.easyblock.log, fetched(part)):
            for indexes in [[]] + [extra] * bool(extra):
                result = pip.download(entries, part, '--only-binary', ':all:', *indexes)
                if result.exit_code == 0:
                    return keep(part, store, files)
        raise EasyBuildError("Fetching failed: %s", pip.why_not_fetched(entries, result.output, files, store, *extra))

    def download_sources(self, entries, part, store, files):
        """Download sources; pip insists on asking each for its metadata, which needs the build tools."""
        for entry in entries:
            if entry.name in self.cfg['package_urls']:
                self.download_release(entry, part, store)
        entries = [entry for entry in entries if entry.name not in self.cfg['package_urls']]
        if entries:
            tools = os.path.join(part, 'tools')
            pip = Pip(self.python)
            pip.install(self.locked('build_lock_files'), files, '--target', tools)
            result = pip.download(entries, part, '--no-binary', ':all:', '--no-build-isolation',
                                  environment={'PYTHONPATH': tools})
            if result.exit_code:
                raise EasyBuildError("Fetching failed: %s", pip.why_not_fetched(entries, result.output, files, store))
        keep(part, store, files)

    def download_release(self, entry, part, store):
        """Download the source of a package from where its authors release it, under the name that pip looks for."""
        name = '%s-%s.tar.gz' % (entry.name, entry.version)
        path, url = os.path.join(part, name), self.cfg['package_urls'][entry.name]
        if not download_file(name, url, path):
            raise EasyBuildError("Fetching %s failed. Fetch it by hand, and put it as %s into %s", url, name, store)
        if sha256_of(path) not in entry.hashes:
            raise EasyBuildError("%s: its SHA256 is %s, and the lock file of %s %s says %s. Do not use it until you "
                                 "know which of the two is wrong.", url, sha256_of(path), entry.name, entry.version,
                                 ' or '.join(sorted(entry.hashes)))


def keep(part, store, files):
    """Move what was downloaded to where it stays; another file that lies there under the same name stays, too."""
    for path in glob.glob(os.path.join(glob.escape(part), '*.*')):
        target = os.path.join(store, os.path.basename(path))
        if os.path.exists(target) and sha256_of(target) != sha256_of(path):
            os.replace(target, '%s.%s.aside' % (target, sha256_of(target)[:8]))
        fsync(path)
        os.replace(path, target)
        link = os.path.join(files, os.path.basename(path))
        if not os.path.exists(link):
            os.symlink(target, link)
