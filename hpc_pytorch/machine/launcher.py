"""
What ``./eb`` runs in the collection's own environment: chooses the system, finds the modules tool, points EasyBuild
at both and becomes EasyBuild, in the same process, so that starting costs nothing twice.

Only what is needed before EasyBuild starts is here. What needs its configuration or a parsed easyconfig is in hooks/,
where it also works for an ``eb`` that was not started by ``./eb``.
"""
import argparse
import atexit
import configparser
import difflib
import glob
import importlib
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from hpc_pytorch import UsersProblem, VERSION
from hpc_pytorch.machine import distribution_packages, systems
from hpc_pytorch.machine.modules import LMOD_PLACES, OWN_LMOD, program_of_modules_tool

COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

USAGE = """usage: ./eb [--system NAME] [--rehearse] [any option of EasyBuild] EASYCONFIG ...

  --system NAME  one of: %s; else $HPC_SYSTEM, the host name, the easyconfig's name or 'workstation' decides
  --rehearse     try another system's easyconfig here, on its stand-in instead of its real modules
  --job-status   show the jobs that --job submitted for this prefix or easyconfig; with --follow: until they end
  --job-cancel   cancel them
  --new-version X EASYCONFIG
                 write the same for another version, with its lock files; X may be: latest
  --renew EASYCONFIG
                 make the lock files of an easyconfig again, with what the package indexes have today
  --survey [FILE] [--job]
                 compare this machine with systems/; FILE: write the answers as JSON, to send them to somebody
  --survey --new-system NAME
                 write drafts of systems/NAME, its stand-in and its first easyconfig
  --check [MODULE ...] [--update] [--report FILE]
                 check and measure what is installed, and compare with what --update kept; --check --help has more

What follows is EasyBuild's own help.
"""


# Options that are often typed right before an easyconfig, and take no value from there.
FLAGS = ('--robot', '-r', '--rehearse', '--dry-run', '-D', '--extended-dry-run', '-x', '--fetch', '--job', '--rebuild',
         '--force', '-f', '--missing', '-M')
# Options with which easyconfigs are only read, so that they may be for several systems.
ONLY_READ = ('--check-contrib', '--check-style')
TRY = '--try-software-version'
# What ./eb becomes, by our option.
PROGRAMS = {
    'job-status': 'hpc_pytorch.jobs.status',
    'job-cancel': 'hpc_pytorch.jobs.cancel',
    'new-version': 'hpc_pytorch.packages.new_version',
    'renew': 'hpc_pytorch.packages.new_version',
    'survey': 'hpc_pytorch.machine.survey',
    'check': 'hpc_pytorch.jobs.check_modules',
}
# Those that do not know their own option.
THEY_READ_NOTHING = ('job-status', 'job-cancel')


def say(text):
    """One line to the user; standard output stays EasyBuild's."""
    print("eb: %s" % text, file=sys.stderr, flush=True)


def own_options(arguments):
    """Take our options out of the arguments, but for those that a program of ours reads itself: (ours, the others)."""
    parser = argparse.ArgumentParser('eb', "./eb --help says more", add_help=False, allow_abbrev=False)
    parser.add_argument('--system', nargs='?', const='')
    parser.add_argument('--rehearse', action='store_true')
    parser.add_argument('--hooks', action='append', default=[])
    parser.add_argument(TRY, dest='version')
    ours, others = parser.parse_known_args(arguments)
    if ours.system == '':
        raise UsersProblem("--system wants a name, for example: --system workstation")
    names = [word.split('=')[0] for word in others]
    ours.program = next((name for name in PROGRAMS if '--' + name in names), None)
    if ours.program in THEY_READ_NOTHING:
        others.remove('--' + ours.program)
    return ours, others


def easyconfig_names(arguments):
    return [argument for argument in arguments if argument.endswith('.eb') and not argument.startswith('-')]


def easyconfigs_of_easystacks(arguments):
    """The easyconfigs in the easystack that the arguments name; EasyBuild is going to say what is wrong with it."""
    words = [word for argument in arguments for word in argument.split('=', 1)]
    paths = [path for option, path in zip(words, words[1:]) if option == '--easystack' and os.path.isfile(path)]
    return [name for path in paths for name in re.findall(r'[^\s/:]+\.eb\b', open(path, errors='replace').read())]


