"""The base of LockedWheels and EB_PyTorchHPC: locked packages in an environment. Only fetching needs a network."""
import glob
import os
import re
import shlex
import shutil
import sys
from contextlib import contextmanager, suppress

from easybuild.framework.easyblock import EasyBlock
from easybuild.framework.easyconfig import CUSTOM, MANDATORY
from easybuild.tools.build_log import EasyBuildError, print_msg, print_warning
from easybuild.tools.config import build_option, install_path, source_paths
from easybuild.tools.environment import restore_env
from easybuild.tools.filetools import adjust_permissions, convert_name, copy, copy_dir, copy_file, read_file, write_file
from easybuild.tools.modules import get_software_root

from hpc_pytorch import HERE, VERSION, collection_path, parse
from hpc_pytorch.machine import distribution_packages
from hpc_pytorch.machine.collection_files import named_file
from hpc_pytorch.machine.commands import run
from hpc_pytorch.machine.module_files import explain, override, set_for_system
from hpc_pytorch.machine.systems import FEATURES, current
from hpc_pytorch.machine.versions import known, of_dependencies
from hpc_pytorch.packages import built_wheels, gpu_code, known_errors
from hpc_pytorch.packages.easybuild_errors import as_easybuild_error, stop
from hpc_pytorch.packages.lock_files import LOCK_PARAMETERS, UNKNOWN, check_list, normal_name, other_version, read_lock
from hpc_pytorch.packages.package_files import PackageFiles, entry_of
from hpc_pytorch.packages.pip import IndexNotReached, Pip, ask
from hpc_pytorch.packages.pip_errors import last_words
from hpc_pytorch.packages.progress import progress
from hpc_pytorch.packages.wheel_tags import ask_python, closed_to_others, find_python, pythons

# the system's modules need not be there
FILES_ONLY = any(word.startswith(('--inject-checksums', '--module-only')) for word in sys.argv)
PARAMETERS = {
    'lock_files': [None, "Lock files with all packages to install", MANDATORY],
    'python_versions': [None, "Python versions for which the locked packages exist, best first", MANDATORY],
    'features': [[], "Words for what it uses, which decide which settings of the system apply: %s"
                 % ', '.join(sorted(FEATURES)), CUSTOM],
    'extra_index_urls': [[], "More package indexes, searched after the user's own", CUSTOM],
    'lock_files_instead': [[], "Lock files to use if extra_index_urls cannot be reached", CUSTOM],
    'package_urls': [{}, "URLs of sources that are in no index, by package", CUSTOM],
    'build_from_source': [[], "Locked packages to build here, with the system's compilers and MPI", CUSTOM],
    'build_lock_files': [[], "Lock files with the packages that building needs; they are not installed", CUSTOM],
    'build_environment': [{}, "Environment variables for packages that are built from source", CUSTOM],
    'collection_packages': [[], "Packages of this collection to build for the installed PyTorch and MPI", CUSTOM],
    'mpi_lock_files': [[], "Lock files with an MPI, installed if the machine has none", CUSTOM],
    'scripts': [[], "Scripts for bin, from beside the easyconfig or scripts; pytorch-check tests packages", CUSTOM],
    'example_files': [[], "Files to install in examples: from the easyconfig's directory or scripts/examples", CUSTOM],
}
# packages of which a program can have only one version: PyTorch's, and what is compiled for it or for the MPI
CONSTRAINED = re.compile(r'(torch|triton|pytorch-triton|nvidia-|cuda-|mpi4py|horovod)')
# which PyTorch a package is compiled for: 0.25 and +rocm7.1 of torchvision 0.25.0+rocm7.1
FOR_TORCH = re.compile(r'^\d+\.\d+|\+.*')
# the name in an easyconfig's list; others that look like it are no modules of packages
DEPENDENCY = re.compile(r"""\(\s*['"]([\w.+-]+)['"],""")
PLATFORM_MARKER = re.compile('sys_platform|platform_')
# options with which GCC takes a third of the time: the rest goes into an analysis that does little for this package
QUICK = {'mpi4py': '-O2 -fwrapv -fno-tree-pta'}
# the collection's prebuilt Python, as a dependency
OWN_PYTHON = ('Python', '3.12.14', '-standalone')


