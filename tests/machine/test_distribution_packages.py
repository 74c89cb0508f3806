"""Packages of the operating system: found, or the one line to type."""
import os
import shutil
import subprocess
import sys

import pytest
from common import CHECKOUT

from hpc_pytorch import UsersProblem
from hpc_pytorch.machine import distribution_packages


@pytest.mark.parametrize('manager, command', [
    ('apt-get', 'install lmod python3-venv'), ('dnf', 'install Lmod python3-pip'),
    ('zypper', 'install lua-lmod python3-pip')])
def test_command_of_each_manager(tmp_path, monkeypatch, manager, command):
    """The names are the distribution's own."""
    (tmp_path / manager).write_text('#!/bin/sh\n')
    (tmp_path / manager).chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path))
    words = distribution_packages.command_for(['lmod', 'python3-venv'])
    assert words[0] == manager and ' '.join(words).endswith(command)


def test_what_to_type(tmp_path):
    """Without being root: the command, and no traceback; nothing at all where everything is there."""
    assert distribution_packages.main(['bash']) == 0
    done = subprocess.run([sys.executable, '-I', str(CHECKOUT / 'hpc_pytorch/machine/distribution_packages.py'), 'x-y'],
                          env={'PATH': str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 1 and 'no package manager' in done.stdout and 'x-y' in done.stdout, done.stdout
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
