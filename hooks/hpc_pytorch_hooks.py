"""
Hooks of the collection: what has to be known before an hour is lost, and what to type afterwards.

The hook functions are thin, at the end of the file. They work wherever EasyBuild comes from: ./eb, pip, or the site's
own module (EASYBUILD_HOOKS names this file).
"""
import glob
import os
import socket
import sys

from easybuild.framework.easyconfig.easyconfig import ActiveMNS
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import build_option, build_path, install_path, source_paths
from easybuild.tools.filetools import det_lock_path, remove_dir
from easybuild.tools.modules import curr_module_paths, modules_tool

# Options with which EasyBuild only edits or shows files: the system's modules need not be there.
ONLY_FILES = ('--inject-checksums', '--check-contrib', '--check-style', '--copy-ec', '--new-pr', '--update-pr')

# The easyconfigs named on the command line, and the user's own module path, for the last words.
ASKED_FOR = []
USERS_MODULEPATH = os.environ.get('MODULEPATH', '').split(os.pathsep)


# --- the system's modules -------------------------------------------------------------------------------------------

def external_modules(ec):
    """Names of the system's own modules that an easyconfig depends on; at parse time they are still plain tuples."""
    names = []
    for parameter in ('dependencies', 'builddependencies'):
        for dep in ec[parameter]:
            if isinstance(dep, (tuple, list)) and dep[-1] == 'EXTERNAL_MODULE':
                names.append(dep[0])
            elif isinstance(dep, dict) and dep.get('external_module'):
                names.append(dep['full_mod_name'])
    return names


def check_external_modules(ec):
    """Stop when modules of the system are not there: it is another machine, or the module was removed."""
    if any(word.startswith(ONLY_FILES) for word in sys.argv):
        return
    names = external_modules(ec)
    missing = [name for name, exists in zip(names, modules_tool().exist(names)) if not exists] if names else []
    if missing:
        raise EasyBuildError(
            "%s needs modules that this machine does not have: %s. Looked for in: %s. On the right machine, "
            "'module avail' shows what there is instead, and the easyconfig's dependencies are the place to say so; "
            "to try it here on the system's stand-in: ./eb --rehearse %s",
            os.path.basename(ec.path), ', '.join(missing), ':'.join(curr_module_paths()) or 'an empty $MODULEPATH',
            os.path.basename(ec.path))


# --- directories ----------------------------------------------------------------------------------------------------

def check_directories():
    """Stop when a directory that is going to be written to cannot be."""
    directories = [('install', '--prefix or --installpath', install_path('software')),
                   ('module', '--prefix or --installpath', install_path('modules')),
                   ('build', '--buildpath', build_path()),
                   ('source', '--sourcepath', source_paths()[0])]
    for kind, option, path in directories:
        existing = path
        while not os.path.exists(existing):
            existing = os.path.dirname(existing)
        if not os.access(existing, os.W_OK | os.X_OK):
            raise EasyBuildError("The %s path %s cannot be written to (%s is not writable by you). Choose another with "
                                 "%s, for example: --prefix=$HOME/easybuild", kind, path, existing, option)


# --- locks of killed installations ----------------------------------------------------------------------------------
#
# EasyBuild marks a running installation with a directory, which stays when it is killed with signal 9. Beside it we
# note whose it is, before it is made, so that a dead owner's can be told from a running one's.

def start_time(pid):
    """When a process of this host was started, in the kernel's ticks; None if there is no such process."""
    try:
        with open('/proc/%d/stat' % pid) as handle:
            return handle.read().rsplit(')', 1)[1].split()[19]
    except (OSError, IndexError):
        return None


def owner_name(lock_path, host, pid, started):
    """The note that says who holds a lock."""
    return '%s.owner=%s=%s=%s' % (lock_path, host, pid, started)


def owners(lock_path):
    """All notes about a lock: (note, host, pid, start time)."""
    for note in glob.glob(glob.escape(lock_path) + '.owner=*'):
        _, host, pid, started = note.rsplit('=', 3)
        yield note, host, int(pid), started


