"""Checks that fail fast: missing modules and Pythons, directories that cannot be used, builds on login nodes."""
import glob
import os
import re
import shlex
import socket
import sys

from easybuild.framework.easyconfig.constants import EXTERNAL_MODULE_MARKER
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import build_option, build_path, install_path, source_paths, update_build_option
from easybuild.tools.modules import curr_module_paths, modules_tool
from easybuild.tools.utilities import nub

from hpc_pytorch import existing
from hpc_pytorch.machine.batch_systems import job_on_this_node
from hpc_pytorch.machine.modules import ModulesShell, first_that_fails
from hpc_pytorch.machine.systems import current, host_matches
from hpc_pytorch.packages import built_wheels
from hpc_pytorch.packages.locked_environment import OWN_PYTHON
from hpc_pytorch.packages.wheel_tags import find_python, pythons
from hpc_pytorch.rules import policy
from hpc_pytorch.rules.resource_needs import needs_of
from ramgate.limits import Limits, human

# Options with which EasyBuild only edits or shows files: the system's modules need not be there.
ONLY_FILES = ('--inject-checksums', '--check-contrib', '--check-style', '--copy-ec', '--new-pr', '--update-pr',
              '--preview-pr', '--list-software', '--list-installed-software')
# what MPICH's mpicc and Lua strings do not quote, what means something in $PATH or to a shell, and a ~ that bash left
UNFIT_FOR_PATHS = re.compile(r'[\s"\'\\$`:;&|<>*?]|/~')
# variables in which a password can be, also in the address of an index
SECRET = re.compile('token|secret|passw|credential|_key|index|find_links|proxy', re.I)


def check_external_modules(ec):
    """Stop when the system's modules cannot be loaded in their order: another machine, or a module was removed."""
    # in EasyBuild's order; a Bundle's copy of its easyconfig has no path
    names = [dep[0] for dep in ec['builddependencies'] + ec['dependencies'] if EXTERNAL_MODULE_MARKER in dep]
    if not names or not ec.path or any(word.startswith(ONLY_FILES) for word in sys.argv):
        return
    tool = modules_tool()
    easyconfig = os.path.basename(ec.path)
    if type(tool).__name__ == 'NoModulesTool':
        raise EasyBuildError("%s: its modules decide which files it needs, and --fetch loads none. Type --stop=fetch "
                             "instead, or use ./eb, which does that", easyconfig)
    shell = ModulesShell(tool.cmd)
    problem = first_that_fails(shell, names)
    if problem:
        name, why = problem
        before = ' '.join(names[:names.index(name)]) or 'nothing'
        searched = shell.environ.get('MODULEPATH') or 'an empty $MODULEPATH'
        raise EasyBuildError(
            "%s needs a module that cannot be loaded: %s; loaded before it: %s; %s. Searched: %s. %s",
            easyconfig, name, before, why, searched, advice(easyconfig, name, name in shell.versions(name)))
    if build_option('extended_dry_run'):
        # EasyBuild only pretends to load what it cannot see from the start, and prefixes then have no values
        opened = shell.environ['MODULEPATH'].split(os.pathsep)
        os.environ['MODULEPATH'] = os.pathsep.join(nub(curr_module_paths() + opened))


def advice(easyconfig, module, exists):
    system = os.environ.get('HPC_PYTORCH_REHEARSAL')
    if system:
        return ("This is the test environment of %s. If the system has the module, add it to systems/%s/stand_in.cfg: "
                "[module %s], with a part of hpc_pytorch/stand_ins/parts.cfg; else name another version in the "
                "easyconfig's dependencies" % (system, system, module))
    if exists and os.environ.get('LOADEDMODULES'):
        return "If it excludes a module that you have loaded (module list), unload that one, and try again"
    return ("On the system itself, name another version in the easyconfig's dependencies; elsewhere, try it on the "
            "system's test environment: ./eb --rehearse %s" % shlex.quote(easyconfig))


