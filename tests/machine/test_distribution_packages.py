"""Packages of the operating system: found, or the one line to type."""
import os
import shutil
import subprocess
import sys

import pytest
from common import CHECKOUT

from hpc_pytorch import UsersProblem
from hpc_pytorch.machine import distribution_packages, modules, own_lmod
from hpc_pytorch.stand_ins import make


@pytest.mark.parametrize('manager, command', [
    ('apt-get', 'install lmod python3-venv g++'), ('dnf', 'install Lmod python3-pip gcc-c++'),
    ('zypper', 'install lua-lmod python3-pip gcc-c++')])
def test_command_of_each_manager(tmp_path, monkeypatch, manager, command):
    """The names are the distribution's own."""
    (tmp_path / manager).write_text('#!/bin/sh\n')
    (tmp_path / manager).chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path))
    found, words = distribution_packages.command_for(['lmod', 'python3-venv', 'g++'])
    assert found == words[0] == manager and ' '.join(words).endswith(command)


def test_what_to_type(tmp_path):
    """Without being root: the command, and no traceback; nothing at all where everything is there."""
    distribution_packages.install(['bash'])
    done = subprocess.run([sys.executable, '-I', str(CHECKOUT / 'hpc_pytorch/machine/distribution_packages.py'), 'x-y'],
                          env={'PATH': str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 1 and 'none of the package managers' in done.stdout and 'x-y' in done.stdout, done.stdout
    assert 'Traceback' not in done.stdout


def test_only_what_is_missing(monkeypatch):
    """Whoever may not install anything reads, and types, the one package out of many."""
    monkeypatch.setattr(os, 'geteuid', lambda: 1000)
    monkeypatch.setattr(distribution_packages.shutil, 'which', lambda name, which=shutil.which: (
        None if name == 'sudo' else which(name)))
    with pytest.raises(UsersProblem) as problem:
        distribution_packages.install(['bash', 'no-such-package', 'coreutils'])
    assert str(problem.value).startswith('not on this machine: no-such-package. Install with: ')
    assert 'bash' not in str(problem.value)


@pytest.mark.parametrize('arguments, ci, status', [(['quick'], {}, 0), (['quick'], {'CI': 'true'}, 1), ([], {}, 1)])
def test_quick_without_packages(tmp_path, arguments, ci, status):
    """Whoever may not install packages still gets an answer from ./test quick: of the tests that need none of them."""
    python = '#!/bin/sh\ncase $* in *distribution_packages*) echo "Install with: x" >&2; exit 1;; esac\necho "ran $*"\n'
    programs = {'hpc_pytorch/environments/make-environment': '#!/bin/sh\n', '.venv-test/bin/python': python,
                'bin/python3': python, 'eb': '#!/bin/sh\n', 'tests/debian-packages.txt': '[quick]\nno-such\n[all]\n',
                'test': (CHECKOUT / 'test').read_text()}
    for name, text in programs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != 'CI'}
    environment['PATH'] = '%s:%s' % (tmp_path / 'bin', environment['PATH'])
    done = subprocess.run([tmp_path / 'test', *arguments], env=dict(environment, **ci), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == status and 'Install with: x' in done.stdout, done.stdout
    assert ('ran -m pytest' in done.stdout) == ('tests that need them' in done.stdout) == (not status), done.stdout


# Its name, the codename of its os-release, its Lmod and its Environment Modules, and what ./eb does where the first,
# the second or neither is installed: takes it, unpacks one of its own, or installs the distribution's Lmod. All
# versions were read in November 2026.
DISTRIBUTIONS = (
    # packages.debian.org/environment-modules; Lmod is what a Debian 11 root installs (test_debian_11.py)
    ('Debian 11', 'bullseye', '6.6', '4.6.1', ('own', 'own', 'own')),
    # this is what the tests run on
    ('Debian 12', 'bookworm', '8.6.19', '5.2.0', ('taken', 'taken', 'installed')),
    # packages.ubuntu.com/jammy/lmod, packages.ubuntu.com/jammy/environment-modules; the same of noble
    ('Ubuntu 22.04', 'jammy', '6.6', '5.0.1', ('own', 'own', 'own')),
    ('Ubuntu 24.04', 'noble', '8.6.19', '5.4.0', ('taken', 'taken', 'installed')),
    # EPEL's Lmod: packages.fedoraproject.org/pkgs/Lmod/Lmod; Environment Modules in BaseOS of Rocky Linux 8.10 and 9.6:
    # names of packages at dl.rockylinux.org, as public scripts on GitHub fetch them
    ('Rocky 8', '', '8.7.65', '4.5.2', ('taken', 'installed', 'installed')),
    ('Rocky 9', '', '8.7.65', '5.3.0', ('taken', 'taken', 'installed')),
    # lua-lmod: build.opensuse.org/package/show/openSUSE:Leap:15.5/lua-lmod, the same of 15.6. Environment Modules: none
    ('openSUSE Leap 15.5', '', '8.7.17', None, ('taken', None, 'installed')),
    ('openSUSE Leap 15.6', '', '8.7.34', None, ('taken', None, 'installed')),
)
SAYS = {'Lmod': 'Modules based on Lua: Version %s', 'EnvironmentModules': 'Modules Release %s (2026-01-01)'}


@pytest.mark.parametrize('name, codename, lmod, environment_modules, choice', DISTRIBUTIONS)
def test_modules_tool_of_each_distribution(tmp_path, monkeypatch, name, codename, lmod, environment_modules, choice):
    """With one of its packages, and with none; the programs say their versions as the real ones do."""
    def program(path, tool, version):
        path.write_text('#!/bin/sh\necho "%s" >&2\n' % SAYS[tool] % version)
        path.chmod(0o755)

    for variable in ('LMOD_CMD', 'MODULES_CMD', 'MODULESHOME', 'BASH_FUNC_module%%'):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(own_lmod, 'codename', lambda: codename)
    for number, (tool, version) in enumerate((('Lmod', lmod), ('EnvironmentModules', environment_modules), (None, 0))):
        if version is None:
            continue
        place = tmp_path / str(number)
        place.mkdir()
        monkeypatch.setattr(modules, 'LMOD_PLACES', (str(place / 'Lmod'), str(place / 'own')))
        monkeypatch.setattr(modules, 'MODULECMD_PLACES', (str(place / 'EnvironmentModules'),))
        monkeypatch.setattr(own_lmod, 'unpack_own_lmod', lambda: program(place / 'own', 'Lmod', '8.6.19'))
        monkeypatch.setattr(own_lmod, 'install', lambda names: [
            (place / 'installed').touch(), program(place / 'Lmod', 'Lmod', lmod)])
        if tool:
            program(place / tool, tool, version)
        found = own_lmod.installed_modules_tool()
        how = 'own' if found.program.endswith('own') else 'installed' if (place / 'installed').exists() else 'taken'
        assert how == choice[number] and (how != 'taken' or found.name == tool), (name, tool, version, found)


def test_repositories_that_rocky_leaves_out(tmp_path, monkeypatch):
    """Lmod is in EPEL: where dnf does not find it, EPEL and what it needs are added, and it is tried once more."""
    for name, text in (
            ('dnf', 'echo "$*" >> %(top)s/calls\n[ "$4" = epel-release ] || [ -e %(top)s/crb-enabled ] || '
                    '{ echo "Error: Unable to find a match: $4"; exit 1; }'),
            ('crb', ': > %(top)s/crb-enabled'), ('sudo', 'shift; exec "$@"'), ('true', '')):
        (tmp_path / name).write_text('#!/bin/sh\n' + text % {'top': tmp_path} + '\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path))
    distribution_packages.install(['lmod'])
    assert (tmp_path / 'calls').read_text().splitlines() == [
        '-q -y install Lmod', '-q -y install epel-release', '-q -y install Lmod']


def test_test_environment_elsewhere(monkeypatch, tmp_path):
    """Its names and paths are Debian's: dnf and zypper are not asked for them."""
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.raises(UsersProblem, match='packages of Debian or Ubuntu, and there is no apt-get'):
        make.make_parts(tmp_path, {'gcc': {'debian': 'gcc g++'}})
