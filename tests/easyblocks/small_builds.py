"""Easyconfigs of the collection whose sources are replaced by small ones, and what they are installed from."""
import ast
import hashlib
import os
import re
import shutil
import tarfile
from pathlib import Path

from common import CACHE, CHECKOUT

from hpc_pytorch.packages import lock_files

HERE = Path(__file__).parent
SMALL_TORCH = CHECKOUT / 'tests' / 'easyblocks' / 'small_torch'
SMALL = """
easyblock = 'EB_PyTorchHPC'
name = 'PyTorch'
version = '1.13.1'
versionsuffix = '-small-ARCHER2'
homepage = 'https://example.org/'
description = 'small'
toolchain = SYSTEM
sources = ['small-torch.tar.gz']
checksums = ['{checksum}']
builddependencies = [('cmake/3.21.3', EXTERNAL_MODULE)]
dependencies = [('PrgEnv-gnu', EXTERNAL_MODULE), ('cray-python', EXTERNAL_MODULE), ('mkl/2023.0.0', EXTERNAL_MODULE)]
custom_opts = {options}
python_versions = ['3.9', '3.11']
features = ['mpi']
lock_files = ['small.lock']
build_lock_files = ['small-build.lock']
sanity_check_commands = []
moduleclass = 'ai'
"""
OPTIONS = ['USE_MPI=1', 'MKL_THREADING=SEQ']
# What the small trees are built with; all that PyTorch is built with takes longer to install than they to compile.
TOOLS = ('build', 'packaging', 'pyproject-hooks', 'setuptools', 'six', 'wheel')
LOCK = """# one small package, so that there is something to lock
toml==0.10.2 --hash=sha256:806143ae5bfb6a3c6e736a764057db0e6a0e05e338b5630894a5f779cabb4f9b
"""


def pack(directory, name, tarball):
    """A directory as a tarball with one directory of this name; returns its SHA256."""
    tarball.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(tarball, 'w:gz') as packed:
        packed.add(directory, name)
    return hashlib.sha256(tarball.read_bytes()).hexdigest()


def write_locks(directory):
    """The lock files of a small tree beside its easyconfig."""
    (directory / 'small.lock').write_text(LOCK)
    entries = lock_files.read_lock(str(CHECKOUT / 'easyconfigs/p/PyTorch/locks/PyTorch-1.13.1-build.lock'))
    (directory / 'small-build.lock').write_text(''.join(entry.text + '\n' for entry in entries if entry.name in TOOLS))


class SmallTorch:
    """
    A PyTorch easyconfig of the collection with a small source tree: all else stays what it is.

    Parameters that are given replace the easyconfig's; in dependencies, NCCL and its plugin are the small ones.
    """

    def __init__(self, easyconfig, directory, sources):
        self.original = CHECKOUT / 'easyconfigs' / 'p' / 'PyTorch' / easyconfig
        self.directory = directory
        self.sources = sources / 'p' / 'PyTorch'
        self.tree = directory / 'small-torch'
        shutil.copytree(SMALL_TORCH, self.tree)
        shutil.copytree(HERE / 'small_gpu_torch', self.tree, dirs_exist_ok=True)
        self.path = directory / easyconfig.replace('.eb', '-small.eb')
        write_locks(directory)

    def write(self, replace=(), **parameters):
        """Pack the tree and write the easyconfig; returns its path."""
        checksum = pack(self.tree, 'small-torch', self.sources / 'small-torch.tar.gz')
        suffix = re.search(r"^versionsuffix = '(.*)'", self.original.read_text(), re.M).group(1)
        parameters = dict({
            'versionsuffix': suffix + '-small', 'sources': ['small-torch.tar.gz'], 'patches': [],
            'checksums': [checksum],
            'lock_files': ['small.lock'], 'build_lock_files': ['small-build.lock'], 'build_from_source': [],
            'scripts': [], 'sanity_check_commands': ["python -c 'import torch; assert torch.mpi_available()'"]},
            **parameters)
        text = self.original.read_text()
        for node in reversed(ast.parse(text).body):
            name = node.targets[0].id
            if name in parameters:
                lines = text.splitlines(keepends=True)
                lines[node.lineno - 1:node.end_lineno] = ['%s = %r\n' % (name, parameters.pop(name))]
                text = ''.join(lines)
        text += ''.join('%s = %r\n' % item for item in parameters.items())
        for old, new in tuple(replace) + (("'2.21.5-1'", "'9.9.9'"), ("'1.6.0'", "'9.9.9'")):
            text = text.replace(old, new)
        self.path.write_text(text)
        return self.path


class Small:
    """The easyconfig of a small tree, in a directory of the test's own."""

    def __init__(self, eb, directory):
        self.eb, self.directory = eb, directory
        # built wheels are found in the first source path, so it is the test's own; downloads come from the cache
        eb.sources = '%s:%s' % (directory / 'sources', CACHE / 'small-torch')
        self.tree = directory / 'small-torch'
        shutil.copytree(SMALL_TORCH, self.tree)
        self.easyconfig = directory / 'PyTorch-1.13.1-small-ARCHER2.eb'
        write_locks(directory)
        self.sources = directory / 'sources' / 'p' / 'PyTorch'
        self.sources.mkdir(parents=True)
        self.installation = eb.prefix / 'software' / 'PyTorch' / '1.13.1-small-ARCHER2'

    def write(self, options=OPTIONS, checksum=None, edit=None):
        """Pack the tree and write its easyconfig."""
        tarball = self.sources / 'small-torch.tar.gz'
        with tarfile.open(tarball, 'w:gz') as packed:
            packed.add(self.tree, 'small-torch')
        checksum = checksum or hashlib.sha256(tarball.read_bytes()).hexdigest()
        text = SMALL.format(checksum=checksum, options=options)
        self.easyconfig.write_text(edit(text) if edit else text)

    def __call__(self, *arguments, **options):
        """./eb with this easyconfig; messages in one line."""
        return self.eb('--rehearse', self.easyconfig, *arguments, **options).stdout

    def compiled(self):
        """Whether the last installation compiled something, from its log."""
        log = max(self.installation.glob('easybuild/easybuild-*.log*'), key=os.path.getmtime)
        return 'Building CXX object' in log.read_text()

    def refused(self, *arguments, **options):
        """It stops with an error, and nothing is installed."""
        # EasyBuild's exit status tells which kind of error it was
        done = self.eb('--rehearse', self.easyconfig, *arguments, status=None, **options)
        assert done.returncode, done.stdout
        # EasyBuild makes the empty directory before anything else
        assert not list(self.installation.glob('*'))
        assert not list(self.eb.modules.glob('PyTorch/*'))
        return done.stdout
