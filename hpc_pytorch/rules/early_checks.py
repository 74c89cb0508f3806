"""What has to be known before an hour is lost: missing modules, directories, disks, memory, login nodes."""
import ctypes
import errno
import glob
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile

from easybuild.tools.build_log import EasyBuildError, print_warning
from easybuild.tools.config import build_option, build_path, install_path, source_paths, update_build_option
from easybuild.tools.modules import curr_module_paths, modules_tool

from hpc_pytorch.machine.batch_systems import own_job
from hpc_pytorch.machine.modules import ModulesShell, first_that_fails
from hpc_pytorch.machine.systems import current, host_matches
from hpc_pytorch.rules.resource_needs import LEAST_ROOM, NEEDS, needs_of
from hpc_pytorch.rules.site_rules import OWN_FILE, policy
from ramgate.limits import Limits, human

# Options with which EasyBuild only edits or shows files: the system's modules need not be there.
ONLY_FILES = ('--inject-checksums', '--check-contrib', '--check-style', '--copy-ec', '--new-pr', '--update-pr',
              '--preview-pr', '--list-software', '--list-installed-software')


# --- the system's modules -------------------------------------------------------------------------------------------

def external_modules(ec):
    """Names of the system's own modules that an easyconfig depends on; at parse time they are still plain tuples."""
    names = []
    # in the order in which EasyBuild loads them
    for parameter in ('builddependencies', 'dependencies'):
        for dep in ec[parameter]:
            if isinstance(dep, (tuple, list)) and dep[-1] == 'EXTERNAL_MODULE':
                names.append(dep[0])
            elif isinstance(dep, dict) and dep.get('external_module'):
                names.append(dep['full_mod_name'])
    return names


def why_missing(shell, name, said):
    """What helps with a module that cannot be loaded: its versions here, what opens it, or what the tool says."""
    versions = shell.versions(name)
    if name in versions:
        return "it exists, but loading it fails: %s" % ' '.join(said.split())
    if versions:
        return "versions of it here: %s" % ', '.join(versions)
    ways = shell.openers(name)
    return "it can be seen only after: module load %s" % ' or '.join(ways) if ways else "no version of it is here"


def check_external_modules(ec):
    """Stop when the system's modules cannot be loaded in their order: another machine, or a module was removed."""
    names = external_modules(ec)
    if not names or any(word.startswith(ONLY_FILES) for word in sys.argv):
        return
    tool = modules_tool()
    if type(tool).__name__ == 'NoModulesTool':
        raise EasyBuildError("%s: its modules decide which files it needs, and --fetch loads none. Type --stop=fetch "
                             "instead, or use ./eb, which does that",
                             os.path.basename(ec.path))
    shell = ModulesShell(tool.cmd)
    problem = first_that_fails(shell, names)
    if problem:
        name, said = problem
        raise EasyBuildError(
            "%s needs a module that this machine does not have: %s; loaded before it: %s; %s. Looked for in: %s. On "
            "the system itself, name another version in the easyconfig's dependencies; elsewhere, try it on the "
            "system's stand-in: ./eb --rehearse %s",
            os.path.basename(ec.path), name, ' '.join(names[:names.index(name)]) or 'nothing',
            why_missing(shell, name, said), shell.environ.get('MODULEPATH') or 'an empty $MODULEPATH',
            shlex.quote(os.path.basename(ec.path)))
    if build_option('extended_dry_run'):
        # EasyBuild only pretends to load what it cannot see from the start, and prefixes then have no values
        opened = [path for path in shell.environ['MODULEPATH'].split(os.pathsep) if path not in curr_module_paths()]
        os.environ['MODULEPATH'] = os.pathsep.join(curr_module_paths() + opened)


# --- directories ----------------------------------------------------------------------------------------------------

# what MPICH's mpicc and Lua strings do not quote, and what means something in $PATH or to a shell
UNFIT_FOR_PATHS = re.compile(r'[\s"\'\\$`:;&|<>*?]')


