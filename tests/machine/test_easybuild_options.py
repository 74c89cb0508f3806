"""./eb is EasyBuild with all of its options: easybuild_options.cfg names them, and these tests try them."""
import configparser
import re
import subprocess
from pathlib import Path

import pytest
from common import CHECKOUT, clean_environment, run

TOY = """easyblock = 'Toolchain'
name = 'toy'
version = '1.0'
homepage = 'https://example.org/'
description = 'a toy'
toolchain = SYSTEM
moduleclass = 'toolchain'
"""


@pytest.fixture(scope='module')
def table():
    """The sections of easybuild_options.cfg."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=('=',), allow_no_value=True)
    parser.optionxform = str
    parser.read(Path(__file__).with_name('easybuild_options.cfg'))
    return parser


@pytest.fixture
def directory(tmp_path):
    """With a toy, an easystack, and an empty file for options that want one."""
    (tmp_path / 'toy-1.0.eb').write_text(TOY)
    (tmp_path / 'stack.yaml').write_text('easyconfigs:\n  - toy-1.0.eb\n')
    (tmp_path / 'some.py').write_text('')
    return tmp_path


def call(directory, *words):
    """What ./eb prints in the directory."""
    done = run([str(CHECKOUT / 'eb'), *words], cwd=directory, env=dict(clean_environment(), COLUMNS='10000'),
               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    assert 'Traceback' not in done.stdout, done.stdout
    return done.stdout


def test_table_has_all(table, directory):
    """An option that EasyBuild gains, or loses, is looked at by someone."""
    of_help = re.findall(r'^ +(?:-\w(?: \S+)?, )?--([a-z0-9-]+)', call(directory, '--help'), re.M)
    of_help = of_help[of_help.index('version'):]
    listed = [option for section in table.sections() for option in table[section]]
    assert len(listed) == len(set(listed)) and set(listed) == set(of_help)
    assert all((CHECKOUT / 'tests' / path).exists() for path in table['elsewhere'].values())


def test_settings_arrive(table, directory):
    """What is typed is EasyBuild's configuration, whatever ./eb sets itself."""
    expected = dict.fromkeys(table['on'], 'True')
    expected.update(dict.fromkeys(table['off'], 'False'))
    words = ['--' + option for option in table['on']] + ['--disable-' + option for option in table['off']]
    for option, value in table['settings'].items():
        typed, _, shown = value.format(tmp=directory).partition(' | ')
        words.append('--%s=%s' % (option, typed))
        expected[option] = shown or typed
    output = call(directory, '--show-full-config', *words)
    found = dict(re.findall(r'^(\S+) +\(C\) = (.*)$', output, re.M))
    assert {option: found.get(option) for option in expected} == expected


@pytest.mark.nightly
@pytest.mark.slow
def test_commands(table, directory):
    """Those that do something, one after the other."""
    wrong = []
    for option, line in table['tried'].items():
        words, said = line.split(' | ')
        output = call(directory, *words.split(), '--prefix=%s' % (directory / 'prefix'), '--tmpdir=%s' % directory)
        if said not in output:
            wrong.append((words, said, output))
    assert not wrong
