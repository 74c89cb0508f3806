"""
Packages of the operating system: installs them where that is allowed, else says what to type.

``./eb`` and ``./test`` run this file before their environments exist, so it needs nothing but Python:
``python3 hpc_pytorch/machine/distribution_packages.py lmod``.
"""
import os
import shutil
import subprocess
import sys
import tempfile

if __name__ == '__main__':
    # run as a file, with -I: Python knows nothing of the collection
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
from hpc_pytorch import UsersProblem  # noqa: E402

# Package manager, the command that installs, {name used here: name there where it differs}, and what is tried once when
# that fails: the first one found is used.
MANAGERS = (
    # a new machine has no package lists, an old one stale ones; a dpkg that was killed wants to be told to go on
    ('apt-get', ('apt-get', '-qq', '-y', '-o', 'DPkg::Lock::Timeout=600', '--no-install-recommends', 'install'), {},
     (('dpkg', '--configure', '-a'), ('apt-get', '-qq', '-o', 'DPkg::Lock::Timeout=600', 'update'))),
    # Lmod is in EPEL, and what it needs in the repository that is called crb, in version 8 powertools
    ('dnf', ('dnf', '-q', '-y', 'install'), {'lmod': 'Lmod', 'python3-venv': 'python3-pip', 'g++': 'gcc-c++'},
     (('dnf', '-q', '-y', 'install', 'epel-release'), ('crb', 'enable'))),
    ('zypper', ('zypper', '-n', '-q', 'install'),
     {'lmod': 'lua-lmod', 'python3-venv': 'python3-pip', 'g++': 'gcc-c++'}, ()),
)
# Distributions whose package of a modules tool is too old -> the next release of theirs whose package will do.
NEXT_RELEASES = {'bullseye': 'bookworm', 'focal': 'noble', 'jammy': 'noble'}
# Debian's services must not start because a test installs them.
ENVIRONMENT = {'DEBIAN_FRONTEND': 'noninteractive', 'LC_ALL': 'C.UTF-8'}


class WouldRemove(UsersProblem):
    """Installing this would remove other packages; one message."""


def command_for(names):
    """The command that installs these packages on this machine, as a list; None without a known package manager."""
    for manager, command, other_names, _ in MANAGERS:
        if shutil.which(manager):
            return list(command) + [other_names.get(name, name) for name in names]
    return None


def missing(names):
    """Those that are not there; all but on Debian, whose dpkg alone answers fast enough to be asked each time."""
    if not shutil.which('dpkg-query'):
        return list(names)
    there = run(['dpkg-query', '-W', '-f', '${Package} ${db:Status-Status}\\n'] + list(names)).stdout.splitlines()
    return [name for name in names if name + ' installed' not in there]


def install(names):
    """Install what is missing, as root or with a sudo that asks for no password."""
    names = missing(names)
    if not names:
        return
    command = command_for(names)
    if command is None:
        raise UsersProblem("found none of the package managers %s. Install by hand: %s"
                           % (', '.join(manager[0] for manager in MANAGERS), ' '.join(names)))
    by_hand = 'sudo ' + ' '.join(word for word in command if not word.startswith(('-q', '-o', 'DPkg')))
    if os.geteuid() != 0:
        if not shutil.which('sudo') or subprocess.run(['sudo', '-n', 'true'], stderr=subprocess.DEVNULL).returncode:
            raise UsersProblem("not on this machine: %s. Install with: %s" % (' '.join(names), by_hand))
        command = ['sudo', '-n'] + command
    print("Installing with %s: %s" % (command[0], ' '.join(names)), file=sys.stderr, flush=True)
    refuse_removals(command, names)
    done = run(command)
    if done.returncode:
        place = 2 if command[0] == 'sudo' else 0
        for words in next(row[3] for row in MANAGERS if row[0] == command[place]):
            if shutil.which(words[0]):
                run(command[:place] + list(words))
        refuse_removals(command, names)
        done = run(command)
    if done.returncode:
        raise UsersProblem("could not be installed: %s. The package manager said: %s. Try by hand: %s"
                           % (' '.join(names), last_line(done.stdout), by_hand))


def refuse_removals(command, names):
    """Stop when apt would remove what somebody else has installed; dnf and zypper ask, and get no answer."""
    if 'apt-get' not in command:
        return
    plan = run(command + ['--simulate', '-q=0'])
    removed = [line.split()[1] for line in plan.stdout.splitlines() if line.startswith('Remv ')]
    if removed:
        raise WouldRemove("installing %s would remove %s, and nothing was changed. If nobody needs that: sudo apt-get "
                          "install %s" % (' '.join(names), ' '.join(removed), ' '.join(names)))


def codename():
    """The distribution's name for its release, such as bookworm."""
    try:
        with open('/etc/os-release') as handle:
            words = dict(line.strip().split('=', 1) for line in handle if '=' in line)
    except OSError:
        return ''
    return words.get('VERSION_CODENAME', '').strip('"')


def unpack(package, target):
    """
    The files of a Debian package in a directory, of the distribution's next release where this one's is too old. apt
    checks its signature; its lists and settings for the machine stay as they are, and nobody need be root.
    """
    release = NEXT_RELEASES.get(codename(), codename())
    if not shutil.which('apt-get'):
        raise UsersProblem("this distribution's %s is too old: install a newer one by hand" % package)
    with tempfile.TemporaryDirectory() as work:
        for name in ('lists/partial', 'cache/archives/partial', 'debs'):
            os.makedirs(os.path.join(work, name))
        open(os.path.join(work, 'status'), 'w').close()
        listed = run(['apt-get', 'indextargets', '--format', '$(RELEASE) deb $(REPO_URI) %s $(COMPONENT)' % release,
                      'Created-By: Packages']).stdout.splitlines()
        with open(os.path.join(work, 'sources.list'), 'w') as handle:
            handle.writelines(line.split(' ', 1)[1] + '\n' for line in sorted(set(listed))
                              if line.startswith(codename() + ' '))
        command = ['apt-get', '-qq', '-o', 'APT::Sandbox::User=root', '-o', 'Dir::Etc::sourceparts=-',
                   '-o', 'Acquire::Languages=none']
        for key, name in (('Etc::sourcelist', 'sources.list'), ('State::Lists', 'lists'), ('State::status', 'status'),
                          ('Cache', 'cache')):
            command += ['-o', 'Dir::%s=%s' % (key, os.path.join(work, name))]
        for words in (command + ['update'], command + ['download', package]):
            done = run(words, cwd=os.path.join(work, 'debs'))
            if done.returncode:
                raise UsersProblem("%s of %s could not be fetched. The package manager said: %s" % (
                    package, release, last_line(done.stdout)))
        for name in os.listdir(os.path.join(work, 'debs')):
            subprocess.run(['dpkg', '-x', os.path.join(work, 'debs', name), target], check=True)


def run(command, **options):
    """One command of the package manager, quiet unless it fails."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True, env=dict(os.environ, **ENVIRONMENT), **options)


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else 'nothing'


def main(names):
    try:
        install(names)
    except UsersProblem as problem:
        print("ERROR: %s" % problem, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
