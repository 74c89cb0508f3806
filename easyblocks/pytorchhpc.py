"""
EasyBuild support for building PyTorch into a wheel and installing that as a module, implemented as an easyblock.

Needed because: PyTorch silently builds without what its CMake does not find, supercomputers have compilers of their
own, and a build of hours should leave a wheel that can be installed again.
Differs from upstream's EB_PyTorch in: the system's compilers (systems/), a comparison of CMake's decisions with what
was asked for, a wheel as an artefact, everything around PyTorch from lock files (LockedWheels). PyTorch's own tests
are not run.
Can go when: upstream builds wheels and compares.

What is decided here is in tables: hpc_pytorch/source/build_options.py, contract.py and known_errors.py.
"""
import glob
import json
import os
import sys
from contextlib import contextmanager

import easybuild.easyblocks.pytorch as upstream_pytorch
import easybuild.tools.environment as env
from easybuild.easyblocks.generic.lockedwheels import LockedWheels
from easybuild.easyblocks.pytorch import EB_PyTorch
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import IGNORE, build_option, source_paths
from easybuild.tools.filetools import copy_file, mkdir, read_file, which
from easybuild.tools.modules import get_software_root
from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import nub

from hpc_pytorch import UsersProblem, collection_path
from hpc_pytorch.packages.lock_files import sha256_of
from hpc_pytorch.packages.wheel_tags import why_not
from hpc_pytorch.rules.resource_needs import profile_to_keep
from hpc_pytorch.source import build_options, built_wheels, contract, git_sources, gpu_aware_mpi, interrupted_builds
from hpc_pytorch.source import known_errors

# Runs a module of the collection without putting the collection on the $PYTHONPATH of what it starts.
RUN_MODULE = ("import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
              "runpy.run_module('ramgate', run_name='__main__', alter_sys=True)")


