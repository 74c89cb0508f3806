"""The patches of EasyBuild's own easyconfigs of PyTorch: ours name them with their SHA256, and they are taken out of
the source distribution of those easyconfigs, which a lock file names.
"""
import glob
import os
import tarfile

from hpc_pytorch import UsersProblem, write_atomically

LOCK = 'easybuild-easyconfigs.lock'
DIRECTORY = '/easybuild/easyconfigs/p/PyTorch/'


def read_distribution(directory):
    """Return what the distribution in this directory has of PyTorch: {file name: text}."""
    archive, = glob.glob(os.path.join(glob.escape(directory), 'easybuild?easyconfigs-*.tar.gz'))
    with tarfile.open(archive) as packed:
        members = [member for member in packed if DIRECTORY in member.name and member.isfile()]
        return {os.path.basename(member.name): packed.extractfile(member).read().decode() for member in members}


def extract(directory, names, target):
    """Take patches out of the distribution, to where EasyBuild finds and verifies them."""
    files = read_distribution(directory)
    for name in names:
        if name not in files:
            raise UsersProblem("The patch %s is neither beside the easyconfig nor in the distribution that %s names: "
                               "correct its name, or put the patch beside the easyconfig" % (name, LOCK))
        write_atomically(os.path.join(target, name), files[name])
