"""``--uninstall MODULE``: remove what was installed, its module first, so that nobody loads what is half gone."""
import argparse
import contextlib
import glob
import os
import re
from pathlib import Path

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import build_option, build_path, install_path, update_build_option
from easybuild.tools.filetools import det_lock_path, remove

from hpc_pytorch.jobs.records import read_records, remove_record
from hpc_pytorch.jobs.status import state_of
from hpc_pytorch.machine.batch_systems import ALIVE, UNKNOWN
from hpc_pytorch.machine.module_files import files_of, root_of
from hpc_pytorch.packages.easybuild_errors import with_prefix
from hpc_pytorch.packages.module_names import module_directory
from hpc_pytorch.rules.installation_locks import check_owner, remove_stale_lock

DEPENDENCY = re.compile(r"\('([\w.+-]+)', '([^']+)'(?:, '([^']*)')?")
LOADED = re.compile(r'(?:depends_on|load|depends-on|module load)[( ]"?([^")\s]+)')


def read(path):
    """Return the text of a file, in which names may have another encoding."""
    try:
        return Path(path).read_text(encoding='utf-8', errors='replace')
    except OSError as problem:
        raise EasyBuildError("%s cannot be read: %s. Ask its owner whether it needs this", path, problem.strerror)


def module_files():
    """Find the module files of this prefix: {module: path}; those of other directories are links to them."""
    directory = module_directory()
    paths = [path for path in files_of(directory, '*') if not os.path.islink(path)]
    return {re.sub(r'\.lua$', '', os.path.relpath(path, directory)): path for path in paths}


def visible(name):
    """Return a module's name without the dot of --hidden, as its software is called."""
    return name.replace('/.', '/')


def check_unused(name, files):
    """Stop if another module loads this one, or a job installs it or something on top of it."""
    users = [other for other, path in files.items() if other != name and name in LOADED.findall(read(path))]
    if users:
        raise EasyBuildError("%s is needed by %s: uninstall that first", name, ' '.join(users))
    for record in read_records():
        path = record['easyconfig']
        text = read(path) if os.path.exists(path) else ''
        # as if none were hidden: what the job installs, and what its easyconfig depends on
        used = [visible(record['module'])] + ['%s/%s%s' % dependency for dependency in DEPENDENCY.findall(text)]
        if visible(name) in used and state_of(record).state in ALIVE + (UNKNOWN,):
            raise EasyBuildError("%s is needed by job %s, which installs %s: cancel that first",
                                 name, record['job'], record['module'])


def build_directories(name):
    software, version = visible(name).split('/', 1)
    top = os.path.join(build_path(), software)
    paths = glob.glob(os.path.join(glob.escape(top), '*', 'system-system*'))
    return [path for path in paths if os.path.relpath(path, top).replace('/system-system', '', 1) == version]


def uninstall(name, files):
    """Remove a module, also from `files`, its software, and what its installation left; a dry run only prints it."""
    top = install_path('software')
    check_unused(name, files)
    module = files.get(name, '')
    own = os.path.join(top, visible(name))
    software = root_of(module) or '/' if module else own
    # what is removed has this name first, so that the next call removes what an interrupted one has left
    remains = os.path.join(os.path.dirname(software), '.removed-' + os.path.basename(software))
    if not module and not os.path.isdir(remains):
        # the first installation of it has no module yet
        remove_stale_lock(det_lock_path(own.replace('/', '_')))
        raise EasyBuildError("%s is not installed in %s; found: %s", name, install_path('modules'),
                             ' '.join(files) or 'no modules')
    # the prefix may be a link, now or when it was installed
    pairs = (software, top), tuple(map(os.path.realpath, (software, top)))
    if not any(os.path.commonpath(pair) == pair[1] for pair in pairs):
        raise EasyBuildError("%s is not a module that EasyBuild wrote for %s: nothing was removed", module, top)
    for directory in (software, remains, os.path.dirname(module)):
        check_owner(directory)
    files.pop(name, None)
    # a hidden one, and a visible one that --module-only wrote
    same = [other for other, path in files.items() if module and root_of(path) == software]
    rest = ", %s, and the remains of its build" % software
    if same:
        rest = ". Its software stays, as %s needs it" % ' '.join(same)
    if build_option('dry_run') or build_option('extended_dry_run'):
        print("Would remove %s: its module%s" % (name, rest))
        return
    remove_stale_lock(det_lock_path(software.replace('/', '_')))
    place = glob.escape(install_path('modules'))
    # those in directories of module classes are links; EasyBuild keeps the one before as NAME.bak_TIME
    relative = name + '.lua' if module.endswith('.lua') else name
    links = list(filter(os.path.islink, glob.glob(os.path.join(place, '*', glob.escape(relative)))))
    modules = links + glob.glob(glob.escape(os.path.join(module_directory(), name)) + '.bak_*') + [module]
    directories = [] if same else [remains] + build_directories(name)
    remove(list(filter(os.path.exists, directories)))
    if module and os.path.exists(software) and not same:
        os.rename(software, remains)
    remove(list(filter(os.path.lexists, modules + [remains])))
    for path in modules + directories:
        # unless another version is in it
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(path))
    for record in read_records():
        if record['module'] == name:
            remove_record(record)
    print("Removed %s: its module%s" % (name, rest))


def main(arguments):
    parser = argparse.ArgumentParser(prog='eb', allow_abbrev=False)
    parser.add_argument('--uninstall', nargs='+', metavar='MODULE', required=True)
    given, others = parser.parse_known_args(arguments)

    def all_of_them(_):
        files = module_files()
        # an installation that runs is not waited for, nor ignored
        update_build_option('wait_on_lock_limit', 0)
        for name in given.uninstall:
            uninstall(name, files)

    return with_prefix(others, all_of_them)