class EB_PyTorchHPC(LockedWheels, EB_PyTorch):
    """Support for building PyTorch with a system's own compilers and MPI, and installing it from the wheel."""

    @staticmethod
    def extra_options():
        """Easyconfig parameters of both; what is fetched and built around PyTorch is in lock files."""
        options = EB_PyTorch.extra_options()
        options.update(LockedWheels.extra_options())
        options.update({
            'max_memory': [None, "Memory that building may use, for example 200G; default: what there is", CUSTOM],
            'gpu_aware_mpi': [False, "The MPI backend asks MPI at run time whether it takes GPU memory", CUSTOM],
            'git_source': [{}, "Instead of sources: url, revision (tag, branch or commit) and commit, which the "
                               "revision must still be; without it, whatever it is now", CUSTOM],
            'wheel_pattern': ['torch-*.whl', "Name of the wheel that building leaves in dist", CUSTOM],
        })
        # wheels are checked against each other by the lock files
        options['sanity_pip_check'][0] = False
        # so that Python's extensions are linked with the system's compiler
        options['check_ldshared'][0] = True
        return options

    def __init__(self, *args, **kwargs):
        """No wheel yet."""
        super().__init__(*args, **kwargs)
        # what is on $PYTHONPATH is LockedWheels' business
        self.require_python = False
        self.build_in_installdir = False
        self.wheel = None
        self.options_asked = None
        self.facts = None
        self.cmake_output = ''
        # of a source from git
        self.commit = None
        # the note of an interrupted build that this one goes on with
        self.left = None

    # --- what is asked for ------------------------------------------------------------------------------------------

    def compilers(self):
        """The system's compilers, as the variables that builds know."""
        compilers = self.system.compilers
        names = {'CC': compilers['c'], 'CXX': compilers['cxx'], 'FC': compilers['fortran']}
        return {variable: command for variable, command in names.items() if command}

    def own_options(self):
        """What the tables and the easyconfig ask for; upstream adds what the dependencies mean."""
        asked = build_options.as_dict(build_options.common_options(self.version))
        local = 'git' + self.commit[:7] if self.commit else self.system.name
        asked.update(PYTORCH_BUILD_VERSION='%s+%s' % (self.version, local), PYTORCH_BUILD_NUMBER='1')
        asked.update(self.compilers())
        asked.update(self.flags_of_architecture())
        for option in self.cfg['custom_opts']:
            name, equals, value = option.partition('=')
            if not equals:
                raise EasyBuildError("custom_opts has %r, which is not NAME=VALUE", option)
            # flags are added to those that the architecture needs; everything else is the easyconfig's
            asked[name] = ' '.join([asked[name], value]) if name.endswith('FLAGS') and name in asked else value
        return ['%s=%s' % item for item in asked.items()]

    def first_line(self, compiler):
        """How a compiler introduces itself."""
        return run_shell_cmd([compiler, '--version'], fail_on_error=False, hidden=True, use_bash=False,
                             output_file=False).output.split('\n')[0]

    def flags_of_architecture(self):
        """What this architecture needs with the system's compiler; a dry run asks no compiler."""
        family = 'gcc' if self.dry_run else build_options.compiler_family(
            self.first_line(self.compilers().get('CXX', 'g++')))
        return build_options.architecture_flags(os.uname().machine, family, self.version)

    def cuda_architectures(self):
        """The GPUs to compile for: the user's word, else the easyconfig's."""
        return build_option('cuda_compute_capabilities') or self.cfg['cuda_compute_capabilities'] or []

    def identity_facts(self):
        """
        Everything that makes the wheel what it is, known before anything is unpacked; None where a source or patch has
        no checksum, as nothing can be said about it then.
        """
        sums = self.cfg['checksums']
        if len(sums) < len(self.cfg['sources']) + len(self.cfg['patches']) or not all(sums):
            return None
        for command in self.compilers().values():
            if which(command, log_ok=False, on_error=IGNORE) is None:
                raise EasyBuildError("%s, which %s compiles with, is not here: add the module that has it to the "
                                     "dependencies", command, self.system.system['title'])
        versions = {variable: self.first_line(command) for variable, command in self.compilers().items()}
        return {'name': self.name, 'version': self.version, 'checksums': sums, 'options': sorted(self.own_options()),
                'compilers': versions, 'modules': [dep['full_mod_name'] for dep in self.cfg.dependencies()],
                'python': [self.python.implementation, self.python.version, self.python.machine],
                'build_type': self.cfg['build_type'] or 'Release',
                'cuda_architectures': self.cuda_architectures(),
                'gpu_aware_mpi': gpu_aware_mpi.identity() if self.cfg['gpu_aware_mpi'] else None,
                'build_packages': sorted(entry.text for entry in self.locked('build_lock_files'))}

    def built_stores(self):
        """Where wheels that were built here are looked for."""
        name = '%s-%s%s-built' % (self.name, self.version, self.cfg['versionsuffix'])
        return [os.path.join(path, self.name[0].lower(), self.name, name) for path in source_paths()]

    # --- steps ------------------------------------------------------------------------------------------------------

    def fetch_step(self, *args, **kwargs):
        """Fetch everything; the source only if there is no wheel that was built from it in the same way."""
        self.check_locks()
        if self.cfg['git_source']:
            self.fetch_git_source()
        if not self.dry_run:
            with self.external_modules():
                self.look_around()
                self.facts = self.identity_facts()
            self.wheel = built_wheels.find(self.built_stores(), self.facts) if self.facts else None
        if self.wheel:
            print_msg("using the wheel that was built earlier: %s", self.wheel, log=self.log)
            self.check_tags(self.wheel)
            for parameter in ('sources', 'patches', 'checksums'):
                self.cfg[parameter] = []
        super().fetch_step(*args, **kwargs)

    def fetch_git_source(self):
        """The commit that is asked for, as a tarball in the source path; the wheel's version names it."""
        source = self.cfg['git_source']
        if self.dry_run:
            self.dry_run_msg("source: %s of %s, with its submodules", source['revision'], source['url'])
            return
        try:
            self.commit = git_sources.check(source['url'], source['revision'], source.get('commit'))
            name = '%s-%s.tar.gz' % (self.name.lower(), self.commit)
            self.cfg['sources'] = [name]
            places = [os.path.join(path, self.name[0].lower(), self.name) for path in source_paths()]
            tarball = next(filter(os.path.isfile, [os.path.join(place, name) for place in places]), None)
            if tarball is None:
                mkdir(places[0], parents=True)
                tarball = os.path.join(places[0], name)
                print_msg("fetching %s of %s with its submodules", source['revision'], source['url'], log=self.log)
                git_sources.make(source, self.commit, tarball + '.tree', tarball)
            # git has compared what it fetched with the commit's name
            self.cfg['checksums'] = [sha256_of(tarball)] + self.cfg['checksums']
        except UsersProblem as problem:
            raise EasyBuildError("git_source: %s", problem)

    def make_builddir(self):
        """Keep what an interrupted build of the same left."""
        self.left = self.find_left()
        if not self.left:
            super().make_builddir()

    def find_left(self):
        """The note of an interrupted build that can be gone on with; says why it cannot."""
        left = interrupted_builds.find(self.builddir) if self.facts and not self.wheel else None
        if not left:
            return None
        # what went through JSON has no tuples
        different = interrupted_builds.differences(json.loads(json.dumps(self.facts)), left['facts'])
        if different or not os.path.isdir(left['source']):
            print_msg("an interrupted build is not gone on with, as it differs in: %s", different or 'its source tree',
                      log=self.log)
            return None
        print_msg("going on with the build that was interrupted in %s", left['source'], log=self.log)
        return left

    def extract_step(self):
        """Unpack the source; LockedWheels has nothing to unpack."""
        if self.left:
            self.src[0]['finalpath'] = self.left['source']
        else:
            super(LockedWheels, self).extract_step()

    def patch_step(self, *args, **kwargs):
        """An interrupted build's tree is patched."""
        if not self.left:
            super().patch_step(*args, **kwargs)

    def prepare_step(self, *args, **kwargs):
        """The system's compilers under their own names: EasyBuild's RPATH wrappers would hide them."""
        self.toolchain.options['rpath'] = False
        super().prepare_step(*args, **kwargs)
        for variable, command in self.compilers().items():
            env.setvar(variable, command)

    def prepare_python(self):
        """Which Python there is can only be asked where commands are run."""
        if self.dry_run:
            self.python_cmd = 'python3'
        else:
            super().prepare_python()

    def configure_step(self):
        """Tell the build what is asked for, run CMake, and compare what it decided."""
        if self.wheel:
            return
        if not self.dry_run:
            self.check_tree()
            self.make_gpu_aware()
        own = self.own_options()
        own += [option for option in build_options.dependency_options(get_software_root)
                if option.split('=')[0] not in build_options.as_dict(own)]
        self.cfg['custom_opts'] = own
        with without_advice_about_tests():
            super(LockedWheels, self).configure_step()
        # upstream leaves its own options in front of the build command only; some of their values are shell variables
        upstream = [word for word in self.cfg['prebuildopts'].split() if '=' in word]
        asked = dict(build_options.as_dict(upstream), **build_options.as_dict(own))
        self.options_asked = {name: os.path.expandvars(value) for name, value in asked.items()}
        if asked.get('USE_CUDA') == '1':
            self.options_asked['TORCH_CUDA_ARCH_LIST'] = ';'.join(self.cuda_architectures())
        for name, value in sorted(self.options_asked.items()):
            env.setvar(name, value)
        self.install_build_tools()
        self.run_cmake()
        if self.facts and not self.left:
            source = os.path.realpath(self.start_dir)
            interrupted_builds.leave(self.builddir, {'facts': self.facts, 'source': source,
                                                     'cmake_output': self.cmake_output})

    def run_cmake(self):
        """Have CMake configure, with ramgate in front of it, as what CMake writes is what is built."""
        command = self.route().configure
        if not command:
            return
        if self.left:
            self.cmake_output = self.left['cmake_output']
        else:
            self.cmake_output = self.run_python(command, "configuring PyTorch with CMake", gate=self.ramgate())
        if not self.dry_run:
            self.check_contract()

    def check_tree(self):
        """Refuse a tree that cannot be built, or that does not know an option, before anything is built."""
        missing = build_options.missing_submodules(self.start_dir)
        # the same exception that PyTorch's own check makes
        system_libraries = build_options.as_dict(self.own_options()).get('USE_SYSTEM_LIBS', '')
        if missing and contract.plain(system_libraries) != 'ON':
            raise EasyBuildError("The source tree has no files for %d submodule(s): %s. Use the release tarball, which "
                                 "has all of them, or type in the tree: git submodule update --init --recursive "
                                 "--depth 1 --jobs 8", len(missing), ', '.join(missing))
        problems = build_options.unknown_options(self.cfg['custom_opts'], self.start_dir)
        if problems:
            raise EasyBuildError("custom_opts has what %s %s does not know: %s",
                                 self.name, self.version, '; '.join(problems))

    def make_gpu_aware(self):
        """Change the MPI backend's decision about GPU memory, which no patch file could do for every version."""
        if not self.cfg['gpu_aware_mpi']:
            return
        try:
            gpu_aware_mpi.apply(self.start_dir)
        except UsersProblem as problem:
            raise EasyBuildError("gpu_aware_mpi: PyTorch %s has another %s than is known, so nothing was changed: %s. "
                                 "Set gpu_aware_mpi = False to build without, or add the new place to "
                                 "hpc_pytorch/source/gpu_aware_mpi.py.", self.version, gpu_aware_mpi.BACKEND, problem)

    def route(self):
        """How this version is built."""
        found = build_options.route(self.version)
        if found is None:
            raise EasyBuildError("No way to build PyTorch %s is known; the oldest that is: %s",
                                 self.version, build_options.ROUTES[-1].since)
        return found

    def install_build_tools(self):
        """What building needs, in a directory of its own in front of what the system's Python has."""
        tools = os.path.join(self.builddir, 'tools')
        if not self.dry_run and not self.left:
            self.install_from(self.wheels, self.python.path, self.locked('build_lock_files'), '--only-binary', ':all:',
                              '--target', tools, '--upgrade')
        env.setvar('PYTHONPATH', tools)
        # behind the rest: the easyconfig's CMake is the one to use
        env.setvar('PATH', os.pathsep.join([os.environ['PATH'], os.path.join(tools, 'bin')]))

    def run_python(self, words, doing, gate=()):
        """Run one command of the build; explain its failure."""
        python = self.python.path if self.python else 'python3'
        result = run_shell_cmd(list(gate) + [python] + list(words), work_dir=self.start_dir or self.builddir,
                               fail_on_error=False, use_bash=False)
        if result.exit_code:
            raise EasyBuildError("%s failed (exit status %s):\n%s\n%s", doing, result.exit_code,
                                 known_errors.excerpt(result.output), known_errors.explain(result.output))
        return result.output

    def cache_path(self):
        """CMake's cache, wherever this version's build puts it."""
        found = glob.glob(os.path.join(self.start_dir, 'build', '**', 'CMakeCache.txt'), recursive=True)
        return min(found, key=len) if found else None

    def check_contract(self):
        """Stop when CMake decided otherwise than was asked for."""
        path = self.cache_path()
        if path is None:
            raise EasyBuildError("CMake left no CMakeCache.txt in %s/build: what it decided cannot be compared",
                                 self.start_dir)
        differences = contract.compare(self.options_asked, contract.read_cache(path),
                                       contract.read_summary(self.cmake_output))
        if differences:
            raise EasyBuildError("CMake decided otherwise than was asked for (%s), so nothing was built:\n%s",
                                 ', '.join(item.option for item in differences), contract.table(differences))
        print_msg("CMake's decisions are what was asked for", log=self.log)

    def build_step(self):
        """Build the wheel within the memory there is, and keep it."""
        if self.wheel:
            return
        self.cmake_output += self.run_python(self.route().build, "building PyTorch", gate=self.ramgate())
        if self.dry_run:
            return
        self.say_what_was_watched()
        if not self.route().configure:
            self.check_contract()
        wheels = glob.glob(os.path.join(self.start_dir, 'dist', self.cfg['wheel_pattern']))
        if len(wheels) != 1:
            raise EasyBuildError("Building left %d wheels in %s/dist, one was expected", len(wheels), self.start_dir)
        self.wheel = wheels[0]
        self.check_tags(self.wheel)
        if self.facts:
            self.keep_wheel()

    def ramgate(self):
        """The command in front of the build that keeps it within the memory."""
        top = collection_path('ramgate')
        if not os.path.isfile(os.path.join(top, '__main__.py')):
            self.log.warning("ramgate is not in this collection: nothing watches the memory")
            return []
        command = [sys.executable, '-I', '-c', RUN_MODULE, os.path.dirname(top), 'run',
                   '--jobs', str(self.cfg.parallel), '--report', self.report_directory()]
        profile = profile_to_keep(self.cfg)
        command += ['--profile', profile] if profile else []
        return command + (['--memory', self.cfg['max_memory']] if self.cfg['max_memory'] else []) + ['--']

    def report_directory(self):
        """Where ramgate writes what every compilation needed."""
        return os.path.join(self.builddir, 'ramgate')

    def say_what_was_watched(self):
        """How much memory building took; a build that went past ramgate shows here."""
        path = os.path.join(self.report_directory(), 'report.json')
        if os.path.exists(path):
            jobs = json.loads(read_file(path))['jobs']
            print_msg("ramgate ran %d jobs, %d of them again; the largest took %.1f GB", len(jobs),
                      sum(bool(job['retries']) for job in jobs), max([0] + [job['peak_mb'] for job in jobs]) / 1024,
                      log=self.log)

    def keep_wheel(self):
        """Put the wheel where the next installation finds it."""
        more = {'asked': self.options_asked, 'loaded': [module['mod_name'] for module in self.modules_tool.list()]}
        try:
            self.wheel = built_wheels.keep(self.wheel, self.built_stores()[0], self.facts, more)
        except OSError as err:
            # hours of work are not lost because the source path is read-only: it is installed, and kept there
            print_msg("the wheel could not be kept in the source path: %s", err, log=self.log)

    def check_tags(self, wheel):
        """Stop when the wheel does not fit the Python that it is going to be installed for."""
        reasons = why_not(wheel, self.python)
        if reasons:
            raise EasyBuildError("%s does not fit:\n  %s", os.path.basename(wheel), '\n  '.join(reasons))

    def test_step(self):
        """PyTorch's own tests take a day; what is installed is checked in the sanity check."""

    def build_here(self, python):
        """PyTorch comes before what is built for it."""
        self.install_torch(python)
        super().build_here(python)

    def install_torch(self, python):
        """Install PyTorch from its wheel, and leave the wheel beside the installation."""
        result = self.pip(python, 'install', '--quiet', '--no-index', '--no-deps', '--no-cache-dir',
                          '--no-warn-script-location', self.wheel)
        if result.exit_code:
            raise EasyBuildError("Installing %s failed: %s\n%s", self.wheel, result.output.strip()[-2000:],
                                 known_errors.explain(result.output))
        directory = os.path.join(self.installdir, 'wheels')
        mkdir(directory)
        copy_file(self.wheel, directory)
        note = os.path.join(os.path.dirname(self.wheel), built_wheels.NOTE)
        if os.path.exists(note):
            copy_file(note, directory)

    def install_step(self):
        """What LockedWheels does; without packages to build, PyTorch is installed all the same."""
        super().install_step()
        if not self.dry_run and not self.source_locks():
            self.install_torch(os.path.join(self.installdir, 'bin', 'python'))

    def sanity_check_step(self, *args, **kwargs):
        """Two processes add up a tensor with each backend that can do so without a GPU."""
        asked = self.asked_of_wheel() if not self.dry_run else build_options.as_dict(self.own_options())
        ways = ['import'] + [way for way, option, default in (('gloo', 'USE_GLOO', '1'), ('mpi', 'USE_MPI', '0'))
                             if contract.plain(asked.get(option, default)) == 'ON']
        commands = ['pytorch-check ' + way for way in ways] if 'pytorch-check' in self.cfg['scripts'] else []
        super().sanity_check_step(*args, custom_commands=commands, **kwargs)

    def sanity_check_load_module(self, *args, **kwargs):
        """With the module loaded, ask the installed PyTorch what it has."""
        loaded = super().sanity_check_load_module(*args, **kwargs)
        if self.sanity_check_module_loaded and not self.dry_run:
            self.check_installed_contract()
        return loaded

    def check_installed_contract(self):
        """What is installed has what was asked for: also where the wheel was built elsewhere, or long ago."""
        python = os.path.join(self.installdir, 'bin', 'python')
        probe = run_shell_cmd([python, '-c', contract.PROBE], use_bash=False, fail_on_error=False, hidden=True,
                              split_stderr=True, work_dir=self.installdir)
        if probe.exit_code:
            self.sanity_check_fail_msgs.append("PyTorch cannot be imported:\n%s" % known_errors.excerpt(probe.stderr))
            return
        found = json.loads(probe.output.splitlines()[-1])
        libraries = [path for pattern in ('*.so', 'lib/*.so') for path in
                     glob.glob(os.path.join(glob.escape(found['directory']), pattern))]
        ldd = run_shell_cmd(['ldd'] + libraries, use_bash=False, fail_on_error=False, hidden=True).output
        differences = contract.compare_installed(self.asked_of_wheel(), found['show'], found['backends'], ldd)
        if differences:
            self.sanity_check_fail_msgs.append("what is installed is not what was asked for (%s):\n%s" % (
                ', '.join(item.option for item in differences), contract.table(differences)))
        else:
            mpi = [path for path in nub(contract.resolved(ldd, 'libmpi')) if path != 'not found']
            print_msg("what is installed is what was asked for%s", '; MPI: ' + ', '.join(mpi) if mpi else '',
                      log=self.log)

    def asked_of_wheel(self):
        """What the installed wheel was built to have; its note is beside it."""
        note = built_wheels.read_note(os.path.join(self.installdir, 'wheels'))
        return note['asked'] if note else self.options_asked or build_options.as_dict(self.own_options())

    def build_environment(self):
        """The system's compilers and what the easyconfig says, besides MPI's."""
        return dict(self.compilers(), **super().build_environment())

    def features(self):
        """What was built in."""
        asked = build_options.as_dict(self.cfg['custom_opts'])
        names = [dep['name'] for dep in self.cfg.dependencies()]
        return super().features() + [feature for feature, there in (
            ('mpi', asked.get('USE_MPI') == '1'), ('gpu', bool(self.cuda_architectures())),
            ('nccl', 'NCCL' in names)) if there]

    def make_module_extra(self, *args, **kwargs):
        """The wheel's directory, besides."""
        text = super().make_module_extra(*args, **kwargs)
        text += self.module_generator.set_environment('PYTORCH_WHEELS', os.path.join(self.installdir, 'wheels'))
        return text


@contextmanager
def without_advice_about_tests():
    """Upstream warns, with a traceback, that PyTorch's own tests lack a package; they are not run here."""
    warn = upstream_pytorch.print_warning
    upstream_pytorch.print_warning = lambda *args, **kwargs: None
    try:
        yield
    finally:
        upstream_pytorch.print_warning = warn
