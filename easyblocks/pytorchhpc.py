##
# Copyright 2026 the hpc-pytorch team
#
# This file is part of hpc-pytorch, a collection for EasyBuild (https://easybuild.io). It is free software: you can
# redistribute it and/or modify it under the terms of the GNU General Public License as published by the Free Software
# Foundation v2. It comes without any warranty; see the file LICENSE.
##
"""
EasyBuild support for building PyTorch into a wheel and installing that as a module, implemented as an easyblock

Needed because: PyTorch silently builds without what its CMake does not find, supercomputers have compilers of their
own, and a build of hours should leave a wheel that can be installed again.
Differs from upstream's EB_PyTorch in: the system's compilers (systems/), a comparison of CMake's decisions with what
was asked for, a wheel as an artefact, everything around PyTorch from lock files, lists of PyTorch's own tests.
Can go when: upstream builds wheels and compares.

What is decided here is in tables: hpc_pytorch/source/build_options.py and contract.py.

@author: the hpc-pytorch team
"""
import io
import json
import os
from contextlib import redirect_stderr

import easybuild.tools.environment as env
from easybuild.easyblocks.pytorch import EB_PyTorch
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import IGNORE, source_paths
from easybuild.tools.filetools import copy_file, mkdir, which, write_file
from easybuild.tools.modules import get_software_root
from easybuild.tools.systemtools import get_cuda_architectures
from easybuild.tools.utilities import nub

from hpc_pytorch import UsersProblem
from hpc_pytorch.packages import built_wheels
from hpc_pytorch.packages.locked_packages import LockedPackages
from hpc_pytorch.packages.pip import Pip
from hpc_pytorch.packages.python_environment import PARAMETERS, PythonEnvironment
from hpc_pytorch.packages.wheel_tags import why_not
from hpc_pytorch.rules.resource_needs import profile_to_keep
from hpc_pytorch.source import build_options, contract, git_sources, interrupted_builds
from hpc_pytorch.source.wheel_build import WheelBuild


