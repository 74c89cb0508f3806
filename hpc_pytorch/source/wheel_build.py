"""
PyTorch's own build: what it is asked for, CMake's answer, the wheel, and what makes the wheel what it is.

Python 3.6; runs inside EasyBuild.
"""
import glob
import json
import os
import re
import sys

from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import IGNORE
from easybuild.tools.filetools import read_file, which
from easybuild.tools.modules import get_software_root
from easybuild.tools.run import run_shell_cmd

from hpc_pytorch import UsersProblem, collection_path
from hpc_pytorch.packages import known_errors
from hpc_pytorch.source import build_options, contract, git_sources, gpu_aware_mpi

# Runs a module of the collection without putting the collection on the $PYTHONPATH of what it starts.
RUN_MODULE = ("import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
              "runpy.run_module('ramgate', run_name='__main__', alter_sys=True)")


class WheelBuild:
    """The build of an easyblock's wheel, for the Python and the system of its locked packages."""

    def __init__(self, packages):
        self.packages = packages
        self.easyblock = packages.easyblock
        self.cfg = packages.cfg
        # all of it, and what the easyconfig, the tables or the user named
        self.asked, self.named = {}, {}
        self.output = ''
        # of a source from git
        self.commit = None

    @property
    def tree(self):
        """The source tree, which EasyBuild knows once it is unpacked."""
        return self.easyblock.start_dir or self.easyblock.builddir

    def compilers(self):
        """The system's compilers, as the variables that builds know."""
        compilers = self.packages.system.compilers
        names = {'CC': compilers['c'], 'CXX': compilers['cxx'], 'FC': compilers['fortran']}
        return {variable: command for variable, command in names.items() if command}

    def own_options(self):
        """What the tables and the easyconfig ask for; upstream adds what the dependencies mean."""
        asked = build_options.as_dict(build_options.common_options(self.cfg.version))
        local = 'git' + self.commit[:7] if self.commit else self.packages.system.name
        asked.update(PYTORCH_BUILD_VERSION='%s+%s' % (self.cfg.version, local), PYTORCH_BUILD_NUMBER='1')
        asked.update(self.compilers())
        asked.update(self.flags_of_architecture())
        if contract.plain(build_options.as_dict(self.cfg['custom_opts']).get('USE_DISTRIBUTED', '1')) == 'OFF':
            # nobody asks for it then but the table
            asked['USE_GLOO'] = '0'
        for option in self.cfg['custom_opts']:
            name, equals, value = option.partition('=')
            if not equals:
                raise EasyBuildError("expected NAME=VALUE in custom_opts, found %r", option)
            # flags are added to those that the architecture needs; everything else is the easyconfig's
            asked[name] = ' '.join([asked[name], value]) if name.endswith('FLAGS') and name in asked else value
        return ['%s=%s' % item for item in asked.items()]

    def first_line(self, compiler):
        """How a compiler introduces itself."""
        return run_shell_cmd([compiler, '--version'], fail_on_error=False, hidden=True, use_bash=False,
                             output_file=False).output.split('\n')[0]

    def flags_of_architecture(self):
        """What this architecture needs with the system's compiler; a dry run asks no compiler."""
        family = 'gcc' if self.easyblock.dry_run else build_options.compiler_family(
            self.first_line(self.compilers().get('CXX', 'g++')))
        return build_options.architecture_flags(os.uname().machine, family, self.cfg.version)

    def roots(self, own):
        """
        What upstream's easyblock knows of modules alone, where no module has it: the BLAS that was asked for, which the
        build finds by itself, and the toolkit of the nvcc that is on the path, if GPUs were named. Variables for it.
        """
        found = {}
        if 'BLAS' in build_options.as_dict(own) and not any(map(get_software_root, build_options.BLAS_SOFTWARE)):
            found['EBROOTFLEXIBLAS'] = os.sep
        if self.packages.cuda_architectures() and not get_software_root('CUDA'):
            # a dry run loads no modules, one of which may have it
            found['EBROOTCUDA'] = os.sep if self.easyblock.dry_run else os.path.dirname(os.path.dirname(self.nvcc()))
        return found

    def ask(self, own):
        """
        What the build is asked for, by name and by upstream, which leaves its options in front of the build command
        only; some of their values are shell variables.
        """
        self.named = build_options.as_dict(own)
        asked = dict(build_options.as_dict(self.cfg['prebuildopts'].split()), **self.named)
        asked = {name: os.path.expandvars(value) for name, value in asked.items()}
        if asked.get('USE_CUDA') == '1':
            asked['TORCH_CUDA_ARCH_LIST'] = ';'.join(self.packages.cuda_architectures())
        self.asked = asked

    def identity(self):
        """
        Everything that makes the wheel what it is, known before anything is unpacked; None where a source or patch has
        no checksum, as nothing can be said about it then.
        """
        sums = self.cfg['checksums']
        if len(sums) < len(self.cfg['sources']) + len(self.cfg['patches']) or not all(sums):
            return None
        for command in self.compilers().values():
            if which(command, log_ok=False, on_error=IGNORE) is None:
                raise EasyBuildError("%s, which %s compiles with, was not found: add the module that has it to the "
                                     "dependencies", command, self.packages.system.system['title'])
        versions = {variable: self.first_line(command) for variable, command in self.compilers().items()}
        python = self.packages.python
        # of a module without a version, the one that is loaded: PrgEnv-gnu means another one after a maintenance
        loaded = {name.split('/')[0]: name for name in self.easyblock.modules_tool.loaded_modules()}
        return {'name': self.cfg.name, 'version': self.cfg.version, 'checksums': sums,
                'options': sorted(self.own_options()), 'compilers': versions,
                'modules': [loaded.get(dep['full_mod_name'], dep['full_mod_name']) for dep in self.cfg.dependencies()],
                'python': [python.implementation, python.version, python.machine],
                'build_type': self.cfg['build_type'] or 'Release',
                'cuda_architectures': self.packages.cuda_architectures(),
                'gpu_aware_mpi': gpu_aware_mpi.identity() if self.cfg['gpu_aware_mpi'] else None,
                'build_packages': sorted(entry.text for entry in self.packages.locked('build_lock_files'))}

    def check_needs(self):
        """Refuse, before anything is fetched, what is too old to build this version."""
        modules = [dep['full_mod_name'].lower().split('/') for dep in self.cfg.dependencies()]
        found = {'CMake': module[1] for module in modules if module[0] == 'cmake' and len(module) > 1}
        found['Python'] = self.packages.python.version
        banner = self.first_line(self.compilers().get('CXX', 'g++'))
        gcc = re.search(r'\) (\d+\.[\d.]*\d)', banner)
        if gcc and build_options.compiler_family(banner) == 'gcc':
            found['GCC'] = gcc.group(1)
        lacking = build_options.lacking(self.cfg.version, found)
        if lacking:
            raise EasyBuildError("PyTorch %s needs %s. Name newer modules in the dependencies.", self.cfg.version,
                                 ' and '.join(lacking))
        if self.packages.cuda_architectures():
            self.check_nvcc(self.nvcc())

    def nvcc(self):
        """The compiler for the GPUs that were named: a module's, or the one on the path."""
        found = which('nvcc', log_ok=False, on_error=IGNORE)
        if not found:
            raise EasyBuildError("found no nvcc, which compiles for the GPUs %s: put the bin directory of a CUDA "
                                 "toolkit on $PATH", ', '.join(self.packages.cuda_architectures()))
        return found

    def check_nvcc(self, nvcc):
        """Refuse GPUs that it does not know."""
        listing = run_shell_cmd([nvcc, '--list-gpu-arch'], fail_on_error=False, hidden=True, use_bash=False,
                                output_file=False).output
        unknown = build_options.unknown_architectures(self.packages.cuda_architectures(), listing)
        if unknown:
            raise EasyBuildError("%s cannot compile for %s. It knows: %s", nvcc, ', '.join(unknown),
                                 ' '.join(listing.split()))

    def route(self):
        """How this version is built."""
        found = build_options.route(self.cfg.version)
        if found is None:
            raise EasyBuildError("PyTorch %s is too old for this easyblock; the oldest that it builds: %s",
                                 self.cfg.version, build_options.ROUTES[-1].since)
        return found

    def check_tree(self, options):
        """Refuse a tree that cannot be built, or that does not know an option, before anything is built."""
        missing = build_options.missing_submodules(self.tree)
        # the same exception that PyTorch's own check makes
        if missing and contract.plain(build_options.as_dict(options).get('USE_SYSTEM_LIBS', '')) != 'ON':
            raise EasyBuildError("The source tree has no files for %d submodule(s): %s. Use the release tarball, which "
                                 "has all of them, or type in the tree: git submodule update --init --recursive "
                                 "--depth 1 --jobs 8", len(missing), ', '.join(missing))
        problems = build_options.unknown_options(self.cfg['custom_opts'], self.tree)
        if problems:
            raise EasyBuildError("custom_opts has options that %s %s does not know: %s",
                                 self.cfg.name, self.cfg.version, '; '.join(problems))

    def check_pins(self):
        """Refuse a tree whose build would clone another repository."""
        missing = [name for name, _, _, needed in git_sources.unfetched(self.tree) if needed(self.asked)]
        if missing:
            raise EasyBuildError("The build would clone %s. Use git_source, which fetches it, or the release tarball%s",
                                 ', '.join(missing), ", or add NCCL to the dependencies"
                                 if 'third_party/nccl' in missing else '')

    def make_gpu_aware(self):
        """Change the MPI backend's decision about GPU memory, which no patch file could do for every version."""
        try:
            gpu_aware_mpi.apply(self.tree)
        except UsersProblem as problem:
            raise EasyBuildError("gpu_aware_mpi: PyTorch %s has a new %s, so nothing was changed: %s. Set "
                                 "gpu_aware_mpi = False to build without, or add the new place to "
                                 "hpc_pytorch/source/gpu_aware_mpi.py.",
                                 self.cfg.version, gpu_aware_mpi.BACKEND, problem)

    def configure(self, profile, said_before=None):
        """Have CMake configure, with ramgate in front of it, as what CMake writes is what is built."""
        command = self.route().configure
        if not command:
            return
        self.output = said_before or self.run(command, "configuring PyTorch with CMake", profile)
        if not self.easyblock.dry_run:
            self.check_contract()

    def build(self, profile):
        """Build the wheel; returns its path, None in a dry run."""
        self.output += self.run(self.route().build, "building PyTorch", profile)
        if self.easyblock.dry_run:
            return None
        say_what_was_watched(self.report_directory(), self.easyblock.log)
        if not self.route().configure:
            self.check_contract()
        wheels = glob.glob(os.path.join(self.tree, 'dist', self.cfg['wheel_pattern']))
        if len(wheels) != 1:
            raise EasyBuildError("The build left %d wheels in %s/dist, expected one", len(wheels), self.tree)
        return wheels[0]

    def run(self, words, doing, profile):
        """Run one command of the build; explain its failure."""
        python = self.packages.python.path if self.packages.python else 'python3'
        result = run_shell_cmd(self.ramgate(profile) + [python] + list(words), work_dir=self.tree,
                               fail_on_error=False, use_bash=False)
        if result.exit_code:
            raise EasyBuildError("%s failed (exit status %s):\n%s\n%s", doing, result.exit_code,
                                 known_errors.excerpt(result.output), known_errors.explain(result.output))
        return result.output

    def check_contract(self):
        """Stop when CMake decided otherwise than was asked for."""
        try:
            silent = contract.check(self.tree, self.output, self.asked, self.named)
        except UsersProblem as problem:
            raise EasyBuildError("%s", problem)
        for name in silent:
            self.easyblock.log.info("CMake does not say what it decided about %s", name)
        print_msg("CMake's decisions are what was asked for", log=self.easyblock.log)

    def ramgate(self, profile):
        """The command in front of the build that keeps it within the memory."""
        if not os.path.isfile(os.path.join(collection_path('ramgate'), 'ramgate', '__main__.py')):
            self.easyblock.log.warning("ramgate is not in this collection: nothing watches the memory")
            return []
        limit = ['--memory', self.cfg['max_memory']] if self.cfg['max_memory'] else []
        return ramgate(self.cfg, self.report_directory(), profile) + limit + ['--']

    def report_directory(self):
        """Where ramgate writes what every compilation needed."""
        return os.path.join(self.easyblock.builddir, 'ramgate')


def ramgate(cfg, report, profile):
    """The command that runs a build within the memory, up to its own options."""
    command = [sys.executable, '-I', '-c', RUN_MODULE, collection_path('ramgate'), 'run',
               '--jobs', str(cfg.parallel), '--report', report]
    if profile:
        command += ['--profile', profile]
        # other versions need about the same for most of their files; the newest measurement first
        others = glob.glob(os.path.join(os.path.dirname(profile), '%s-*-ramgate.json' % cfg['name']))
        for other in sorted(set(others) - {profile}, key=os.path.getmtime, reverse=True):
            command += ['--like', other]
    return command


def say_what_was_watched(report, log):
    """Print how much memory the build took: a build that ramgate did not see shows here, too."""
    path = os.path.join(report, 'report.json')
    if os.path.exists(path):
        compilations = json.loads(read_file(path))['compilations']
        again = [compilation for compilation in compilations if compilation['retries']]
        largest = max([0] + [compilation['peak_mb'] for compilation in compilations])
        print_msg("ramgate ran %d compilations, %d of them again; the largest took %.1f GB",
                  len(compilations), len(again), largest / 1024, log=log)
