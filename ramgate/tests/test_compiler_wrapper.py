"""ramgate-cc."""
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from ramgate.build import make_wrapper
from ramgate.processes import descendants


def test_a_wrapper_that_is_killed_takes_its_compiler_along(build, eventually):
    build.source('job', 'wait go')
    process = build.start('--jobs', '1')
    eventually(lambda: list(build.directory.glob('*.o')))
    wrapper = [pid for pid in descendants(process.pid)
               if Path('/proc/%d/cmdline' % pid).read_bytes().split(b'\0')[0].endswith(b'ramgate-cc')]
    os.kill(wrapper[0], signal.SIGKILL)
    output = process.communicate(timeout=60)[0]
    assert process.returncode != 0 and 'FAILED' in output
    build.clean()


def test_without_a_c_compiler_ramgate_says_what_to_do(build, tmp_path):
    tools = tmp_path / 'tools'
    tools.mkdir()
    (tools / 'ninja').symlink_to(shutil.which('ninja', path=build.environment()['PATH']))
    process = build.start(PATH=str(tools))
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 2 and 'no C compiler' in output and 'install gcc' in output
    build.clean()


def test_outside_a_build_the_compiler_just_runs(tmp_path, c_compiler):
    make_wrapper(str(tmp_path))
    environment = {name: value for name, value in os.environ.items() if name != 'RAMGATE_SOCKET'}
    done = subprocess.run([tmp_path / 'ramgate-cc', 'sh', '-c', 'exit 5'], env=environment)
    assert done.returncode == 5
    done = subprocess.run([tmp_path / 'ramgate-cc', '/nowhere/cc'], env=environment, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (127, 'ramgate-cc: /nowhere/cc: No such file or directory\n')


@pytest.mark.slow
def test_make_and_cmake_go_through_the_wrapper(build):
    (build.directory / 'CMakeLists.txt').write_text(
        'cmake_minimum_required(VERSION 3.18)\nproject(t C Fortran)\nadd_executable(t a.c b.c c.F)\n')
    (build.directory / 'c.F').write_text('      subroutine c\n      end\n')
    (build.directory / 'a.c').write_text('int b(void); int main(void) { return b(); }\n')
    (build.directory / 'b.c').write_text('int b(void) { return 0; }\n')
    build.run('--report', 'report', command=('sh', '-c', 'cmake -S . -B out -G "Unix Makefiles" && cmake --build out'))
    languages = {job['file']: job['language'] for job in build.report()['compilations']}
    found = [languages.get('out/CMakeFiles/t.dir/%s.o' % name) for name in ('a.c', 'b.c', 'c.F')]
    assert found == ['C', 'C', 'Fortran']


def test_a_command_line_of_a_megabyte(build):
    """The broker hears the short words of it."""
    build.run('--report', 'report', command=['ramgate-cc', 'true'] + ['x' * 100000] * 10 + ['-o', 'made.o'])
    assert [job['file'] for job in build.report()['compilations']] == ['made.o']
