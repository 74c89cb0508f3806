"""Modules loaded in an environment apart, with both modules tools."""
import os
import time

import pytest
from common import LMOD, needs_program

from hpc_pytorch.machine import modules
from hpc_pytorch.machine.modules import ModulesShell, first_that_fails

# each is seen only after the one before it
NAMES = ['m%d/1.0' % number for number in range(10)]


@pytest.fixture
def shell(tmp_path, modules_tool):
    """Ten modules, of which each opens the next one's directory."""
    needs_program('tclsh')
    for number, name in enumerate(NAMES):
        for version in ('1.0', '2.0'):
            path = tmp_path / str(number) / name.replace('1.0', version)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('#%%Module1.0\nmodule use %s\nsetenv LAST %s\n' % (tmp_path / str(number + 1), name))
        (tmp_path / str(number + 1)).mkdir()
    program = modules_tool.for_easybuild.get('MODULES_CMD', LMOD)
    return ModulesShell(program, {'PATH': os.environ['PATH'], 'HOME': str(tmp_path),
                                  'MODULEPATH': str(tmp_path / '0')})


def test_ten_modules_in_order(shell):
    """In under three seconds, and the process's own environment is as before."""
    before, begin = dict(os.environ), time.process_time() + sum(os.times()[2:4])
    assert first_that_fails(shell, NAMES) is None
    assert time.process_time() + sum(os.times()[2:4]) - begin < 3
    assert shell.loaded == NAMES and shell.environ['LAST'] == NAMES[-1]
    assert dict(os.environ) == before


def test_first_that_is_missing(shell, tmp_path):
    name, said = first_that_fails(shell, NAMES[:3] + ['m3/7.0', 'm4/1.0'])
    assert name == 'm3/7.0' and said == 'versions of it here: m3/1.0, m3/2.0'
    assert shell.loaded == NAMES[:3] and shell.versions('m3/7.0') == ['m3/1.0', 'm3/2.0']
    # of this software, not of its category
    for other in ('devel/cuda/12.8', 'devel/python/3.12'):
        path = tmp_path / '0' / other
        path.parent.mkdir(parents=True)
        path.write_text('#%Module1.0\n')
    assert first_that_fails(shell, ['devel/cuda/13.0'])[1] == 'versions of it here: devel/cuda/12.8'
    # spider is Lmod's
    said = 'module spider m99/1' if 'lmod' in shell.program else 'module avail m99/1'
    assert said in first_that_fails(shell, ['m99/1'])[1]
    # whatever is loaded already
    shell.environ = dict(shell.beginning)
    shell.load(NAMES[:2])
    shell.beginning = dict(shell.environ)
    assert first_that_fails(shell, NAMES[2:4]) is None


def test_environment_of_the_login(tmp_path, lmod):
    """What only a default module opens goes with it, when one that is asked for takes its place."""
    needs_program('tclsh')
    for compiler in ('gcc', 'intel'):
        for name, text in (('login/%s/1.0' % compiler, 'family compiler\nmodule use %s\n' % (tmp_path / compiler)),
                           ('%s/mpi/1.0' % compiler, ''), ('%s/only-%s/1.0' % (compiler, compiler), '')):
            (tmp_path / name).parent.mkdir(parents=True)
            (tmp_path / name).write_text('#%Module1.0\n' + text)
    shell = ModulesShell(LMOD, {'PATH': os.environ['PATH'], 'HOME': str(tmp_path),
                                                               'MODULEPATH': str(tmp_path / 'login')})
    shell.load(['intel', 'mpi'])
    shell.beginning = dict(shell.environ)
    assert shell.versions('only-intel') == ['only-intel/1.0']
    assert first_that_fails(shell, ['gcc', 'mpi', 'only-gcc']) is None
    assert first_that_fails(shell, ['gcc', 'mpi', 'only-intel'])[0] == 'only-intel'
    assert shell.loaded == ['gcc/1.0', 'mpi/1.0']


def test_commands_of_a_shell(tmp_path):
    """As `puts stdout "umask 022;"` of a module file becomes with Environment Modules: no traceback."""
    program = tmp_path / 'modulecmd'
    program.write_text('#!/bin/sh\necho "umask 022;"\n')
    program.chmod(0o755)
    shell = ModulesShell(str(program), {'A': '1'})
    assert shell.add('gcc/12').startswith('it cannot be loaded: a module file prints commands of a shell')
    assert shell.environ == {'A': '1'}


@pytest.mark.slow
def test_module_that_hangs(tmp_path, monkeypatch):
    """The module is given up after a while, and is not tried again."""
    monkeypatch.setattr(modules, 'SECONDS', 2, raising=False)
    tool, log = tmp_path / 'tool', tmp_path / 'log'
    tool.write_text('#!/bin/sh\necho "$*" >> %s\nexec sleep 20\n' % log)
    tool.chmod(0o755)
    shell = ModulesShell(str(tool))
    for names in (['first', 'hangs'], ['hangs'], ['other', 'hangs']):
        assert 'it has not answered for' in shell.load(names)
    log.touch()
    assert 'other' not in log.read_text()
    assert shell.available() == shell.available() and log.read_text().count('avail') <= 1


def test_module_that_prints_latin_1(shell, tmp_path):
    """As sites wrote them in 2005."""
    (tmp_path / '0/m0/1.0').write_bytes('#%Module1.0\nputs stderr "F\xfcr Fragen"\n'.encode('latin-1'))
    assert shell.load(['m0/1.0']) is None
