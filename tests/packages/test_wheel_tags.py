"""Lock files are read as pip reads them, and wheels that do not fit are explained."""
import os
import sys
from types import SimpleNamespace

import pytest
from common import LMOD

from hpc_pytorch.machine.modules import ModulesShell
from hpc_pytorch.packages import wheel_tags
from hpc_pytorch.packages.lock_files import parse_lock
from hpc_pytorch.packages.wheel_tags import Python, ask_python, name_and_version, parse_wheel, why_not

THIS = Python('/usr/bin/python3.11', '3.11', 'cpython', 'x86_64', '2.36', True)
HASH = 'a' * 64


def test_parse_lock():
    """Continued lines, markers, comments, names in any spelling."""
    entries = parse_lock("""
# made by uv
Foo.Bar==1.0+cpu ; python_full_version < '3.12' \\
    --hash=sha256:%s \\
    --hash=sha256:%s
    # via -r x.in
baz==2 --hash=sha256:%s # why
""" % (HASH, 'b' * 64, HASH))
    assert [(entry.name, entry.version, len(entry.hashes)) for entry in entries] == [
        ('foo-bar', '1.0+cpu', 2), ('baz', '2', 1)]
    assert "python_full_version < '3.12'" in entries[0].text


@pytest.mark.parametrize('name', [
    'torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl',
    'filelock-4.2.11-py3-none-any.whl',
    'x-1-cp38-abi3-manylinux2014_x86_64.whl',
    'x-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl',
    'x-1-1build-py2.py3-none-any.whl',
    'torch-1.13.0a0-cp311-cp311-linux_x86_64.whl',
])
def test_fits(name):
    """Nothing is said against a wheel that fits."""
    assert why_not(name, THIS) is None


@pytest.mark.parametrize('name', [
    'torch-2.4.0a0+gitbad8d25-cp312-cp312-linux_aarch64.whl',
    'torch-2.13.0-cp311-cp311t-manylinux_2_28_x86_64.whl',
    'x-1-cp311-cp311-manylinux_2_39_x86_64.whl',
    'x-1-cp311-cp311-macosx_14_0_arm64.whl',
    'x-1-cp312-abi3-manylinux2014_x86_64.whl',
    'x-1-cp310-cp310-manylinux2014_x86_64.whl',
])
def test_does_not_fit(name):
    """What it is for, and what is here."""
    _, _, python, abi, platform = name[:-len('.whl')].split('-')
    assert why_not('/some/' + name, THIS) == (
        '%s is for Python %s (%s) on %s; /usr/bin/python3.11 is cpython 3.11 on x86_64 with glibc 2.36'
        % (name, python, abi, platform))


def test_no_wheel():
    """By its name."""
    assert 'is not named as a wheel is' in why_not('not a wheel.whl', THIS)


def test_parse_wheel():
    """The parts of a file name, with a build tag too."""
    assert parse_wheel('a/Foo_Bar-1.0-3-cp311-cp311-linux_x86_64.whl') == (
        'foo-bar', '1.0', 'cp311', 'cp311', 'linux_x86_64')


@pytest.mark.parametrize('path, expected', [
    ('a/Foo_Bar-1.0-py3-none-any.whl', ('foo-bar', '1.0')),
    ('mpi4py-4.1.2.tar.gz', ('mpi4py', '4.1.2')),
    ('backports.zstd-1.0.zip', ('backports-zstd', '1.0')),
    ('notes.txt', None),
])
def test_name_and_version(path, expected):
    """Of wheels and of sources."""
    assert name_and_version(path) == expected


def test_ask_python():
    """A Python tells what it is; something else tells nothing."""
    here = ask_python(sys.executable)
    assert here.version == '%d.%d' % sys.version_info[:2]
    assert ask_python('/bin/true') is None
    assert ask_python('/no/such/python') is None


@pytest.mark.parametrize('here, first', [('3.11', '/own/python3'), ('3.12', 'python3'), (None, '/own/python3')])
def test_python_of_the_login_node(monkeypatch, here, first):
    """In a job the wheels are there for the login node's Python: another version comes later, its own does not."""
    versions = {'/own/python3': '3.12', 'python3': here}
    monkeypatch.setattr(wheel_tags, 'ask_python', lambda path: versions.get(path) and Python(
        path, versions[path], 'cpython', 'x86_64', '', True))
    assert wheel_tags.pythons(['3.12'])[0] == 'python3'
    monkeypatch.setenv('HPC_JOB_PYTHON', '/own/python3')
    assert wheel_tags.pythons(['3.12'])[0] == first
    # its file system is not there
    versions['/own/python3'] = None
    assert wheel_tags.pythons(['3.12'])[0] == 'python3'


@pytest.mark.parametrize('loaded, dependencies, found', [
    ([], ['python/3.11'], 'none'),
    (['python/3.11'], ['python/3.11'], None),
    (['python/3.11'], ['on-top/1.0'], None),
    (['python/3.11'], ['gcc/13.2'], '%d.%d (' % sys.version_info[:2]),
    (['python/3.11'], [], '%d.%d (' % sys.version_info[:2]),
])
def test_python_of_a_loaded_module(tmp_path, monkeypatch, modules_tool, loaded, dependencies, found):
    """EasyBuild's finds its library by what its module sets: other shells load that only if it is a dependency."""
    program = tmp_path / 'python3'
    program.write_text('#!/bin/sh\n[ "$LD_LIBRARY_PATH" = /of/python ] && exec %s "$@"\n' % sys.executable)
    program.chmod(0o755)
    for name, text in (('python/3.11', 'setenv LD_LIBRARY_PATH /of/python'), ('gcc/13.2', 'setenv CC gcc'),
                       ('on-top/1.0', 'module load python/3.11')):
        path = tmp_path / 'modules' / name
        path.parent.mkdir(parents=True)
        path.write_text('#%%Module1.0\n%s\n' % text)
    tool = modules_tool.for_easybuild.get('MODULES_CMD', LMOD)
    shell = ModulesShell(tool, {'PATH': os.environ['PATH'], 'HOME': str(tmp_path),
                                'MODULEPATH': str(tmp_path / 'modules')})
    assert shell.load(loaded) is None
    for name, value in shell.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(wheel_tags, 'modules_tool', lambda any_version: SimpleNamespace(program=tool))
    version = '%d.%d' % sys.version_info[:2]
    python, problem = wheel_tags.find_python([str(program)], [version], dependencies)
    assert python.version == version if not problem else problem.startswith(found)
    assert bool(problem) is bool(found)
    assert ('add that to the dependencies' in (problem or '')) is bool(loaded and found)