def check_easyconfigs(arguments):
    """Stop at a name that no easyconfig has, with the nearest names; EasyBuild itself searches much longer."""
    elsewhere = ('--robot=', '--robot-paths', '-r', '--from-', '--search', '--try-', '--new-pr',
                 '--copy-ec')
    if 'EASYBUILD_ROBOT_PATHS' in os.environ or any(word.startswith(elsewhere) for word in arguments):
        return
    known = set()
    for _, _, files in os.walk(os.path.join(COLLECTION, 'easyconfigs')):
        known.update(name for name in files if name.endswith('.eb'))
    for name in easyconfig_names(arguments) + names_without_suffix(arguments, known):
        if os.path.exists(name) or name in known:
            continue
        near = difflib.get_close_matches(os.path.basename(name), sorted(known), n=3, cutoff=0.4)
        raise UsersProblem("no easyconfig is called %s. %s" % (
            name, "The nearest: %s" % ', '.join(near) if near
            else "See: ls %s/easyconfigs/*/*" % shlex.quote(COLLECTION)))


def try_software_version(version, arguments):
    """EasyBuild's --try-software-version, with the lock files that the version wants, for as long as ./eb runs."""
    if version is None:
        return arguments
    names, unchanged = easyconfig_names(arguments), arguments + ['%s=%s' % (TRY, version)]
    if len(names) != 1 or any(word.startswith('--from-') for word in arguments):
        return unchanged
    new_version = importlib.import_module(PROGRAMS['new-version'])
    try:
        ours = 'lock_files' in Path(new_version.find(names[0])).read_text(encoding='utf-8')
    except UsersProblem:
        # on a path that only EasyBuild knows
        ours = False
    if not ours:
        return unchanged
    if '--job' in arguments:
        raise UsersProblem("jobs need files that stay; write them first: ./eb --new-version")
    directory = tempfile.mkdtemp(prefix='try-version-')
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = new_version.try_version(names[0], version, directory)
    say("%s and its lock files were made for this call alone; to keep them: ./eb --new-version %s %s"
        % (os.path.basename(path), shlex.quote(version), shlex.quote(names[0])))
    return [path if word == names[0] else word for word in arguments]


def names_without_suffix(arguments, known):
    """Arguments that look like an easyconfig's name without .eb; one after an option may be that option's value."""
    software = tuple({name.split('-')[0] for name in known})
    return [word for before, word in zip([''] + arguments, arguments)
            if word.startswith(software) and not word.endswith('.eb')
            and (not before.startswith('-') or before in FLAGS)]


def modules_tool():
    """The modules tool, installed if there is none and that is allowed."""
    found = program_of_modules_tool()
    if found is None:
        say("found neither Lmod 8 nor Environment Modules 5.1")
        try:
            if distribution_packages.codename() in distribution_packages.NEXT_RELEASES:
                own_lmod()
            else:
                distribution_packages.install(['lmod'])
        except distribution_packages.WouldRemove:
            own_lmod()
        found = program_of_modules_tool()
    if found is None:
        raise UsersProblem("Lmod was installed, but not in any of: %s. Set LMOD_CMD to its libexec/lmod."
                           % ', '.join(LMOD_PLACES))
    return found


def own_lmod():
    """An Lmod beside the checkout; what it runs with are packages of this distribution's, which remove no others."""
    distribution_packages.install(['lua5.3', 'lua-filesystem', 'lua-json', 'lua-posix', 'lua-term', 'tcl'])
    say("unpacking a newer Lmod to %s" % OWN_LMOD)
    partial = '%s.%d' % (OWN_LMOD, os.getpid())
    distribution_packages.unpack('lmod', partial)
    # its files name the place that the package has for it
    for directory, _, names in os.walk(partial):
        for path in [os.path.join(directory, name) for name in names]:
            with open(os.devnull if os.path.islink(path) else path, 'rb') as handle:
                content = handle.read()
            moved = content.replace(b'/usr/share/lmod', os.path.join(OWN_LMOD, 'usr/share/lmod').encode())
            if moved != content and b'\0' not in content:
                with open(path, 'wb') as handle:
                    handle.write(moved)
    if os.path.exists(OWN_LMOD):
        shutil.rmtree(partial)
    else:
        os.rename(partial, OWN_LMOD)


def set_default(name, value):
    """Configure EasyBuild through its environment, unless the user did."""
    os.environ.setdefault('EASYBUILD_' + name, value)


