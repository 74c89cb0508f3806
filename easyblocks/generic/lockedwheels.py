"""
EasyBuild support for installing Python packages from lock files, implemented as an easyblock.

A lock file names every package with its version and SHA256 (pip's own format; uv and pip-tools write it). All of it is
fetched in EasyBuild's fetch step, by pip, so that the mirrors, proxies and caches that the user configured for pip are
used; everything after that works without a network. Wheels can also be `sources`, fetched and checked as EasyBuild does
it: for those whose checksum is nowhere to be found, as --inject-checksums works for them.
"""
import glob
import os
import re
import shutil
import sys
import tempfile
import zipfile
from contextlib import contextmanager

from easybuild.framework.easyblock import EasyBlock
from easybuild.framework.easyconfig import CUSTOM, MANDATORY
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import source_paths
from easybuild.tools.environment import restore_env
from easybuild.tools.filetools import adjust_permissions, copy_dir, copy_file, download_file, mkdir, read_file
from easybuild.tools.filetools import remove_dir, write_file
from easybuild.tools.modules import get_software_root
from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import nub

from hpc_pytorch import UsersProblem, collection_path
from hpc_pytorch.machine import distribution_packages
from hpc_pytorch.machine.collection_files import named_file
from hpc_pytorch.machine.module_files import put_aside, set_by_default
from hpc_pytorch.machine.systems import FEATURES, current
from hpc_pytorch.packages import rocm_pairs
from hpc_pytorch.packages.lock_files import Locked, normal_name, parse_lock, sha256_of
from hpc_pytorch.packages.wheel_tags import ask_python, name_and_version, parse_wheel, why_not
from hpc_pytorch.source import known_errors

# pip's last word about a requirement that no file fits
NO_MATCH = re.compile(r'No matching distribution found for ([A-Za-z0-9._-]+)==([^\s;]+)')


