"""Whole builds under `ramgate run`."""
import contextlib
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from ramgate.build import Build

# long enough for cicc and ptxas to be seen
KERNEL = '''template <int N> __global__ void work(float *x) {
    #pragma unroll
    for (int i = 0; i < N; i++)
        for (int j = 0; j < i % 7; j++)
            x[i] = x[i * j] * x[threadIdx.x + i] + sinf(x[j + N]);
}
template __global__ void work<12>(float *);
'''


@pytest.mark.slow
def test_real_errors_pass_through_unchanged_and_once(build):
    build.source('wrong', 'memory 10', 'fail wrong.cpp:3:1: error: out of memory allocating, says my program')
    build.source('right', 'memory 10')
    output = build.run(status=1)
    assert 'wrong.cpp:3:1: error: out of memory allocating, says my program\n' in output
    assert output.count('FAILED: ') == 1


def test_the_build_s_own_exit_status_arrives(build):
    start, end = build.run('--memory', '1G', status=7, command=('sh', '-c', 'exit 7')).splitlines()
    assert '1.0 GB (--memory)' in start and 'no compiler was seen' in end
    assert build.run(status=137, command=('sh', '-c', 'kill -9 $$'))


@pytest.mark.parametrize('how', ['die', 'g++: fatal error: Killed signal terminated program cc1plus', *(
    pytest.param(words, marks=pytest.mark.slow) for words in (
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        'collect2: fatal error: ld terminated with signal 9 [Killed]',
        'cc1plus: out of memory allocating 65536 bytes after a total of 1000 bytes'))])
def test_a_compiler_that_ran_out_of_memory_is_run_again(build, how):
    made = build.source('big', 'once ' + how, 'memory 5')
    output = build.run('--report', 'report')
    assert made.read_text().startswith('object of')
    assert 'FAILED' not in output and 'Killed' not in output
    assert len(build.report()['compilations'][0]['retries']) == 1


@pytest.mark.slow
def test_the_real_nvcc_is_one_job_with_all_that_it_starts(build, nvcc):
    """A killed cicc lets the whole of nvcc start again; cicc and ptxas of both architectures are in its group."""
    (build.directory / 'big.cu').write_text(KERNEL)
    process = build.start('--report', 'report', command=(
        'ramgate-cc', nvcc, '--threads', '2', '-gencode', 'arch=compute_80,code=sm_80', '-gencode',
        'arch=compute_90,code=sm_90', '-c', 'big.cu', '-o', 'big.o'))
    groups = {}
    while process.poll() is None:
        for pid in build.processes():
            with contextlib.suppress(OSError):
                name = Path('/proc/%d/comm' % pid).read_text().strip()
                if name in ('cicc', 'ptxas'):
                    groups.setdefault(os.getpgid(pid), set()).add(pid)
                    if len(groups) == 1:
                        os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    assert process.wait() == 0, process.stdout.read()
    assert (build.directory / 'big.o').exists()
    assert [len(job['retries']) for job in build.report()['compilations']] == [1]
    assert len(groups) == 2 and len(list(groups.values())[1]) == 4
    build.clean()


def test_a_job_that_cannot_fit_is_named(build):
    build.source('small', 'memory 5')
    build.source('huge', 'memory 400', 'sleep 60')
    output = build.run('--memory', '150M', status=1)
    lines = [line for line in output.splitlines() if 'does not fit' in line]
    assert len(lines) == 1
    assert 'huge.o' in lines[0] and '150.0 MB (--memory)' in lines[0]


@pytest.mark.slow
def test_more_jobs_than_fit_all_end_well(build):
    for number in range(10):
        build.source('job%d' % number, 'memory 120', 'sleep 0.3')
    output = build.run('--memory', '300M', '--jobs', '8', '--report', 'report')
    assert 'FAILED' not in output
    report = build.report()
    assert max(row[1] for row in report['memory']['rows']) <= 310
    profile = build.directory / 'report' / 'profile.json'
    assert len(json.loads(profile.read_text())['files']) == 10
    assert (build.directory / 'report' / 'report.html').exists()


@pytest.mark.slow
def test_a_profile_tells_the_next_build_what_to_expect(build):
    for number in range(3):
        build.source('job%d' % number, 'memory 100', 'sleep 0.3')
    build.run('--profile', 'profile')
    for name in build.objects:
        (build.directory / name).unlink()
    build.run('--profile', 'profile', '--report', 'report')
    for job in build.report()['compilations']:
        assert 75 < job['expected_mb'] < 150


def test_a_broken_profile_is_named(build):
    (build.directory / 'profile').write_text('{"version": 1, "files": 3}')
    assert 'profile is no profile of ramgate' in build.run('--profile', 'profile', status=2)


def test_no_more_jobs_at_a_time_than_asked_for(build):
    for number in range(8):
        build.source('job%d' % number, 'sleep 0.3')
    output = build.run('--jobs', '2', '--memory', '8G', '--report', 'report')
    # the limit and where it comes from; seconds, peak and retries
    assert re.search(r'^ramgate: .*B free of 8.*B \(.*--memory.*\), 2 compilers at a time$', output, re.M), output
    assert re.search(r'^ramgate: 8 compilers in \d+ s \(.*\), at most .*B of 8.*B, 0 run again$', output, re.M), output
    ends = sorted((job['start'], job['end']) for job in build.report()['compilations'])
    assert all(sum(1 for a, b in ends if a < start < b) <= 1 for start, _ in ends)


