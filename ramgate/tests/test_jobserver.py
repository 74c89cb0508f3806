"""Builds without a launcher: tokens for make and ninja."""
import os
import subprocess
import sys

import pytest

from ramgate.jobserver import FIRST, Allowance, Tokens, environment

GB = 2 ** 30
# a compiler that says when it runs; it needs no launcher, and knows nothing of ramgate
JOB = '%s -S -c "import os,time; held = bytearray(b\'x\' * (%d << 20)); open(\'log\', \'a\').write(\'+\'); ' \
      'time.sleep(0.7); open(\'log\', \'a\').write(\'-\')"'


def most_at_a_time(path):
    running = most = 0
    for word in path.read_text():
        running += 1 if word == '+' else -1
        most = max(most, running)
    assert running == 0
    return most


def test_as_many_jobs_as_memory_allows():
    allowance = Allowance(16)
    assert allowance.jobs(0, 10 * GB, 1, 10 * GB) == 16
    # each is seen to take 2 GB; the mean of many counts more for the one that is larger
    assert allowance.jobs(8 * GB, 2 * GB, 4, 10 * GB) == 3
    # smaller ones now: what was large is not forgotten at once
    assert allowance.jobs(1 * GB, 9 * GB, 4, 10 * GB) == 3
    # there is always one
    assert Allowance(16).jobs(FIRST, 0, 1, FIRST) == 1


@pytest.mark.parametrize('fifo', [True, False])
def test_tokens_that_are_taken_come_back_later(tmp_path, fifo):
    tokens = Tokens(str(tmp_path), fifo)
    tokens.change(4)
    taken = os.read(tokens.end, 2)
    tokens.change(1)
    assert (tokens.given, tokens.lying()) == (2, 0)
    os.write(tokens.end, taken)
    tokens.change(1)
    assert (tokens.given, tokens.lying()) == (0, 0)


def test_the_user_s_own_words_for_make_stay(tmp_path):
    made = environment(Tokens(str(tmp_path), True), 8, {'MAKEFLAGS': 'k -j3 --no-print-directory', 'MAX_JOBS': '9'})
    assert made == {'MAKEFLAGS': 'k --no-print-directory -j8 --jobserver-auth=fifo:%s/tokens' % tmp_path}


@pytest.mark.parametrize('memory, least, most', [('4G', 3, 4), ('400M', 1, 2)])
def test_make(build, memory, least, most):
    """Four jobs of 150 MB at a time where there is room, and fewer where there is not; a make of a make, too."""
    names = ['job%d' % at for at in range(10)]
    (build.directory / 'Makefile').write_text('all:\n\t+$(MAKE) %s\n%s:\n\t@%s\n' % (
        ' '.join(names), ' '.join(names), JOB % (sys.executable, 150)))
    build.run('--jobserver', '--jobs', '4', '--memory', memory, command=('make', 'all'))
    assert least <= most_at_a_time(build.directory / 'log') <= most


def test_ninja(build, tmp_path):
    """1.13 takes tokens from a FIFO; older ones know no jobserver."""
    version = subprocess.run(['ninja', '--version'], stdout=subprocess.PIPE, text=True, check=True,
                             env=build.environment()).stdout
    assert tuple(int(part) for part in version.split('.')[:2]) >= (1, 13)
    tools = tmp_path / 'tools'
    tools.mkdir()
    (tools / 'make').write_text('#!/bin/sh\necho GNU Make 4.4.1\n')
    (tools / 'make').chmod(0o755)
    lines = ['rule job', '  command = ' + JOB % (sys.executable, 20)]
    (build.directory / 'build.ninja').write_text('\n'.join(lines + ['build job%d: job' % at for at in range(8)] + ['']))
    build.write = lambda launcher: None
    path = os.pathsep.join([str(tools), build.environment()['PATH']])
    output = build.start('--jobserver', '--jobs', '2', PATH=path)
    assert output.wait(120) == 0, output.stdout.read()
    assert most_at_a_time(build.directory / 'log') == 2
    build.clean()
