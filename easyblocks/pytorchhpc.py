# Copyright 2026 the hpc-pytorch team, GNU General Public License v2, without any warranty: see the file LICENSE
"""
EasyBuild support for building PyTorch into a wheel and installing that as a module, implemented as an easyblock

Needed because: PyTorch silently builds without what its CMake does not find, supercomputers have compilers of their
own, and a build of hours should leave a wheel that can be installed again.
Differs from upstream's EB_PyTorch in: the system's compilers (systems/), a comparison of CMake's decisions with what
was asked for, a wheel as an artefact, everything around PyTorch from lock files.
Remove when: upstream builds wheels and verifies the configuration.

The build is WheelBuild's (hpc_pytorch/source/wheel_build.py), the installation LockedEnvironment's
(hpc_pytorch/packages/locked_environment.py). Here a wheel that was built earlier is found, and a build that was
interrupted continued; what is installed is compared with what was asked for.
"""
import json
import os
import shutil

from easybuild.easyblocks.pytorch import EB_PyTorch
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.build_log import EasyBuildError, print_msg, print_warning
from easybuild.tools.config import build_path, source_paths
from easybuild.tools.filetools import copy_files, create_patch_info
from easybuild.tools.hooks import BUILD_STEP, CONFIGURE_STEP, PATCH_STEP
from easybuild.tools.utilities import nub

from hpc_pytorch import UsersProblem, write_atomically
from hpc_pytorch.packages import built_wheels, upstream_patches
from hpc_pytorch.packages.easybuild_errors import as_easybuild_error
from hpc_pytorch.packages.lock_files import read_lock
from hpc_pytorch.packages.locked_environment import LockedEnvironment
from hpc_pytorch.source import contract, gpu_aware_mpi, installed, libraries
from hpc_pytorch.source.wheel_build import WheelBuild, commit_of


