"""
What the first call meets: an old python3, one modules tool or both, packages that exclude each other, shells.

Of machine/python_module.py, too.
"""
import json
import os
import subprocess
import sys

import pytest

from common import CHECKOUT, ModulesTool, clean_environment
from hpc_pytorch.machine import distribution_packages, modules

PYTHON_MODULE = CHECKOUT / 'hpc_pytorch' / 'machine' / 'python_module.py'


def python_module(tmp_path, tool, *arguments, brings=sys.executable):
    """The file that make-environment runs, with the python3 of SLES and one module of the system's."""
    module = tmp_path / 'modules' / 'cray-python' / '3.10'
    module.parent.mkdir(parents=True, exist_ok=True)
    module.write_text('#%%Module1.0\nprepend-path PATH %s\n' % (tmp_path / 'newer'))
    for name in ('newer', 'bin'):
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / 'newer' / 'python3').symlink_to(brings)
    # this machine's other Pythons are not on the path
    environment = dict(clean_environment(), MODULEPATH=str(module.parent.parent), PATH=str(tmp_path / 'bin'),
                       **{name: value for name, value in tool.for_easybuild.items() if name == 'MODULES_CMD'})
    return subprocess.run([str(CHECKOUT / 'tests/stand_ins/scripts/python3.6'), '-I', str(PYTHON_MODULE),
                           'Python 3.6.15', *arguments], env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_python_of_the_systems_module(tmp_path, modules_tool):
    done = python_module(tmp_path, modules_tool, 'PyTorch-1.13.1-ARCHER2.eb', '--robot')
    assert done.returncode == 0, done.stderr
    assert os.path.realpath(done.stdout.strip()) == os.path.realpath(sys.executable) and done.stderr == ''


def test_no_python_will_do(tmp_path, lmod):
    """One line, with what to type."""
    done = python_module(tmp_path, lmod, '--system=archer2', brings='/bin/false')
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert 'found: Python 3.6.15' in done.stderr and 'module load cray-python' in done.stderr
    (tmp_path / 'newer' / 'python3').unlink()
    done = python_module(tmp_path, lmod, 'PyTorch-2.13.0-workstation.eb')
    assert done.returncode == 1 and 'Install one' in done.stderr.replace('install one', 'Install one')


@pytest.mark.parametrize('name', ['Lmod', 'Environment Modules'])
def test_modules_tool_of_the_shell(name, tmp_path):
    """Both are on the machine; the shell that ./eb is called from decides, also after the other one was there first."""
    ask = '%s -c "from hpc_pytorch.machine.modules import *; print(program_of_modules_tool()[0])"' % sys.executable
    wanted = {'Lmod': 'Lmod', 'Environment Modules': 'EnvironmentModules'}[name]
    other = ModulesTool({'Lmod': 'Environment Modules', 'Environment Modules': 'Lmod'}[name])
    tool = ModulesTool(name)
    assert tool.run(ask, cwd=CHECKOUT).split()[-1] == wanted
    assert tool.run('%s\n%s\n%s' % (other.start, tool.start, ask), cwd=CHECKOUT).split()[-1] == wanted


def test_too_old_modules_tools_are_passed_over(tmp_path):
    """Lmod 6.6 of Debian 11 and Ubuntu 22.04."""
    for version, will_do in (('6.6', False), ('8.6.19', True)):
        program = tmp_path / ('lmod' + version)
        program.write_text('#!/bin/sh\necho "Modules based on Lua: Version %s" >&2\n' % version)
        program.chmod(0o755)
        assert modules.new_enough('Lmod', str(program)) is will_do


def test_nothing_is_removed_by_an_installation():
    """On Debian each modules tool removes the other; ./test has installed Lmod."""
    with pytest.raises(distribution_packages.WouldRemove, match='would remove lmod, and nothing was changed'):
        distribution_packages.refuse_removals(distribution_packages.command_for(['environment-modules']),
                                              ['environment-modules'])


# what is printed for the user's shell, with a directory that wants quotes
LINES = """
import json, os, sys
from hpc_pytorch.rules import what_to_type
class Tool:
    def __init__(self, name, cmd):
        self.NAME, self.cmd = name, cmd
found = {}
for shell in ('bash', 'zsh', 'tcsh', 'fish', 'nu'):
    os.environ['SHELL'] = '/bin/' + shell
    found[shell] = [what_to_type.module_command(Tool('Lmod', '/a b/lmod/libexec/lmod')),
                    what_to_type.module_command(Tool('Environment Modules', '/a b/modulecmd.tcl'))]
os.environ['MODULESHOME'] = '/a b/lmod'
found['same'] = what_to_type.module_command(Tool('Lmod', '/a b/lmod/libexec/lmod'))
os.environ['MODULESHOME'] = '/usr/share/lmod/lmod'
found['older'] = what_to_type.module_command(Tool('Lmod', '/a b/lmod/libexec/lmod'))
print(json.dumps(found))
"""


def test_lines_fit_the_shell():
    """Of this machine's shells, too: bash reads what is meant for it."""
    environment = dict(clean_environment(), PYTHONPATH=str(CHECKOUT))
    environment.pop('MODULESHOME', None)
    found = json.loads(subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', LINES], env=environment, check=True,
                                      stdout=subprocess.PIPE, text=True).stdout)
    assert found['bash'] == ["source '/a b/lmod'/init/bash", """eval "$('/a b/modulecmd.tcl' bash autoinit)\""""]
    assert found['zsh'][0].endswith('/init/zsh') and found['tcsh'] == [
        "source '/a b/lmod'/init/tcsh", "eval `'/a b/modulecmd.tcl' tcsh autoinit`"]
    assert found['fish'] == ["source '/a b/lmod'/init/fish", "'/a b/modulecmd.tcl' fish autoinit | source"]
    assert found['nu'] == found['bash'] and found['same'] is None and 'source' in found['older']
    lmod = '/usr/share/lmod/lmod'
    assert all(os.path.exists('%s/init/%s' % (lmod, shell)) for shell in ('bash', 'zsh', 'tcsh', 'fish'))
