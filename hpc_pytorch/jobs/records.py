"""
The files of a job: its script, a record, and while it runs how far it is.

They lie in ``<software directory>/.jobs``, beside EasyBuild's own locks. Python 3.6.
"""
import json
import os
import re
import shlex

from easybuild.tools.config import build_option, install_path

# What jobs get of the environment of the login node, and why; everything else is the job's own. EasyBuild's options
# are in the command already.
CARRIED = (
    ('HPC_SYSTEM', "a compute node may have a name that tells nothing"),
    ('HPC_SITE_CONFIG', "the site's policies and rules"),
    ('HPC_SITE_HOOKS', "the site's own hooks"),
    ('HPC_IMAGE_SEARCH_PATH', "where images are looked for"),
    ('MODULEPATH', "modules that were found on the login node are found in the job"),
    ('LMOD_CMD', "the modules tool"),
    ('MODULES_CMD', "the modules tool"),
    ('EB_PYTHON', "the Python that EasyBuild runs with"),
    ('PYTHONPATH', "where EasyBuild is, when it comes from a module; ./eb has none"),
)


def directory():
    """Where the files of all jobs for this prefix are, beside EasyBuild's locks."""
    return os.path.join(install_path('software'), '.jobs')


def record_path(name):
    """The files of a job begin with this."""
    return os.path.join(directory(), re.sub(r'[^\w.+-]', '_', name))


def write_record(record):
    """Write what is known of a job, never half."""
    path = record_path(record['name']) + '.json'
    partial = '%s.%d' % (path, os.getpid())
    with open(partial, 'w') as handle:
        json.dump(record, handle, indent=2, sort_keys=True)
        handle.write('\n')
    os.replace(partial, path)


def read_record(path):
    """What is known of a job; None if there is nothing."""
    try:
        with open(path) as handle:
            return json.load(handle)
    except (OSError, ValueError):
        return None


def first_line(path):
    """The first line of a file, None if there is none."""
    try:
        with open(path, errors='replace') as handle:
            return handle.readline().strip()
    except OSError:
        return None


def write_script(name, command, log):
    """The script of a job: what belongs to this one, then what all have in common."""
    record = record_path(name)
    lines = ['#!/usr/bin/env bash', '# made by eb --job for %s' % name]
    lines += ['export %s=%s' % (variable, shlex.quote(os.environ[variable]))
              for variable, _ in CARRIED if os.environ.get(variable)]
    if build_option('job_eb_cmd') == 'eb' and os.environ.get('EB_SCRIPT_PATH'):
        # the eb that is called here is found in the job, too
        here = os.path.dirname(os.path.abspath(os.environ['EB_SCRIPT_PATH']))
        lines.append('export PATH=%s:"$PATH"' % shlex.quote(here))
    lines += ['record=%s' % shlex.quote(record), 'log=%s' % shlex.quote(log), 'build() {', command, '}', '']
    with open(os.path.join(os.path.dirname(os.path.realpath(__file__)), 'job-script')) as handle:
        text = '\n'.join(lines) + handle.read()
    path = record + '.sh'
    with open(path, 'w') as handle:
        handle.write(text)
    os.chmod(path, 0o755)
    return path
