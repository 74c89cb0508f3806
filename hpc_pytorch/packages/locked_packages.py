"""
What the lock files of an easyconfig name, fetched for the Python that it is installed for.

Everything is fetched by pip in EasyBuild's fetch step, so that the mirrors, proxies and caches that the user configured
for pip are used; everything after that works without a network.

Python 3.6; runs inside EasyBuild.
"""
import glob
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager

from easybuild.framework.easyconfig import CUSTOM, MANDATORY
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import source_paths
from easybuild.tools.environment import restore_env
from easybuild.tools.filetools import download_file, mkdir, read_file, remove_dir
from easybuild.tools.modules import get_software_root
from easybuild.tools.utilities import nub

from hpc_pytorch import UsersProblem
from hpc_pytorch.machine import distribution_packages
from hpc_pytorch.machine.collection_files import named_file
from hpc_pytorch.machine.systems import current
from hpc_pytorch.packages.lock_files import normal_name, parse_lock, sha256_of
from hpc_pytorch.packages.pip import Pip, last_words
from hpc_pytorch.packages.wheel_tags import ask_python, name_and_version

# Easyconfig parameters of every easyblock that has locked packages.
PARAMETERS = {
    'lock_files': [None, "Lock files with all packages to install", MANDATORY],
    'python_versions': [None, "Pythons that the locked packages exist for, best first", MANDATORY],
    'build_from_source': [[], "Locked packages to build here, with the system's compilers and MPI", CUSTOM],
    'build_lock_files': [[], "Lock files with what building needs; not installed", CUSTOM],
    'mpi_lock_files': [[], "Lock files with an MPI, installed where the machine has none", CUSTOM],
    'package_urls': [{}, "Where the sources of packages are that no index has, by name", CUSTOM],
    'extra_index_urls': [[], "Package indexes to ask for what the user's own do not have", CUSTOM],
}
# The collection's easyconfig of a Python that needs nothing of the machine, as a dependency.
OWN_PYTHON = ('Python', '3.12.14', '-standalone')


