"""What the first call needs of the operating system: all in one message, or unpacked where nothing may be installed."""
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from common import CHECKOUT, clean_environment

from hpc_pytorch import UsersProblem
from hpc_pytorch.machine import distribution_packages, first_packages, own_lmod


@pytest.fixture
def bare(monkeypatch):
    """A machine without all of it, whose user may install nothing; returns its package manager's directory."""
    monkeypatch.delenv('EASYBUILD_MODULES_TOOL', raising=False)
    monkeypatch.setattr(first_packages.importlib.util, 'find_spec', lambda name: None)
    monkeypatch.setattr(first_packages, 'modules_tool', lambda: None)
    monkeypatch.setattr(first_packages.own_lmod, 'codename', lambda: 'bookworm')
    monkeypatch.setattr(first_packages.sysconfig, 'get_path', lambda name: '/no/such')
    monkeypatch.setattr(distribution_packages, 'missing', lambda names: names)
    monkeypatch.setattr(os, 'geteuid', lambda: 1000)

    def only(*programs):
        monkeypatch.setattr(shutil, 'which', lambda name: '/usr/bin/' + name if name in programs else None)
    return only


def test_all_at_once(bare):
    """One command has the pip for environments, the modules tool and the compiler that the easyconfig needs."""
    bare('dnf')
    names = first_packages.needed('eb.txt', ['torch_mpi-2.0.0-PyTorch-2.13.0-workstation.eb', '--robot'])
    assert names[:3] == ['python3-venv', 'lmod', 'g++'] and names[3:] == ['python%d.%d-dev' % sys.version_info[:2]]
    with pytest.raises(UsersProblem, match='Install with: sudo dnf .*python3-pip Lmod gcc-c'):
        own_lmod.install_if_allowed(names, first_packages.UNPACKED)
    # its wheels need no compiler, and the tests no modules
    assert first_packages.needed('eb.txt', ['PyTorch-2.13.0-workstation.eb']) == ['python3-venv', 'lmod']
    assert first_packages.needed('eb.txt', ['PyTorch-2.9.1-Derecho.eb', '--modules-tool=Lmod']) == ['python3-venv']
    assert first_packages.needed('test.txt', []) == ['python3-venv']


def test_only_what_needs_root(bare):
    """With apt, pip and Lmod are unpacked later; a compiler cannot be."""
    bare('apt-get')
    assert not own_lmod.install_if_allowed(['python3-venv', 'lmod'], first_packages.UNPACKED)
    with pytest.raises(distribution_packages.NotAllowed) as problem:
        own_lmod.install_if_allowed(['python3-venv', 'lmod', 'g++'], first_packages.UNPACKED)
    assert 'g++' in str(problem.value) and 'lmod' not in str(problem.value)


def test_relocated(tmp_path, monkeypatch):
    """Only what was unpacked: Lua may be the machine's."""
    monkeypatch.setattr(own_lmod, 'OWN_LMOD', '/o')
    (tmp_path / 'usr/share/lmod').mkdir(parents=True)
    (tmp_path / 'usr/bin').mkdir()
    file = tmp_path / 'usr/share/lmod/lmod'
    file.write_text('#!/usr/bin/lua5.3\n"/usr/local/share/lua;/usr/share/lua/5.3/?.lua" /usr/share/lmod/lmod\n')
    own_lmod.relocate(str(tmp_path))
    assert file.read_text() == (
        '#!/usr/bin/lua5.3\n"/usr/local/share/lua;/usr/share/lua/5.3/?.lua" /o/usr/share/lmod/lmod\n')
    (tmp_path / 'usr/bin/lua5.3').touch()
    own_lmod.relocate(str(tmp_path))
    assert file.read_text().startswith('#!/o/usr/bin/lua5.3\n') and '/o/o' not in file.read_text()


def test_pip_of_the_python(tmp_path, monkeypatch):
    """Debian 12's pip ends with a traceback in Python 3.12 and newer, which a module may have brought."""
    debians, own = tmp_path / 'debian/pip-23.0.1-py3-none-any.whl', tmp_path / '_bundled/pip-25.0-py3-none-any.whl'
    for wheel in (debians, own):
        wheel.parent.mkdir()
        wheel.touch()
    monkeypatch.setattr(first_packages, 'PYTHONS_WHEELS', str(debians.parent))
    monkeypatch.setattr(first_packages.own_lmod, 'codename', lambda: 'bookworm')
    ensurepip = SimpleNamespace(origin=str(tmp_path / '__init__.py'))
    monkeypatch.setattr(first_packages.importlib.util, 'find_spec', lambda name: ensurepip)
    assert first_packages.pip_wheels()[0] == str(own)
    own.unlink()
    assert first_packages.pip_wheels()[0] == str(debians)


@pytest.mark.slow
def test_unpacked(tmp_path, monkeypatch):
    """Nothing is installed: Lmod loads a module with its own Lua, and pip runs from its wheel."""
    if own_lmod.codename() in own_lmod.NEXT_RELEASES:
        pytest.skip("this distribution's Lmod is too old: test_debian_11.py")
    monkeypatch.setattr(own_lmod, 'OWN_LMOD', str(tmp_path / 'lmod'))
    monkeypatch.setattr(own_lmod, 'missing', lambda names: names)
    monkeypatch.setattr(first_packages, 'OWN_PIP', str(tmp_path / 'pip'))
    own_lmod.unpack_own_lmod()
    (tmp_path / 'toy').mkdir()
    (tmp_path / 'toy/1.0.lua').write_text('setenv("TOY", "yes")\n')
    typed = 'source %s/lmod/usr/share/lmod/lmod/init/bash; module use %s; module load toy; echo $TOY $LMOD_CMD' % (
        tmp_path, tmp_path)
    said = subprocess.run(['bash', '--norc', '-c', typed], env={'PATH': '/usr/bin:/bin', 'HOME': str(tmp_path)},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    assert said == 'yes %s/lmod/usr/share/lmod/lmod/libexec/lmod\n' % tmp_path
    program = (tmp_path / 'lmod/usr/share/lmod/lmod/libexec/lmod').read_text()
    assert program.startswith('#!%s/lmod/usr/bin/lua' % tmp_path) and '"/usr/share/lua' not in program
    # a machine without Tcl's library would end with an error at once
    settings = (tmp_path / 'lmod/usr/share/lmod/lmod/libexec/myGlobals.lua').read_text()
    assert re.search(r'"LMOD_FAST_TCL_INTERP",\s*sedV = "no"', settings)
    monkeypatch.setattr(first_packages.importlib.util, 'find_spec', lambda name: None)
    pip = first_packages.pip_wheels()[0]
    assert pip.startswith(str(tmp_path))
    said = subprocess.run([sys.executable, pip + '/pip', '--version'], env=clean_environment(), cwd=CHECKOUT,
                          stdout=subprocess.PIPE, text=True).stdout
    assert pip in said