class LockedWheels(EasyBlock):
    """Support for installing Python packages from lock files into a virtual environment that is a module."""

    @staticmethod
    def extra_options():
        """Easyconfig parameters of this easyblock."""
        return EasyBlock.extra_options({
            'lock_files': [None, "Lock files with all packages to install", MANDATORY],
            'python_versions': [None, "Pythons that the locked packages exist for, best first", MANDATORY],
            'collection_packages': [[], "Packages of this collection to build here for what was installed", CUSTOM],
            'build_from_source': [[], "Locked packages to build here, with the system's compilers and MPI", CUSTOM],
            'build_environment': [{}, "Environment variables for packages that are built from source", CUSTOM],
            'build_lock_files': [[], "Lock files with what building needs; not installed", CUSTOM],
            'package_urls': [{}, "Where the sources of packages are that no index has, by name", CUSTOM],
            'example_files': [[], "Files to install in examples, beside the easyconfig or in scripts/examples", CUSTOM],
            'features': [[], "What this has of: %s; decides which settings of the system apply"
                         % ', '.join(sorted(FEATURES)), CUSTOM],
            'mpi_lock_files': [[], "Lock files with an MPI, installed where the machine has none", CUSTOM],
            'extra_index_urls': [[], "Package indexes to ask for what the user's own do not have", CUSTOM],
            'scripts': [[], "Scripts to install in bin, beside the easyconfig or in scripts", CUSTOM],
        })

    def __init__(self, *args, **kwargs):
        """Nothing is known yet of the Python and of the files."""
        super().__init__(*args, **kwargs)
        self.python = None
        self.mpi_compilers = None
        self.wheels = None
        self.build_in_installdir = True
        if self.features():
            self.cfg['usage'] = '\n'.join(filter(None, [self.cfg['usage'], self.advice()]))

    # --- what there is to work with ---------------------------------------------------------------------------------

    def locked(self, parameter):
        """All entries of the lock files that a parameter names."""
        files = [self.named_file(name) for name in self.cfg[parameter]]
        return [entry for path in files for entry in parse_lock(read_file(path))]

    def named_file(self, name):
        """A lock file or script that the easyconfig names, or that --robot-paths and the source path have."""
        return named_file(self.cfg.path, name) or self.obtain_file(name, no_download=True)

    def from_source(self, entry):
        """Whether this package is to be built here."""
        return entry.name in [normal_name(name) for name in self.cfg['build_from_source']]

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
        raise EasyBuildError("%s %s needs Python %s; found: %s. Install one of them, or load its module, "
                             "so that python3.x is found.",
                             self.name, self.version, ' or '.join(versions), found or 'none')

    @property
    def system(self):
        """The system that this is installed for."""
        try:
            return current(self.cfg.filename())
        except UsersProblem as problem:
            raise EasyBuildError(str(problem))

    def find_mpi_compilers(self):
        """The system's MPI compilers for C and C++, or None."""
        compilers = self.system.compilers
        found = [shutil.which(name) for name in (compilers['mpi_c'] or 'mpicc', compilers['mpi_cxx'] or 'mpicxx')]
        return found if all(found) else None

    @contextmanager
    def external_modules(self):
        """The system's modules that this depends on are loaded: fetching must know the Python that will be used."""
        names = [dep['full_mod_name'] for dep in self.cfg.dependencies() if dep['external_module']]
        environment = os.environ.copy()
        if names:
            self.modules_tool.load(names)
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
        self.dry_run_or_log("Python %s at %s; MPI: %s" % (self.python.version, self.python.path, mpi))

    def dry_run_or_log(self, text):
        """Say it where it is of use."""
        if self.dry_run:
            self.dry_run_msg(text)
        else:
            print_msg(text, log=self.log)

    def wheel_locks(self):
        """All entries to install from wheels."""
        entries = [entry for entry in self.locked('lock_files') if not self.from_source(entry)]
        return entries + ([] if self.mpi_compilers else self.locked('mpi_lock_files'))

    def source_wheels(self):
        """The names of the sources that are wheels."""
        names = [source if isinstance(source, str) else source['filename'] for source in self.cfg['sources']]
        return [name for name in names if name.endswith('.whl')]

    def source_locks(self):
        """All entries to build here."""
        return [entry for entry in self.locked('lock_files') if self.from_source(entry)]

    def check_locks(self):
        """All lock files are there, and are the locks of this version (with --try-software-version they may not be)."""
        for name in [name for parameter in ('lock_files', 'build_lock_files') for name in self.cfg[parameter]]:
            try:
                self.named_file(name)
            except EasyBuildError:
                raise EasyBuildError("There is no lock file %s, which %s %s would be installed from: the packages that "
                                     "go with this version have to be locked first. The .in files in the "
                                     "collection's locks directory say how; put it beside the easyconfig, or into a "
                                     "directory of --robot-paths",
                                     name, self.name, self.version)
        for entry in self.locked('lock_files'):
            if entry.name == 'torch' and self.name == 'PyTorch' and entry.version.split('+')[0] != self.version:
                raise EasyBuildError("The lock file has torch %s, the easyconfig says %s: make a lock file for %s "
                                     "(how is said in the .in file beside it) and name it in the easyconfig.",
                                     entry.version, self.version, self.version)

    def check_source_wheels(self):
        """Refuse, before gigabytes are fetched, wheels that do not fit this Python, ROCm or GPU."""
        for name in self.source_wheels():
            wheel = parse_wheel(name)
            problem = None
            if wheel and wheel.name == 'torch':
                problem = rocm_pairs.why_not(wheel.version, self.version_of_module('ROCm'), self.python.version,
                                             self.system.node['gpu_architecture'])
            reasons = [problem] if problem else why_not(name, self.python)
            if reasons:
                raise EasyBuildError("%s does not fit:\n  %s", name, '\n  '.join(reasons))

    def version_of_module(self, name):
        """The version of the system's module for a software; None without such a module among the dependencies."""
        for dep in self.cfg.dependencies():
            if not dep['external_module']:
                continue
            metadata = dep.get('external_module_metadata') or {}
            versions = dict(zip(metadata.get('name', []), metadata.get('version', [])))
            # of a version of the module that is not in the system's external_modules.cfg its name is all that is known
            module, _, version = dep['full_mod_name'].partition('/')
            if name in versions or module.lower() == name.lower() and version:
                return versions.get(name, version)
        return None

    # --- pip --------------------------------------------------------------------------------------------------------

    def pip(self, python, *arguments, **kwargs):
        """
        Run pip for this Python: EasyBuild's own pip where it can, else the Python's.

        Only `download` sees how the user configured pip; everything else works from the fetched files alone.
        """
        unwanted = ('PYTHON',) if arguments[0] == 'download' else ('PYTHON', 'PIP_')
        environment = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
        if arguments[0] != 'download':
            environment['PIP_CONFIG_FILE'] = os.devnull
        # pip folds its messages at the terminal's width, and says nothing at all where that is 0 (under `script`)
        environment.update(PYTHONNOUSERSITE='1', PIP_DISABLE_PIP_VERSION_CHECK='1', COLUMNS='1000',
                           **kwargs.pop('environment', {}))
        own = [sys.executable, '-m', 'pip', '--python', python]
        other = run_shell_cmd(own + ['--version'], fail_on_error=False, hidden=True, env=environment,
                              output_file=False, in_dry_run=True, use_bash=False).exit_code
        command = [python, '-m', 'pip'] if other else own
        return run_shell_cmd(command + list(arguments), env=environment, fail_on_error=False, hidden=True,
                             use_bash=False, **kwargs)

    @contextmanager
    def lock_file(self, entries):
        """A temporary lock file with just these entries."""
        directory = tempfile.mkdtemp(prefix='lock-')
        path = os.path.join(directory, 'lock.txt')
        write_file(path, '\n'.join(entry.text for entry in entries) + '\n')
        try:
            yield path
        finally:
            remove_dir(directory)

    def missing(self, entries, directory):
        """Whether pip could not install these from this directory alone."""
        with self.lock_file(entries) as lock:
            result = self.pip(self.python.path, 'install', '--dry-run', '--ignore-installed', '--quiet', '--no-index',
                              '--find-links', directory, '--no-deps', '--require-hashes', '--only-binary', ':all:',
                              '--target', directory, '-r', lock, output_file=False)
        return result.exit_code != 0

    def install_from(self, directory, python, entries, *arguments, **kwargs):
        """Install entries from the fetched files, every checksum verified, no network."""
        with self.lock_file(entries) as lock:
            # without pip's cache: it would hand out what was built for another MPI
            result = self.pip(python, 'install', '--quiet', '--no-index', '--find-links', directory, '--no-deps',
                              '--require-hashes', '--no-warn-script-location', '--no-cache-dir', *arguments,
                              '-r', lock, **kwargs)
        if result.exit_code:
            self.log.info(result.output)
            raise EasyBuildError("Installing from %s failed: %s%s", directory, last_words(result.output),
                                 self.explain(result.output, directory) or known_errors.why_not_built(result.output))

    # --- steps ------------------------------------------------------------------------------------------------------

    def fetch_step(self, *args, **kwargs):
        """Fetch what the locks name, unless all of it lies in a source path."""
        self.check_locks()
        if self.source_wheels() and not self.dry_run:
            with self.external_modules():
                self.look_around()
                self.check_source_wheels()
        super().fetch_step(*args, **kwargs)
        if self.dry_run:
            for entry in self.locked('lock_files'):
                self.dry_run_msg("  * %s %s", entry.name, entry.version)
            return
        with self.external_modules():
            self.look_around()
            self.wheels = self.complete_store() or self.fetch_all()

    def stores(self):
        """Where the fetched files may lie: a directory of this easyconfig's in every source path."""
        name = '%s-%s%s-wheels' % (self.name, self.version, self.cfg['versionsuffix'])
        return [os.path.join(path, self.name[0].lower(), self.name, name) for path in source_paths()]

    def complete_store(self):
        """The first directory that has everything, undamaged."""
        for store in filter(os.path.isdir, self.stores()):
            self.drop_damaged(store)
            binaries = self.wheel_locks() + self.locked('build_lock_files')
            if not any(self.missing(part, store) for part in (self.wheel_locks(), self.locked('build_lock_files'))
                       if part) and all(self.source_file(entry, store) for entry in self.source_locks()):
                self.log.info("All %d files are in %s", len(binaries), store)
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
                          log=self.log)
                if os.access(store, os.W_OK):
                    os.remove(path)

    def source_file(self, entry, store):
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
            self.download(self.wheel_locks(), part, store)
            if build_tools:
                self.download(build_tools, part, store)
            if self.source_locks():
                self.download_sources(build_tools, part, store)
        finally:
            remove_dir(part)
        return store

    def download(self, entries, part, store):
        """Download wheels: from the user's indexes, and if they do not have them, from the easyconfig's, too."""
        extra = [word for url in self.cfg['extra_index_urls'] for word in ('--extra-index-url', url)]
        if not self.missing(entries, store):
            return
        print_msg("fetching %d packages into %s", len(entries), store, log=self.log)
        with self.lock_file(entries) as lock:
            for indexes in ([], extra):
                result = self.pip(self.python.path, 'download', '--quiet', '--no-deps', '--require-hashes',
                                  '--only-binary', ':all:', '--find-links', store, '--dest', part, '-r', lock, *indexes)
                if result.exit_code == 0:
                    return self.keep(part, store)
        raise EasyBuildError("Fetching failed: %s%s", last_words(result.output), self.explain(result.output, store))

    def download_sources(self, build_tools, part, store):
        """Download sources; pip insists on asking each for its metadata, which needs the build tools."""
        for entry in self.source_locks():
            if entry.name in self.cfg['package_urls']:
                self.download_release(entry, part)
        entries = [entry for entry in self.source_locks() if entry.name not in self.cfg['package_urls']]
        if not entries:
            return self.keep(part, store)
        tools = os.path.join(part, 'tools')
        self.install_from(store, self.python.path, build_tools, '--target', tools)
        with self.lock_file(entries) as lock:
            result = self.pip(self.python.path, 'download', '--quiet', '--no-deps', '--require-hashes', '--no-binary',
                              ':all:', '--no-build-isolation', '--dest', part, '-r', lock,
                              environment={'PYTHONPATH': tools})
        if result.exit_code:
            raise EasyBuildError("Fetching failed: %s", last_words(result.output))
        return self.keep(part, store)

    def download_release(self, entry, part):
        """Download the source of a package from where its authors release it, under the name that pip looks for."""
        name = '%s-%s.tar.gz' % (entry.name, entry.version)
        path, url = os.path.join(part, name), self.cfg['package_urls'][entry.name]
        if not download_file(name, url, path):
            raise EasyBuildError("Fetching %s failed. Fetch it by hand, and put it as %s into %s", url, name,
                                 self.stores()[0])
        if sha256_of(path) not in entry.hashes:
            raise EasyBuildError("%s is another file than the one that was locked; do not use it.", url)

    @staticmethod
    def keep(part, store):
        """Move what was downloaded to where it stays."""
        for path in glob.glob(os.path.join(part, '*.*')):
            os.replace(path, os.path.join(store, os.path.basename(path)))

    def explain(self, output, store):
        """More than pip says about a package that does not fit: its wheels' tags taken apart."""
        match = NO_MATCH.search(output)
        if not match:
            if re.search('hashes are required|DO NOT MATCH THE HASHES', output, re.I):
                return "\nThe index served another file than the one that was locked; do not use it."
            if re.search('connection|resolution|timed out|unreachable|proxy', output, re.I):
                return ("\nNo index could be reached: check the network, or the mirror and proxy in 'pip config list'; "
                        "or fetch on a machine with a network (eb --fetch) and bring %s." % store)
            return ''
        name, version = normal_name(match.group(1)), match.group(2)
        lines = []
        for path in sorted(glob.glob(os.path.join(store, '*.whl'))):
            wheel = parse_wheel(path)
            if (wheel.name, wheel.version) == (name, version):
                lines.append("  %s:" % os.path.basename(path))
                lines += ["    " + reason for reason in why_not(path, self.python)]
        if not lines:
            return ("\nNo index has %s %s for Python %s on %s, or none could be reached."
                    % (name, version, self.python.version, self.python.machine))
        return "\nThere is a wheel, and it does not fit:\n" + '\n'.join(lines)

    def checksum_step(self):
        """Besides the checksums, which not every wheel has: none may be cut short."""
        super().checksum_step()
        for source in self.src:
            if source['name'].endswith('.whl') and not self.dry_run:
                try:
                    zipfile.ZipFile(source['path']).close()
                except zipfile.BadZipFile:
                    raise EasyBuildError("%s is no whole wheel: it was cut short, or is something else. Remove it; it "
                                         "is then fetched again.", source['path'])

    def extract_step(self):
        """Wheels are not unpacked beforehand."""

    def prepare_step(self, *args, **kwargs):
        """Load the system's modules; look around again where fetching was skipped."""
        super().prepare_step(*args, **kwargs)
        if not self.dry_run:
            self.look_around()

    def configure_step(self):
        """Nothing to configure."""

    def build_step(self):
        """Everything is built while it is installed."""

    def install_step(self):
        """A virtual environment with the wheels, then what is built here."""
        if self.dry_run:
            self.dry_run_msg("virtual environment with %d packages, %s built here",
                             len(self.locked('lock_files')), ', '.join(self.cfg['build_from_source']) or 'none')
            return
        run_shell_cmd([self.python.path, '-I', '-m', 'venv', '--without-pip', self.installdir], use_bash=False)
        python = os.path.join(self.installdir, 'bin', 'python')
        self.install_from(self.wheels, python, self.wheel_locks(), '--only-binary', ':all:')
        self.install_source_wheels(python)
        if self.source_locks():
            self.build_here(python)
        for package in self.cfg['collection_packages']:
            self.build_from_collection(python, package)
        self.install_files('scripts', 'bin', 0o755)
        self.install_files('example_files', 'examples', 0o644)
        if self.features():
            # what scripts have to know of the system
            copy_file(os.path.join(self.system.directory, 'system.cfg'),
                      os.path.join(self.installdir, 'share', 'system.cfg'))

    def install_source_wheels(self, python):
        """Install the wheels among the sources; EasyBuild has compared their checksums."""
        for source in self.src:
            if source['name'].endswith('.whl'):
                name, version = name_and_version(source['name'])
                digest = sha256_of(source['path'])
                entry = Locked(name, version, frozenset([digest]), '%s==%s --hash=sha256:%s' % (name, version, digest))
                self.install_from(os.path.dirname(source['path']), python, [entry], '--only-binary', ':all:')

    def install_files(self, parameter, directory, permissions):
        """Copy what a parameter of the easyconfig names into a directory of the prefix."""
        for name in self.cfg[parameter]:
            target = os.path.join(self.installdir, directory, os.path.basename(name))
            copy_file(self.named_file(name), target)
            adjust_permissions(target, permissions, relative=False)

    def build_here(self, python):
        """Build what is to be built with the system's MPI, or with the one just installed."""
        tools = os.path.join(self.builddir, 'tools')
        self.install_from(self.wheels, python, self.locked('build_lock_files'), '--target', tools)
        self.install_from(self.wheels, python, self.source_locks(), '--no-build-isolation', '--no-binary', ':all:',
                          environment=dict(self.build_environment(), PYTHONPATH=tools))

    def build_environment(self):
        """What tells a package's build which compilers to use."""
        own = os.path.join(self.installdir, 'bin')
        c_compiler, cxx_compiler = self.mpi_compilers or [os.path.join(own, name) for name in ('mpicc', 'mpicxx')]
        environment = {'MPICC': c_compiler, 'MPICXX': cxx_compiler, 'PATH': os.pathsep.join([own, os.environ['PATH']])}
        if not self.mpi_compilers:
            # before the directories that Python adds, where a libmpi.so of another MPI may lie
            environment['LDFLAGS'] = '-L' + os.path.join(self.installdir, 'lib')
        return dict(environment, **self.cfg['build_environment'])

    def build_from_collection(self, python, package):
        """Build a package of the collection from a copy, as building writes beside the sources."""
        copy = os.path.join(tempfile.mkdtemp(prefix='collection-'), package)
        copy_dir(collection_path(package), copy)
        result = self.pip(python, 'install', '--quiet', '--no-index', '--no-build-isolation', '--no-deps',
                          '--no-cache-dir', copy, environment=self.build_environment())
        if result.exit_code:
            raise EasyBuildError("Building %s of this collection failed: %s", package, result.output.strip()[-2000:])

    # --- module and checks ------------------------------------------------------------------------------------------

    def site_packages(self):
        """Where the packages are; known from the installation itself, so that --module-only works."""
        paths = glob.glob(os.path.join(self.installdir, 'lib', 'python3.*', 'site-packages'))
        if len(paths) != 1 and not self.dry_run:
            raise EasyBuildError("nothing is installed at %s (one lib/python3.*/site-packages was expected, %d found): "
                                 "install it first, without --module-only and --sanity-check-only",
                                 self.installdir, len(paths))
        return paths[0] if paths else os.path.join(self.installdir, 'lib', 'python3', 'site-packages')

    def make_module_extra(self, *args, **kwargs):
        """
        Only the module's own packages: a $PYTHONPATH of the user's is put aside until the module is unloaded, and
        packages below $HOME are not seen. Virtual environments on top of the module see its packages.
        """
        text = super().make_module_extra(*args, **kwargs)
        for name, value in (('PYTHONPATH', self.site_packages()), ('PYTHONNOUSERSITE', '1')):
            text += put_aside(self.module_generator, self.name, name, value)
        return text + (self.system_settings() if self.features() else '')

    def features(self):
        """What this has of the system's: decides which of its settings apply."""
        return list(self.cfg['features'])

    def settings(self):
        """The settings of the system that apply."""
        versions = {dep['name']: dep['version'] for dep in self.cfg.dependencies() if not dep['external_module']}
        return self.system.settings_for(self.features(), versions)

    def system_settings(self):
        """What the system's data say for these features, and what pytorch-srun and cpu-mask want to know."""
        module, system, text = self.module_generator, self.system, ''
        for setting in self.settings():
            text += set_by_default(module, setting)
        told = {
            'HPC_MASTER_PORT': system.network['master_port'],
            'HPC_NODE_CPUS': (system.node['cores'] or 0) * (system.node['threads_per_core'] or 1),
            'GPU_CORES': ' '.join(','.join(map(str, cores)) for cores in system.node['gpu_cores']),
        }
        return text + ''.join(module.set_environment(name, str(value)) for name, value in told.items() if value)

    def advice(self):
        """For `module help`: what the module sets for this system, and what the site advises to try."""
        lines = []
        for title, variables in (("Set by this module:", self.settings()),
                                 ("Worth trying on this system:", self.system.advice)):
            if variables:
                lines += ['', title]
                lines += ["  %s=%s: %s" % (variable.name, variable.value, variable.reason) for variable in variables]
        return '\n'.join(lines)

    def sanity_check_step(self, *args, **kwargs):
        """The environment is there, and its packages agree with each other."""
        if self.python is None and not self.dry_run:
            self.python = ask_python(os.path.join(self.installdir, 'bin', 'python'))
        paths = {
            'files': ['bin/python'] + ['bin/%s' % os.path.basename(script) for script in self.cfg['scripts']],
            'dirs': [os.path.relpath(self.site_packages(), self.installdir)],
        }
        super().sanity_check_step(custom_paths=paths, *args, **kwargs)

    def sanity_check_rpath(self, *args, **kwargs):
        """Wheels were linked elsewhere and bring their libraries along: nothing of EasyBuild's RPATH is in them."""
        self.log.info("RPATH is not checked in wheels")
        return []


def last_words(output):
    """pip's reason, without its advice."""
    lines = [line for line in output.splitlines() if line.strip() and not re.match(r'warning|hint', line, re.I)]
    errors = [line for line in lines if line.startswith('ERROR')]
    return (errors or lines or ['pip failed without a word'])[-1]
