"""What the tests of Frontier share: the easyconfig with PyTorch's CPU wheel in place of the ROCm one, and a Slurm."""
import glob
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from common import CHECKOUT, EB, ModulesTool, needs_root
from batch_systems.real_slurm import Slurm

EASYCONFIG = CHECKOUT / 'easyconfigs/p/PyTorch/PyTorch-2.2.2-Frontier.eb'
WORKSTATION = 'PyTorch-2.13.0-workstation.eb'
MODULE = 'PyTorch/2.13.0-Frontier'
VERSION = '%d.%d' % sys.version_info[:2]


def fetched_cpu_wheel(eb):
    """PyTorch's CPU wheel, which the workstation's easyconfig names, in the source path."""
    eb.fetch(WORKSTATION)
    found = glob.glob('%s/p/PyTorch/PyTorch-2.13.0-workstation-wheels/torch-*.whl' % eb.sources)
    wheel = eb.sources / 'p' / 'PyTorch' / Path(found[0]).name
    if not wheel.exists():
        shutil.copy(found[0], wheel)
    return wheel


def standing_in(wheel, mpi):
    """
    Frontier's easyconfig with another wheel for another Python, without the plugin, and without the mpi backend unless
    that is asked for, as it takes long to compile; the rest is as it is.
    """
    text = EASYCONFIG.read_text()
    if not mpi:
        text, count = re.subn(r"collection_packages = .*|(?<='nccl'), 'mpi'|(?<=gloo mpi4py) mpi", '', text)
        assert count == 3
    text = re.sub(r"^version = .*", "version = '2.13.0'", text, flags=re.M)
    text = re.sub(r"^python_versions = .*", "python_versions = ['%s']" % VERSION, text, flags=re.M)
    text = text.replace("features = [", "features = ['cpu', ")
    # the plugin's source cannot be fetched everywhere; test_plugin.py builds it
    text = re.sub(r".*'aws-ofi-.*\n", '', text)
    text, count = re.subn(r"^sources = \[.*?^\]\nchecksums = .*?$", "sources = [%r]\nchecksums = [None]" % wheel.name,
                          text, flags=re.M | re.S)
    assert count == 1
    return text


class Site:
    """The installed module, the stand-in's modules, and a place to work in that every node sees."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.directory.chmod(0o755)
        self.eb = EB(self.directory / 'prefix')
        self.slurm = None

    def install(self, mpi=False):
        """Install PyTorch on the stand-in."""
        easyconfig = self.directory / 'PyTorch-2.13.0-Frontier.eb'
        easyconfig.write_text(standing_in(fetched_cpu_wheel(self.eb), mpi))
        return self.eb(easyconfig, '--rehearse', '--robot').stdout

    def run(self, script, env=(), load=MODULE, **options):
        """Run a script as on a login node, with the module loaded."""
        environment = dict(self.slurm.environment if self.slurm else {}, **dict(env))
        load = 'module use %s %s\nmodule load %s || exit\n' % (self.system_modules, self.eb.modules, load)
        return ModulesTool('Lmod').run(load + script, env=environment, cwd=self.directory, timeout=3000, **options)

    @property
    def system_modules(self):
        """The modules of the stand-in."""
        return CHECKOUT / '.local/stand_ins/frontier-2024/modules'

    @property
    def root(self):
        """Where PyTorch is installed."""
        return self.eb.prefix / 'software/PyTorch/2.13.0-Frontier'


@contextmanager
def site():
    """A site with nothing installed, which ends with all that is in it."""
    directory = tempfile.mkdtemp(prefix='hpc-tests-')
    try:
        yield Site(directory)
    finally:
        subprocess.run(['rm', '-rf', directory], check=True)


@pytest.fixture(scope='session')
def frontier():
    """Frontier with PyTorch, and a Slurm of four nodes like Frontier's, as far as Slurm knows."""
    needs_root()
    with site() as frontier:
        frontier.install()
        # Frontier's jobs have whole nodes; the first partition is for two jobs on one node all the same
        with Slurm(frontier.directory / 'slurm', cpus=128, memory=512 << 10, gpus=8, partitions=('shared', 'batch'),
                   exclusive=('batch',)) as frontier.slurm:
            yield frontier