def release_dead_lock(lock_path):
    """Remove the lock of an installation whose process is gone; keep one that somebody may still hold."""
    here, alive, dead = socket.gethostname(), [], []
    for note, host, pid, started in owners(lock_path):
        (dead if host == here and start_time(pid) != started else alive).append(note)
    for note in dead:
        os.remove(note)
    if dead and not alive and os.path.isdir(lock_path):
        remove_dir(lock_path)
        print_msg("an installation was killed earlier; its lock is removed: %s", lock_path)
    elif os.path.isdir(lock_path) and build_option('wait_on_lock_limit') == 0:
        raise EasyBuildError("Another installation holds %s (%s). If it is not running any more, remove that directory "
                             "and call again.", lock_path,
                             ', '.join(os.path.basename(note).split('.owner=')[1] for note in alive) or 'owner unknown')


def note_owner(lock_path):
    """Before EasyBuild makes the lock of an installation, note that it is this process."""
    os.makedirs(os.path.dirname(lock_path), exist_ok=True)
    pid = os.getpid()
    open(owner_name(lock_path, socket.gethostname(), pid, start_time(pid)), 'w').close()


def forget_owner(lock_path):
    """The installation is over."""
    for note, host, pid, _ in owners(lock_path):
        if host == socket.gethostname() and pid == os.getpid():
            os.remove(note)


def lock_of(easyblock):
    """Where EasyBuild is going to put the lock of an installation; None if it makes none."""
    if build_option('ignore_locks') or build_option('extended_dry_run'):
        return None
    return det_lock_path(easyblock.installdir.replace('/', '_'))


# --- last words -----------------------------------------------------------------------------------------------------

# How to get the `module` command into a shell that does not have it, by the modules tool's name.
MODULE_COMMAND = {
    'Lmod': "source {home}/init/bash",
    'Environment Modules': 'eval "$({program} bash autoinit)"',
}


def what_to_type(ec):
    """The lines that make this module usable and check it."""
    lines = []
    tool = modules_tool()
    if 'MODULESHOME' not in os.environ and tool.NAME in MODULE_COMMAND:
        lines.append(MODULE_COMMAND[tool.NAME].format(program=tool.cmd,
                                                      home=os.path.dirname(os.path.dirname(tool.cmd))))
    modules = os.path.join(install_path('modules'), build_option('suffix_modules_path'))
    if modules not in USERS_MODULEPATH:
        lines.append("module use %s" % modules)
    lines.append("module load %s" % ec.full_mod_name)
    check = os.path.join(install_path('software'), ActiveMNS().det_install_subdir(ec), 'bin', 'pytorch-check')
    if os.path.exists(check):
        lines.append("pytorch-check        # two processes add up a tensor")
    return lines


def say_what_to_type():
    """After success: how to use what was installed."""
    for ec in ASKED_FOR:
        if modules_tool().exist([ec.full_mod_name])[0]:
            lines = '\n    '.join(what_to_type(ec))
            print_msg("\nTo use it, now and in job scripts:\n\n    %s\n" % lines, prefix=False)


# --- the hooks ------------------------------------------------------------------------------------------------------

def start_hook():
    """EasyBuild is configured, and has made no directory yet."""
    if any(word.endswith('.eb') for word in sys.argv):
        check_directories()


def parse_hook(ec):
    """An easyconfig was read, or is the copy that a Bundle makes of its own, which has no path."""
    if ec.path is None:
        return
    check_external_modules(ec)
    if os.path.basename(ec.path) in [os.path.basename(word) for word in sys.argv]:
        ASKED_FOR.append(ec)


def pre_easyblock_hook(easyblock):
    """One installation is about to begin."""
    lock_path = lock_of(easyblock)
    if lock_path:
        release_dead_lock(lock_path)
        note_owner(lock_path)


def post_easyblock_hook(easyblock):
    """One installation is over."""
    lock_path = lock_of(easyblock)
    if lock_path:
        forget_owner(lock_path)


def end_hook():
    """Everything that was asked for is there."""
    if not build_option('extended_dry_run'):
        say_what_to_type()
