# Copyright 2026 the hpc-pytorch team, GNU General Public License v2, without any warranty: see the file LICENSE
"""
EasyBuild support for installing Python packages from lock files, implemented as an easyblock

Needed because: a collection of wheels that work together is what users of PyTorch want, with every file's SHA256.
Differs from upstream's PythonBundle in: lock files in pip's format (uv and pip-tools write it) instead of exts_list,
a virtual environment, and pip's own mirrors, proxies and caches for fetching.
Remove when: PythonBundle reads lock files.

Its steps are those of LockedEnvironment (hpc_pytorch/packages/locked_environment.py). Wheels can also be `sources`,
for which --inject-checksums writes checksums that are published nowhere. So can sources of packages that pip cannot
fetch without PyTorch; they are built here.
"""
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.build_log import EasyBuildError

from hpc_pytorch.machine.versions import of_dependencies
from hpc_pytorch.packages.gpu_code import why_not_rocm
from hpc_pytorch.packages.locked_environment import LockedEnvironment
from hpc_pytorch.packages.wheel_tags import parse_wheel, why_not


class LockedWheels(LockedEnvironment):
    """Support for installing Python packages from lock files into a virtual environment that is a module."""

    @staticmethod
    def extra_options(extra_vars=None):
        ramgate = [False, "Compile under ramgate; refused on login nodes", CUSTOM]
        return LockedEnvironment.extra_options(dict({'ramgate': ramgate}, **extra_vars or {}))

    def check_before_fetching(self):
        """Refuse wheels that do not fit this Python or processor, and a PyTorch for another ROCm than the module's."""
        rocm = of_dependencies(self.cfg).get('rocm')
        for source in self.cfg['sources']:
            name = source if isinstance(source, str) else source['filename']
            if not name.endswith('.tar.gz'):
                problem = why_not(name, self.python)
                if not problem and parse_wheel(name).name == 'torch':
                    problem = why_not_rocm(parse_wheel(name).version, rocm)
                if problem:
                    raise EasyBuildError("%s", problem)

    def extract_step(self):
        """Wheels are not unpacked beforehand."""

    def configure_step(self):
        """Nothing to configure."""

    def build_step(self):
        """Everything is built while it is installed."""

    def own_files(self):
        return [source['path'] for source in self.src]