def configure_modules_tool(arguments):
    """Tell EasyBuild which modules tool there is; the user's own choice stands."""
    chosen = any(word.startswith('--modules-tool') for word in arguments)
    if chosen or 'EASYBUILD_MODULES_TOOL' in os.environ:
        return
    tool, syntax, variable, program = modules_tool()
    os.environ[variable] = program
    os.environ['EASYBUILD_MODULES_TOOL'] = tool
    set_default('MODULE_SYNTAX', syntax)


def configure_files(system):
    """EasyBuild reads the user's configuration, then the system's, then where the collection is; a later one wins."""
    where = os.path.join(COLLECTION, '.local', 'collection.cfg')
    text = "# made by ./eb: what %%(COLLECTION)s in systems/*/easybuild.cfg stands for\n[DEFAULT]\nCOLLECTION = %s\n"
    text %= COLLECTION.replace('%', '%%')
    if not os.path.exists(where) or open(where).read() != text:
        os.makedirs(os.path.dirname(where), exist_ok=True)
        temporary = '%s.%d' % (where, os.getpid())
        Path(temporary).write_text(text)
        os.replace(temporary, where)
    files = [os.path.join(COLLECTION, 'systems', system, 'easybuild.cfg'), where]
    users = os.environ.get('EASYBUILD_CONFIGFILES')
    os.environ['EASYBUILD_CONFIGFILES'] = ','.join(files + ([users] if users else []))


def configure_rehearsal(system, easyconfigs):
    """The stand-in's modules and nothing else of the machine's, and a prefix of its own."""
    make = [os.path.join(COLLECTION, 'hpc_pytorch', 'stand_ins', 'make'), system] + (['--for'] if easyconfigs else [])
    made = subprocess.run([sys.executable, '-I'] + make + easyconfigs, stdout=subprocess.PIPE, universal_newlines=True)
    if made.returncode:
        raise UsersProblem("the stand-in of %s could not be made; see above" % system)
    modules = made.stdout.split('\n')[0]
    log_in(os.path.dirname(modules))
    # the system's metadata, and after it that of the stand-in for what has a fixed place on the real system
    metadata = [os.path.join(COLLECTION, 'systems', system, 'external_modules.cfg'),
                os.path.join(os.path.dirname(modules), 'external_modules.cfg')]
    metadata = [path for path in metadata if os.path.exists(path)]
    if metadata:
        os.environ['EASYBUILD_EXTERNAL_MODULES_METADATA'] = ','.join(metadata)
    set_default('PREFIX', os.path.join(COLLECTION, '.local', 'rehearsal', system))
    say("rehearsing on the stand-in of %s: %s" % (system, modules))


def log_in(stand_in):
    """The environment that users of the system have after logging in, instead of what is loaded here."""
    for name in list(os.environ):
        if name.startswith(('_ModuleTable', '__LMOD_', '__MODULES_')) or name in ('LOADEDMODULES', '_LMFILES_'):
            del os.environ[name]
    os.environ['MODULEPATH'] = os.path.join(stand_in, 'modules')
    tool, _, variable, program = modules_tool()
    script = 'module() { eval "$("$%s" bash "$@")"; }; . "$1/login" >/dev/null 2>&1; env -0' % variable
    done = subprocess.run(['bash', '-c', script, 'bash', stand_in], stdout=subprocess.PIPE, universal_newlines=True,
                          env=dict(os.environ, **{variable: program}), check=True)
    os.environ.update(entry.split('=', 1) for entry in done.stdout.split('\0') if '=' in entry)


def configure_hooks(given):
    """Our hooks, and the first of the site's or user's own beside them: EasyBuild itself knows one file only."""
    ours = os.path.join(COLLECTION, 'hooks', 'hpc_pytorch_hooks.py')
    for path in given + [os.environ.get('EASYBUILD_HOOKS'), configured_hooks()]:
        if path and os.path.realpath(path) != os.path.realpath(ours):
            os.environ.setdefault('HPC_SITE_HOOKS', os.path.abspath(path))
    os.environ['EASYBUILD_HOOKS'] = ours