def existing(path):
    """The path, or the nearest directory above it that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def check_directories():
    if not any(word.endswith('.eb') for word in sys.argv):
        return
    directories = [('install', '--prefix or --installpath', install_path('software')),
                   ('module', '--prefix or --installpath', install_path('modules')),
                   ('build', '--buildpath', build_path())]
    for kind, option, path in directories:
        if UNFIT_FOR_PATHS.search(path):
            raise EasyBuildError("The %s path %s has a blank, a quote or the like in it, which MPI's compiler wrappers "
                                 "and module files do not cope with. Choose another with %s",
                                 kind, shlex.quote(path), option)
        if not os.access(existing(path), os.W_OK | os.X_OK):
            raise EasyBuildError("The %s path %s cannot be written to (%s is not writable by you). Choose another with "
                                 "%s, for example: --prefix=$HOME/easybuild", kind, path, existing(path), option)
    check_install_path()


def check_install_path():
    """Say where installations belong, on a system where they do not belong just anywhere."""
    easyconfig = next(word for word in sys.argv if word.endswith('.eb'))
    place, wanted = current(easyconfig).installation, install_path('software')
    unfit = [directory for directory in place['unfit']
             if is_below(wanted, os.path.expandvars(directory)) and not os.environ.get('HPC_PYTORCH_REHEARSAL')]
    if unfit and going_to_install():
        by_policy('install_path', "%s is below %s, and %s. Installations belong elsewhere: --prefix=%s" % (
            wanted, unfit[0], place['reason'], place['prefix']), place['policy'])


def is_below(path, directory):
    """Whether a path leads into a directory, whatever links there are."""
    directory = os.path.realpath(directory)
    return os.path.commonpath([os.path.realpath(path), directory]) == directory


def keep_umask():
    """
    What a user's umask makes private is so as a whole: EasyBuild would open the installation, and not its module. What
    root installs is for all: Lmod hides from root a module of root's that others cannot read.
    """
    mask = os.umask(0o077)
    os.umask(mask if os.geteuid() else mask & 0o022)
    if build_option('umask') is None and os.geteuid() and mask & 0o055:
        update_build_option('umask', '%03o' % mask)


# --- policies -------------------------------------------------------------------------------------------------------

def by_policy(name, problem, default=None):
    """Refuse, warn or say nothing, as the site has decided, else by `default`, which is the system's own."""
    answer = policy(name) or default
    if answer == 'refuse':
        raise EasyBuildError("%s\nYour site can change this: '%s = warn' or 'allow' below [policy] in a file that $%s "
                             "names.", problem, name, OWN_FILE)
    if answer == 'warn':
        print_warning(problem)


def going_to_install():
    """Whether something is installed, and not only fetched, shown or looked at."""
    return not (build_option('extended_dry_run') or build_option('module_only') or build_option('sanity_check_only')
                or build_option('stop') == 'fetch')


# --- login nodes ----------------------------------------------------------------------------------------------------

def wheel_is_kept(ec):
    """Whether a wheel was built from this before, so that in all likelihood nothing is going to be compiled."""
    name = '%s-%s%s-built' % (ec['name'], ec['version'], ec['versionsuffix'])
    return any(glob.glob(os.path.join(glob.escape(os.path.join(path, ec['name'][0].lower(), ec['name'], name)), '*',
                                      '*.whl')) for path in source_paths())


def unfit_host(ec, needs):
    """Why this host is none to compile on, or None."""
    system, host = current(ec.path), socket.gethostname()
    if host_matches(host, system.system['login_hosts']):
        return "%s is a login node of %s" % (host, system.system['title'])
    least = min(Limits().constraints(0), key=lambda constraint: constraint.limit)
    if least.limit < needs.largest:
        return "%s allows %s, and the largest file alone needs %s" % (least.name, human(least.limit),
                                                                      human(needs.largest))
    return None


def check_host(ecs):
    """No builds of hours on login nodes, nor where they cannot end well."""
    if own_job() or not going_to_install():
        return
    for ec in [entry['ec'] for entry in ecs]:
        needs = needs_of(ec)
        reason = unfit_host(ec, needs) if needs.compiles and not wheel_is_kept(ec) else None
        if reason:
            by_policy('login_node', "%s is built from source, and %s. Let the batch system do it on a compute node:\n"
                      "    %s %s --robot --job" % (os.path.basename(ec.path), reason,
                                                   os.environ.get('HPC_PYTORCH_COMMAND', 'eb'),
                                                   shlex.quote(os.path.basename(ec.path))))


# --- disks ----------------------------------------------------------------------------------------------------------

KEEP_SIZE = 1
FULL = {errno.ENOSPC: "the file system is full", errno.EDQUOT: "your quota there does not allow it"}