@pytest.mark.parametrize('number', [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_ends_everything(build, eventually, number):
    for at in range(6):
        build.source('job%d' % at, 'sleep 300')
    process = build.start('--jobs', '3')
    eventually(lambda: len(list(build.directory.glob('*.o'))) == 3)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    build.clean()


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGALRM])
def test_a_signal_when_the_build_tool_has_just_ended(monkeypatch, number):
    """Its end is left to who waits for it; ramgate waited for ever."""
    monkeypatch.setattr(signal, 'alarm', lambda seconds: None)
    ended = Build.__new__(Build)
    ended.control = None
    ended.process = subprocess.Popen(['true'])
    os.waitid(os.P_PID, ended.process.pid, os.WEXITED | os.WNOWAIT)
    ended.stop(number, None)
    assert os.waitpid(ended.process.pid, 0) == (ended.process.pid, 0)
    ended.process.returncode = 0


@pytest.mark.slow
def test_a_build_tool_that_ignores_the_signal_is_killed(build, eventually):
    """It gets some seconds to end by itself."""
    process = build.start(command=('sh', '-c', 'trap "" TERM; touch ready; sleep 120'))
    eventually(lambda: (build.directory / 'ready').exists())
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    build.clean()


@pytest.mark.slow
def test_configured_in_one_run_and_built_in_the_next(build):
    """What CMake keeps of the first run holds in the second, which is watched all the same and repeats nothing."""
    (build.directory / 'CMakeLists.txt').write_text(
        'cmake_minimum_required(VERSION 3.18)\nproject(t C)\nadd_executable(t a.c b.c)\n')
    (build.directory / 'a.c').write_text('int main(void) { return 0; }\n')
    (build.directory / 'b.c').write_text('int b;\n')
    build.run(command=('cmake', '-S', '.', '-B', 'out', '-G', 'Ninja'))
    build.run('--report', 'report', command=('cmake', '--build', 'out'))
    report = build.report()
    assert len(report['compilations']) >= 2 and report['ways']['by launcher'] == len(report['compilations'])
    assert report['summary'] and report['retries'] == 0
    assert 'no work to do' in build.run(command=('cmake', '--build', 'out'))
    # and outside, where no ramgate listens
    for name in ('a.c', 'CMakeLists.txt'):
        (build.directory / name).touch()
    done = subprocess.run(['ninja', '-C', 'out'], cwd=build.directory, env=build.environment(), check=True,
                          stdout=subprocess.PIPE, text=True)
    assert 'a.c.o' in done.stdout


@pytest.mark.slow
def test_a_profile_beside_the_build_directory(build):
    """It is asked for once."""
    (build.directory / 'out').mkdir()
    (build.directory / 'out' / 'Makefile').write_text('all:\n\tramgate-cc true $(OF)\n')
    for options, of in ((['--profile', 'auto'], 'one'), ([], 'two')):
        build.run(*options, command=('make', '-C', 'out', 'OF=-o ' + of))
    files = json.loads((build.directory / 'out.ramgate.json').read_text())['files']
    assert sorted(files) == ['out/one', 'out/two']
    (build.directory / 'home').mkdir()
    home = str(build.directory / 'home')
    assert 'home directory' in build.run('--profile', 'auto', command=('make', '-C', home), HOME=home, status=2)


@pytest.mark.slow
def test_a_pipe_between_two_compilers_does_not_hang(build):
    """The second reads what the first writes: it does not wait for the first one's turn to end."""
    (build.directory / 'a.c').write_text('int a[] = {%s};\n' % ('1234567,' * 100000))
    command = 'gcc -E a.c | gcc -x c -c - -o a.o && /usr/bin/gcc -E a.c | /usr/bin/gcc -x c -c - -o b.o'
    build.run('--jobs', '1', command=('sh', '-c', command))
    assert (build.directory / 'a.o').exists() and (build.directory / 'b.o').exists()


@pytest.mark.nightly
@pytest.mark.slow
def test_a_thousand_jobs_with_random_kills_end_correct(build):
    for number in range(1000):
        build.source('job%d' % number, 'sleep 0.02', 'content %d' % number)
    build.write()
    process = build.start(
        '--jobs', '6', '--report', 'report')
    killed, chance, stop = set(), random.Random(4), threading.Event()

    def kill():
        while not stop.is_set():
            for pid in build.processes():
                try:
                    words = Path('/proc/%d/cmdline' % pid).read_bytes().split(b'\0')
                except OSError:
                    continue
                if b'compiler.py' in words and b'ramgate-cc' not in words[0] and not words[0].endswith(b'sh') \
                        and pid not in killed:
                    killed.add(pid)
                    if chance.random() < 0.1:
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    killer = threading.Thread(target=kill)
    killer.start()
    output = process.communicate(timeout=600)[0]
    stop.set()
    killer.join()
    assert process.returncode == 0, output[-2000:]
    assert sum(len(job['retries']) for job in build.report()['compilations']) >= 20
    for name in build.objects:
        source = (build.directory / name.replace('.o', '.cpp')).read_text()
        expected = hashlib.sha256(('object of ' + ';'.join(source.split('\n'))).encode()).hexdigest()
        assert hashlib.sha256((build.directory / name).read_bytes()).hexdigest() == expected
    build.clean()
