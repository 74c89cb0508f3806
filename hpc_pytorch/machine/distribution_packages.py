"""Packages of the operating system: installs them where that is allowed, else says what to type."""
import os
import shutil
import sys

if __name__ == '__main__':
    # ./test runs it before its environment exists, with -I: Python does not find the collection
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
from hpc_pytorch import HERE, UsersProblem, parse  # noqa: E402
from hpc_pytorch.machine import commands  # noqa: E402

MANAGERS = parse(HERE + '/machine/package_managers.cfg')
# Debian's services must not start because a test installs them.
ENVIRONMENT = {'DEBIAN_FRONTEND': 'noninteractive', 'LC_ALL': 'C.UTF-8'}


class NotAllowed(UsersProblem):
    """Installing takes a password, or would remove other packages; the message has the command."""


def command_for(names):
    """Return the package manager, and the command that installs these packages with it."""
    for manager in MANAGERS.sections():
        if shutil.which(manager):
            others = dict(map(str.split, lines_of(manager, 'names')))
            return manager, MANAGERS[manager]['install'].split() + [others.get(name, name) for name in names]
    raise UsersProblem("found none of the package managers %s. Install by hand: %s" % (
        ', '.join(MANAGERS.sections()), ' '.join(names)))


def lines_of(manager, key):
    return MANAGERS[manager].get(key, '').strip().splitlines()


def missing(names):
    """Return those that are not installed; all but on Debian, whose dpkg alone answers fast enough."""
    if not shutil.which('dpkg-query'):
        return names
    installed = run(['dpkg-query', '-W', '-f', '${Package} ${db:Status-Status}\\n', *names]).stdout.splitlines()
    return [name for name in names if name + ' installed' not in installed]


def install(names):
    """Install what is missing, as root or with a sudo that asks for no password."""
    names = missing(names)
    if not names:
        return
    manager, command = command_for(names)
    by_hand = ' '.join(['sudo', manager] + command[command.index('install'):])
    sudo = ['sudo', '-n'] if os.geteuid() else []
    if sudo and (not shutil.which('sudo') or run(['sudo', '-n', 'true']).returncode):
        raise NotAllowed("not on this machine: %s. Install with: %s" % (' '.join(names), by_hand))
    print("Installing with %s: %s" % (manager, ' '.join(names)), file=sys.stderr, flush=True)
    done = run_unless_it_removes(manager, sudo + command)
    if done.returncode:
        for repair in map(str.split, lines_of(manager, 'repairs')):
            if shutil.which(repair[0]):
                run(sudo + repair)
        done = run_unless_it_removes(manager, sudo + command)
    if done.returncode:
        raise UsersProblem("cannot install %s. The package manager's last line: %s. Try by hand: %s" % (
            ' '.join(names), done.stdout.strip().split('\n')[-1], by_hand))


def run_unless_it_removes(manager, command):
    """Refuse what makes apt remove packages that somebody installed; dnf and zypper ask, and get no answer."""
    if manager == 'apt-get':
        plan = run(command + ['--simulate', '-q=0']).stdout
        removed = [line.split()[1] for line in plan.splitlines() if line.startswith('Remv ')]
        if removed:
            raise NotAllowed("nothing was changed, as this would remove %s. If nobody needs that: %s" % (
                ' '.join(removed), ' '.join(command)))
    return run(command)


def run(command, cwd=None):
    return commands.run(command, env=dict(os.environ, **ENVIRONMENT), cwd=cwd)


if __name__ == '__main__':
    try:
        install(sys.argv[1:])
    except UsersProblem as problem:
        sys.exit(str(problem))
