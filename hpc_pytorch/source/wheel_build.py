"""The base of EB_PyTorchHPC: a wheel of PyTorch, built when CMake's decisions are what was asked for."""
import glob
import io
import json
import os
import shutil
import sys
import tempfile
from contextlib import redirect_stderr

import easybuild.tools.environment as env
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import build_path, source_paths
from easybuild.tools.filetools import read_file, write_file
from easybuild.tools.modules import get_software_root
from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import nub

from hpc_pytorch import collection_path
from hpc_pytorch.packages import built_wheels, known_errors
from hpc_pytorch.packages.easybuild_errors import as_easybuild_error
from hpc_pytorch.packages.locked_environment import LockedEnvironment
from hpc_pytorch.packages.pip import Pip, ask
from hpc_pytorch.source import build_options, contract, gpu_aware_mpi, libraries

# Runs ramgate without putting the collection on the $PYTHONPATH of what it starts.
RUN_RAMGATE = ("import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
               "runpy.run_module('ramgate', run_name='__main__', alter_sys=True)")


def profile_to_keep(ec):
    """Return where ramgate's profile of this software outlives build directories and prefixes; None if not writable."""
    path = built_wheels.stores(ec, source_paths(), 'ramgate.json')[0]
    place = path if os.path.exists(path) else os.path.dirname(path)
    return path if os.access(place, os.W_OK) else None


def ramgate_command(easyblock, profile):
    """Return the command that runs a build within the memory, up to its own options."""
    command = [sys.executable, '-I', '-c', RUN_RAMGATE, collection_path('ramgate'), 'run']
    command += ['--jobs', str(easyblock.cfg.parallel), '--report', os.path.join(easyblock.builddir, 'ramgate')]
    if profile:
        command += ['--profile', profile]
        # other versions need about the same for most of their files; the newest measurement first
        pattern = os.path.join(glob.escape(os.path.dirname(profile)), '%s-*-ramgate.json' % easyblock.cfg['name'])
        for other in sorted(glob.glob(pattern), key=os.path.getmtime, reverse=True):
            if other != profile:
                command += ['--like', other]
    return command


def print_summary(easyblock):
    """Print the last line of ramgate: how much memory the build took, and whether ramgate saw it."""
    path = os.path.join(easyblock.builddir, 'ramgate', 'report.json')
    if os.path.exists(path):
        print_msg("ramgate: %s", '; '.join(json.loads(read_file(path))['summary']), log=easyblock.log)


def commit_of(source):
    """Return the commit that a source of an easyconfig names; None for released tarballs."""
    return source.get('git_config', {}).get('commit') if isinstance(source, dict) else None


def stubs_of(nvcc):
    """List the directories of CUDA's stubs, which are libraries to link with and never to load."""
    home = glob.escape(os.path.dirname(os.path.dirname(nvcc)))
    return glob.glob(home + '/lib64/stubs') + glob.glob(home + '/targets/*/lib/stubs')


