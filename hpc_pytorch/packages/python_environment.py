"""A virtual environment with locked packages, and what makes a module of it that nothing of the user's own disturbs."""
import glob
import hashlib
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import source_paths
from easybuild.tools.filetools import adjust_permissions, convert_name, copy, copy_dir, copy_file
from easybuild.tools.modules import get_software_root
from easybuild.tools.run import run_shell_cmd

from hpc_pytorch import UsersProblem, collection_path
from hpc_pytorch.machine.module_files import explain, override, set_by_default, told_by
from hpc_pytorch.machine.systems import FEATURES
from hpc_pytorch.packages import built_wheels, gpu_code, locked_packages, own_tests
from hpc_pytorch.packages.lock_files import Locked, sha256_of
from hpc_pytorch.packages.pip import Pip
from hpc_pytorch.packages.pip_errors import last_words
from hpc_pytorch.packages.progress import files_like, telling
from hpc_pytorch.packages.wheel_tags import ask_python, name_and_version

# Easyconfig parameters of every easyblock that makes such an environment.
PARAMETERS = dict(locked_packages.PARAMETERS, **{
    'collection_packages': [[], "Packages of this collection to build here for what was installed", CUSTOM],
    'build_environment': [{}, "Environment variables for packages that are built from source", CUSTOM],
    'scripts': [[], "Scripts to install in bin, beside the easyconfig or in scripts", CUSTOM],
    'example_files': [[], "Files to install in examples, beside the easyconfig or in scripts/examples", CUSTOM],
    'features': [[], "Those of %s that it uses; they decide which settings of the system apply"
                 % ', '.join(sorted(FEATURES)), CUSTOM],
    'max_failed_tests': [0, "Tests of `pytorch_tests` that may fail, besides those that are known to", CUSTOM],
})
# For `module help`: what to type, with each script and example that an easyconfig installs.
USAGE = (
    ('pytorch-check', "See whether it works here:", "pytorch-check"),
    ('train.py', "Train on this machine:", "torchrun --nproc-per-node 2 $EBROOT{name}/examples/train.py"),
    ('train.py', "Copy the examples:", "cp $EBROOT{name}/examples/*.py ."),
    ('pytorch-run', "Train on two nodes:", "pytorch-run --nodes 2 --time 10 train.py"),
    ('train_fsdp.py', "Go on when time is up:", "pytorch-run --nodes 2 --time 10 --requeue 5 train_fsdp.py"),
    ('pytorch-jobscript', "Write the job script alone:", "pytorch-jobscript --nodes 2 --time 10 train.py > job"),
    ('pytorch-srun', "Train within a job:", "{launcher} ... pytorch-srun train.py"),
    ('extend-venv-activate', "Add packages of your own:", "python -m venv mine; extend-venv-activate mine; "
                                                          "source mine/bin/activate; pip install ..."),
    (None, "How it was installed:", "ls $EBROOT{name}/easybuild"),
)


def entry_of(path):
    """What a lock file would say of this wheel or source."""
    name, version = name_and_version(path)
    digest = sha256_of(path)
    return Locked(name, version, frozenset([digest]), '%s==%s --hash=sha256:%s' % (name, version, digest))


