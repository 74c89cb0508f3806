"""
Packages of the operating system: installs them where that is allowed, else says what to type.

``./eb`` and ``./test`` run this file before their environments exist, so it needs nothing but Python:
``python3 hpc_pytorch/machine/distribution_packages.py lmod``.
"""
import os
import shutil
import subprocess
import sys

if __name__ == '__main__':
    # run as a program, with -I: Python does not find the collection
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
from hpc_pytorch import UsersProblem  # noqa: E402

APT = ['apt-get', '-qq', '-o', 'DPkg::Lock::Timeout=600']
DNF = ['dnf', '-q', '-y', 'install']
# Package managers: the command that installs; names that differ from Debian's; what is tried once when that fails. The
# first that is found is used.
MANAGERS = {
    # a new machine has no package lists, an old one stale ones; after dpkg was killed it must be told to continue
    'apt-get': (APT + ['-y', '--no-install-recommends', 'install'], {},
                [['dpkg', '--configure', '-a'], APT + ['update']]),
    # Lmod is in EPEL, and what it needs in the repository crb (powertools in version 8)
    'dnf': (DNF, {'lmod': 'Lmod', 'python3-venv': 'python3-pip', 'g++': 'gcc-c++'},
            [DNF + ['epel-release'], ['crb', 'enable']]),
    'zypper': (['zypper', '-n', '-q', 'install'],
               {'lmod': 'lua-lmod', 'python3-venv': 'python3-pip', 'g++': 'gcc-c++'}, []),
}
# Debian's services must not start because a test installs them.
ENVIRONMENT = {'DEBIAN_FRONTEND': 'noninteractive', 'LC_ALL': 'C.UTF-8'}


class WouldRemove(UsersProblem):
    """Installing this would remove other packages; one message."""


def command_for(names):
    """Return the package manager, and the command that installs these packages with it."""
    for manager, (command, others, _) in MANAGERS.items():
        if shutil.which(manager):
            return manager, command + [others.get(name, name) for name in names]
    raise UsersProblem("found none of the package managers %s. Install by hand: %s" % (
        ', '.join(MANAGERS), ' '.join(names)))


def missing(names):
    """Return those that are not installed; all but on Debian, whose dpkg alone answers fast enough."""
    if not shutil.which('dpkg-query'):
        return list(names)
    installed = run(['dpkg-query', '-W', '-f', '${Package} ${db:Status-Status}\\n'] + list(names)).stdout.splitlines()
    return [name for name in names if name + ' installed' not in installed]


def install(names):
    """Install what is missing, as root or with a sudo that asks for no password."""
    names = missing(names)
    if not names:
        return
    manager, command = command_for(names)
    by_hand = 'sudo ' + ' '.join(word for word in command if not word.startswith(('-q', '-o', 'DPkg')))
    sudo = []
    if os.geteuid() != 0:
        if not shutil.which('sudo') or subprocess.run(['sudo', '-n', 'true'], stderr=subprocess.DEVNULL).returncode:
            raise UsersProblem("not on this machine: %s. Install with: %s" % (' '.join(names), by_hand))
        sudo = ['sudo', '-n']
    print("Installing with %s: %s" % (manager, ' '.join(names)), file=sys.stderr, flush=True)
    done = run_unless_it_removes(manager, sudo + command)
    if done.returncode:
        for repair in MANAGERS[manager][2]:
            if shutil.which(repair[0]):
                run(sudo + repair)
        done = run_unless_it_removes(manager, sudo + command)
    if done.returncode:
        raise UsersProblem("cannot install %s. The package manager's last line: %s. Try by hand: %s" % (
            ' '.join(names), last_line(done.stdout), by_hand))


def run_unless_it_removes(manager, command):
    """Refuse what makes apt remove packages that somebody installed; dnf and zypper ask, and get no answer."""
    if manager == 'apt-get':
        plan = run(command + ['--simulate', '-q=0']).stdout
        removed = [line.split()[1] for line in plan.splitlines() if line.startswith('Remv ')]
        if removed:
            raise WouldRemove("nothing was changed, as this would remove %s. If nobody needs that: %s" % (
                ' '.join(removed), ' '.join(command)))
    return run(command)


def run(command, cwd=None):
    """Run a command of the package manager."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True, env=dict(os.environ, **ENVIRONMENT), cwd=cwd)


def last_line(text):
    return text.strip().split('\n')[-1]


def main(names):
    try:
        install(names)
    except UsersProblem as problem:
        print("ERROR: %s" % problem, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
