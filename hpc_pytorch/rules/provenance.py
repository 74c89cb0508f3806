"""Record where an installation comes from, in its own ``easybuild/provenance``: the easyconfig with every file that it
names, which install the same again, and ``provenance.json``: on what, with what and by whom.
"""
import contextlib
import email.parser
import getpass
import glob
import json
import os
import socket
import stat
import subprocess
import time

from easybuild.tools.config import build_option
from easybuild.tools.filetools import copy_files, write_file
from easybuild.tools.toolchain.toolchain import RPATH_WRAPPERS_SUBDIR
from easybuild.tools.version import VERSION as EASYBUILD_VERSION

from hpc_pytorch import HERE, VERSION, write_atomically
from hpc_pytorch.machine.batch_systems import own_job
from hpc_pytorch.machine.collection_files import named_file
from hpc_pytorch.machine.commands import run
from hpc_pytorch.machine.systems import current
from hpc_pytorch.packages.lock_files import sha256_of

REPORTS = ('report.json', 'report.html', 'profile.json')


def named_files(easyblock):
    """Return the easyconfig and the files that it names, but for sources, which are too large to be kept."""
    easyconfig = easyblock.cfg.path
    files = {patch['path'] for patch in easyblock.patches}
    for value in easyblock.cfg.asdict().values():
        if isinstance(value, (list, tuple)):
            words = [word for word in value if isinstance(word, str) and not os.path.isabs(word)]
            # its list, with which a lock is made again
            words += [word[:-len('.lock')] + '.in' for word in words if word.endswith('.lock')]
            files.update(named_file(easyconfig, word) for word in words)
    sources = [os.path.realpath(source['path']) for source in easyblock.src]
    files -= {None, easyconfig}
    return [easyconfig] + sorted(path for path in files if os.path.realpath(path) not in sources)


def first_line(command, **options):
    try:
        done = run(command, timeout=60, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout.split('\n')[0].strip()


def packages(directory):
    found = {}
    for path in glob.glob(glob.escape(directory) + '/lib/python3.*/site-packages/*.dist-info/METADATA'):
        with open(path, encoding='utf-8', errors='replace') as handle:
            metadata = email.parser.HeaderParser().parse(handle)
        found[str(metadata['Name'])] = str(metadata['Version'])
    return found


def facts(easyblock, files):
    ec = easyblock.cfg
    system = current(ec.path)
    # not EasyBuild's wrappers of compilers, which start ten programs each
    paths = [path for path in os.environ['PATH'].split(os.pathsep) if RPATH_WRAPPERS_SUBDIR not in path]
    unwrapped = dict(os.environ, PATH=os.pathsep.join(paths))
    compilers = {key: '%s: %s' % (command, first_line([command, '--version'], env=unwrapped))
                 for key, command in system.compilers.items() if command}
    commit = first_line(['git', '-C', HERE, 'describe', '--always', '--dirty'])  # or an error of git's
    return {
        'name': ec['name'], 'version': ec['version'], 'versionsuffix': ec['versionsuffix'],
        'module': ec.full_mod_name,
        'system': system.name,
        'easyconfig': os.path.basename(ec.path),
        'files': {os.path.basename(path): sha256_of(path) for path in files},
        'sources': {os.path.basename(source['path']): sha256_of(source['path']) for source in easyblock.src},
        'packages': packages(easyblock.installdir),
        'modules': easyblock.modules_tool.loaded_modules(),
        'compilers': compilers,
        'easybuild': str(EASYBUILD_VERSION),
        'collection': VERSION if ' ' in commit else commit,
        'host': socket.gethostname(),
        'job': own_job(),
        'user': getpass.getuser(),
        'time': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime()),
        'rehearsal': os.environ.get('HPC_PYTORCH_REHEARSAL'),
    }


def directory_of(easyblock):
    return os.path.join(easyblock.installdir, 'easybuild', 'provenance')


def note_module(easyblock):
    """Note the module file's SHA256, also of one that is written alone, for ./eb --check."""
    path, directory = easyblock.mod_filepath, directory_of(easyblock)
    if build_option('extended_dry_run') or not os.path.exists(path) or not os.path.exists(directory):
        return
    note, mode = os.path.join(directory, 'module.json'), os.stat(directory).st_mode
    with contextlib.suppress(PermissionError):
        # --read-only-installdir has taken the owner's right to write away
        if not os.access(directory, os.W_OK):
            os.chmod(directory, mode | stat.S_IWUSR)
        write_atomically(note, json.dumps({path: sha256_of(path)}) + '\n')
        os.chmod(directory, mode)


def restore_module(easyblock):
    """Put the module file back that a failed --module-only has removed: the software is what it was."""
    if build_option('module_only') and easyblock.mod_file_backup and not os.path.exists(easyblock.mod_filepath):
        os.rename(easyblock.mod_file_backup, easyblock.mod_filepath)


def write(easyblock):
    if build_option('extended_dry_run') or easyblock.cfg.path is None:
        return
    directory = directory_of(easyblock)
    files = named_files(easyblock)
    copy_files(files, directory)
    reports = [os.path.join(easyblock.builddir, 'ramgate', name) for name in REPORTS]
    copy_files(list(filter(os.path.exists, reports)), os.path.join(directory, 'ramgate'))
    text = json.dumps(facts(easyblock, files), indent=2, sort_keys=True) + '\n'
    write_file(os.path.join(directory, 'provenance.json'), text)
    # EasyBuild moves it from the temporary directory, whose group may be another than that of the prefix
    for place in glob.glob(os.path.dirname(easyblock.logfile) + '/reprod*/**/', recursive=True):
        with contextlib.suppress(PermissionError):
            os.chown(place, -1, os.stat(directory).st_gid)