def configured_hooks():
    """The hooks that EasyBuild's configuration files name; the last wins, as in EasyBuild."""
    home = os.environ.get('XDG_CONFIG_HOME') or os.path.expanduser('~/.config')
    places = [os.path.join(directory, 'easybuild.d', '*.cfg')
              for directory in os.environ.get('XDG_CONFIG_DIRS', '/etc/xdg').split(os.pathsep)[::-1]]
    paths = [path for place in places for path in sorted(glob.glob(place))]
    paths += [os.path.join(home, 'easybuild', 'config.cfg')] + os.environ.get('EASYBUILD_CONFIGFILES', '').split(',')
    parser = configparser.ConfigParser(strict=False)
    try:
        parser.read(paths)
        found = [parser.get(section, 'hooks') for section in parser.sections() if parser.has_option(section, 'hooks')]
    except configparser.Error:
        # EasyBuild is going to say what is wrong with it
        return None
    return found[-1] if found else None


def configure_jobs(system, rehearse):
    """How jobs call what was called here."""
    command = [os.path.join(COLLECTION, 'eb'), '--system', system] + (['--rehearse'] if rehearse else [])
    command = ' '.join(shlex.quote(word) for word in command)
    set_default('JOB_EB_CMD', command.replace('%', '%%'))
    os.environ['HPC_PYTORCH_COMMAND'] = command


def clean_environment():
    """What must not reach EasyBuild or anything that it builds."""
    for name in ('PYTHONPATH', 'PYTHONHOME', 'PYTHONSTARTUP', 'VIRTUAL_ENV', 'CDPATH', 'BASH_ENV', 'ENV'):
        os.environ.pop(name, None)
    os.environ.update(PYTHONNOUSERSITE='1', FANCYLOGGER_IGNORE_MPI4PY='1')


def consent_of_root():
    """EasyBuild, and Open MPI, want to be told that root knows what they do."""
    if os.geteuid() != 0:
        return []
    say("you are root: passing EasyBuild's --allow-use-as-root-and-accept-consequences")
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT='1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1')
    return ['--allow-use-as-root-and-accept-consequences']


def prepare(arguments):
    """Everything before EasyBuild; returns the program to become, and its arguments."""
    ours, arguments = own_options(arguments)
    wants_help = {'--help', '-h'} & set(arguments) or not (arguments or ours.program)
    if wants_help and ours.program in (None, *THEY_READ_NOTHING):
        print(USAGE % ', '.join(systems.names()))
    if '--version' in arguments:
        print("This is hpc-pytorch %s" % VERSION)
    easyconfigs = [os.path.basename(name) for name in easyconfig_names(arguments)]
    easyconfigs = [] if set(ONLY_READ) & set(arguments) else easyconfigs + easyconfigs_of_easystacks(arguments)
    system, reason = systems.choose(ours.system, os.environ, socket.gethostname(), easyconfigs)
    say("system %s (%s)" % (system, reason))
    if ours.program != 'check':
        check_easyconfigs(arguments)
    clean_environment()
    arguments = try_software_version(ours.version, arguments)
    os.environ['HPC_SYSTEM'] = system
    if ours.rehearse:
        os.environ['HPC_PYTORCH_REHEARSAL'] = system
        configure_rehearsal(system, easyconfig_names(arguments) + easyconfigs_of_easystacks(arguments))
    configure_jobs(system, ours.rehearse)
    program = PROGRAMS.get(ours.program, 'easybuild.main')
    if ours.program == 'survey':
        # nothing is installed for it, not even a modules tool
        return program, arguments
    configure_modules_tool(arguments)
    configure_hooks(ours.hooks)
    configure_files(system)
    os.environ['EB_SCRIPT_PATH'] = os.path.join(sys.prefix, 'bin', 'eb')
    os.environ['EB_PYTHON'] = sys.executable
    # EasyBuild's --fetch does without modules, and they decide which Python is fetched for; a dry run takes a lock, and
    # in a dry run EasyBuild removes nothing
    instead = {'--fetch': ['--stop=fetch', '--ignore-osdeps', '--ignore-locks']}
    instead.update({option: [option, '--ignore-locks'] for option in ('-x', '--extended-dry-run')})
    return program, consent_of_root() + [word for argument in arguments for word in instead.get(argument, [argument])]


def main():
    try:
        program, arguments = prepare(sys.argv[1:])
    except UsersProblem as problem:
        print("ERROR: %s" % problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    sys.argv = [os.path.join(sys.prefix, 'bin', 'eb')] + arguments
    # EasyBuild leaves it where it ends early
    atexit.register(lambda: [shutil.rmtree(path, ignore_errors=True) for path in sys.path if '/fake_vsc_' in path])
    runpy.run_module(program, run_name='__main__', alter_sys=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