def site_packages_of(prefix):
    return glob.glob(glob.escape(prefix) + '/lib/python3.*/site-packages')


def versions_in(directories):
    """Return {name: version} of installed packages; the first directory counts."""
    names = [name for path in reversed(directories) for name in os.listdir(path)]
    found = filter(None, map(re.compile(r'(.+?)-(.+)\.dist-info$').match, names))
    return {normal_name(one.group(1)): one.group(2) for one in found}


class LockedEnvironment(EasyBlock):
    """Support for locked packages in a virtual environment; subclasses add own_files and check_before_fetching."""

    @staticmethod
    def extra_options(extra_vars=None):
        return EasyBlock.extra_options(dict(PARAMETERS, **extra_vars or {}))

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        with as_easybuild_error():
            self.system = current(self.cfg.filename())
        unknown = sorted(set(self.cfg['features']).difference(FEATURES))
        if unknown:
            raise EasyBuildError("unknown features: %s; known ones: %s", ' '.join(unknown), ' '.join(FEATURES))
        # both are known when the dependencies are loaded; paths of (mpicc, mpicxx), or None without an MPI
        self.python = None
        self.mpi_compilers = None
        # the directory with the files of the locked packages, and which lock files they are of
        self.wheels = None
        self.locks = 'lock_files'
        # entries whose sources are fetched besides
        self.other_sources = []
        # man looks beside the programs on $PATH, too; a $MANPATH of ours alone would hide the system's pages
        self.module_load_environment.remove('MANPATH')
        help_text = self.usage()
        if self.cfg['features']:
            help_text += '\n' + explain(self.settings(), self.settings(self.system.advice))
        self.cfg['usage'] = help_text.strip('\n')

    def usage(self):
        """Return the easyconfig's own usage, then a line of usage.cfg for each command that it installs."""
        text = self.cfg['usage'] or ''
        installed = [os.path.basename(name) for name in self.cfg['scripts'] + self.cfg['example_files']]
        if not installed:
            return text
        name = convert_name(self.name, upper=True)
        launcher = self.system.launcher['command']
        table = parse(HERE + '/packages/usage.cfg')
        for row in map(table.__getitem__, table.sections()):
            if row.get('with', installed[0]) in installed:
                command = row['command'].format(name=name, launcher=launcher)
                text += '\n%-27s %s' % (row.name + ':', command)
        return text.lstrip('\n')

    def compilers(self):
        return {}

    def path(self, *parts):
        return os.path.join(self.installdir, *parts)

    @contextmanager
    def loaded_dependencies(self):
        """Load the dependencies that are here, the system's in their order: the Python decides what is fetched."""
        environment = os.environ.copy()
        dependencies = self.cfg.dependencies()
        there = self.modules_tool.exist([dep['full_mod_name'] for dep in dependencies])
        self.modules_tool.load([dep['full_mod_name'] for dep, found in zip(dependencies, there)
                                if found or dep['external_module'] and not FILES_ONLY])
        try:
            yield
        finally:
            restore_env(environment)

    def find_python_and_mpi(self):
        if self.python:
            return
        self.python = self.find_python()
        mpicc = shutil.which(self.system.compilers['mpi_c'] or 'mpicc')
        mpicxx = shutil.which(self.system.compilers['mpi_cxx'] or 'mpicxx')
        mpi = 'none here'
        if mpicc and mpicxx:
            self.mpi_compilers = mpicc, mpicxx
            mpi = mpicc
        elif self.cfg['mpi_lock_files']:
            mpi = 'none here, so the locked one'
        elif self.cfg['collection_packages'] and not FILES_ONLY:
            stop(self, "%s is built for an MPI, and its compilers were not found. Add the MPI's module to the "
                 "dependencies, or correct mpi_c and mpi_cxx in system.cfg of %s" % (self.name, self.system.name))
        if self.cfg['build_from_source'] and not build_option('module_only'):
            self.install_build_tools_of_system()
        print_msg("Python %s at %s; MPI: %s", self.python.version, self.python.path, mpi, log=self.log)
        closed = closed_to_others(self.python.path, install_path())
        if closed:
            print_warning("Other users cannot run it: its Python is in %s, which they cannot enter. To install for "
                          "them, put another Python first on $PATH, or add %s to the dependencies", closed, OWN_PYTHON)

    def find_python(self):
        versions = self.cfg['python_versions']
        for path in self.packages_below():
            versions = [version for version in versions if '/python%s/' % version in path]
            if not versions:
                stop(self, "The module below has its packages in %s, and %s is for Python %s: take an older version of "
                     "it, or install that module with one of these first"
                     % (path, self.name, ' or '.join(self.cfg['python_versions'])))
        root = get_software_root('Python')
        programs = [os.path.join(root, 'bin', 'python3')] if root else pythons(versions)
        modules = [dep['full_mod_name'] for dep in self.cfg.dependencies()]
        python, found = find_python(programs, versions, modules)
        if python:
            return python
        own = ''
        if '3.12' in versions:
            own = " If there is none, install %s-%s%s.eb, and add %s to the dependencies" % (*OWN_PYTHON, OWN_PYTHON)
        raise EasyBuildError("%s %s needs Python %s; found: %s. Load the module of one of them, or install one.%s",
                             self.name, self.version, ' or '.join(versions), found, own)

    def install_build_tools_of_system(self):
        """Install a C++ compiler and Python.h where they are missing and that is allowed."""
        missing = []
        if not shutil.which(self.system.compilers['cxx'] or 'c++') and not shutil.which('c++'):
            missing.append('g++')
        if not self.python.headers:
            missing.append('python%s-dev' % self.python.version)
        if missing:
            what = "Building %s needs a C++ compiler and the Python.h of %s, or of %s in the dependencies: "
            packages = ', '.join(self.cfg['build_from_source'])
            with as_easybuild_error(what % (packages, self.python.path, OWN_PYTHON)):
                distribution_packages.install(missing)

    def cuda_architectures(self):
        return build_option('cuda_compute_capabilities') or self.cfg['cuda_compute_capabilities'] or []

    def named_file(self, name):
        """Return a lock file or script that the easyconfig names, or that --robot-paths and the source path have."""
        path = named_file(self.cfg.path, name) or self.obtain_file(name, no_download=True, warning_only=True)
        # a dry run of EasyBuild returns where a missing file would be
        if not os.path.exists(path or ''):
            stop(self, "%s, which %s names, is missing. Put it beside the easyconfig, or into a directory of "
                 "--robot-paths. One whose .in file is there: ./eb --renew EASYCONFIG"
                 % (name, os.path.basename(self.cfg.path)), also_in_dry_run=True)
        return path

    def locked(self, parameter):
        return [entry for lock in self.cfg[parameter] for entry in self.entries_of(lock)]

    def entries_of(self, lock):
        with as_easybuild_error(easyblock=self):
            return read_lock(self.named_file(lock))

    def check_locks(self):
        """Stop unless all files are there, and locks are of this version; of a copied easyconfig they may not be."""
        for name in self.cfg['scripts'] + self.cfg['example_files']:
            self.named_file(name)
        if self.name in self.cfg['collection_packages'] and self.version != VERSION:
            stop(self, "This collection has %s %s, the easyconfig says %s: correct `version`, and the name of its file"
                 % (self.name, VERSION, self.version))
        brings_torch = self.name == 'PyTorch' or any(entry.name == 'torch' for entry in self.locked('lock_files'))
        alone = not brings_torch and {dep['name'] for dep in self.cfg.dependencies()} <= {'Python'}
        for parameter in LOCK_PARAMETERS:
            versions = {}
            other = other_version(self.locked(parameter), self.name, self.version)
            if other:
                stop(self, "The lock file has %s, the easyconfig says %s. For an easyconfig and lock files of that: "
                     "./eb --new-version=%s EASYCONFIG" % (other, self.version, self.version))
            for lock in self.cfg[parameter]:
                entries = self.entries_of(lock)
                for entry in entries:
                    if UNKNOWN in entry.hashes:
                        stop(self, "%s %s has no SHA256 yet, but zeros: see the comment in its lock file"
                             % (entry.name, entry.version))
                    if not PLATFORM_MARKER.search(entry.text):
                        versions.setdefault(entry.name, {}).setdefault(lock, set()).add(entry.version)
                with as_easybuild_error(easyblock=self):
                    check_list(self.named_file(lock), entries, self.cfg['python_versions'], alone)
            self.check_versions(versions)
        self.check_gpus_of_locks()

    def check_torch_below(self):
        """Refuse a second PyTorch, or torchvision for another one, which would hide that of the modules below."""
        below = {'torch': dep['full_mod_name'] for dep in self.cfg.dependencies() if dep['name'] == 'PyTorch'}
        below.update(versions_in(self.packages_below()))
        for entry in self.locked('lock_files'):
            there = below.get(entry.name) if entry.name in ('torch', 'torchvision', 'torchaudio') else None
            if there and (entry.name == 'torch' or FOR_TORCH.findall(there) != FOR_TORCH.findall(entry.version)):
                stop(self, "The lock file has %s %s, which would hide that of the modules below (%s): leave %s out, "
                     "with --overrides as in the .in file of Transformers, and make the lock again"
                     % (entry.name, entry.version, there, entry.name))

    def check_gcc(self):
        """Refuse a GCC that is too old for PyTorch's headers, of the modules or of the machine."""
        packages = self.cfg['collection_packages']
        compiler = shutil.which(self.system.compilers['mpi_cxx'] or 'mpicxx') or shutil.which('c++')
        if not packages or not compiler or FILES_ONLY:
            return
        # other compilers' begins with a word
        found = re.search(r' __VERSION__ "(\d[.\d]*)', run([compiler, '-dM', '-E', '-x', 'c++', os.devnull]).stdout)
        versions = {'gcc': found.group(1)} if found else {}
        versions['pytorch'] = of_dependencies(self.cfg).get('PyTorch', '')
        versions.update(('pytorch', entry.version) for entry in self.locked('lock_files') if entry.name == 'torch')
        for row in known(versions, packages):
            stop(self, "%s is GCC %s, but %s. Load a newer GCC with its MPI. If the easyconfig names their modules, "
                 "change these there, or draft again (./eb --survey --new-system)"
                 % (compiler, versions['gcc'], row['why']))

    def check_versions(self, versions):
        """Stop unless locks have a package in one version: pip would find out after it has fetched gigabytes."""
        for name, of_locks in versions.items():
            if not set.intersection(*of_locks.values()):
                places = ['%s in %s' % (' or '.join(sorted(found)), lock) for lock, found in of_locks.items()]
                stop(self, "%s is %s: write one version into their .in files, then: ./eb --renew EASYCONFIG"
                     % (name, ', and '.join(places)))

    @property
    def wants_gpus(self):
        node = self.system.node
        return bool(node['gpus'] or node['gpu_architecture']) and gpu_code.CPU not in self.cfg['features']

    @property
    def other_processor(self):
        """Say which processors the nodes of this system have, if this computer has others."""
        nodes, here = self.system.system['architecture'], os.uname().machine
        return nodes and nodes != here and "the nodes of %s are %s, this is %s" % (self.system.name, nodes, here)

    def check_gpus_of_locks(self):
        """Refuse wheels for processors alone where there are GPUs, before they are fetched."""
        architecture = self.system.system['architecture'] or os.uname().machine
        for entry in self.locked('lock_files') + self.locked('lock_files_instead'):
            others = re.findall(r"platform_machine == '(\w+)'", entry.text)
            applies = entry.name == 'torch' and (not others or architecture in others)
            if applies and self.wants_gpus and gpu_code.is_cpu_only(entry.version, architecture):
                stop(self, gpu_code.why_not_cpu_only(entry.version, self.system))
        packages = {entry.name: entry.version for entry in self.locked('lock_files')}
        rocm = gpu_code.why_not_rocm(packages.get('torch', ''), of_dependencies(self.cfg).get('rocm'))
        for problem in filter(None, [gpu_code.why_not_cuda(packages, self.system), rocm]):
            stop(self, problem)

    def divide_packages(self):
        """Return the entries of which wheels, and those of which sources are fetched."""
        built = {normal_name(name) for name in self.cfg['build_from_source']}
        if self.cfg['mpi_lock_files'] and not self.mpi_compilers:
            # its wheel runs with the locked MPI
            built.discard('mpi4py')
        entries = self.locked(self.locks)
        sources = [entry for entry in entries if entry.name in built]
        wheels = [entry for entry in entries if entry.name not in built]
        if not self.mpi_compilers:
            wheels += self.locked('mpi_lock_files')
        return wheels, sources

    def fetch_step(self, *args, **kwargs):
        """Fetch what the locks name, unless all of it lies in a source path."""
        self.check_locks()
        if self.dry_run:
            # avoid upstream's failure on a missing checksums.json
            self.json_checksums = {}
        elif self.other_processor and 'HPC_PYTORCH_REHEARSAL' not in os.environ:
            raise EasyBuildError("%s: its wheels would be of no use there. Type this on a node with their processor, "
                                 "or correct `architecture` in system.cfg", self.other_processor)
        with self.loaded_dependencies():
            self.check_torch_below()
            self.check_gcc()
            if not self.dry_run:
                self.find_python_and_mpi()
                self.check_before_fetching()
        if self.python:
            os.environ.setdefault('HPC_JOB_PYTHON', self.python.path)
        super().fetch_step(*args, **kwargs)
        if self.dry_run:
            self.show_packages()
        elif not self.wheels:
            with self.loaded_dependencies():
                self.fetch_packages()

    def show_packages(self):
        if self.other_processor:
            self.dry_run_msg("  * not looked at: whether these have wheels for the nodes: %s", self.other_processor)
        versions = {}
        for entry in self.locked('lock_files'):
            versions.setdefault(entry.name, set()).add(entry.version)
        for name in sorted(versions):
            self.dry_run_msg("  * %s %s", name, ' or '.join(sorted(versions[name])))

    def fetch_packages(self):
        """Fetch from the easyconfig's own index, or the other locks from the user's where that is not reached."""
        try:
            self.gather_files()
        except IndexNotReached:
            if not self.cfg['lock_files_instead']:
                raise
            self.locks = 'lock_files_instead'
            print_msg("Cannot reach %s; falling back to your own index, whose wheels may bring CUDA: about 3 GB. To "
                      "avoid that, set https_proxy, or PIP_EXTRA_INDEX_URL to a mirror of it",
                      ' '.join(self.cfg['extra_index_urls']), log=self.log)
            lacking = {entry.name for entry in self.locked('lock_files') if not PLATFORM_MARKER.search(entry.text)}
            lacking -= {entry.name for entry in self.locked(self.locks)}
            if lacking:
                raise EasyBuildError("lock_files_instead lacks %s, which lock_files has: add it to an .in file of "
                                     "these locks, then: ./eb --renew EASYCONFIG", ', '.join(sorted(lacking)))
            self.gather_files()

    def gather_files(self):
        """Make a directory with links to all files, of which those that are not here are fetched."""
        files = PackageFiles(self.python, built_wheels.stores(self.cfg, source_paths(), 'wheels'), self.log)
        wheels, sources = self.divide_packages()
        tools = self.locked('build_lock_files')
        sources += self.other_sources
        files.link(wheels + tools + sources)
        for entries in (wheels, tools):
            missing = files.missing_wheels(entries)
            if missing:
                files.download_wheels(missing, self.cfg['extra_index_urls'])
        urls = self.cfg['package_urls']
        missing = files.missing_sources(sources)
        for entry in [entry for entry in missing if entry.name in urls]:
            files.download_release(entry, urls[entry.name])
        from_index = [entry for entry in missing if entry.name not in urls]
        if from_index:
            files.download_sources(from_index, tools)
        self.wheels = files.directory

    def prepare_step(self, *args, **kwargs):
        """Load the system's modules; find Python here where fetching was skipped."""
        if self.dry_run:
            # upstream would change permissions of wrappers that a dry run does not write
            self.toolchain.options['rpath'] = False
        super().prepare_step(*args, **kwargs)
        if not self.dry_run:
            self.find_python_and_mpi()

    def pip(self):
        return Pip(self.python, self.path('bin', 'python'))

    def install_step(self):
        if self.dry_run:
            packages = {entry.name for entry in self.locked('lock_files')}
            built = ', '.join(self.cfg['build_from_source'])
            self.dry_run_msg("virtual environment with %d packages, %s built here", len(packages), built or 'none')
            return
        made = ask(self.python.path, '-I', '-m', 'venv', '--without-pip', self.path())
        if made.exit_code:
            raise EasyBuildError("Making the virtual environment %s failed: %s", self.path(), last_words(made.output))
        wheels, sources = self.divide_packages()
        with progress("installing %d packages" % len({entry.name for entry in wheels}), self.log):
            self.pip().install_wheels(wheels, self.wheels)
        for path in self.own_files():
            if path.endswith('.whl'):
                self.install_file(path)
        self.build_packages(sources)
        for package in self.cfg['collection_packages']:
            self.install_from_collection(package)
        with progress("compiling to byte code", self.log):
            # not packages' own tests; not every file is for this Python. If it is killed, its workers live on: no pipe
            ask('sh', '-c', 'exec "$@" > /dev/null 2>&1', 'sh', self.path('bin', 'python'), '-I', '-m', 'compileall',
                '-q', '-j', '0', '-x', 'site-packages/.*/(tests|testing/_internal)/', self.site_packages())
        self.install_scripts()

    def install_file(self, path):
        """Install a wheel that is in no lock file; its checksum was compared when it was fetched or built."""
        self.pip().install_wheels([entry_of(path)], os.path.dirname(path))

    def build_packages(self, entries):
        """Build these locked packages, and those whose sources the easyconfig names, with the system's MPI."""
        built = [(entry, self.wheels) for entry in entries]
        sources = [path for path in self.own_files() if not path.endswith('.whl')]
        built += [(entry_of(path), os.path.dirname(path)) for path in sources]
        if not built:
            return
        tools = os.path.join(self.builddir, 'tools')
        variables = self.build_variables()
        # before the directories that Python adds, where a libmpi.so of another MPI may lie
        shown = ask(*shlex.split(variables['MPICC']), '-show').output
        own = re.findall(r'(?<!\S)-L\S+', shown)
        gcc = re.match(r'(\S*/)?g?cc ', shown) and not os.environ.get('CFLAGS')
        variables['LDFLAGS'] = ' '.join([*own, variables.get('LDFLAGS', os.environ.get('LDFLAGS', ''))])
        variables['PYTHONPATH'] = os.pathsep.join([tools] + self.packages_below())
        if self.cuda_architectures():
            # PyTorch would look for GPUs on this machine
            variables.setdefault('TORCH_CUDA_ARCH_LIST', ';'.join(self.cuda_architectures()))
        names = {entry.name for entry, _ in built}
        with progress("building %s, which takes minutes" % ', '.join(sorted(names)), self.log):
            self.pip().install(self.locked('build_lock_files'), self.wheels, '--target', tools, '--no-compile')
            for entry, directory in built:
                flags = {'CFLAGS': QUICK[entry.name]} if gcc and entry.name in QUICK else {}
                self.pip().install([entry], directory, '--no-build-isolation', '--no-binary', ':all:',
                                   environment=dict(flags, **variables))

    def build_variables(self):
        variables = self.compilers()
        variables['PATH'] = os.pathsep.join([self.path('bin'), os.environ['PATH']])
        mpi = self.mpi_compilers or (self.path('bin', 'mpicc'), self.path('bin', 'mpicxx'))
        variables['MPICC'], variables['MPICXX'] = mpi
        variables.update(self.cfg['build_environment'])
        return variables

    def install_from_collection(self, package):
        """Build a package of the collection from a copy, as building writes beside the sources, and install it."""
        variables = dict(self.build_variables(), PYTHONPATH=os.pathsep.join(self.packages_below()))
        copied = os.path.join(self.builddir, package)
        copy_dir(collection_path(package), copied)
        with progress("building %s for this PyTorch and this MPI" % package, self.log):
            built = self.pip()('wheel', '--quiet', '--no-index', '--no-build-isolation', '--no-deps', '--no-cache-dir',
                               '--wheel-dir', self.builddir, copied, environment=variables)
        if built.exit_code:
            raise EasyBuildError("Building %s of this collection failed: %s", package, built.output.strip()[-2000:])
        for wheel in glob.glob('%s/%s-*.whl' % (glob.escape(self.builddir), package)):
            self.install_file(wheel)

    def install_scripts(self):
        for parameter, directory, permissions in (('scripts', 'bin', 0o755), ('example_files', 'examples', 0o644)):
            for name in self.cfg[parameter]:
                target = self.path(directory, os.path.basename(name))
                copy_file(self.named_file(name), target)
                adjust_permissions(target, permissions, relative=False)
        if self.cfg['features'] or 'pytorch-run' in self.cfg['scripts']:
            copy(self.system.for_scripts, self.path('share'))
        self.write_constraints()

    def write_constraints(self):
        """Write constraints.txt, by which pip and uv keep this PyTorch ($PIP_CONSTRAINT, $UV_CONSTRAINT)."""
        versions = sorted(versions_in([self.site_packages()]).items())
        lines = ['%s==%s\n' % pair for pair in versions if CONSTRAINED.match(pair[0])]
        if lines:
            write_file(self.path('share', 'constraints.txt'), ''.join(lines))

    def site_packages(self):
        """Find the packages' directory in the installation itself, so that --module-only works."""
        for path in site_packages_of(self.installdir):
            return path
        if self.dry_run:
            return self.path('lib', 'python3', 'site-packages')
        raise EasyBuildError("nothing is installed at %s (found no lib/python3.*/site-packages): install it first, "
                             "without --module-only and --sanity-check-only", self.path())

    def packages_below(self):
        """Find the packages of the dependencies, and of those that these load: of Transformers, PyTorch's, too."""
        roots = []
        names = [dep['name'] for dep in self.cfg.dependencies() if not dep['external_module']]
        for name in names:
            root = get_software_root(name)
            if root and root not in roots and os.path.isfile(os.path.join(root, 'pyvenv.cfg')):
                roots.append(root)
                for easyconfig in glob.glob(glob.escape(root) + '/easybuild/*.eb'):
                    names += DEPENDENCY.findall(read_file(easyconfig))
        return [path for root in roots for path in site_packages_of(root)]

    def settings(self, variables=None):
        return self.system.settings_for(self.cfg['features'], of_dependencies(self.cfg), variables)

    def make_module_extra(self, *args, **kwargs):
        """Put only the packages of this module and of those below it on $PYTHONPATH, and hide those below $HOME."""
        # the user's own come back when it is unloaded; virtual environments on top of it see its packages
        module = self.module_generator
        text = super().make_module_extra(*args, **kwargs)
        path = os.pathsep.join([self.site_packages(), *self.packages_below()])
        text += override(module, self.name, 'PYTHONPATH', path)
        text += override(module, self.name, 'PYTHONNOUSERSITE', '1')
        if self.cfg['features']:
            text += set_for_system(module, self.system, self.settings())
        return text

    def sanity_check_step(self, *args, **kwargs):
        """Check that scripts and packages are there; asks Python where nothing was installed in this call."""
        if self.python is None and not self.dry_run:
            self.python = ask_python(self.path('bin', 'python'))
        programs = ['python'] + [os.path.basename(script) for script in self.cfg['scripts']]
        kwargs['custom_paths'] = {
            'files': ['bin/' + program for program in programs],
            'dirs': [os.path.relpath(self.site_packages(), self.path())],
        }
        what = "importing every package, and running what the easyconfig asks"
        with suppress() if self.dry_run else progress(what, self.log):
            try:
                super().sanity_check_step(*args, **kwargs)
            except EasyBuildError as error:
                error.msg += '\n' + known_errors.explain(error.msg)
                raise

    def sanity_check_load_module(self, *args, **kwargs):
        loaded = super().sanity_check_load_module(*args, **kwargs)
        if self.sanity_check_module_loaded and not self.dry_run:
            problem = self.check_gpu_code() or self.check_packages()
            if problem:
                self.sanity_check_fail_msgs.append(problem)
            self.warn_of_other_versions()
        return loaded

    def sanity_check_rpath(self, *args, **kwargs):
        """Wheels were linked elsewhere and bring their libraries along: nothing of EasyBuild's RPATH is in them."""
        self.log.info("RPATH is not checked in wheels")
        return []

    def check_gpu_code(self):
        """Say why the installed PyTorch is not for the GPUs that were named, or else for the system's."""
        named = self.cuda_architectures()
        gpus = named or list(filter(None, [self.system.node['gpu_architecture']]))
        if not named and not self.wants_gpus:
            return None
        done = ask(self.path('bin', 'python'), '-I', '-c', gpu_code.PROBE, split_stderr=True)
        if done.exit_code:
            # whether there is one, and whether it imports, is another check's question
            return None
        version, *codes = done.output.split()
        if codes == [gpu_code.CPU] and not named:
            return gpu_code.why_not_cpu_only(version, self.system)
        return gpu_code.why_not(version, codes, gpus)

    def check_packages(self):
        """Import every package, and look whether those that were compiled for PyTorch find its symbols."""
        if 'pytorch-check' not in self.cfg['scripts']:
            return None
        done = ask(self.path('bin', 'python'), self.path('bin', 'pytorch-check'), 'packages')
        return (done.output.strip() or "the import of its packages was killed") if done.exit_code else None

    def warn_of_other_versions(self):
        """Name packages that are for others than are there, or lack one, as --overrides allows: they may fail later."""
        path = os.pathsep.join([self.site_packages(), *self.packages_below()])
        done = self.pip()('check', environment={'PYTHONPATH': path})
        # vLLM's wheel for processors does without torchvision and others
        unmet = re.findall('.* has requirement .*|.* requires (?!torch|triton).*, which is not installed', done.output)
        if unmet:
            print_warning("%s\nIf they fail: docs/troubleshooting.rst, \"numpy.dtype size changed\"", '\n'.join(unmet))
        own, below = versions_in([self.site_packages()]), versions_in(self.packages_below())
        hidden = ['%s %s (%s)' % (name, own[name], below[name]) for name in sorted(own)
                  if own[name] != below.get(name, own[name])]
        if hidden:
            print_warning("It hides other versions, of modules below: %s. To keep those: docs/support.rst, \"Packages "
                          "of a group as a module\", step 2", ', '.join(hidden))
