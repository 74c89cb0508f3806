"""
Where an installation comes from, in its own ``easybuild/provenance`` directory, and enough to make it again.

The easyconfig lies there with every file that it names (lock files, patches, scripts), so that

    ./eb .../easybuild/provenance/NAME.eb --system SYSTEM --robot --prefix=ELSEWHERE

installs the same. ``provenance.json`` says on what, with what and by whom; ``sbom.spdx.json`` has the Python packages.
"""
import getpass
import glob
import json
import os
import shutil
import socket
import subprocess
import time

from easybuild.tools.config import build_option
from easybuild.tools.filetools import copy_file, mkdir, write_file
from easybuild.tools.version import VERSION as EASYBUILD_VERSION

from hpc_pytorch import HERE, VERSION
from hpc_pytorch.machine.batch_systems import own_job
from hpc_pytorch.machine.collection_files import named_file
from hpc_pytorch.machine.systems import current
from hpc_pytorch.packages.lock_files import parse_lock, sha256_of
from hpc_pytorch.rules import sbom

PLACE = os.path.join('easybuild', 'provenance')
# what ramgate leaves in the build directory
REPORTS = ('report.json', 'report.html', 'profile.json')


def words_in(value):
    """All strings in lists, tuples and dicts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [word for part in value for word in words_in(part)] if isinstance(value, (list, tuple)) else []


def named_files(easyblock):
    """The easyconfig and every file that it names, beside it or found as a patch; sources are too large to be kept."""
    ec = easyblock.cfg
    sources = [os.path.realpath(source['path']) for source in easyblock.src]
    words = [word for value in ec.asdict().values() for word in words_in(value)
             if word and not os.path.isabs(word) and len(word) < 256]
    named = filter(None, [named_file(ec.path, word) for word in words])
    patches = [patch['path'] for patch in easyblock.patches]
    files = [path for path in set(patches).union(named) if os.path.realpath(path) not in sources]
    return [ec.path] + sorted(path for path in files if path != ec.path)


def first_line(command):
    """The first line that a command prints, or what went wrong."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                              universal_newlines=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout.split('\n')[0].strip()


def collection():
    """Which state of the collection this is."""
    known = first_line(['git', '-C', HERE, 'describe', '--always', '--dirty'])
    return known if shutil.which('git') and 'fatal' not in known else VERSION


def facts(easyblock, files):
    ec = easyblock.cfg
    system = current(ec.path)
    return {
        'name': ec['name'], 'version': ec['version'], 'versionsuffix': ec['versionsuffix'],
        'module': ec.full_mod_name, 'system': system.name,
        'easyconfig': os.path.basename(ec.path),
        'files': {os.path.basename(path): sha256_of(path) for path in files},
        'sources': {os.path.basename(source['path']): sha256_of(source['path']) for source in easyblock.src},
        'modules': [module['mod_name'] for module in easyblock.modules_tool.list()],
        'compilers': {key: '%s: %s' % (command, first_line([command, '--version']))
                      for key, command in system.compilers.items() if command},
        'easybuild': str(EASYBUILD_VERSION), 'collection': collection(),
        'host': socket.gethostname(), 'job': own_job(), 'user': getpass.getuser(),
        'time': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime()),
        'rehearsal': os.environ.get('HPC_PYTORCH_REHEARSAL'),
    }


def bill(easyblock, files):
    """The SPDX document, or None where no Python packages are installed."""
    ec, top = easyblock.cfg, easyblock.installdir
    places = glob.glob(os.path.join(glob.escape(top), 'lib', 'python3.*', 'site-packages'))
    if not places:
        return None
    locked = set()
    for path in [path for path in files if path.endswith('.lock')]:
        with open(path, encoding='utf-8') as handle:
            locked.update(digest for entry in parse_lock(handle.read()) for digest in entry.hashes)
    fetched = getattr(easyblock, 'wheels', None)
    digests = sbom.archives([fetched], locked) if fetched else {}
    digests.update(sbom.archives([os.path.join(top, 'wheels')]))
    return sbom.document(ec['name'], ec['version'] + ec['versionsuffix'], places[0], digests)


def write_json(directory, name, content):
    write_file(os.path.join(directory, name), json.dumps(content, indent=2, sort_keys=True) + '\n')


def write(easyblock):
    if build_option('extended_dry_run') or easyblock.cfg.path is None:
        return
    directory = os.path.join(easyblock.installdir, PLACE)
    mkdir(directory, parents=True)
    files = named_files(easyblock)
    for path in files:
        copy_file(path, os.path.join(directory, os.path.basename(path)))
    for name in REPORTS:
        path = os.path.join(easyblock.builddir, 'ramgate', name)
        if os.path.exists(path):
            copy_file(path, os.path.join(directory, 'ramgate', name))
    write_json(directory, 'provenance.json', facts(easyblock, files))
    document = bill(easyblock, files)
    if document:
        write_json(directory, 'sbom.spdx.json', document)