class EB_PyTorchHPC(EB_PyTorch):
    """Support for building PyTorch with a system's own compilers and MPI, and installing it from the wheel."""

    @staticmethod
    def extra_options():
        """Upstream's easyconfig parameters, and what else is to be fetched, built and installed."""
        options = dict(EB_PyTorch.extra_options(), **PARAMETERS)
        options.update({
            'max_memory': [None, "Memory that the build may use, such as 200G; default: all that the job has", CUSTOM],
            'gpu_aware_mpi': [False, "The MPI backend asks MPI at run time whether it takes GPU memory", CUSTOM],
            'git_source': [{}, "Instead of sources: url, revision (tag, branch or commit), and the commit that it must "
                               "still stand for; without commit, the build takes today's", CUSTOM],
            'wheel_pattern': ['torch-*.whl', "Name of the wheel that the build leaves in dist", CUSTOM],
        })
        # wheels are checked against each other by the lock files
        options['sanity_pip_check'][0] = False
        # so that Python's extensions are linked with the system's compiler
        options['check_ldshared'][0] = True
        return options

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # what is on $PYTHONPATH is the environment's business
        self.require_python = False
        self.packages = LockedPackages(self)
        self.building = WheelBuild(self.packages)
        self.environment = PythonEnvironment(self.packages, self.features(), self.building.compilers())
        # where the locked packages were fetched, and PyTorch's own wheel
        self.wheels = None
        self.wheel = None
        # what the wheel is made of, and the note of an interrupted build of the same
        self.facts = None
        self.left = None

    def features(self):
        """What the easyconfig says and what is built in: decides which settings of the system apply."""
        asked = build_options.as_dict(self.cfg['custom_opts'])
        names = [dep['name'] for dep in self.cfg.dependencies()]
        mpi = contract.plain(asked.get('USE_MPI', '0')) == 'ON'
        return list(self.cfg['features']) + [feature for feature, there in (
            ('mpi', mpi), ('gpu', bool(self.cfg['cuda_compute_capabilities'])), ('nccl', 'NCCL' in names)) if there]

    # --- fetching ---------------------------------------------------------------------------------------------------

    def places(self):
        """This software's directory in every source path."""
        return [os.path.join(path, self.name[0].lower(), self.name) for path in source_paths()]

    def built_stores(self):
        """Where wheels that were built here are looked for."""
        name = '%s-%s%s-built' % (self.name, self.version, self.cfg['versionsuffix'])
        return [os.path.join(place, name) for place in self.places()]

    def fetch_step(self, *args, **kwargs):
        """Fetch everything; the source only if there is no wheel that was built from it in the same way."""
        self.packages.check_locks()
        if self.cfg['git_source']:
            self.fetch_git_source()
        if self.dry_run:
            # upstream would look for a checksums.json, and stumble over not finding it
            self.json_checksums = {}
        else:
            self.find_wheel()
        super().fetch_step(*args, **kwargs)
        self.wheels = self.packages.fetch()

    def fetch_git_source(self):
        """The commit that is asked for, as a tarball in the source path; the wheel's version names it."""
        source = self.cfg['git_source']
        if self.dry_run:
            self.dry_run_msg("source: %s of %s, with its submodules", source['revision'], source['url'])
            return
        try:
            self.building.commit = git_sources.check(source['url'], source['revision'], source.get('commit'))
            name = '%s-%s.tar.gz' % (self.name.lower(), self.building.commit)
            tarballs = [os.path.join(place, name) for place in self.places()]
            tarball = next(filter(git_sources.checksum, tarballs), None)
            if tarball is None:
                tarball = tarballs[0]
                mkdir(os.path.dirname(tarball), parents=True)
                print_msg("fetching %s of %s with its submodules", source['revision'], source['url'], log=self.log)
                git_sources.make(source, self.building.commit, tarball + '.tree', tarball)
        except UsersProblem as problem:
            raise EasyBuildError("git_source: %s", problem)
        self.cfg['sources'] = [name]
        # what it was when it was packed; git had compared what it fetched with the commit's name
        self.cfg['checksums'] = [git_sources.checksum(tarball)] + self.cfg['checksums']

    def find_wheel(self):
        """Look for a wheel that was built from the same, for the Python that it is going to be installed for."""
        with self.packages.modules():
            self.packages.look_around()
            self.facts = self.building.identity()
            self.wheel = built_wheels.find(self.built_stores(), self.facts) if self.facts else None
            if not self.wheel:
                self.building.check_needs()
        if self.wheel:
            print_msg("using the wheel that was built earlier: %s", self.wheel, log=self.log)
            self.check_tags()

    def check_tags(self):
        """Stop when the wheel does not fit the Python that it is going to be installed for."""
        reasons = why_not(self.wheel, self.packages.python)
        if reasons:
            raise EasyBuildError("%s does not fit:\n  %s", os.path.basename(self.wheel), '\n  '.join(reasons))

    def fetch_sources(self, *args, **kwargs):
        """A wheel needs no sources."""
        if not self.wheel:
            super().fetch_sources(*args, **kwargs)

    def fetch_patches(self, *args, **kwargs):
        """A wheel needs no patches."""
        return None if self.wheel else super().fetch_patches(*args, **kwargs)

    # --- building ---------------------------------------------------------------------------------------------------

    def make_builddir(self):
        """Keep what an interrupted build of the same left."""
        self.left = self.find_left()
        if not self.left:
            super().make_builddir()

    def find_left(self):
        """The note of an interrupted build that can be continued; says why it cannot."""
        left = interrupted_builds.find(self.builddir) if self.facts and not self.wheel else None
        if not left:
            return None
        # what went through JSON has no tuples
        different = interrupted_builds.differences(json.loads(json.dumps(self.facts)), left['facts'])
        if different or not os.path.isdir(left['source']):
            print_msg("the interrupted build is not continued, as it differs in: %s", different or 'its source tree',
                      log=self.log)
            return None
        print_msg("continuing the build that was interrupted in %s", left['source'], log=self.log)
        return left

    def extract_step(self):
        """Unpack the source, unless an interrupted build's tree is there."""
        if self.left:
            self.src[0]['finalpath'] = self.left['source']
        else:
            super().extract_step()

    def patch_step(self, *args, **kwargs):
        """An interrupted build's tree is patched."""
        if not self.left:
            super().patch_step(*args, **kwargs)

    def prepare_step(self, *args, **kwargs):
        """The system's compilers under their own names: EasyBuild's RPATH wrappers would hide them."""
        self.toolchain.options['rpath'] = False
        super().prepare_step(*args, **kwargs)
        if not self.dry_run:
            self.packages.look_around()
        for variable, command in self.building.compilers().items():
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
        own = self.building.own_options()
        if not self.dry_run:
            self.building.check_tree(own)
            if self.cfg['gpu_aware_mpi']:
                self.building.make_gpu_aware()
        own += [option for option in build_options.dependency_options(get_software_root)
                if option.split('=')[0] not in build_options.as_dict(own)]
        given, self.cfg['custom_opts'] = self.cfg['custom_opts'], own
        roots = self.building.roots(own)
        for name, root in roots.items():
            env.setvar(name, root)
        # upstream warns, with a traceback, that PyTorch's own tests lack a package; they are not run here
        with redirect_stderr(io.StringIO()) as warnings:
            try:
                super().configure_step()
            finally:
                self.cfg['custom_opts'] = given
                self.log.info("Upstream's easyblock warned: %s", warnings.getvalue())
                env.unset_env_vars(list(roots), verbose=False)
        self.building.ask(own)
        for name, value in sorted(self.building.asked.items()):
            env.setvar(name, value)
        if not self.dry_run:
            self.building.check_pins()
        self.install_build_tools()
        self.building.configure(profile_to_keep(self.cfg), self.left and self.left['cmake_output'])
        if self.facts and not self.left:
            interrupted_builds.leave(self.builddir, {'facts': self.facts, 'source': os.path.realpath(self.start_dir),
                                                     'cmake_output': self.building.output})

    def install_build_tools(self):
        """What building needs, in a directory of its own in front of what the system's Python has."""
        tools = os.path.join(self.builddir, 'tools')
        if not self.dry_run and not self.left:
            Pip(self.packages.python).install(self.packages.locked('build_lock_files'), self.wheels, '--only-binary',
                                              ':all:', '--target', tools, '--upgrade', '--no-compile')
        env.setvar('PYTHONPATH', tools)
        # the easyconfig's CMake is the one to use; without one, the machine's own may be too old
        paths = [os.environ['PATH'], os.path.join(tools, 'bin')]
        named = any(dep['full_mod_name'].lower().startswith('cmake') for dep in self.cfg.dependencies())
        env.setvar('PATH', os.pathsep.join(paths if named else reversed(paths)))
        # NNPACK's code generator sees no $PYTHONPATH; CMake would download what it needs. PyTorch's setup.py hands on
        # what begins with CMAKE_, and CMake reads this file before everything else
        include = os.path.join(self.builddir, 'sources.cmake')
        write_file(include, 'set(PYTHON_SIX_SOURCE_DIR "%s")\n' % tools)
        env.setvar('CMAKE_PROJECT_INCLUDE_BEFORE', include)

    def build_step(self):
        """Build the wheel within the memory, and keep it; upstream would build inside the installation."""
        if self.wheel:
            return
        self.wheel = self.building.build(profile_to_keep(self.cfg))
        if self.wheel:
            self.check_tags()
            self.keep_wheel()

    def keep_wheel(self):
        """Put the wheel where the next installation finds it."""
        if not self.facts:
            return
        more = {'asked': self.building.asked, 'loaded': [module['mod_name'] for module in self.modules_tool.list()]}
        try:
            self.wheel = built_wheels.keep(self.wheel, self.built_stores()[0], self.facts, more)
        except OSError as err:
            # hours of work are not lost because the source path is read-only: it is installed, and kept there
            print_msg("the wheel could not be kept in the source path: %s", err, log=self.log)

    def test_step(self):
        """The list of PyTorch's own tests that is asked for: all, which upstream runs, take a day."""
        self.environment.test(self.wheels, [self.wheel], self.building.tree if self.src else None)

    # --- installing -------------------------------------------------------------------------------------------------

    def install_step(self):
        """An environment with PyTorch in it, which comes before what is built for it; the wheel is left beside."""
        self.environment.install(self.wheels, [self.wheel])
        if not self.dry_run:
            directory = os.path.join(self.installdir, 'wheels')
            note = os.path.join(os.path.dirname(self.wheel), built_wheels.NOTE)
            mkdir(directory)
            for path in filter(os.path.exists, (self.wheel, note)):
                copy_file(path, directory)

    def make_module_extra(self, *args, **kwargs):
        """Only the module's own packages, the system's settings, and where the wheel is."""
        text = super().make_module_extra(*args, **kwargs) + self.environment.module_text()
        return text + self.module_generator.set_environment('PYTORCH_WHEELS', os.path.join(self.installdir, 'wheels'))

    def sanity_check_step(self, *args, **kwargs):
        """Two processes add up a tensor with each backend that can do so without a GPU."""
        asked = self.asked_of_wheel() if not self.dry_run else build_options.as_dict(self.building.own_options())
        ways = ['import'] + [way for way, option, default in (('gloo', 'USE_GLOO', '1'), ('mpi', 'USE_MPI', '0'))
                             if contract.plain(asked.get(option, default)) == 'ON']
        commands = ['pytorch-check ' + way for way in ways] if 'pytorch-check' in self.cfg['scripts'] else []
        super().sanity_check_step(*args, custom_paths=self.environment.sanity_check_paths(), custom_commands=commands,
                                  **kwargs)

    def sanity_check_load_module(self, *args, **kwargs):
        """With the module loaded, ask the installed PyTorch what it has: the wheel may have been built elsewhere."""
        loaded = super().sanity_check_load_module(*args, **kwargs)
        if self.sanity_check_module_loaded and not self.dry_run:
            try:
                self.check_installed_contract()
            except UsersProblem as problem:
                self.sanity_check_fail_msgs.append(str(problem))
            self.sanity_check_fail_msgs += self.environment.check_packages()
        return loaded

    def check_installed_contract(self):
        """Compare what is installed with what was asked for."""
        # upstream's function calls both
        lacking = [name for name in ('cuobjdump', 'file') if not which(name, log_ok=False, on_error=IGNORE)]
        asked = self.asked_of_wheel()
        if lacking and asked.get('TORCH_CUDA_ARCH_LIST'):
            print_msg("the code for GPUs is not looked at, for want of: %s", ', '.join(lacking), log=self.log)
        differences, ldd = contract.ask_installed(
            self.environment.path('bin', 'python'), asked,
            None if lacking else lambda path: get_cuda_architectures(path, 'elf'))
        if differences:
            raise UsersProblem("the installed PyTorch is not what was asked for (%s):\n%s" % (
                ', '.join(item.option for item in differences), contract.table(differences)))
        mpi = [path for path in nub(contract.resolved(ldd, 'libmpi')) if path != 'not found']
        print_msg("PyTorch is what was asked for%s", '; MPI: ' + ', '.join(mpi) if mpi else '', log=self.log)

    def asked_of_wheel(self):
        """What the installed wheel was built to have; its note is beside it."""
        note = built_wheels.read_note(os.path.join(self.installdir, 'wheels'))
        return note['asked'] if note else self.building.asked or build_options.as_dict(self.building.own_options())

    def sanity_check_rpath(self, *args, **kwargs):
        """The system's compilers link as they do, and official wheels bring their libraries along: no RPATH here."""
        self.log.info("RPATH is not checked in wheels")
        return []
