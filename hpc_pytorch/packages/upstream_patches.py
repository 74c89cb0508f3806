"""
The patches of EasyBuild's own easyconfigs of PyTorch: ours name them with their SHA256, and they are taken out of the
source distribution of those easyconfigs, which a lock file names. For a new version of PyTorch, which it should take.
"""
import glob
import os
import re
import sys
import tarfile

from hpc_pytorch import UsersProblem, write_atomically
from hpc_pytorch.machine.collection_files import named_file, plain_values
from hpc_pytorch.machine.commands import run
from hpc_pytorch.machine.versions import release
from hpc_pytorch.packages.pip_errors import last_words

LOCK = 'easybuild-easyconfigs.lock'
DIRECTORY = '/easybuild/easyconfigs/p/PyTorch/'
# what their wheels' easyconfigs have is for their tests
EASYCONFIG = re.compile(r'PyTorch-([\d.]+)-(?!.*-whl\.eb).*\.eb')
TESTS = ('test/', 'torch/testing/')
# the first line of a patch that says something, whatever git wrote before it
REASON = re.compile(r'^(?!From:|From [0-9a-f]{8}|commit |Author:|Date:)(?:Subject: (?:\[PATCH.*?\] )?)? *(\S.*)', re.M)


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


def fetch(easyconfig, directory):
    """Download the distribution that the easyconfig's patches come from."""
    command = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps', '--no-binary', ':all:',
               '--require-hashes', '--dest', directory, '-r', named_file(easyconfig, LOCK)]
    done = run(command)
    if done.returncode:
        raise UsersProblem("the patches of EasyBuild's easyconfigs could not be fetched: %s" % last_words(done.stdout))


# --- which of them a new version should take --------------------------------------------------------------------------

def nearest(names, version):
    """Return upstream's easyconfigs of this version, or of the last one before it."""
    versions = {}
    for name in sorted(names):
        found = EASYCONFIG.match(name)
        if found and release(found.group(1)) <= release(version):
            versions.setdefault(tuple(release(found.group(1))), []).append(name)
    return versions[max(versions)] if versions else []


def by_purpose(patches):
    """Return {what a patch is for: patch}: its name without the version that it was made for."""
    return {patch.partition('_')[2]: patch for patch in patches}


def changes_only_tests(patch):
    changed = re.findall(r'^\+\+\+ [^/\s]+/(\S+)', patch, re.M)
    return bool(changed) and all(path.startswith(TESTS) for path in changed)


def propose(easyconfig, taken, version, directory):
    """Return the patches to take, and a section for docs/patches.cfg with those left out or for people to decide."""
    fetch(easyconfig, directory)
    files = read_distribution(directory)
    easyconfigs = nearest(files, version)
    theirs, ours = {}, by_purpose(taken)
    for name in easyconfigs:
        theirs.update(by_purpose(plain_values(files[name])['patches']))
    take = [patch for purpose, patch in theirs.items() if purpose in ours]
    rest = [patch for purpose, patch in theirs.items() if purpose not in ours and not changes_only_tests(files[patch])]
    lines = ['upstream = %s (%d patches)' % (', '.join(easyconfigs), len(theirs)), 'tried = none yet', 'left out =',
             '    %d change only tests' % (len(theirs) - len(take) - len(rest))]
    lines += ['%s = TO DECIDE: %s' % (patch, REASON.search(files[patch]).group(1)) for patch in rest]
    lines += ['%s = TO DECIDE: upstream has none; does %s need it?' % (patch, version)
              for purpose, patch in ours.items() if purpose not in theirs]
    return take, '\n'.join(lines)
