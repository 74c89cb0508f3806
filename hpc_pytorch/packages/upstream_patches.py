"""The patches of EasyBuild's own easyconfigs of PyTorch: ours name them with their SHA256, and they are taken out of
the source distribution of those easyconfigs, which a lock file names.
"""
import glob
import os
import tarfile

from hpc_pytorch import UsersProblem, write_atomically

LOCK = 'easybuild-easyconfigs.lock'
DIRECTORY = '/easybuild/easyconfigs/p/PyTorch/'


def extract(directory, names, target):
    """Take patches out of the distribution in a directory, to where EasyBuild finds and verifies them."""
    archive, = glob.glob(os.path.join(glob.escape(directory), 'easybuild?easyconfigs-*.tar.gz'))
    with tarfile.open(archive) as packed:
        members = {os.path.basename(member.name): member for member in packed if DIRECTORY in member.name}
        for name in names:
            if name not in members:
                raise UsersProblem("The patch %s is neither beside the easyconfig nor in the distribution that %s "
                                   "names: correct its name, or put the patch beside the easyconfig" % (name, LOCK))
            write_atomically(os.path.join(target, name), packed.extractfile(members[name]).read().decode())
