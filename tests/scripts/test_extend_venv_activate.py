"""extend-venv-activate where there is no modules tool; with one, the workstation's tests have it."""
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from common import ModulesTool, SCRIPTS, clean_environment, program_of_shell, slow


def test_same_modules_as_jobs():
    """An environment loads the modules that a job does."""
    jobs = runpy.run_path(str(SCRIPTS.parent / 'share/batch_scripts.py'))['MODULES']
    assert "loaded='@(%s)/*'" % '|'.join(jobs) in (SCRIPTS / 'extend-venv-activate').read_text()


@pytest.mark.parametrize('path, loads', [('{top}/geo/lib:{top}/PyTorch/lib', 'geo-tools/2026.11'),
                                         ('{top}/geo/lib', 'PyTorch/1.0')])
def test_own_module_on_top(tmp_path, path, loads):
    """An environment loads a group's own module, too, except one that is not on top of PyTorch and hides it."""
    for name in ('PyTorch', 'geo', 'mine'):
        (tmp_path / name / 'bin').mkdir(parents=True)
        (tmp_path / name / 'bin/python').symlink_to(Path(sys.executable).resolve())
        (tmp_path / name / 'bin/activate').touch()
        (tmp_path / name / 'pyvenv.cfg').touch()
    loaded = {'EBROOTPYTORCH': str(tmp_path / 'PyTorch'), 'EBROOTGEOMINUSTOOLS': str(tmp_path / 'geo'),
              'EBROOTCDO': '/site/cdo', 'LOADEDMODULES': 'intel.mpi/1:PyTorch/1.0:geo-tools/2026.11:CDO/2',
              '_LMFILES_': '/m/intel.mpi/1:/m/PyTorch/1.0.lua:/m/geo-tools/2026.11.lua:/m/CDO/2',
              'PYTHONPATH': path.format(top=tmp_path)}
    done = subprocess.run([SCRIPTS / 'extend-venv-activate', tmp_path / 'mine'], stdout=subprocess.PIPE, text=True,
                          env=dict(clean_environment(), **loaded), check=True)
    assert done.stdout.endswith('now loads %s\n' % loads)


def module_and_environment(place):
    """Make PyTorch's directory, and an environment that was not extended yet."""
    for name in ('PyTorch', 'mine'):
        (place / name / 'bin').mkdir(parents=True)
        (place / name / 'bin/python').symlink_to(Path(sys.executable).resolve())
    (place / 'mine/bin/activate').write_text('deactivate() { :; }\n')
    (place / 'mine/pyvenv.cfg').touch()


def test_one_of_two_modules_is_loaded(tmp_path):
    """Activating loads the other one, too, and deactivating unloads that alone."""
    module_and_environment(tmp_path)
    loaded = {'EBROOTPYTORCH': str(tmp_path / 'PyTorch'), 'LOADEDMODULES': 'torch_mpi/2:Transformers/5',
              '_LMFILES_': '/m/torch_mpi/2.lua:/m/Transformers/5.lua'}
    subprocess.run([SCRIPTS / 'extend-venv-activate', tmp_path / 'mine'], env=dict(clean_environment(), **loaded),
                   check=True)
    typed = 'VIRTUAL_ENV=; module() { echo "$*"; }; . %s/mine/bin/activate; deactivate' % tmp_path
    for before, says in [('torch_mpi/2', 'Transformers/5'), ('Transformers/5:torch_mpi/2', ''),
                         ('gcc/14', 'torch_mpi/2 Transformers/5')]:
        output = subprocess.run(['bash', '--norc', '-c', typed], stdout=subprocess.PIPE, text=True, check=True,
                                env=dict(clean_environment(), LOADEDMODULES=before)).stdout
        assert re.findall('load (.*)', output) == [says] * 2 if says else not output


def test_module_that_warns(tmp_path):
    """As one that is to be removed: it is loaded, though Lmod says that it failed."""
    module_and_environment(tmp_path)
    (tmp_path / 'modules/PyTorch').mkdir(parents=True)
    (tmp_path / 'modules/PyTorch/1.0.lua').write_text(
        'setenv("EBROOTPYTORCH", "%s/PyTorch")\nLmodWarning("it is to be removed in May")\n' % tmp_path)
    typed = """
        module use %s; module load PyTorch; %s mine
        module unload PyTorch; VIRTUAL_ENV=; . mine/bin/activate && echo "active with $LOADEDMODULES"
    """ % (tmp_path / 'modules', SCRIPTS / 'extend-venv-activate')
    assert 'active with PyTorch/1.0\n' in ModulesTool('Lmod').run(typed, cwd=tmp_path)


@pytest.mark.parametrize('shell', [('bash', '--norc'), slow(('zsh', '-f'))])
def test_without_module(tmp_path, shell):
    """One line says what is missing; three times "command not found" was all there was. In zsh, arrays begin with 1."""
    module = tmp_path / 'PyTorch'
    (module / 'bin').mkdir(parents=True)
    (module / 'bin' / 'python').symlink_to(Path(sys.executable).resolve())
    venv = tmp_path / 'venv'
    subprocess.run([module / 'bin' / 'python', '-m', 'venv', '--without-pip', venv], check=True)
    loaded = {'EBROOTPYTORCH': str(module), 'LOADEDMODULES': 'PyTorch/2.0', '_LMFILES_': '/modules/PyTorch/2.0.lua'}
    subprocess.run([SCRIPTS / 'extend-venv-activate', venv], env=dict(clean_environment(), **loaded),
                   check=True)
    program = 'bash' if shell[0] == 'bash' else program_of_shell(shell[0])
    typed = 'unset -f module 2>/dev/null; . %s/bin/activate || echo "status $?"' % venv
    done = subprocess.run([program, shell[1], '-c', typed], env=clean_environment(), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and lines[1] == 'status 1', done.stdout
    assert 'needs the module PyTorch/2.0' in lines[0]


# loads one at a time, as Lmod does of one name, at the front of the path
MODULE = """
module() {
    [ "$1" != use ] || return 0
    PATH=$(sed 's,[^:]*/PyTorch/[a-z]*/bin:,,g' <<< "$PATH") LOADEDMODULES=
    [ "$1" != load ] || { PATH="$TOP/$2/bin:$PATH" LOADEDMODULES=$2; }
}
before=$PATH
"""


@pytest.mark.slow
def test_another_environment(tmp_path):
    """The one that is active goes, with its module, before the other's module is loaded."""
    for name in ('one', 'two'):
        root = tmp_path / 'PyTorch' / name
        (root / 'bin').mkdir(parents=True)
        (root / 'bin/python').symlink_to(Path(sys.executable).resolve())
        loaded = {'EBROOTPYTORCH': str(root), 'LOADEDMODULES': 'PyTorch/' + name,
                  '_LMFILES_': '/modules/PyTorch/%s.lua' % name}
        subprocess.run([SCRIPTS / 'extend-venv-activate', tmp_path / name],
                       env=dict(clean_environment(), **loaded), check=True)
    subprocess.run(['bash', '--norc', '-ec', MODULE + """
        . "$TOP/one/bin/activate"; . "$TOP/two/bin/activate"; . "$TOP/two/bin/activate"
        [ "$PATH" = "$TOP/two/bin:$TOP/PyTorch/two/bin:$before" ]
        deactivate
        [ "$PATH" = "$before" ]
    """], env=dict(clean_environment(), TOP=str(tmp_path)), check=True)
