"""The files of a job: its script, a record, and while it runs its progress.

They lie in ``<software directory>/.jobs``, beside EasyBuild's own locks. There is one record for each module; what jobs
write has the token of their submission in its name, so that it is never taken for another job's.
"""
import contextlib
import glob
import hashlib
import json
import os
import re
import shlex
import shutil
import time
import uuid
from pathlib import Path

from easybuild.tools.config import build_option, build_path, install_path
from easybuild.tools.filetools import is_parent_path

from hpc_pytorch import read_json, write_atomically
from hpc_pytorch.machine.batch_systems import SCHEDULERS, exports_for_jobs

# what a record has at least; one without it is damaged
FIELDS = dict.fromkeys(('name', 'module', 'token', 'scheduler', 'log', 'easyconfig'), str)
FIELDS.update(time=(int, float), after=list, job=(str, type(None)))


def directory():
    return os.path.join(install_path('software'), '.jobs')


def record_path(name):
    return os.path.join(directory(), re.sub(r'[^\w.+-]', '_', name) + '.json')


def mark_of(name):
    """Return the name of every job for this module and prefix in the batch system, also of other people's."""
    return 'hpc_pytorch_%s' % hashlib.sha256(record_path(name).encode()).hexdigest()[:16]


def new_record(name, **facts):
    return dict(facts, name=name, job=None, token=uuid.uuid4().hex[:12], time=int(time.time()))


def files_of(record):
    return '%s.%s' % (record_path(record['name'])[:-len('.json')], record['token'])


def write_record(record):
    write_atomically(record_path(record['name']), json.dumps(record, indent=2, sort_keys=True) + '\n')


def read_record(path):
    """Return a record; None if there is none, or it is damaged."""
    record = read_json(path, FIELDS)
    return record if record and record['scheduler'] in SCHEDULERS else None


def read_records():
    paths = glob.glob(os.path.join(glob.escape(directory()), '*.json'))
    records = filter(None, map(read_record, paths))
    return sorted(records, key=lambda record: (record['time'], number_of(record['job'])))


def number_of(job):
    """Return the number in a job's id: 9 comes before 10."""
    return int(re.match(r'\d*', job or '').group() or 0)


def remove_record(record):
    for path in glob.glob(glob.escape(files_of(record)) + '.*') + [record_path(record['name'])]:
        # while it may be alive the next job waits for it; others' files, who share the prefix, stay
        if '.alive.' not in path[len(files_of(record)):]:
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def first_line(path):
    with contextlib.suppress(OSError), open(path, errors='replace') as handle:
        return handle.readline().strip()
    return None


def write_script(record, command, log):
    """Write the script of a job: what belongs to this one, then what all have in common; returns its path."""
    mask = os.umask(0o077)
    os.umask(mask)
    # PBS starts jobs with 077, and others could not load the module
    lines = ['#!/usr/bin/env bash', '# made by eb --job for %s' % record['name'], 'umask %03o' % mask]
    lines += exports_for_jobs()
    if build_option('job_eb_cmd') == 'eb' and os.environ.get('EB_SCRIPT_PATH'):
        # the eb that is called here is found in the job, too
        here = os.path.dirname(os.path.abspath(os.environ['EB_SCRIPT_PATH']))
        lines.append('export PATH=%s:"$PATH"' % shlex.quote(here))
    # a job asks for the state of others, whose locks it finds
    tool = shutil.which(SCHEDULERS[record['scheduler']].tool)
    if tool:
        lines.append('export PATH="$PATH":%s' % shlex.quote(os.path.dirname(tool)))
    values = {'record': record_path(record['name']), 'token': record['token'], 'files': files_of(record), 'log': log}
    lines += ['%s=%s' % (name, shlex.quote(value)) for name, value in values.items()]
    # EasyBuild's log of a failure would stay on the node's own /tmp; it refuses a place below the build path
    if not is_parent_path(build_path(), files_of(record)):
        lines.append('export EASYBUILD_FAILED_INSTALL_LOGS_PATH=%s' % shlex.quote(files_of(record) + '.failed'))
    lines += ['build() {', command, '}', '']
    common = Path(__file__).resolve().with_name('job-script').read_text()
    path = files_of(record) + '.sh'
    Path(path).write_text('\n'.join(lines) + common)
    return path
