"""
The modules tool of ./eb: the machine's, else Lmod as the distribution has it or, where that is too old, a newer Lmod
unpacked beside the checkout.
"""
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from hpc_pytorch import UsersProblem, say
from hpc_pytorch.machine.distribution_packages import WouldRemove, install, last_line, run
from hpc_pytorch.machine.modules import LMOD_PLACES, OWN_LMOD, modules_tool

# Distributions whose Lmod is too old -> the next release of theirs whose Lmod will do.
NEXT_RELEASES = {'bullseye': 'bookworm', 'focal': 'noble', 'jammy': 'noble'}
# What Lmod runs with: packages of this distribution, which remove no others.
REQUIREMENTS = ['lua5.3', 'lua-filesystem', 'lua-json', 'lua-posix', 'lua-term', 'tcl']
LISTED = '$(RELEASE) deb $(REPO_URI) %s $(COMPONENT)'


def installed_modules_tool():
    """Return the modules tool; installs Lmod if there is none and that is allowed."""
    found = modules_tool()
    if found is None:
        say("found neither Lmod 8 nor Environment Modules 5.1")
        try:
            if codename() in NEXT_RELEASES:
                unpack_own_lmod()
            else:
                install(['lmod'])
        except WouldRemove:
            unpack_own_lmod()
        found = modules_tool()
    if found is None:
        raise UsersProblem("Lmod was installed, but not in any of: %s. Set LMOD_CMD to its libexec/lmod."
                           % ', '.join(LMOD_PLACES))
    return found


def codename():
    """Return the distribution's name for its release, such as bookworm."""
    return run(['sh', '-c', '. /etc/os-release && echo "$VERSION_CODENAME"']).stdout.strip()


def unpack_own_lmod():
    """Unpack Lmod to .local/lmod."""
    install(REQUIREMENTS)
    say("unpacking a newer Lmod to %s" % OWN_LMOD)
    os.makedirs(os.path.dirname(OWN_LMOD), exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        package = fetch_package('lmod', Path(work))
        partial = '%s.%d' % (OWN_LMOD, os.getpid())
        subprocess.run(['dpkg', '-x', str(package), partial], check=True)
    relocate(partial)
    if os.path.exists(OWN_LMOD):
        shutil.rmtree(partial)
    else:
        os.rename(partial, OWN_LMOD)


def relocate(directory):
    """Replace the place for which the package was made, where its files name it."""
    place = os.path.join(OWN_LMOD, 'usr/share/lmod').encode()
    for path in Path(directory).rglob('*'):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if b'/usr/share/lmod' in content and b'\0' not in content:
                path.write_bytes(content.replace(b'/usr/share/lmod', place))


def fetch_package(name, work):
    """
    Fetch a Debian package of the next release. apt checks its signature; the machine's package lists and settings stay
    as they are, and nobody needs to be root.
    """
    release = NEXT_RELEASES.get(codename(), codename())
    if not shutil.which('apt-get'):
        raise UsersProblem("this distribution's %s is too old: install a newer one by hand" % name)
    for directory in ('lists/partial', 'cache/archives/partial', 'packages'):
        (work / directory).mkdir(parents=True)
    (work / 'status').touch()
    (work / 'sources.list').write_text(sources_of(release))
    command = ['apt-get', '-qq']
    for setting in ('APT::Sandbox::User=root', 'Acquire::Languages=none', 'Dir::Etc::sourceparts=-',
                    'Dir::Etc::sourcelist=%s/sources.list' % work, 'Dir::State::Lists=%s/lists' % work,
                    'Dir::State::status=%s/status' % work, 'Dir::Cache=%s/cache' % work):
        command += ['-o', setting]
    for words in (['update'], ['download', name]):
        done = run(command + words, cwd=str(work / 'packages'))
        if done.returncode:
            raise UsersProblem("cannot fetch %s of %s. The package manager's last line: %s" % (
                name, release, last_line(done.stdout)))
    return next((work / 'packages').iterdir())


def sources_of(release):
    """List the machine's package sources as they are for another release."""
    targets = run(['apt-get', 'indextargets', '--format', LISTED % release, 'Created-By: Packages']).stdout
    ours = [line.partition(' ')[2] for line in targets.splitlines() if line.startswith(codename() + ' ')]
    return '\n'.join(sorted(set(ours))) + '\n'
