"""Usage hints after installation: how to get the `module` command, and what to load and run."""
import glob
import os
import re
import shlex
import shutil
import sys

from easybuild.framework.easyconfig.easyconfig import ActiveMNS
from easybuild.tools.build_log import print_msg
from easybuild.tools.config import build_option, install_path
from easybuild.tools.modules import modules_tool

from hpc_pytorch import collection_path
from hpc_pytorch.machine.systems import current
from hpc_pytorch.packages.module_names import module_directory, name_to_load

# The easyconfigs named on the command line, and the user's own modules and module path; a job has the submission's.
ASKED_FOR = []
USERS_MODULES = os.environ.get('LOADEDMODULES', '').replace(':', ' ')
USERS_MODULEPATH = os.environ.get('MODULEPATH', '').split(os.pathsep) if 'HPC_JOB_TURN' not in os.environ else []
# How a shell gets the `module` command. Other shells' users know bash, and job scripts are written for it.
SHELLS = ('bash', 'zsh', 'tcsh', 'fish')
LMOD = "source {home}/init/{shell}"
AUTOINIT = {'tcsh': "eval `{program} tcsh autoinit`", 'fish': "{program} fish autoinit | source"}


def module_command(tool):
    """Return the line that gives the user's shell this modules tool; None if it has it."""
    home = os.path.dirname(os.path.dirname(tool.cmd))
    theirs = os.environ.get('MODULESHOME')
    if theirs and (tool.NAME != 'Lmod' or os.path.realpath(theirs) == os.path.realpath(home)):
        return None
    shell = os.path.basename(os.environ.get('SHELL', ''))
    if shell not in SHELLS:
        shell = 'bash'
    line = LMOD if tool.NAME == 'Lmod' else AUTOINIT.get(shell, 'eval "$({program} {shell} autoinit)"')
    return line.format(program=shlex.quote(tool.cmd), home=shlex.quote(home), shell=shell)


def usage(ec, commands):
    """List the lines that make a module with these commands usable and check it."""
    lines = [module_command(modules_tool())]
    if module_directory() not in USERS_MODULEPATH:
        lines.append("module use %s" % shlex.quote(module_directory()))
    mpi = shutil.which('mpicc') if ec.get('mpi_lock_files') else None
    if mpi and os.path.dirname(mpi) not in os.defpath.split(os.pathsep):
        # it was linked with this MPI, and needs its mpiexec
        lines.append(USERS_MODULES and "module load %s" % USERS_MODULES)
    lines.append("module load %s" % name_to_load(ec.full_mod_name))
    container = 'run-in-container' in commands
    if container and 'pytorch-srun' not in commands:
        # it may have no Python
        lines.append("run-in-container COMMAND ARGUMENT ...")
    elif 'pytorch-serve' in commands and not container:
        lines.append("pytorch-serve DIRECTORY")
    if 'pytorch-check' in commands:
        # no comment behind it: zsh and tcsh, typed to, would take that for arguments
        below = {dep['name'] for dep in ec.dependencies() if not dep['external_module']} - {'Python'}
        lines.append("pytorch-check" if below or ec.name == 'PyTorch' else "pytorch-check packages")
    return list(filter(None, lines))


def mpi_on_top(ec):
    """Find the easyconfig of the MPI backend for a PyTorch without one; None if there is none, or it is installed."""
    suffix = '-%s-%s%s' % (ec.name, ec.version, ec['versionsuffix'])
    found = glob.glob(os.path.join(collection_path('easyconfigs'), 't', 'torch_mpi', 'torch_mpi-*%s.eb' % suffix))
    if not found or modules_tool().exist([os.path.basename(found[0])[:-len('.eb')].replace('-', '/', 1)])[0]:
        return None
    return os.path.basename(found[0])


def remember(ec):
    if ec.path and os.path.basename(ec.path) in map(os.path.basename, sys.argv):
        ASKED_FOR.append(ec)


def show():
    if build_option('extended_dry_run'):
        return
    for ec in ASKED_FOR:
        name = name_to_load(ec.full_mod_name)
        path = os.path.join(module_directory(), name)
        if modules_tool().exist([ec.full_mod_name])[0]:
            if not any(map(os.path.exists, (path, path + '.lua'))):
                print_msg("\n%s is in another directory of your $MODULEPATH (module show %s), not in %s. To install it "
                          "there, too, add --rebuild\n" % (name, name, module_directory()), prefix=False)
                continue
            place = os.path.join(install_path('software'), ActiveMNS().det_install_subdir(ec), 'bin')
            commands = os.listdir(place) if os.path.isdir(place) else []
            lines = '\n    '.join(usage(ec, commands))
            print_msg("\nTo use it, now and in job scripts:\n\n    %s\n" % lines, prefix=False)
            scheduler = current(ec.path).scheduler
            if 'pytorch-run' in commands and scheduler['kind'] != 'none':
                account = ' --account PROJECT' if scheduler['account_variable'] else ''
                print_msg("To train on two nodes, from a login node:\n\n    pytorch-run --nodes 2 --time 10%s"
                          " your_script.py\n" % account, prefix=False)
            on_top = mpi_on_top(ec)
            if on_top:
                prefix = ''.join(re.findall(r' --(?:prefix|installpath)[= ]\S+', ' '.join(sys.argv)))
                print_msg("For MPI:\n\n    ./eb %s --robot%s\n" % (on_top, prefix), prefix=False)
