"""What ``./eb`` runs in the collection's own environment: choose the system, find the modules tool, configure EasyBuild
through its environment variables, and run it in the same process. What can wait for EasyBuild's start is in hooks/.
"""
import argparse
import atexit
import contextlib
import errno
import functools
import importlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from hpc_pytorch import UsersProblem, VERSION, say, write_atomically
from hpc_pytorch.machine import own_lmod, systems
from hpc_pytorch.stand_ins import make as stand_in

COLLECTION = Path(__file__).resolve().parent.parent
# EasyBuild's own, in the environment of ./eb
EB = os.path.join(sys.prefix, 'bin', 'eb')

# what --help shows before EasyBuild's own
USAGE = Path(__file__).with_name('usage.txt').read_text(encoding='utf-8')
# Options with which easyconfigs are only read, so that they may be for several systems.
ONLY_READ = ('--check-contrib', '--check-style')
# What runs instead of EasyBuild, by our option: modules with a function main(arguments).
PROGRAMS = {
    'job-status': 'hpc_pytorch.jobs.status',
    'new-version': 'hpc_pytorch.packages.new_version',
    'renew': 'hpc_pytorch.packages.new_version',
    'survey': 'hpc_pytorch.machine.survey',
    'check': 'hpc_pytorch.jobs.check_modules',
    'uninstall': 'hpc_pytorch.jobs.uninstall',
    'outdated': 'hpc_pytorch.jobs.outdated',
}
# Those that do not know their own option.
WITHOUT_OPTION = ('job-status', 'outdated')
# EasyBuild's --fetch loads no modules, which decide for which Python to fetch; a dry run leaves its lock behind.
INSTEAD = {
    '--fetch': ['--stop=fetch', '--ignore-osdeps', '--ignore-locks'],
    '-x': ['-x', '--ignore-locks'],
    '--extended-dry-run': ['-x', '--ignore-locks'],
}
# What must not reach EasyBuild or anything that it builds.
NOT_THE_USERS = ('PYTHONPATH', 'PYTHONHOME', 'PYTHONSTARTUP', 'VIRTUAL_ENV', 'CDPATH', 'BASH_ENV', 'ENV')
COLLECTION_CFG = "# made by ./eb, for %%(COLLECTION)s in systems/*/easybuild.cfg\n[DEFAULT]\nCOLLECTION = %s\n"
# EasyBuild looks whether this function names its modules tool's variable
LOG_IN = 'module() { eval "$("$%s" bash "$@")"; }; . "$1/login" >/dev/null 2>&1; env -0'


def own_options(arguments):
    """Take our options out of the arguments, but for those that a program of ours reads itself: (ours, the others)."""
    parser = argparse.ArgumentParser('eb', "./eb --help says more", add_help=False, allow_abbrev=False)
    parser.add_argument('--system', nargs='?', const='')
    parser.add_argument('--rehearse', action='store_true')
    parser.add_argument('--hooks')
    ours, others = parser.parse_known_args(arguments)
    names = [word.split('=')[0] for word in others]
    ours.program = next((name for name in PROGRAMS if '--' + name in names), None)
    if ours.program in WITHOUT_OPTION:
        if '--' + ours.program not in others:
            raise UsersProblem("--%s takes no value after =" % ours.program)
        others.remove('--' + ours.program)
    return ours, others


def easyconfigs_in(arguments):
    """List the easyconfigs that are named, also those of an easystack, about which EasyBuild reports errors."""
    found = [word for word in arguments if word.endswith('.eb') and not word.startswith('-')]
    words = '='.join(arguments).split('=')
    if '--easystack' in words[:-1]:
        path = Path(words[words.index('--easystack') + 1])
        if path.is_file():
            found += re.findall(r'[^\s/:]+\.eb\b', path.read_text(errors='replace'))
    return found


def configure_modules_tool(arguments, found):
    """Tell EasyBuild which modules tool to use, unless the user does, in a file by another than EasyBuild's default."""
    # or each call of Lmod starts four programs to ask for it
    os.environ.setdefault('LMOD_TERM_WIDTH', '80')
    if found.modules_tool != 'Lmod':
        os.environ['EASYBUILD_MODULES_TOOL'] = found.modules_tool
    if 'EASYBUILD_MODULES_TOOL' not in os.environ and '--modules-tool' not in ' '.join(arguments):
        tool = own_lmod.installed_modules_tool()
        os.environ[tool.variable] = tool.program
        os.environ['EASYBUILD_MODULES_TOOL'] = tool.name
        if found.module_syntax == 'Lua':
            os.environ.setdefault('EASYBUILD_MODULE_SYNTAX', tool.syntax)


