"""The modules tool of ./eb: the machine's, else the distribution's Lmod or one that is unpacked beside the checkout."""
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from hpc_pytorch import UsersProblem, part_directory, say
from hpc_pytorch.machine.distribution_packages import NotAllowed, install, missing, run
from hpc_pytorch.machine.modules import LMOD_PLACES, OWN_LMOD, modules_tool

# Distributions whose Lmod is too old -> the next release of theirs whose Lmod will do.
NEXT_RELEASES = {'bullseye': 'bookworm', 'focal': 'noble', 'jammy': 'noble'}
# What Lmod runs with: packages of this distribution, which remove no others.
REQUIREMENTS = ['lua5.3', 'lua-bit32', 'lua-filesystem', 'lua-json', 'lua-lpeg', 'lua-posix', 'lua-term']
# Where Lmod's files expect Lmod and Lua.
PLACES = re.compile(rb'(?<![\w/.-])/usr/(share/lmod|share/lua|lib/[\w-]+/lua|bin/lua5\.3)\b')
# Lmod's default, a library for Tcl's modules that the machine may lack: it fails at the start, tclsh when it is needed
FAST_TCL = re.compile(rb'(name *= *"LMOD_FAST_TCL_INTERP",\s*sedV *= *)"\w+"')
LISTED = '$(RELEASE) deb $(REPO_URI) %s $(COMPONENT)'


def installed_modules_tool():
    """Return the modules tool; installs Lmod if there is none and that is allowed."""
    found = modules_tool()
    if found is None:
        say("found neither Lmod 8 nor Environment Modules 5.1")
        names = REQUIREMENTS + ['tcl'] if codename() in NEXT_RELEASES else ['lmod']
        if not install_if_allowed(names, unpacked=names) or 'lmod' not in names:
            unpack_own_lmod()
        found = modules_tool()
    if found is None:
        raise UsersProblem("Lmod was installed, but not in any of: %s. Set LMOD_CMD to its libexec/lmod."
                           % ', '.join(LMOD_PLACES))
    return found


def install_if_allowed(names, unpacked):
    """Install packages, and return whether that is allowed; if not, those that apt cannot unpack are an error."""
    try:
        install(names)
    except NotAllowed:
        if not shutil.which('apt-get'):
            raise
        install([name for name in names if name not in unpacked])
        return False
    return True


def codename():
    return run(['sh', '-c', '. /etc/os-release && echo "$VERSION_CODENAME"']).stdout.strip()


def unpack_own_lmod():
    say("unpacking Lmod to %s" % OWN_LMOD)
    own = codename()
    packages = {own: list(missing(REQUIREMENTS))}
    packages.setdefault(NEXT_RELEASES.get(own, own), []).append('lmod')
    unpack(packages, OWN_LMOD)


def unpack(packages, place):
    """Unpack Debian packages, {release: names}, to a directory beside the checkout; relocate Lmod."""
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with part_directory(os.path.dirname(place)) as part:
        unpacked = os.path.join(part, 'unpacked')
        for release, names in packages.items():
            with tempfile.TemporaryDirectory() as work:
                for package in fetch(names, release, Path(work)) if names else []:
                    subprocess.run(['dpkg', '-x', str(package), unpacked], check=True)
        relocate(unpacked)
        if not os.path.exists(place):
            os.rename(unpacked, place)


def relocate(directory):
    """Replace the places for which the packages were made, where their files name them."""
    def own(found):
        # Lua may be the machine's
        unpacked = os.path.exists(os.fsencode(directory) + found[0])
        return os.fsencode(OWN_LMOD) + found[0] if unpacked else found[0]

    for path in Path(directory).rglob('*'):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if b'\0' not in content:
                path.write_bytes(FAST_TCL.sub(rb'\1"no"', PLACES.sub(own, content)))


def fetch(names, release, work):
    """Fetch Debian packages of a release, with apt's checks, but neither as root nor into the machine's lists."""
    for directory in ('lists/partial', 'cache/archives/partial', 'packages'):
        (work / directory).mkdir(parents=True)
    (work / 'status').touch()
    command = ['apt-get', '-qq']
    for setting in ('APT::Sandbox::User=root', 'Acquire::Languages=none', 'Dir::State::Lists=%s/lists' % work,
                    'Dir::State::status=%s/status' % work, 'Dir::Cache=%s/cache' % work):
        command += ['-o', setting]
    if release != codename():
        run(command + ['update'])
        (work / 'sources.list').write_text(sources_of(release, command))
        command += ['-o', 'Dir::Etc::sourceparts=-', '-o', 'Dir::Etc::sourcelist=%s/sources.list' % work]
    for words in (['update'], ['download'] + names):
        done = run(command + words, cwd=str(work / 'packages'))
        if done.returncode:
            raise UsersProblem("cannot fetch %s of %s. The package manager's last line: %s" % (
                ' '.join(names), release, done.stdout.strip().split('\n')[-1]))
    return list((work / 'packages').iterdir())


def sources_of(release, command):
    """List the machine's package sources, whose lists were fetched, as they are for another release."""
    targets = run(command + ['indextargets', '--format', LISTED % release, 'Created-By: Packages']).stdout
    ours = [line.partition(' ')[2] for line in targets.splitlines() if line.startswith(codename() + ' ')]
    return '\n'.join(sorted(set(ours))) + '\n'
