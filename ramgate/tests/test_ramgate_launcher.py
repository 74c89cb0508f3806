"""ramgate-cc, in C and in Python."""
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ramgate
from ramgate.processes import descendants


def test_a_launcher_that_is_killed_gives_its_claim_back(build, eventually):
    build.job('job', 'wait go')
    process = build.start('--jobs', '1')
    eventually(lambda: list(build.directory.glob('*.o')))
    launcher = [pid for pid in descendants(process.pid)
                if Path('/proc/%d/cmdline' % pid).read_bytes().split(b'\0')[0].endswith(b'ramgate-cc')]
    os.kill(launcher[0], signal.SIGKILL)
    output = process.communicate(timeout=60)[0]
    assert process.returncode != 0 and 'FAILED' in output
    build.clean()


def test_without_a_compiler_the_launcher_is_python(build, tmp_path):
    tools = tmp_path / 'tools'
    tools.mkdir()
    for tool in ('sh', 'env'):
        (tools / tool).symlink_to('/bin/' + tool)
    (tools / 'ninja').symlink_to(Path(sys.executable).parent / 'ninja'
                                 if (Path(sys.executable).parent / 'ninja').exists() else '/usr/bin/ninja')
    made = build.job('big', 'once die', 'memory 5')
    build.write()
    environment = dict(build.environment(), PATH=str(tools))
    done = subprocess.run([sys.executable, '-m', 'ramgate', 'run', '--', 'ninja'], cwd=build.directory, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert made.read_text().startswith('object of')
    build.clean()


def test_outside_a_build_the_launcher_only_runs_the_command(build):
    done = subprocess.run([sys.executable, '-m', 'ramgate.launcher', 'sh', '-c', 'exit 5'], env=build.environment())
    assert done.returncode == 5


@pytest.mark.slow
def test_make_and_cmake_go_through_the_launcher(build):
    (build.directory / 'CMakeLists.txt').write_text(
        'cmake_minimum_required(VERSION 3.18)\nproject(t C Fortran)\nadd_executable(t a.c b.c c.F)\n')
    (build.directory / 'c.F').write_text('      subroutine c\n      end\n')
    (build.directory / 'a.c').write_text('int b(void); int main(void) { return b(); }\n')
    (build.directory / 'b.c').write_text('int b(void) { return 0; }\n')
    build.run('--report', 'report', command=('sh', '-c', 'cmake -S . -B out -G "Unix Makefiles" && cmake --build out'))
    languages = {job['file']: job['language'] for job in build.report()['jobs']}
    found = [languages.get('out/CMakeFiles/t.dir/%s.o' % name) for name in ('a.c', 'b.c', 'c.F')]
    assert found == ['C', 'C', 'Fortran']


def test_without_memory_for_the_command_line_the_launcher_says_so(tmp_path):
    source = Path(ramgate.__file__).parent / 'launcher.c'
    launcher = tmp_path / 'ramgate-cc'
    subprocess.check_call(['gcc', '-O1', '-static', '-o', str(launcher), str(source)])
    said = set()
    # somewhere between what the program itself needs and what its message needs, too
    for kilobytes in range(2048, 4096, 128):
        done = subprocess.run([str(launcher), 'true'] + ['x' * 100000] * 12, env={'RAMGATE_SOCKET': '/nowhere/x'},
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (kilobytes * 1024,) * 2),
                              stderr=subprocess.PIPE, text=True, cwd=str(tmp_path))
        if done.returncode != 127:
            said.add((done.returncode, done.stderr))
    assert (1, 'ramgate-cc: out of memory\n') in said