class EB_PyTorchHPC(WheelBuild, EB_PyTorch):
    """Support for building PyTorch with a system's own compilers and MPI, and installing it from the wheel."""

    @staticmethod
    def extra_options():
        """Upstream's easyconfig parameters, and what else is to be fetched, built and installed."""
        options = LockedEnvironment.extra_options(EB_PyTorch.extra_options())
        options['gpu_aware_mpi'] = [False, "Make the MPI backend ask MPI at run time for GPU support", CUSTOM]
        # a wheel is installed for PyTorch's own tests (runtest), too
        options['use_pip'][0] = True
        # wheels are checked against each other by the lock files
        options['sanity_pip_check'][0] = False
        # so that Python's extensions are linked with the system's compiler
        options['check_ldshared'][0] = True
        return options

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # what the wheel is made of, and the note of an interrupted build of the same
        self.facts = None
        self.interrupted = None
        if not self.cfg['features']:
            print_warning("%s states no features, so its module sets nothing of what %s needs. Add those of gpu, nccl "
                          "and mpi that it uses, such as features = ['mpi'], or features = ['cpu'] for none",
                          self.cfg.path, self.system.system['title'])

    def check_before_fetching(self):
        """Look for a wheel that was built from the same; without one, look whether it can be built."""
        self.facts = self.identity()
        stores = built_wheels.stores(self.cfg, source_paths())
        self.wheel = built_wheels.find(stores, self.facts) if self.facts else None
        if self.wheel:
            print_msg("using the wheel that was built earlier: %s", self.wheel, log=self.log)
        else:
            super().check_before_fetching()

    def identity(self):
        """Return what makes the wheel what it is; None if a source or patch has neither checksum nor commit."""
        checksums = [commit_of(source) or self.get_checksum_for(self.cfg['checksums'], source, index)
                     for index, source in enumerate(self.cfg['sources'] + self.cfg['patches'])]
        if None in checksums:
            return None
        banners = {}
        for variable, command in self.compilers().items():
            if not shutil.which(command):
                raise EasyBuildError("%s, which %s compiles with, was not found: add the module that has it to the "
                                     "dependencies", command, self.system.system['title'])
            banners[variable] = self.first_line(command)
        options = ['%s=%s' % option for option in self.own_options().items()]
        # of a module without a version, the one that is loaded: PrgEnv-gnu means another one after a maintenance
        loaded = {name.split('/')[0]: name for name in self.modules_tool.loaded_modules()}
        modules = [dep['full_mod_name'] for dep in self.cfg.dependencies()]
        return {
            'name': self.name,
            'version': self.version,
            'checksums': checksums,
            'options': sorted(options),
            'compilers': banners,
            'modules': [loaded.get(name, name) for name in modules],
            'python': [self.python.implementation, self.python.version, self.python.machine],
            'build_type': self.cfg['build_type'] or 'Release',
            'cuda_architectures': self.cuda_architectures(),
            'gpu_aware_mpi': gpu_aware_mpi.identity() if self.cfg['gpu_aware_mpi'] else None,
            'build_packages': sorted(entry.text for entry in self.locked('build_lock_files')),
        }

    def fetch_sources(self, *args, **kwargs):
        if not self.wheel:
            super().fetch_sources(*args, **kwargs)

    def fetch_patches(self, *args, **kwargs):
        """Fetch no patches if there is a wheel; upstream's come out of the distribution of its easyconfigs."""
        if self.wheel:
            return
        names = [create_patch_info(patch)['name'] for patch in self.cfg['patches']]
        missing = [name for name in names
                   if not self.dry_run and not self.obtain_file(name, no_download=True, warning_only=True)]
        if missing:
            # unpacking it takes the packages to build with
            with self.loaded_dependencies(), as_easybuild_error():
                self.other_sources = read_lock(self.named_file(upstream_patches.LOCK))
                self.fetch_packages()
                place = os.path.dirname(built_wheels.stores(self.cfg, source_paths())[0])
                upstream_patches.extract(self.wheels, missing, place)
        super().fetch_patches(*args, **kwargs)

    def make_builddir(self):
        """Keep what an interrupted build of the same left."""
        self.interrupted = self.find_interrupted()
        if not self.interrupted:
            super().make_builddir()

    def find_interrupted(self):
        """Return the note of an interrupted build that can be continued; print why it cannot."""
        note = built_wheels.read_interrupted(self.builddir)
        if self.wheel or not self.facts or not note:
            return None
        different = built_wheels.differences(self.facts, note['facts'])
        if not os.path.isdir(note['source']):
            different = different or 'its source tree'
        if different:
            print_msg("the interrupted build is not continued, as it differs in: %s", different, log=self.log)
            return None
        print_msg("continuing the build that was interrupted in %s", note['source'], log=self.log)
        return note

    def extract_step(self):
        if self.interrupted:
            self.src[0]['finalpath'] = self.interrupted['source']
        else:
            super().extract_step()

    def skip_step(self, step, skippable):
        """Skip what a wheel that was built earlier, or an interrupted build's tree, has behind it."""
        behind = [PATCH_STEP] if self.interrupted else []
        if self.wheel:
            behind = [PATCH_STEP, CONFIGURE_STEP, BUILD_STEP]
        return step in behind or super().skip_step(step, skippable)

    def configure_step(self):
        """Take CMake's answer from an interrupted build; from now on this one can be continued, too."""
        if self.interrupted:
            self.cmake_output = self.interrupted['cmake_output']
        super().configure_step()
        if self.facts and not self.interrupted:
            note = {'facts': self.facts, 'source': os.path.realpath(self.start_dir), 'cmake_output': self.cmake_output}
            write_atomically(os.path.join(self.builddir, built_wheels.INTERRUPTED), json.dumps(note))

    def test_step(self):
        """Run PyTorch's own tests where that is asked for (runtest), unless the wheel was built earlier."""
        if self.src and isinstance(self.cfg.get('runtest', resolve=False), str):
            self.cfg['install_src'] = self.wheel
            super().test_step()

    def own_files(self):
        return [self.wheel]

    def install_step(self):
        """Keep the wheel for the next installation, install it, and leave it beside for other environments."""
        if self.src and self.facts:
            self.keep_for_the_next()
        super().install_step()
        if self.dry_run:
            return
        note = os.path.join(os.path.dirname(self.wheel), built_wheels.NOTE)
        copy_files(list(filter(os.path.exists, [self.wheel, note])), self.path('wheels'))

    def keep_for_the_next(self):
        """Keep the wheel with what it was built from; what fails PyTorch's own tests does not get here."""
        more = {'asked': self.asked, 'loaded': self.modules_tool.loaded_modules()}
        store = built_wheels.stores(self.cfg, source_paths())[0]
        try:
            self.wheel = built_wheels.keep(self.wheel, store, self.facts, more)
        except OSError as err:
            # hours of work are not lost because the source path is read-only
            print_msg("%s could not be kept in the source path: %s", os.path.basename(self.wheel), err, log=self.log)

    def make_module_extra(self, *args, **kwargs):
        text = super().make_module_extra(*args, **kwargs)
        return text + self.module_generator.set_environment('PYTORCH_WHEELS', self.path('wheels'))

    def sanity_check_load_module(self, *args, **kwargs):
        """With the module loaded, ask the installed PyTorch what it has: the wheel may have been built elsewhere."""
        loaded = super().sanity_check_load_module(*args, **kwargs)
        if self.sanity_check_module_loaded and not self.dry_run:
            try:
                self.check_installed_contract()
            except UsersProblem as problem:
                self.sanity_check_fail_msgs.append(str(problem))
        return loaded

    def check_installed_contract(self):
        note = built_wheels.read_note(self.path('wheels'))
        asked = note['asked'] if note else self.asked or self.own_options()
        differences, ldd = installed.ask_installed(self.path('bin', 'python'), asked, build_path())
        if differences:
            options = ', '.join(nub(item.option for item in differences))
            raise UsersProblem("the installed PyTorch differs from what was requested (%s):\n%s" % (
                options, contract.table(differences)))
        mpi = [path for path in nub(libraries.resolved(ldd, 'libmpi')) if path != 'not found']
        print_msg("PyTorch has the requested options; MPI: %s", ', '.join(mpi) or 'none', log=self.log)
