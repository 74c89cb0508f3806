"""
What is installed although it is known to be vulnerable is told before it begins.

Python 3.6.
"""
import os

from hpc_pytorch.machine.collection_files import named_file
from hpc_pytorch.packages import advisories
from hpc_pytorch.packages.lock_files import read_lock
from hpc_pytorch.rules.early_checks import by_policy, going_to_install


def packages_of(ec):
    """(name, version) of what an easyconfig installs, on whichever Python; of images PyTorch alone."""
    found = [('torch', ec['version'])] if ec['name'] == 'PyTorch' else []
    # of 2.2.2+rocm5.7 only what upstream calls it
    return {(name, version.split('+')[0]) for name, version in found + locked(ec) + locked(ec, 'lock_files_instead')}


def locked(ec, key='lock_files'):
    """(name, version) of what its lock files name; one that is not there is an error of another rule."""
    locks = [named_file(ec.path, name) for name in (ec[key] or [] if key in ec else [])]
    return [(entry.name, entry.version) for lock in locks if lock for entry in read_lock(lock)]


def check(ecs):
    """One line for each package."""
    if not going_to_install():
        return
    data = advisories.load()
    for ec in [entry['ec'] for entry in ecs]:
        lines = [advisories.in_words(name, version, ones)
                 for (name, version), ones in advisories.known(data, packages_of(ec)).items()]
        if lines:
            by_policy('vulnerable', "%s installs packages with known vulnerabilities (known on %s):\n  %s\nA newer "
                      "version, if there is one: ./eb --new-version latest %s" % (
                          os.path.basename(ec.path), data['advisories']['date'], '\n  '.join(lines),
                          os.path.basename(ec.path)), 'warn')