class WheelBuild(LockedEnvironment):
    """Support for building PyTorch's wheel within the memory; `super()` is upstream's EB_PyTorch in the end."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # $PYTHONPATH is the environment's business
        self.require_python = False
        # options of the build: all of them, and what the easyconfig, the tables or the user named
        self.asked, self.named = {}, {}
        self.cmake_output = ''
        self.wheel = None

    @property
    def tree(self):
        """Return the source tree, which EasyBuild knows once it is unpacked."""
        return self.start_dir or self.builddir

    @property
    def route(self):
        found = build_options.route(self.version)
        if found is None:
            raise EasyBuildError("PyTorch %s is too old for this easyblock; the oldest that it builds: %s",
                                 self.version, build_options.ROUTES[-1].since)
        return found

    def compilers(self):
        names = self.system.compilers
        commands = {'CC': names['c'], 'CXX': names['cxx'], 'FC': names['fortran']}
        return {variable: command for variable, command in commands.items() if command}

    def check_before_fetching(self):
        """Refuse an nvcc that does not know the GPUs: the build would end much later."""
        wanted = self.cuda_architectures()
        listing = ask(self.nvcc(), '--list-gpu-arch').output if wanted else ''
        unknown = build_options.unknown_architectures(wanted, listing)
        if unknown:
            raise EasyBuildError("%s cannot compile for %s. It knows: %s", self.nvcc(), ', '.join(unknown),
                                 ' '.join(listing.split()))

    @staticmethod
    def first_line(compiler):
        return ask(compiler, '--version').output.split('\n')[0]

    def nvcc(self):
        found = shutil.which('nvcc')
        if not found:
            raise EasyBuildError("found no nvcc, which compiles for the GPUs %s: put the bin directory of a CUDA "
                                 "toolkit on $PATH", ', '.join(self.cuda_architectures()))
        return found

    def prepare_step(self, *args, **kwargs):
        """Use the system's compilers under their own names: EasyBuild's RPATH wrappers would hide them."""
        self.toolchain.options['rpath'] = False
        super().prepare_step(*args, **kwargs)
        for variable, command in self.compilers().items():
            env.setvar(variable, command)

    def prepare_python(self):
        """Skip this in a dry run, which cannot ask which Python there is."""
        if self.dry_run:
            self.python_cmd = 'python3'
        else:
            super().prepare_python()

    def own_options(self):
        """Return the options of the tables and the easyconfig; upstream adds those of the dependencies."""
        # a dry run asks no compiler
        banner = 'gcc' if self.dry_run else self.first_line(self.compilers().get('CXX', 'g++'))
        compiler = build_options.compiler_family(banner)
        asked = build_options.table_options(self.version, os.uname().machine, compiler)
        asked.update(self.compilers())
        commits = list(filter(None, map(commit_of, self.cfg['sources'])))
        local = 'git' + commits[-1][:7] if commits else self.system.name
        asked['PYTORCH_BUILD_VERSION'] = '%s+%s' % (self.version, local)
        asked['PYTORCH_BUILD_NUMBER'] = '1'
        given = build_options.as_dict(self.cfg['custom_opts'])
        if contract.plain(given.get('USE_DISTRIBUTED', '1')) == 'OFF':
            # only the table asks for it then
            asked['USE_GLOO'] = '0'
        for option in self.cfg['custom_opts']:
            name, equals, value = option.partition('=')
            if not equals:
                raise EasyBuildError("expected NAME=VALUE in custom_opts, found %r", option)
            if name.endswith('FLAGS') and name in asked:
                # added to those that the architecture needs; everything else is the easyconfig's
                value = asked[name] + ' ' + value
            asked[name] = value
        return asked

    def configure_step(self):
        """Tell the build what is asked for, run CMake, and compare what it decided."""
        own = dict(build_options.dependency_options(get_software_root), **self.own_options())
        if not self.dry_run:
            unknown = build_options.unknown_options(self.cfg['custom_opts'], self.tree)
            if unknown:
                raise EasyBuildError("custom_opts has options that %s %s does not know: %s",
                                     self.name, self.version, '; '.join(unknown))
            if self.cfg['gpu_aware_mpi']:
                self.make_gpu_aware()
        self.ask_upstream(own)
        for name, value in sorted(self.asked.items()):
            env.setvar(name, value)
        cloned = build_options.cloned(self.tree, self.asked)
        if cloned:
            raise EasyBuildError("The build would clone %s. Use the release tarball, which has it, or add NCCL to the "
                                 "dependencies", ', '.join(cloned))
        self.install_build_tools()
        if self.asked.get('USE_CUDA') == '1' and not self.dry_run:
            # the compiler searches CUDA's stubs by itself: CMake does not write them into RUNPATH
            paths = stubs_of(self.nvcc()) + os.environ.get('LIBRARY_PATH', '').split(os.pathsep)
            env.setvar('LIBRARY_PATH', os.pathsep.join(filter(None, paths)))
        if self.route.configure:
            # with ramgate in front of it, as what CMake writes is what is built
            self.cmake_output = self.cmake_output or self.run_python(self.route.configure, "configuring PyTorch")
            self.check_contract()

    def make_gpu_aware(self):
        """Change the MPI backend's decision about GPU memory, which no patch file could do for every version."""
        problem = ("gpu_aware_mpi: PyTorch %s has a new %s. Set gpu_aware_mpi = False to build without, or add the new "
                   "place to hpc_pytorch/source/gpu_aware_mpi.py: ")
        with as_easybuild_error(problem % (self.version, gpu_aware_mpi.BACKEND)):
            gpu_aware_mpi.apply(self.tree)

    def roots(self, own):
        """Variables of modules for what no module has: the BLAS that was asked for, and the toolkit of the nvcc."""
        found = {}
        if 'BLAS' in own and not any(map(get_software_root, build_options.BLAS_SOFTWARE)):
            found['EBROOTFLEXIBLAS'] = os.sep
        if self.cuda_architectures() and not get_software_root('CUDA'):
            # a dry run loads no modules, one of which may have it
            nvcc = '/bin/nvcc' if self.dry_run else self.nvcc()
            found['EBROOTCUDA'] = os.path.dirname(os.path.dirname(nvcc))
        return found

    def ask_upstream(self, own):
        """Let upstream's easyblock add what the dependencies mean; it leaves all in front of the build command only."""
        self.named = own
        given = self.cfg['custom_opts']
        self.cfg['custom_opts'] = ['%s=%s' % option for option in own.items()]
        roots = self.roots(own)
        for name, root in roots.items():
            env.setvar(name, root)
        # it warns, with a traceback, that PyTorch's own tests lack a package
        with redirect_stderr(io.StringIO()) as warnings:
            try:
                super().configure_step()
            finally:
                self.cfg['custom_opts'] = given
                self.log.info("Upstream's easyblock warned: %s", warnings.getvalue())
                env.unset_env_vars(list(roots), verbose=False)
        asked = dict(build_options.as_dict(self.cfg['prebuildopts'].split()), **own)
        self.asked = {name: os.path.expandvars(value) for name, value in asked.items()}
        if self.asked.get('USE_CUDA') == '1':
            self.asked['TORCH_CUDA_ARCH_LIST'] = ';'.join(self.cuda_architectures())

    def install_build_tools(self):
        """Put what building needs in a directory of its own, in front of what the system's Python has."""
        tools = os.path.join(self.builddir, 'tools')
        if not self.dry_run and not os.path.isdir(tools):
            Pip(self.python).install(self.locked('build_lock_files'), self.wheels, '--only-binary', ':all:',
                                     '--target', tools, '--no-compile')
        env.setvar('PYTHONPATH', tools)
        # the easyconfig's CMake is the one to use; without one, the machine's own may be too old
        paths = [os.path.join(tools, 'bin'), os.environ['PATH']]
        if any(dep['full_mod_name'].lower().startswith('cmake') for dep in self.cfg.dependencies()):
            paths.reverse()
        env.setvar('PATH', os.pathsep.join(paths))
        # NNPACK's code generator sees no $PYTHONPATH; CMake would download what it needs. PyTorch's setup.py hands on
        # what begins with CMAKE_, and CMake reads this file before everything else. Before 2.7, FindBLAS.cmake does not
        # include all that it calls (pytorch/pytorch#145849)
        include = os.path.join(self.builddir, 'sources.cmake')
        write_file(include, 'include(CheckFunctionExists)\nset(PYTHON_SIX_SOURCE_DIR "%s")\n' % tools)
        env.setvar('CMAKE_PROJECT_INCLUDE_BEFORE', include)

    def check_contract(self):
        if self.dry_run:
            return
        with as_easybuild_error():
            contract.check(self.tree, self.cmake_output, self.asked, self.named)
        print_msg("CMake enabled all requested options", log=self.log)

    def build_step(self):
        """Build the wheel; upstream would build inside the installation."""
        output = self.run_python(self.route.build, "building PyTorch")
        if self.dry_run:
            return
        print_summary(self)
        if not self.route.configure:
            self.cmake_output = output
            self.check_contract()
        wheels = glob.glob(glob.escape(self.tree) + '/dist/torch-*.whl')
        if len(wheels) != 1:
            raise EasyBuildError("The build left %d wheels in %s/dist, expected one", len(wheels), self.tree)
        self.wheel = wheels[0]
        self.check_libraries()

    def check_libraries(self):
        """Stop if the wheel's libraries search where no library should, or load another OpenMP."""
        with tempfile.TemporaryDirectory(dir=self.builddir) as directory:
            paths = libraries.unpack(self.wheel, directory)
            compiler = build_options.compiler_family(self.first_line(self.compilers().get('CXX', 'g++')))
            differences = libraries.compare(paths, libraries.ldd(paths, directory), compiler, build_path())
        if differences:
            raise EasyBuildError("The wheel was built with libraries that no module should have (%s):\n%s", ', '.join(
                nub(item.option for item in differences)), contract.table(differences))

    def run_python(self, words, doing):
        """Run Python with these words in the tree, within the memory; returns its output, explains its failure."""
        # a dry run has found none
        python = self.python.path if self.python else 'python3'
        command = ramgate_command(self, profile_to_keep(self.cfg)) + ['--', python] + list(words)
        result = run_shell_cmd(command, work_dir=self.tree, fail_on_error=False, use_bash=False)
        if result.exit_code:
            raise EasyBuildError("%s failed (exit status %s):\n%s\n%s", doing, result.exit_code,
                                 known_errors.excerpt(result.output), known_errors.explain(result.output))
        return result.output
