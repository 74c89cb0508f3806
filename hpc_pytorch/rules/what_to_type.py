"""What to type once something is installed."""
import os
import shlex
import sys

from easybuild.framework.easyconfig.easyconfig import ActiveMNS
from easybuild.tools.build_log import print_msg
from easybuild.tools.config import build_option, install_path
from easybuild.tools.modules import modules_tool

from hpc_pytorch.machine.systems import current

# The easyconfigs named on the command line, and the user's own module path.
ASKED_FOR = []
USERS_MODULEPATH = os.environ.get('MODULEPATH', '').split(os.pathsep)

# How to get the `module` command into a shell that does not have it, or has an older one: by the modules tool's name,
# then by the shell; None stands for all others.
MODULE_COMMAND = {
    'Lmod': {None: "source {home}/init/{shell}"},
    'Environment Modules': {
        'tcsh': "eval `{program} tcsh autoinit`",
        'fish': "{program} fish autoinit | source",
        None: 'eval "$({program} {shell} autoinit)"',
    },
}
# Whose lines these tools have something for; anybody else knows bash, and job scripts are written for it.
SHELLS = ('bash', 'zsh', 'tcsh', 'fish')


def module_command(tool):
    """The line that gives the user's shell the `module` command of this modules tool, or None if it has it."""
    home, theirs = os.path.dirname(os.path.dirname(tool.cmd)), os.environ.get('MODULESHOME')
    if theirs and (tool.NAME != 'Lmod' or os.path.realpath(theirs) == os.path.realpath(home)):
        return None
    if tool.NAME not in MODULE_COMMAND:
        return None
    shell = os.path.basename(os.environ.get('SHELL', 'bash'))
    shell = shell if shell in SHELLS else 'bash'
    lines = MODULE_COMMAND[tool.NAME]
    return lines.get(shell, lines[None]).format(program=shlex.quote(tool.cmd), home=shlex.quote(home), shell=shell)


def what_to_type(ec):
    """The lines that make this module usable and check it."""
    tool = modules_tool()
    lines = [line for line in [module_command(tool)] if line]
    modules = os.path.join(install_path('modules'), build_option('suffix_modules_path'))
    if modules not in USERS_MODULEPATH:
        lines.append("module use %s" % shlex.quote(modules))
    lines.append("module load %s" % ec.full_mod_name)
    prefix = os.path.join(install_path('software'), ActiveMNS().det_install_subdir(ec))
    command = what_to_run(os.path.join(prefix, 'bin'))
    system = current(ec.path)
    if command.startswith('run-in-container'):
        lines.append(command)
    elif system.scheduler['kind'] != 'none':
        lines.append("%s %s" % (' '.join(system.launcher['two_processes']), command))
    if os.path.exists(os.path.join(prefix, 'bin', 'pytorch-check')):
        # no comment behind it: zsh and tcsh, typed to, would take that for arguments
        lines.append("pytorch-check")
    return lines


def what_to_run(commands):
    """A program of the user's with what was installed; a container may have no Python, or only inside."""
    if not os.path.lexists(os.path.join(commands, 'run-in-container')):
        return "python your_script.py"
    if os.path.lexists(os.path.join(commands, 'pytorch-srun')):
        return "pytorch-srun your_script.py"
    return "run-in-container COMMAND ARGUMENT ..."


def note(ec):
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