class LockedPackages:
    """The locked packages of an easyblock, and the Python and MPI they are for."""

    def __init__(self, easyblock):
        """Nothing is known yet of the Python and of the files."""
        self.easyblock = easyblock
        self.cfg = easyblock.cfg
        self.python = None
        self.mpi_compilers = None

    # --- the machine ------------------------------------------------------------------------------------------------

    @property
    def system(self):
        """The system that this is installed for."""
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
        """Find Python and MPI, and install the headers that building needs where that is allowed."""
        if self.python:
            return
        self.python = self.find_python()
        self.mpi_compilers = self.find_mpi_compilers()
        if self.cfg['build_from_source'] and not self.python.headers:
            try:
                distribution_packages.install(['python%s-dev' % self.python.version])
            except UsersProblem as problem:
                raise EasyBuildError("%s has no Python.h, which building %s needs: %s", self.python.path,
                                     ', '.join(self.cfg['build_from_source']), problem)
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
        raise EasyBuildError("%s %s needs Python %s; found: %s. Install one of them, or load its module, so that "
                             "python3.x is found%s.",
                             self.cfg.name, self.cfg.version, ' or '.join(versions), found or 'none',
                             "; or add to the dependencies the one that the collection has: %s" % (OWN_PYTHON,)
                             if '.'.join(OWN_PYTHON[1].split('.')[:2]) in versions else '')

    def find_mpi_compilers(self):
        """The system's MPI compilers for C and C++, or None."""
        compilers = self.system.compilers
        found = [shutil.which(name) for name in (compilers['mpi_c'] or 'mpicc', compilers['mpi_cxx'] or 'mpicxx')]
        return found if all(found) else None

    # --- the locks --------------------------------------------------------------------------------------------------

    def named_file(self, name):
        """A lock file or script that the easyconfig names, or that --robot-paths and the source path have."""
        return named_file(self.cfg.path, name) or self.easyblock.obtain_file(name, no_download=True)

    def locked(self, parameter):
        """All entries of the lock files that a parameter names."""
        files = [self.named_file(name) for name in self.cfg[parameter]]
        return [entry for path in files for entry in parse_lock(read_file(path))]

    def from_source(self, entry):
        """Whether this package is to be built here."""
        return entry.name in [normal_name(name) for name in self.cfg['build_from_source']]

    def to_install(self):
        """All entries to install from wheels."""
        entries = [entry for entry in self.locked('lock_files') if not self.from_source(entry)]
        return entries + ([] if self.mpi_compilers else self.locked('mpi_lock_files'))

    def to_build(self):
        """All entries to build here."""
        return [entry for entry in self.locked('lock_files') if self.from_source(entry)]

    def check_locks(self):
        """All lock files are there, and are the locks of this version (with --try-software-version they may not be)."""
        name, version = self.cfg.name, self.cfg.version
        for lock in self.cfg['lock_files'] + self.cfg['build_lock_files']:
            try:
                self.named_file(lock)
            except EasyBuildError:
                raise EasyBuildError("There is no lock file %s, which %s %s would be installed from: the packages that "
                                     "go with this version have to be locked first. The .in files in the "
                                     "collection's locks directory say how; put it beside the easyconfig, or into a "
                                     "directory of --robot-paths", lock, name, version)
        for entry in self.locked('lock_files'):
            if entry.name == 'torch' and name == 'PyTorch' and entry.version.split('+')[0] != version:
                raise EasyBuildError("The lock file has torch %s, the easyconfig says %s: make a lock file for %s "
                                     "(how is said in the .in file beside it) and name it in the easyconfig.",
                                     entry.version, version, version)

    # --- the files --------------------------------------------------------------------------------------------------

    def fetch(self):
        """Where all fetched files are, after this; a dry run names them."""
        if self.easyblock.dry_run:
            for entry in self.locked('lock_files'):
                self.easyblock.dry_run_msg("  * %s %s", entry.name, entry.version)
            return None
        with self.modules():
            self.look_around()
            return self.complete_store() or self.fetch_all()

    def stores(self):
        """Where the fetched files may lie: a directory of this easyconfig's in every source path."""
        name = '%s-%s%s-wheels' % (self.cfg.name, self.cfg.version, self.cfg['versionsuffix'])
        return [os.path.join(path, self.cfg.name[0].lower(), self.cfg.name, name) for path in source_paths()]

    def complete_store(self):
        """The first directory that has everything, undamaged."""
        pip = Pip(self.python)
        for store in filter(os.path.isdir, self.stores()):
            self.drop_damaged(store)
            wheels = [self.to_install(), self.locked('build_lock_files')]
            if not any(pip.missing(part, store) for part in wheels if part) and all(
                    self.source_file(entry, store) for entry in self.to_build()):
                self.easyblock.log.info("All %d files are in %s", sum(map(len, wheels)), store)
                return store
        return None

    def drop_damaged(self, store):
        """Remove locked files that are not what the lock says: cut short by a full disk, say. Others are left alone."""
        locked = {}
        for parameter in ('lock_files', 'build_lock_files', 'mpi_lock_files'):
            for entry in self.locked(parameter):
                locked.setdefault((entry.name, entry.version), set()).update(entry.hashes)
        for path in glob.glob(os.path.join(store, '*.*')):
            hashes = locked.get(name_and_version(path)) if os.path.isfile(path) else None
            if hashes and sha256_of(path) not in hashes:
                print_msg("%s is not what the lock file names (damaged, or of an older lock): not used", path,
                          log=self.easyblock.log)
                if os.access(store, os.W_OK):
                    os.remove(path)

    @staticmethod
    def source_file(entry, store):
        """The fetched source of a package that is built here, if it is there."""
        names = (entry.name, entry.name.replace('-', '_'))
        for path in [os.path.join(store, '%s-%s.tar.gz' % (name, entry.version)) for name in names]:
            if os.path.isfile(path) and sha256_of(path) in entry.hashes:
                return path
        return None

    def fetch_all(self):
        """Download what is missing; files appear in the store when they are whole and right."""
        store = self.stores()[0]
        try:
            mkdir(store, parents=True)
            for left in glob.glob(os.path.join(store, 'part-*')):
                remove_dir(left)
            part = tempfile.mkdtemp(prefix='part-', dir=store)
        except (EasyBuildError, OSError) as err:
            raise EasyBuildError("The source path cannot be written to: %s. Choose another with --sourcepath.", err)
        try:
            build_tools = self.locked('build_lock_files')
            self.download(self.to_install(), part, store)
            if build_tools:
                self.download(build_tools, part, store)
            if self.to_build():
                self.download_sources(build_tools, part, store)
        finally:
            remove_dir(part)
        return store

    def download(self, entries, part, store):
        """Download wheels: from the user's indexes, and if they do not have them, from the easyconfig's, too."""
        pip = Pip(self.python)
        extra = [word for url in self.cfg['extra_index_urls'] for word in ('--extra-index-url', url)]
        if not pip.missing(entries, store):
            return
        print_msg("fetching %d packages into %s", len(entries), store, log=self.easyblock.log)
        for indexes in ([], extra):
            result = pip.download(entries, part, '--only-binary', ':all:', '--find-links', store, *indexes)
            if result.exit_code == 0:
                return keep(part, store)
        raise EasyBuildError("Fetching failed: %s%s", last_words(result.output), pip.explain(result.output, store))

    def download_sources(self, build_tools, part, store):
        """Download sources; pip insists on asking each for its metadata, which needs the build tools."""
        for entry in self.to_build():
            if entry.name in self.cfg['package_urls']:
                self.download_release(entry, part)
        entries = [entry for entry in self.to_build() if entry.name not in self.cfg['package_urls']]
        if entries:
            tools = os.path.join(part, 'tools')
            pip = Pip(self.python)
            pip.install(build_tools, store, '--target', tools)
            result = pip.download(entries, part, '--no-binary', ':all:', '--no-build-isolation',
                                  environment={'PYTHONPATH': tools})
            if result.exit_code:
                raise EasyBuildError("Fetching failed: %s", last_words(result.output))
        keep(part, store)

    def download_release(self, entry, part):
        """Download the source of a package from where its authors release it, under the name that pip looks for."""
        name = '%s-%s.tar.gz' % (entry.name, entry.version)
        path, url = os.path.join(part, name), self.cfg['package_urls'][entry.name]
        if not download_file(name, url, path):
            raise EasyBuildError("Fetching %s failed. Fetch it by hand, and put it as %s into %s", url, name,
                                 self.stores()[0])
        if sha256_of(path) not in entry.hashes:
            raise EasyBuildError("%s is another file than the one that was locked; do not use it.", url)


def keep(part, store):
    """Move what was downloaded to where it stays."""
    for path in glob.glob(os.path.join(part, '*.*')):
        os.replace(path, os.path.join(store, os.path.basename(path)))