def add_own_python(ec):
    """Add our prebuilt Python to an easyconfig whose Python is not here, and that loads nothing which may have one."""
    versions = ec.get('python_versions')
    if not versions or '3.12' not in versions or ec['dependencies']:
        return
    python, found = find_python(pythons(versions), versions)
    if not python:
        print_msg("%s needs Python %s; found: %s. Installing our own: %s-%s%s.eb", ec.name,
                  ' or '.join(versions), found, *OWN_PYTHON)
        ec['dependencies'] = [OWN_PYTHON]


def check_directories():
    """Stop when a directory cannot be written to, or has characters that compiler wrappers fail on."""
    easyconfigs = [word for word in sys.argv if word.endswith('.eb')]
    if not easyconfigs:
        return
    for kind, path, option in (('install', install_path('software'), '--prefix or --installpath'),
                               ('module', install_path('modules'), '--prefix or --installpath'),
                               ('build', build_path(), '--buildpath')):
        if UNFIT_FOR_PATHS.search(path):
            raise EasyBuildError("The %s path %s contains a blank, a quote, a ~ or a similar character, which MPI's "
                                 "compiler wrappers and module files do not support. Choose another with %s", kind,
                                 shlex.quote(path), option)
        place = existing(path)
        if not os.access(place, os.W_OK | os.X_OK):
            raise EasyBuildError("The %s path %s cannot be written to (%s is not writable by you). Choose another with "
                                 "%s", kind, path, place, option)
    check_install_path(easyconfigs[0])


def check_install_path(easyconfig):
    """Say where installations belong, on a system where they do not belong just anywhere."""
    system = current(easyconfig).installation
    path = os.path.realpath(install_path('software'))
    if os.environ.get('HPC_PYTORCH_REHEARSAL') or not policy.going_to_install():
        return
    for directory in system['unfit']:
        top = os.path.realpath(os.path.expandvars(directory))
        if os.path.commonpath([path, top]) == top:
            policy.decide('install_path', "%s is below %s, and %s. Installations belong elsewhere: --prefix=%s" % (
                path, directory, system['reason'], system['prefix']), system['policy'])


def keep_umask():
    """Make all of an installation as private as the user's umask says; what root installs is for all."""
    mask = os.umask(0o077)
    os.umask(mask if os.geteuid() else mask & 0o022)
    if build_option('umask') is None and os.geteuid() and mask & 0o055:
        update_build_option('umask', '%03o' % mask)


def leave_out_secrets():
    """Keep passwords out of the report that EasyBuild writes into each installation, where all can read it."""
    if build_option('test_report_env_filter') is None:
        update_build_option('test_report_env_filter', SECRET)


def check_host(ecs):
    """Stop builds of hours on login nodes, or where there is too little memory."""
    if job_on_this_node() or not policy.going_to_install():
        return
    for ec in [entry['ec'] for entry in ecs]:
        needs = needs_of(ec)
        # if a wheel was built from this before, probably nothing is compiled
        stores = built_wheels.stores(ec, source_paths())
        if not needs.compiles or any(glob.glob(glob.escape(store) + '/*/*.whl') for store in stores):
            continue
        reason = unfit_host(ec, needs)
        if reason:
            name = os.path.basename(ec.path)
            program = os.environ.get('HPC_PYTORCH_COMMAND', 'eb')
            policy.decide('login_node', "%s is built from source, and %s. Let the batch system do it on a compute node:"
                          "\n    %s %s --robot --job" % (name, reason, program, shlex.quote(name)))


def unfit_host(ec, needs):
    system = current(ec.path).system
    host = socket.gethostname()
    if host_matches(host, system['login_hosts']):
        return "%s is a login node of %s" % (host, system['title'])
    least = min(Limits().constraints(0), key=lambda constraint: constraint.limit)
    if least.limit < needs.largest:
        return "%s allows %s, and the largest file alone needs %s" % (
            least.name, human(least.limit), human(needs.largest))
    return None