def configure_files(system):
    """Let EasyBuild read the system's configuration, where the collection is, then the user's; a later one wins."""
    where = COLLECTION / '.local/collection.cfg'
    text = COLLECTION_CFG % str(COLLECTION).replace('%', '%%')
    try:
        write_atomically(where, text)
    except OSError:
        # a read-only checkout that has another path here
        where = Path(os.path.expanduser('~/.cache/hpc-pytorch'), str(COLLECTION).replace('/', '_') + '.cfg')
        write_atomically(where, text)
    files = [COLLECTION / 'systems' / system / 'easybuild.cfg', where, os.environ.get('EASYBUILD_CONFIGFILES')]
    os.environ['EASYBUILD_CONFIGFILES'] = ','.join(str(path) for path in files if path)


def read_configuration():
    """Return what variables and all files tell EasyBuild; of a mistake in a file it would print a traceback."""
    from easybuild.tools.options import EasyBuildOptions

    class OnlyRead(EasyBuildOptions):
        """EasyBuild's options without what follows from them, such as a temporary directory."""
        def postprocess(self):
            pass

        # a site's naming scheme or toolchain would be unknown, as it is included by the above
        validate = postprocess

    try:
        return OnlyRead(go_args=[], envvar_prefix='EASYBUILD')
    except Exception as problem:
        files = ' '.join([*OnlyRead.DEFAULT_CONFIGFILES, os.environ.get('EASYBUILD_CONFIGFILES', '')]).strip()
        # EasyBuild may fail to make an error of the first one
        reason = ' '.join(str(problem.__context__ or problem).split())
        raise UsersProblem("EasyBuild's configuration cannot be read (%s): %s" % (files, reason))


def configure_robot(found):
    """Let EasyBuild find the collection's easyconfigs also where the user names directories of others, or in them."""
    paths = found.options.robot_paths
    if not set(found.default_robot_paths) <= set(paths):
        # an empty one stands for EasyBuild's own
        os.environ['EASYBUILD_ROBOT_PATHS'] = os.pathsep.join(paths + [''])


def configure_hooks(others):
    """Name our hooks to EasyBuild, which knows one file only, and the site's or the user's to our hooks."""
    ours = COLLECTION / 'hooks/hpc_pytorch_hooks.py'
    if others and Path(others).resolve() != ours:
        os.environ.setdefault('HPC_SITE_HOOKS', os.path.abspath(others))
    os.environ['EASYBUILD_HOOKS'] = str(ours)


def configure_jobs(system, rehearse):
    """Tell jobs how to call ./eb as it was called here."""
    command = shlex.join([str(COLLECTION / 'eb'), '--system', system] + ['--rehearse'] * rehearse)
    os.environ.setdefault('EASYBUILD_JOB_EB_CMD', command.replace('%', '%%'))
    os.environ['HPC_PYTORCH_COMMAND'] = command


def configure_rehearsal(system, easyconfigs):
    """Replace the machine's modules with those of a stand-in, and the prefix with one of its own."""
    if re.search(r'[\s"\'$;&|<>*?]', str(COLLECTION)):
        raise UsersProblem("--rehearse needs a collection without blanks or quotes in its path, as modules tools do; "
                           "found %s. Clone it to another directory" % COLLECTION)
    os.environ['HPC_PYTORCH_REHEARSAL'] = system
    place = stand_in.make(stand_in.choose(system, easyconfigs))
    log_in(place)
    # the system's metadata, then the stand-in's for what has a fixed place on the real system
    files = [COLLECTION / 'systems' / system / 'external_modules.cfg', place / 'external_modules.cfg']
    os.environ['EASYBUILD_EXTERNAL_MODULES_METADATA'] = ','.join(str(path) for path in files if path.exists())
    os.environ.setdefault('EASYBUILD_PREFIX', str(COLLECTION / '.local/rehearsal' / system))
    say("rehearsing in the test environment of %s: %s/modules" % (system, place))


def log_in(place):
    """Take on the environment that users of the system have after login, instead of what is loaded here."""
    for name in list(os.environ):
        if name.startswith(('_ModuleTable', '__LMOD_', '__MODULES_')) or name in ('LOADEDMODULES', '_LMFILES_'):
            del os.environ[name]
    os.environ['MODULEPATH'] = str(place / 'modules')
    tool = own_lmod.installed_modules_tool()
    os.environ[tool.variable] = tool.program
    printed = subprocess.check_output(['bash', '-c', LOG_IN % tool.variable, 'bash', str(place)], text=True)
    os.environ.update(entry.split('=', 1) for entry in printed.split('\0') if '=' in entry)


