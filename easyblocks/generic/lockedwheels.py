##
# Copyright 2026 the hpc-pytorch team
#
# This file is part of hpc-pytorch, a collection for EasyBuild (https://easybuild.io). It is free software: you can
# redistribute it and/or modify it under the terms of the GNU General Public License as published by the Free Software
# Foundation v2. It comes without any warranty; see the file LICENSE.
##
"""
EasyBuild support for installing Python packages from lock files, implemented as an easyblock

Needed because: a collection of wheels that work together is what users of PyTorch want, with every file's SHA256.
Differs from upstream's PythonBundle in: lock files in pip's format (uv and pip-tools write it) instead of exts_list,
a virtual environment, and pip's own mirrors, proxies and caches for fetching.
Can go when: PythonBundle reads lock files.

Wheels can also be sources, fetched and checked as EasyBuild does it: for those whose checksum is nowhere to be found,
as --inject-checksums works for them. So can sources of packages, which are built here: for those that pip cannot fetch
without PyTorch.

@author: the hpc-pytorch team
"""
import zipfile

from easybuild.framework.easyblock import EasyBlock
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.build_log import EasyBuildError

from hpc_pytorch.packages import rocm_pairs
from hpc_pytorch.packages.locked_packages import LockedPackages
from hpc_pytorch.packages.python_environment import PARAMETERS, PythonEnvironment
from hpc_pytorch.packages.wheel_tags import parse_wheel, why_not


class LockedWheels(EasyBlock):
    """Support for installing Python packages from lock files into a virtual environment that is a module."""

    @staticmethod
    def extra_options(extra_vars=None):
        ramgate = [False, "What is compiled stays within the memory, and is not for login nodes", CUSTOM]
        return EasyBlock.extra_options(dict(PARAMETERS, ramgate=ramgate, **extra_vars or {}))

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.packages = LockedPackages(self)
        self.environment = PythonEnvironment(self.packages, list(self.cfg['features']), {})
        self.wheels = None

    def fetch_step(self, *args, **kwargs):
        """Fetch what the locks name, unless all of it lies in a source path."""
        self.packages.check_locks()
        self.environment.own_tests()
        if self.dry_run:
            # upstream would look for a checksums.json, and stumble over not finding it
            self.json_checksums = {}
        else:
            with self.packages.modules():
                self.packages.look_around()
                self.check_rocm()
                self.check_source_wheels()
        super().fetch_step(*args, **kwargs)
        self.wheels = self.packages.fetch()

    def source_wheels(self):
        """The names of the sources, which are wheels."""
        names = [source if isinstance(source, str) else source['filename'] for source in self.cfg['sources']]
        others = [name for name in names if not name.endswith(('.whl', '.tar.gz'))]
        if others:
            raise EasyBuildError("expected wheels, or packages' sources (.tar.gz), in `sources`, found %s", others[0])
        return [name for name in names if name.endswith('.whl')]

    def check_rocm(self):
        """Refuse, before gigabytes are fetched, a PyTorch that was not made for this system's ROCm or GPU."""
        wheels = filter(None, map(parse_wheel, self.source_wheels()))
        for package in list(wheels) + self.packages.locked('lock_files'):
            problem = package.name == 'torch' and rocm_pairs.why_not(
                package.version, self.version_of_module('ROCm'), self.packages.python.version,
                self.packages.system.node['gpu_architecture'])
            if problem:
                raise EasyBuildError("torch %s does not fit:\n  %s", package.version, problem)

    def check_source_wheels(self):
        """Refuse, before gigabytes are fetched, wheels that do not fit this Python or processor."""
        for name in self.source_wheels():
            reasons = why_not(name, self.packages.python)
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

    def checksum_step(self):
        """Besides the checksums, which not every wheel has: none may be cut short."""
        super().checksum_step()
        for source in self.src:
            if not self.dry_run and source['path'].endswith('.whl'):
                try:
                    zipfile.ZipFile(source['path']).close()
                except zipfile.BadZipFile:
                    raise EasyBuildError("%s is not a complete wheel: it was cut short, or is another kind of file. "
                                         "Remove it, and run the same command again to fetch it.", source['path'])

    def extract_step(self):
        """Wheels are not unpacked beforehand."""

    def prepare_step(self, *args, **kwargs):
        """Load the system's modules; look around again where fetching was skipped."""
        if self.dry_run:
            # upstream would change permissions of wrappers that a dry run does not write
            self.toolchain.options['rpath'] = False
        super().prepare_step(*args, **kwargs)
        if not self.dry_run:
            self.packages.look_around()

    def configure_step(self):
        """Nothing to configure."""

    def build_step(self):
        """Everything is built while it is installed."""

    def test_step(self):
        """PyTorch's own tests, where a list of them is asked for."""
        super().test_step()
        self.environment.test(self.wheels, [source['path'] for source in self.src])

    def install_step(self):
        """A virtual environment with the wheels, then what is built here."""
        self.environment.install(self.wheels, [source['path'] for source in self.src])

    def make_module_extra(self, *args, **kwargs):
        """Only the module's own packages, and the system's settings."""
        return super().make_module_extra(*args, **kwargs) + self.environment.module_text()

    def sanity_check_step(self, *args, **kwargs):
        """The environment is there, and its packages agree with each other."""
        super().sanity_check_step(*args, custom_paths=self.environment.sanity_check_paths(), **kwargs)

    def sanity_check_load_module(self, *args, **kwargs):
        """With the module loaded, look whether everything in it works together."""
        loaded = super().sanity_check_load_module(*args, **kwargs)
        if self.sanity_check_module_loaded and not self.dry_run:
            self.sanity_check_fail_msgs += self.environment.check_packages()
        return loaded

    def sanity_check_rpath(self, *args, **kwargs):
        """Wheels were linked elsewhere and bring their libraries along: nothing of EasyBuild's RPATH is in them."""
        self.log.info("RPATH is not checked in wheels")
        return []