class PythonEnvironment:
    """The environment that an easyblock makes of its locked packages."""

    def __init__(self, packages, features, compilers):
        """`features` are what it has of the system's; `compilers` are variables for packages that are built here."""
        self.packages = packages
        self.easyblock = packages.easyblock
        self.cfg = packages.cfg
        self.features = features
        self.compilers = compilers
        # man looks beside the programs on $PATH, too; a $MANPATH of ours alone would hide the system's pages from it
        self.easyblock.module_load_environment.remove('MANPATH')
        self.cfg['usage'] = '\n'.join(filter(None, [
            self.cfg['usage'], self.usage(),
            features and explain(self.settings(), self.settings(self.packages.system.advice))]))

    def usage(self):
        """For `module help`: what to type first."""
        there = [os.path.basename(name) for name in self.cfg['scripts'] + self.cfg['example_files']]
        if not there:
            return ''
        name, launcher = convert_name(self.cfg.name, upper=True), self.packages.system.launcher['command']
        return '\n'.join('%-27s %s' % (what, command.format(name=name, launcher=launcher))
                         for script, what, command in USAGE if script in there + [None])

    def path(self, *parts):
        return os.path.join(self.easyblock.installdir, *parts)

    def pip(self):
        return Pip(self.packages.python, self.path('bin', 'python'))

    # --- installing -------------------------------------------------------------------------------------------------

    def install(self, store, wheels):
        """A virtual environment with the locked wheels and these, or their sources, what is built here, and scripts."""
        if self.easyblock.dry_run:
            self.easyblock.dry_run_msg("virtual environment with %d packages, %s built here",
                                       len({entry.name for entry in self.packages.locked('lock_files')}),
                                       ', '.join(self.cfg['build_from_source']) or 'none')
            return
        made = run_shell_cmd([self.packages.python.path, '-I', '-m', 'venv', '--without-pip', self.path()],
                             use_bash=False, fail_on_error=False, hidden=True)
        if made.exit_code:
            raise EasyBuildError("Making the virtual environment %s failed: %s", self.path(), last_words(made.output))
        built = [(entry, store) for entry in self.packages.to_build() if self.packages.does_not_fit(entry, store)]
        entries = [entry for entry in self.packages.to_install() if (entry, store) not in built]
        number = len({entry.name for entry in entries})
        installed = files_like(os.path.join(glob.escape(self.site_packages()), '*.dist-info'), "%%d of %d" % number)
        with telling("installing %d packages" % number, self.easyblock.log, installed):
            self.unpack(entries, store)
        for wheel in wheels:
            if wheel.endswith('.whl'):
                self.install_wheel(wheel, '--no-compile')
        compiled = files_like(os.path.join(glob.escape(tempfile.gettempdir()), '**', '*.o'), "%d files compiled")
        with self.byte_code():
            built += [(entry_of(path), os.path.dirname(path)) for path in wheels if not path.endswith('.whl')]
            if built:
                names = ', '.join(sorted({entry.name for entry, _ in built}))
                with telling("building %s, which takes minutes" % names, self.easyblock.log, compiled):
                    self.build_here(built, store)
            for package in self.cfg['collection_packages']:
                self.install_from_collection(package, compiled)
        self.install_files('scripts', 'bin', 0o755)
        self.install_files('example_files', 'examples', 0o644)
        if self.features:
            # what scripts have to know of the system
            copy(self.packages.system.for_scripts, self.path('share'))

    def unpack(self, entries, store):
        """PyTorch, which is as much as all the rest together, beside the rest."""
        torch = [entry for entry in entries if entry.name == 'torch']
        rest = [entry for entry in entries if entry not in torch]
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(self.pip().install, some, store, '--only-binary', ':all:', '--no-compile')
                         for some in (torch, rest) if some]:
                done.result()

    @contextmanager
    def byte_code(self):
        """
        On all cores and beside what is built meanwhile; not every file of every package is for this Python, and the
        packages' own tests, a fifth of all, are for nobody here.
        """
        compiling = subprocess.Popen([self.path('bin', 'python'), '-I', '-m', 'compileall', '-q', '-j', '0', '-x',
                                      'site-packages/.*/(tests|testing/_internal)/', self.site_packages()],
                                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            compiling.wait()

    def install_wheel(self, path, *arguments):
        """Install a wheel that is in no lock file; its checksum was compared when it was fetched or built."""
        self.pip().install([entry_of(path)], os.path.dirname(path), '--only-binary', ':all:', *arguments)

    def build_here(self, built, store):
        """Build these, each from its store, with the system's MPI, or with the one just installed."""
        tools = os.path.join(self.easyblock.builddir, 'tools')
        self.pip().install(self.packages.locked('build_lock_files'), store, '--target', tools, '--no-compile')
        environment = dict(self.build_environment(), PYTHONPATH=os.pathsep.join([tools] + self.packages_below()))
        if self.packages.cuda_architectures():
            # for what is compiled for GPUs, which PyTorch would look for on this machine
            environment.setdefault('TORCH_CUDA_ARCH_LIST', ';'.join(self.packages.cuda_architectures()))
        for entry, place in built:
            self.pip().install([entry], place, '--no-build-isolation', '--no-binary', ':all:', environment=environment)

    def own_tests(self, tree=None):
        """The files of PyTorch's own tests that are asked for."""
        try:
            return self.cfg['pytorch_tests'] and own_tests.files(self.cfg['pytorch_tests'], tree)
        except UsersProblem as problem:
            raise EasyBuildError("%s", problem)

    def test(self, store, wheels, tree=None):
        """Run the list of PyTorch's own tests that is asked for, with what is going to be installed."""
        tests, place = self.own_tests(tree), os.path.join(self.easyblock.builddir, 'pytorch-tests')
        if not tests or self.easyblock.dry_run:
            return
        packages = os.path.join(place, 'packages')
        arguments = ('--only-binary', ':all:', '--no-compile', '--upgrade', '--target', packages)
        pip = Pip(self.packages.python)
        with telling("unpacking PyTorch for its tests", self.easyblock.log):
            pip.install(self.packages.to_install() + self.packages.for_tests(), store, *arguments)
            for wheel in [path for path in wheels if path.endswith('.whl')]:
                pip.install([entry_of(wheel)], os.path.dirname(wheel), *arguments)
        found = {}
        for name, path in tests:
            with telling("running PyTorch's own %s" % name, self.easyblock.log):
                found[name] = own_tests.run(self.packages.python.path, packages, place, name, path)
        lines = own_tests.table(found)
        self.easyblock.log.info("PyTorch's own tests:\n%s", '\n'.join(lines))
        print_msg("PyTorch's own tests:\n%s", '\n'.join(lines[:len(found) + 1]), log=self.easyblock.log)
        problem = own_tests.verdict(found, self.cfg['max_failed_tests'])
        if problem:
            raise EasyBuildError("PyTorch's own tests: %s. What they printed is in %s:\n%s", problem, place,
                                 '\n'.join(line for line in lines if line.startswith('failed:')))

    def build_environment(self):
        own = self.path('bin')
        c_compiler, cxx_compiler = self.packages.mpi_compilers or [self.path('bin', name)
                                                                   for name in ('mpicc', 'mpicxx')]
        variables = dict(self.compilers, MPICC=c_compiler, MPICXX=cxx_compiler,
                         PATH=os.pathsep.join([own, os.environ['PATH']]))
        if not self.packages.mpi_compilers:
            # before the directories that Python adds, where a libmpi.so of another MPI may lie
            variables['LDFLAGS'] = '-L' + self.path('lib')
        return dict(variables, **self.cfg['build_environment'])

    def install_from_collection(self, package, compiled):
        """Install a package of the collection, built here unless a source path has the wheel built from the same."""
        facts = self.facts_of(package)
        stores = [os.path.join(path, package[0], package) for path in source_paths()]
        wheel = built_wheels.find(stores, facts)
        if wheel:
            print_msg("using the %s that was built earlier: %s", package, wheel, log=self.easyblock.log)
        else:
            with telling("building %s for this PyTorch and this MPI" % package, self.easyblock.log, compiled):
                wheel = self.build_from_collection(package)
            try:
                wheel = built_wheels.keep(wheel, stores[0], facts, {'asked': {}})
            except OSError as err:
                print_msg("the wheel of %s could not be kept in the source path: %s", package, err,
                          log=self.easyblock.log)
        self.install_wheel(wheel)

    def facts_of(self, package):
        """What makes its wheel what it is: the sources, PyTorch, Python, the compiler and its MPI."""
        flags = {name: os.environ[name] for name in ('CFLAGS', 'CPPFLAGS', 'CXXFLAGS', 'LDFLAGS') if name in os.environ}
        variables = dict(flags, **self.build_environment())
        del variables['PATH']
        files = glob.glob(os.path.join(glob.escape(collection_path(package)), '**'), recursive=True)
        python, modules = self.packages.python, self.easyblock.modules_tool.loaded_modules()
        # the macros of mpi.h have the compiler's version, too, and the processor that it compiles for
        asked = ([self.path('bin', 'python'), '-I', '-c', "import torch; print(torch._C._GLIBCXX_USE_CXX11_ABI, "
                  "open(torch.version.__file__).read())"],
                 [variables['MPICXX'], '-show'], [variables['MPICXX'], '-x', 'c++', '-E', '-dM', '-'])
        said = [run_shell_cmd(words, stdin='#include <mpi.h>\n', use_bash=False, fail_on_error=False, hidden=True,
                              output_file=False).output for words in asked]
        return {'sources': sorted(sha256_of(path) for path in files if os.path.isfile(path)),
                'python': [python.implementation, python.version, python.machine], 'torch': said[0],
                'variables': variables, 'modules': sorted(modules), 'mpi': said[1],
                'macros': hashlib.sha256(said[2].encode()).hexdigest()}

    def build_from_collection(self, package):
        """Build a package of the collection from a copy, as building writes beside the sources; its wheel."""
        place = tempfile.mkdtemp(prefix='collection-')
        copy = os.path.join(place, package)
        copy_dir(collection_path(package), copy)
        result = self.pip()('wheel', '--quiet', '--no-index', '--no-build-isolation', '--no-deps', '--no-cache-dir',
                            '--wheel-dir', place, copy, environment=self.build_environment())
        if result.exit_code:
            raise EasyBuildError("Building %s of this collection failed: %s", package, result.output.strip()[-2000:])
        return glob.glob(os.path.join(place, '*.whl'))[0]

    def install_files(self, parameter, directory, permissions):
        for name in self.cfg[parameter]:
            target = self.path(directory, os.path.basename(name))
            copy_file(self.packages.named_file(name), target)
            adjust_permissions(target, permissions, relative=False)

    def check_gpu_code(self):
        """Why the PyTorch that is installed here is not for the GPUs that were named, or else for the system's."""
        gpu, named = self.packages.system.node['gpu_architecture'], self.packages.cuda_architectures()
        gpus = named or [gpu] * bool(gpu)
        if not gpus or not glob.glob(os.path.join(glob.escape(self.site_packages()), 'torch-*.dist-info')):
            return []
        done = run_shell_cmd([self.path('bin', 'python'), '-I', '-c', gpu_code.PROBE], use_bash=False,
                             fail_on_error=False, hidden=True, split_stderr=True)
        # whether it imports at all is another check's question
        version, *codes = [None] if done.exit_code else done.output.split()
        # on a system with GPUs one may want a PyTorch without, if nobody named them
        problem = None if codes == [gpu_code.CPU] and not named else gpu_code.why_not(version, codes, gpus)
        return [problem] if problem else []

    def check_packages(self):
        """With the module loaded: every package imports, and those that were compiled for PyTorch find its symbols."""
        problems = self.check_gpu_code()
        if problems or 'pytorch-check' not in self.cfg['scripts']:
            return problems
        command = [self.path('bin', 'python'), self.path('bin', 'pytorch-check'), 'packages']
        with telling("checking that every package imports", self.easyblock.log):
            done = run_shell_cmd(command, use_bash=False, fail_on_error=False, hidden=True)
        return [done.output.strip()] if done.exit_code else []

    # --- the module -------------------------------------------------------------------------------------------------

    def site_packages(self):
        """Where the packages are; known from the installation itself, so that --module-only works."""
        paths = glob.glob(self.path('lib', 'python3.*', 'site-packages'))
        if len(paths) != 1 and not self.easyblock.dry_run:
            raise EasyBuildError("nothing is installed at %s (one lib/python3.*/site-packages was expected, %d found): "
                                 "install it first, without --module-only and --sanity-check-only",
                                 self.path(), len(paths))
        return paths[0] if paths else self.path('lib', 'python3', 'site-packages')

    def packages_below(self):
        """Where the packages are of the modules like this one that it is loaded on top of."""
        roots = [get_software_root(dep['name']) for dep in self.cfg.dependencies() if not dep['external_module']]
        return [path for root in filter(None, roots) if os.path.isfile(os.path.join(root, 'pyvenv.cfg'))
                for path in glob.glob(os.path.join(glob.escape(root), 'lib', 'python3.*', 'site-packages'))]

    def module_text(self):
        """
        Only the packages of this module and of those below it: a user's $PYTHONPATH is put aside until the module
        is unloaded, and packages below $HOME are not seen. Virtual environments on top of the module see its packages.
        """
        module = self.easyblock.module_generator
        path = os.pathsep.join([self.site_packages()] + self.packages_below())
        text = ''.join(override(module, self.easyblock.name, name, value)
                       for name, value in (('PYTHONPATH', path), ('PYTHONNOUSERSITE', '1')))
        return text + (self.system_settings(module) if self.features else '')

    def settings(self, variables=None):
        """The settings of the system that apply, or what applies of these."""
        versions = {dep['name']: dep['version'] for dep in self.cfg.dependencies() if not dep['external_module']}
        versions.update(dep['full_mod_name'].split('/', 1) for dep in self.cfg.dependencies()
                        if dep['external_module'] and '/' in dep['full_mod_name'])
        return self.packages.system.settings_for(self.features, versions, variables)

    def system_settings(self, module):
        """What the system's data say for these features, and what pytorch-srun and cpu-mask want to know."""
        return ''.join([set_by_default(module, setting) for setting in self.settings()]
                       + [module.set_environment(*pair) for pair in told_by(self.packages.system)])

    def sanity_check_paths(self):
        """What must be there; asks Python where nothing was installed in this call."""
        if self.packages.python is None and not self.easyblock.dry_run:
            self.packages.python = ask_python(self.path('bin', 'python'))
        return {
            'files': ['bin/python'] + ['bin/%s' % os.path.basename(script) for script in self.cfg['scripts']],
            'dirs': [os.path.relpath(self.site_packages(), self.path())],
        }