def consent_of_root():
    """Give the explicit consent that EasyBuild and Open MPI require to run as root."""
    if os.geteuid() != 0:
        return []
    say("you are root: passing EasyBuild's --allow-use-as-root-and-accept-consequences")
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT='1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1')
    return ['--allow-use-as-root-and-accept-consequences']


def prepare(arguments):
    """Configure everything; returns which of PROGRAMS runs, None for EasyBuild, and its arguments."""
    asks_for_help = not arguments or {'--help', '-h'} & set(arguments)
    ours, arguments = own_options(arguments)
    if asks_for_help and ours.program in (None, *WITHOUT_OPTION):
        print(USAGE % ', '.join(systems.names()))
    easyconfigs = [] if set(ONLY_READ) & set(arguments) else easyconfigs_in(arguments)
    system, reason = systems.choose(ours.system, os.environ, socket.gethostname(), easyconfigs)
    say("system %s (%s)" % (system, reason))
    meant, _ = systems.choose(None, {}, '', [] if ours.program else easyconfigs)
    if meant not in (system, systems.DEFAULT) and not (ours.system or os.environ.get('HPC_SYSTEM')):
        raise UsersProblem("%s is for %s: add --system=%s, or --system=%s if it is to be installed for this one"
                           % (easyconfigs[0], meant, meant, system))
    if '--version' in arguments:
        print("This is hpc-pytorch %s" % VERSION)
    for name in NOT_THE_USERS:
        os.environ.pop(name, None)
    os.environ.update(HPC_SYSTEM=system, PYTHONNOUSERSITE='1', FANCYLOGGER_IGNORE_MPI4PY='1')
    if ours.rehearse:
        configure_rehearsal(system, easyconfigs)
    configure_jobs(system, ours.rehearse)
    asked = systems.load(system) if '--job' in arguments and '--job-backend' not in ' '.join(arguments) else None
    if asked and asked.scheduler['kind'] == 'none':
        raise UsersProblem("--job: %s has no batch system (kind = none in %s/system.cfg). Install without --job; if it "
                           "has one, in an interactive job" % (asked.system['title'], asked.directory))
    if ours.program == 'survey':
        # nothing is installed for it, not even a modules tool
        return ours.program, arguments
    os.environ.update(EB_SCRIPT_PATH=EB, EB_PYTHON=sys.executable)
    # EasyBuild would take the checkout's commit for its own, and each one for another EasyBuild
    os.environ['GIT_CEILING_DIRECTORIES'] = '%s:%s' % (sys.prefix, os.environ.get('GIT_CEILING_DIRECTORIES', ''))
    configure_files(system)
    found = read_configuration()
    configure_modules_tool(arguments, found.options)
    configure_robot(found)
    configure_hooks(ours.hooks or found.options.hooks)
    words = [INSTEAD.get(argument, [argument]) for argument in arguments]
    return ours.program, sum(words, consent_of_root())


def main():
    # a log that is being followed has what was printed
    sys.stdout.reconfigure(line_buffering=True)
    try:
        program, arguments = prepare(sys.argv[1:])
        sys.argv = [EB] + arguments
        if program:
            return importlib.import_module(PROGRAMS[program]).main(arguments)
        from easybuild.framework.easyconfig import tweak
        from easybuild.main import main_with_hooks
    except UsersProblem as problem:
        print("ERROR: %s" % problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # as other programs; Python would write once more at its end
        os._exit(141)
    except OSError as problem:
        if problem.errno not in (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT):
            raise
        full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "Make room, or choose another place" if full else "Type this in a directory of yours, or clone anew"
        # of a full disk, Python does not say which file it was
        name = re.sub(r'\.%d$' % os.getpid(), '', str(problem.filename or "A file"))
        print("ERROR: %s cannot be written: %s. %s" % (name, problem.strerror, advice), file=sys.stderr)
        return 1
    # a dry run reads what --try-software-version writes, and would only pretend to write it
    tweak.write_file = functools.partial(tweak.write_file, forced=True)
    # EasyBuild leaves it where it ends early
    atexit.register(lambda: [shutil.rmtree(path, ignore_errors=True) for path in sys.path if '/fake_vsc_' in path])
    # EasyBuild itself sees Ctrl-C from a later moment on
    with contextlib.suppress(KeyboardInterrupt):
        return main_with_hooks()
    return 130
