"""
The patches of EasyBuild's own easyconfigs of PyTorch: ours name them with their SHA256, and they are taken out of the
source distribution of those easyconfigs, which a lock file names.
"""
import glob
import os
import tarfile

from easybuild.tools.filetools import create_patch_info, mkdir, write_file

from hpc_pytorch import UsersProblem, fsync, part_directory

LOCK = 'easybuild-easyconfigs.lock'
DIRECTORY = 'easybuild/easyconfigs/p/PyTorch'


def missing(easyblock):
    """The patches that are neither beside the easyconfig nor in a path of EasyBuild's."""
    names = [create_patch_info(patch)['name'] for patch in easyblock.cfg['patches']]
    return [name for name in names if not easyblock.obtain_file(name, no_download=True, warning_only=True)]


def extract(files, names, target):
    """Take patches out of the distribution among these files, to where EasyBuild finds and verifies them."""
    distribution, = glob.glob(os.path.join(files, 'easybuild?easyconfigs-*.tar.gz'))
    mkdir(target, parents=True)
    with tarfile.open(distribution) as packed, part_directory(target) as part:
        top = packed.next().name.split('/')[0]
        for name in names:
            try:
                patch = packed.extractfile('/'.join([top, DIRECTORY, name])).read()
            except KeyError:
                raise UsersProblem("The patch %s is neither beside the easyconfig nor in %s: correct its name, or put "
                                   "the patch beside the easyconfig" % (name, os.path.basename(distribution)))
            path = os.path.join(part, name)
            write_file(path, patch)
            fsync(path)
            os.replace(path, os.path.join(target, name))
