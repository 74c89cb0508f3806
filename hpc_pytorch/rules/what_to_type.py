"""
What to type once something is installed.

Python 3.6.
"""
import os
import sys

from easybuild.framework.easyconfig.easyconfig import ActiveMNS
from easybuild.tools.build_log import print_msg
from easybuild.tools.config import build_option, install_path
from easybuild.tools.modules import modules_tool

from hpc_pytorch.machine.systems import current

# The easyconfigs named on the command line, and the user's own module path.
ASKED_FOR = []
USERS_MODULEPATH = os.environ.get('MODULEPATH', '').split(os.pathsep)

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
    prefix = os.path.join(install_path('software'), ActiveMNS().det_install_subdir(ec))
    command = what_to_run(os.path.join(prefix, 'bin'))
    system = current(ec.path)
    if command.startswith('run-in-container'):
        lines.append(command)
    elif system.scheduler['kind'] != 'none':
        lines.append("%s %s" % (' '.join(system.launcher['two_processes']), command))
    if os.path.exists(os.path.join(prefix, 'bin', 'pytorch-check')):
        lines.append("pytorch-check        # two processes add up a tensor")
    return lines


def what_to_run(commands):
    """A program of the user's with what was installed; a container may have no Python, or only inside."""
    if not os.path.lexists(os.path.join(commands, 'run-in-container')):
        return "python your_script.py"
    if os.path.lexists(os.path.join(commands, 'pytorch-srun')):
        return "pytorch-srun your_script.py"
    return "run-in-container COMMAND ARGUMENT ..."


def note(ec):
    """Remember an easyconfig that the user has named."""
    if os.path.basename(ec.path) in [os.path.basename(word) for word in sys.argv]:
        ASKED_FOR.append(ec)


def say_what_to_type():
    """After success: how to use what was installed."""
    if build_option('extended_dry_run'):
        return
    for ec in ASKED_FOR:
        if modules_tool().exist([ec.full_mod_name])[0]:
            lines = '\n    '.join(what_to_type(ec))
            print_msg("\nTo use it, now and in job scripts:\n\n    %s\n" % lines, prefix=False)
