"""
What the first call meets: an old python3, one modules tool or both, packages that exclude each other, shells.

Of machine/python_module.py, too.
"""
import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest

from common import (CACHE, CHECKOUT, LMOD, LMOD_ROOT, ModulesTool, clean_environment, needs_program,
                    program_of_shell, slow)
from hpc_pytorch.machine import distribution_packages, modules

PYTHON_MODULE = CHECKOUT / 'hpc_pytorch' / 'machine' / 'python_module.py'


def python_module(tmp_path, tool, *arguments, brings=sys.executable):
    """The file that make-environment runs, and one module of the system's."""
    module = tmp_path / 'modules' / 'cray-python' / '3.10'
    module.parent.mkdir(parents=True, exist_ok=True)
    module.write_text('#%%Module1.0\nprepend-path PATH %s\n' % (tmp_path / 'newer'))
    for name in ('newer', 'bin'):
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / 'newer' / 'python3').symlink_to(brings)
    # this machine's other Pythons are not on the path
    environment = dict(clean_environment(), MODULEPATH=str(module.parent.parent), PATH=str(tmp_path / 'bin'),
                       **{name: value for name, value in tool.for_easybuild.items() if name == 'MODULES_CMD'})
    return subprocess.run([sys.executable, '-I', str(PYTHON_MODULE), 'Python 3.6.15', *arguments],
                          env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_python_of_the_systems_module(tmp_path, modules_tool):
    needs_program('tclsh')
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
    assert done.returncode == 1 and 'Install one' in done.stderr


@pytest.mark.slow
def test_environment_of_the_modules_python(tmp_path, lmod):
    """Made with an old python3 alone on the path; works where the module is not loaded, and where another one is."""
    wrong = tmp_path / 'wrong'
    wrong.mkdir()
    (wrong / 'pip.py').write_text('raise SystemExit("of another Python")\n')
    # the module file of the system's Python, and the directories that it names
    python_module(tmp_path, lmod, '--system=archer2')
    # it says of itself that it is not 3.9
    (tmp_path / 'bin/python3').write_text('#!/bin/sh\ncase "$*" in *"(3, 9)"*) exit 1 ;; esac\nexec "%s" "$@"\n'
                                          % sys.executable)
    (tmp_path / 'bin/python3').chmod(0o755)
    for name in ('bash', 'sh', 'env', 'dirname', 'readlink', 'mkdir', 'flock', 'rm', 'touch', 'sync', 'grep', 'tail'):
        (tmp_path / 'bin' / name).symlink_to(shutil.which(name))
    # time passes faster
    (tmp_path / 'bin/sleep').write_text('#!/bin/sh\nexec /bin/sleep 0.1\n')
    (tmp_path / 'bin/sleep').chmod(0o755)
    environment = dict(clean_environment(), PATH=str(tmp_path / 'bin'), MODULEPATH=str(tmp_path / 'modules'))
    # EasyBuild's takes longer
    (tmp_path / 'lock').touch()
    done = subprocess.run([str(CHECKOUT / 'hpc_pytorch/environments/make-environment'), str(tmp_path / 'venv'),
                           str(tmp_path / 'lock'), '--system=archer2'], env=environment, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    assert 'venv is not ready yet, after ' in done.stdout
    python = tmp_path / 'venv/bin/python'
    assert os.path.realpath(python) == os.path.realpath(sys.executable)
    for loaded in ({}, {'PYTHONPATH': str(wrong), 'PYTHONHOME': str(wrong), 'PATH': str(wrong)}):
        found = subprocess.run([str(python), '-I', '-c', 'import pip; print(pip.__file__)'], env=loaded, check=True,
                               stdout=subprocess.PIPE, text=True).stdout
        assert found.startswith(str(tmp_path / 'venv'))


@pytest.mark.parametrize('name', ['Lmod', 'Environment Modules'])
def test_modules_tool_of_the_shell(name, tmp_path):
    """Both are on the machine; the shell that ./eb is called from decides, also after the other one was there first."""
    ask = '%s -c "from hpc_pytorch.machine.modules import *; print(modules_tool().name)"' % shlex.quote(sys.executable)
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
        assert modules.new_enough(modules.LMOD._replace(program=str(program))) is will_do


@pytest.mark.slow
def test_nothing_is_removed_by_an_installation():
    """On Debian each modules tool removes the other; ./test has installed Lmod."""
    with pytest.raises(distribution_packages.NotAllowed, match='nothing was changed, as this would remove lmod'):
        distribution_packages.run_unless_it_removes(*distribution_packages.command_for(['environment-modules']))


# what is printed for the user's shell, with a directory that wants quotes
LINES = """
import json, os, sys
from hpc_pytorch.rules import usage_hints
class Tool:
    def __init__(self, name, cmd):
        self.NAME, self.cmd = name, cmd
found = {}
for shell in ('bash', 'zsh', 'tcsh', 'fish', 'nu'):
    os.environ['SHELL'] = '/bin/' + shell
    found[shell] = [usage_hints.module_command(Tool('Lmod', '/a b/lmod/libexec/lmod')),
                    usage_hints.module_command(Tool('Environment Modules', '/a b/modulecmd.tcl'))]
os.environ['MODULESHOME'] = '/a b/lmod'
found['same'] = usage_hints.module_command(Tool('Lmod', '/a b/lmod/libexec/lmod'))
os.environ['MODULESHOME'] = '/usr/share/lmod/lmod'
found['older'] = usage_hints.module_command(Tool('Lmod', '/a b/lmod/libexec/lmod'))
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
    assert all(os.path.exists('%s/init/%s' % (LMOD_ROOT, shell)) for shell in ('bash', 'zsh', 'tcsh', 'fish'))


# of a module on top that is linked with an MPI
MPI_LINES = """
import types
from hpc_pytorch.rules import usage_hints
usage_hints.modules_tool = usage_hints.module_command = lambda *arguments: None
usage_hints.module_directory = lambda: '/modules'
usage_hints.name_to_load = str
print(usage_hints.usage(types.SimpleNamespace(full_mod_name='torch_mpi/2.0', get={'mpi_lock_files': %s}.get), []))
"""


@pytest.mark.parametrize('lock_files, path, more', [
    (['mpich.lock'], '%s', ['module load gcc/13 openmpi/5']), (['mpich.lock'], '/bin', []), ([], '%s', [])])
def test_lines_load_the_mpi_of_a_loaded_module(tmp_path, lock_files, path, more):
    """In new shells, too, torch_mpi needs the mpiexec of the MPI that it was linked with."""
    (tmp_path / 'mpicc').touch(0o755)
    environment = dict(clean_environment(), PYTHONPATH=str(CHECKOUT), LOADEDMODULES='gcc/13:openmpi/5',
                       PATH=path.replace('%s', str(tmp_path)))
    done = subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', MPI_LINES % lock_files], env=environment,
                          check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.strip() == str(['module use /modules', *more, 'module load torch_mpi/2.0'])


@pytest.mark.parametrize('shell, options', [('bash', ['--norc']), slow('zsh', ['-f']), slow('tcsh', ['-f']),
                                            slow('fish', ['-N'])])
def test_lines_in_the_shell(tmp_path, modules_tool, shell, options):
    """Typed to the real shell, they load a module; the path of the modules tool has a blank in it."""
    needs_program('tclsh')
    program = modules_tool.for_easybuild.get('MODULES_CMD', LMOD)
    (tmp_path / 'a b').symlink_to(os.path.dirname(os.path.dirname(program)))
    (tmp_path / 'toy').mkdir()
    (tmp_path / 'toy/1.0').write_text('#%Module1.0\nsetenv TOY yes\n')
    tool = "type('Tool', (), {'NAME': %r, 'cmd': %r})" % (modules_tool.name, program.replace(
        os.path.dirname(os.path.dirname(program)), str(tmp_path / 'a b')))
    ask = 'from hpc_pytorch.rules import usage_hints; print(usage_hints.module_command(%s))' % tool
    environment = {'PATH': '/usr/bin:/bin', 'HOME': str(tmp_path)}
    line = subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', ask], check=True, text=True,
                          env=dict(environment, SHELL='/bin/' + shell, PYTHONPATH=str(CHECKOUT)),
                          stdout=subprocess.PIPE).stdout
    path = '/bin/bash'
    if shell != 'bash':
        path = program_of_shell(shell)
        environment['LD_LIBRARY_PATH'] = ':'.join(map(str, (CACHE / 'shells/libpcre2-32-0').glob('usr/lib/*')))
    typed = '%smodule use %s\nmodule load toy\necho "<$TOY>"\n' % (line, tmp_path)
    said = subprocess.run([str(path)] + options, env=environment, input=typed, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True).stdout
    assert said.endswith('<yes>\n'), (line, said)