def kind_of(directory):
    """The kind of file system that a directory is on: ext2/ext3, lustre, tmpfs."""
    return subprocess.run(['stat', '-f', '-c', '%T', directory], stdout=subprocess.PIPE,
                          universal_newlines=True).stdout.strip()


def reserve(directory, size):
    """
    Why so many bytes cannot be had in a directory, or None. They are reserved and given back at once, which asks every
    quota there is (users', groups', projects'); a file system that cannot do that, or is memory, is believed.
    """
    if kind_of(directory) in ('tmpfs', 'ramfs'):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    with tempfile.TemporaryFile(dir=directory) as handle:
        if libc.fallocate(handle.fileno(), KEEP_SIZE, 0, size):
            return FULL.get(ctypes.get_errno())
    return None


def files_left(directory):
    """How many files a user may still make there: of the file system's, and of Lustre's quotas; None where all may."""
    state = os.statvfs(directory)
    left = [state.f_favail] if state.f_files else []
    if kind_of(directory) == 'lustre':
        for option, owner in (('-u', os.geteuid()), ('-g', os.getegid())):
            try:
                answer = subprocess.run(['lfs', 'quota', '-q', option, str(owner), directory], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, universal_newlines=True, timeout=10).stdout
            except (OSError, subprocess.TimeoutExpired):
                continue
            left += left_of_quota(answer)
    return min(left) if left else None


def left_of_quota(answer):
    """The files that `lfs quota -q` leaves: its words are the file system, then used, quota, limit, grace, twice."""
    words = answer.replace('*', '').split()[1:]
    used, _, limit = words[4:7] if len(words) >= 7 else ('', '', '0')
    return [max(0, int(limit) - int(used))] if used.isdigit() and limit.isdigit() and int(limit) else []


def files_needed(easyblock):
    """The files that wheels become, in twos: Python compiles most of them to another one."""
    store, count = getattr(easyblock, 'wheels', None), 0
    for path in glob.glob(os.path.join(glob.escape(store), '*.whl')) if store else []:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                count += 2 * len(archive.namelist())
    return count


def bytes_of(paths):
    """What these files take; those that are not there take nothing."""
    return sum(os.path.getsize(path) for path in paths if path and os.path.isfile(path))


def room_needed(easyblock):
    """Bytes to build, to install and for temporary files: what sources become, and what wheels become."""
    paths = [source['path'] for source in easyblock.src]
    # the needs are those of compressed tarballs, about a sixth of what is in them
    sources = bytes_of(paths) - bytes_of([path for path in paths if path.endswith('.tar')]) * 5 // 6
    store = getattr(easyblock, 'wheels', None)
    wheels = bytes_of(glob.glob(os.path.join(glob.escape(store), '*.*')) if store else [])
    wheels += bytes_of([getattr(easyblock, 'wheel', None)])
    needs, unpacked = needs_of(easyblock.cfg), NEEDS['LockedWheels']
    return {kind: max(LEAST_ROOM, getattr(needs, kind) * sources + getattr(unpacked, kind) * wheels)
            for kind in ('build', 'install', 'temporary') if getattr(needs, kind)}


def check_room(easyblock):
    if not going_to_install():
        return
    room = room_needed(easyblock)
    wanted = [('build', '--buildpath', build_path()),
              ('install', '--prefix or --installpath', install_path('software')),
              ('temporary', '--tmpdir', tempfile.gettempdir())]
    wanted = [(kind, option, existing(path), room[kind]) for kind, option, path in wanted if kind in room]
    for kind, option, path, size in wanted:
        # several of them may share a file system, and each may have a quota of its own
        together = sum(other for _, _, place, other in wanted if os.stat(place).st_dev == os.stat(path).st_dev)
        free = shutil.disk_usage(path).free
        problem = "%s are free" % human(free) if free < together else reserve(path, size)
        if problem:
            by_policy('free_space', "The %s directory %s has too little room: %s, and %s are needed%s. Make room, or "
                      "choose another place with %s." % (
                          kind, path, problem, human(size), " (%s with the other directories there)" % human(together)
                          if together > size else "", option))
    place, count = existing(install_path('software')), files_needed(easyblock)
    left = files_left(place)
    if left is not None and left < max(count, 1):
        by_policy('free_space', "The install directory %s has too little room: you can make %d more files there, and "
                  "%s are needed. Remove some, or choose another place with --prefix or --installpath."
                  % (place, left, "about %d" % count if count else "more"))
