"""Whole builds under `ramgate run`."""
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree
from pathlib import Path

import pytest

from ramgate.processes import descendants


def report_of(build):
    return json.loads((build.directory / 'report' / 'report.json').read_text())


def broker_of(process):
    """The broker's process: the child of `ramgate run` that runs the same program."""
    own = Path('/proc/%d/cmdline' % process.pid).read_bytes()
    for pid in descendants(process.pid):
        try:
            if Path('/proc/%d/cmdline' % pid).read_bytes() == own:
                return pid
        except OSError:
            pass
    return None


def test_real_errors_pass_through_unchanged_and_once(build):
    build.job('wrong', 'memory 10', 'fail wrong.cpp:3:1: error: out of memory allocating, says my program')
    build.job('right', 'memory 10')
    output = build.run(status=1)
    assert 'wrong.cpp:3:1: error: out of memory allocating, says my program\n' in output
    assert output.count('FAILED: ') == 1


def test_the_build_s_own_exit_status_arrives(build):
    assert build.run(status=7, command=('sh', '-c', 'exit 7')) == ''


@pytest.mark.parametrize('how', ['die', 'g++: fatal error: Killed signal terminated program cc1plus',
                                 "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
                                 'collect2: fatal error: ld terminated with signal 9 [Killed]',
                                 'cc1plus: out of memory allocating 65536 bytes after a total of 1000 bytes'])
def test_a_compiler_that_ran_out_of_memory_is_run_again(build, how):
    made = build.job('big', 'once ' + how, 'memory 5')
    output = build.run('--report', 'report')
    assert made.read_text().startswith('object of')
    assert 'FAILED' not in output and 'Killed' not in output
    assert len(report_of(build)['jobs'][0]['retries']) == 1


def test_a_job_that_cannot_fit_is_named(build):
    build.job('small', 'memory 5')
    build.job('huge', 'memory 400', 'sleep 60')
    output = build.run('--memory', '150M', status=1)
    lines = [line for line in output.splitlines() if 'does not fit' in line]
    assert len(lines) == 1
    assert 'huge.o' in lines[0] and '150.0 MB (--memory)' in lines[0]


@pytest.mark.slow
def test_more_jobs_than_fit_all_end_well(build):
    for number in range(10):
        build.job('job%d' % number, 'memory 120', 'sleep 0.3')
    output = build.run('--memory', '300M', '--jobs', '8', '--report', 'report')
    assert 'FAILED' not in output
    report = report_of(build)
    assert max(row[1] for row in report['memory']['rows']) <= 310
    profile = build.directory / 'report' / 'profile.json'
    assert len(json.loads(profile.read_text())['files']) == 10
    xml.etree.ElementTree.parse(str(build.directory / 'report' / 'report.svg'))


@pytest.mark.slow
def test_a_profile_tells_the_next_build_what_to_expect(build):
    for number in range(3):
        build.job('job%d' % number, 'memory 100', 'sleep 0.3')
    build.run('--profile', 'profile')
    for name in build.objects:
        (build.directory / name).unlink()
    build.run('--profile', 'profile', '--report', 'report')
    for job in report_of(build)['jobs']:
        assert 75 < job['expected_mb'] < 150


def test_a_broken_profile_is_named(build):
    (build.directory / 'profile').write_text('{"version": 1, "files": 3}')
    assert 'profile is no profile of ramgate' in build.run('--profile', 'profile', status=2)


def test_no_more_jobs_at_a_time_than_asked_for(build):
    for number in range(8):
        build.job('job%d' % number, 'sleep 0.3')
    build.run('--jobs', '2', '--report', 'report')
    ends = sorted((job['start'], job['end']) for job in report_of(build)['jobs'])
    assert all(sum(1 for a, b in ends if a < start < b) <= 1 for start, _ in ends)


def test_the_broker_dies_and_the_build_goes_on(build, eventually):
    made = [build.job('job%d' % number, 'wait go', 'sleep 0.05') for number in range(6)]
    process = build.start('--jobs', '3')
    eventually(lambda: len(list(build.directory.glob('*.o'))) == 3)
    os.kill(broker_of(process), signal.SIGKILL)
    (build.directory / 'go').touch()
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    assert all(path.read_text().startswith('object of') for path in made)
    build.clean()


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(build, eventually, number):
    for at in range(6):
        build.job('job%d' % at, 'sleep 300')
    process = build.start('--jobs', '3')
    eventually(lambda: len(list(build.directory.glob('*.o'))) == 3)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    build.clean()


@pytest.mark.slow
def test_a_killed_ramgate_leaves_nothing_running(build, eventually):
    for at in range(4):
        build.job('job%d' % at, 'sleep 300')
    process = build.start('--jobs', '2')
    eventually(lambda: len(list(build.directory.glob('*.o'))) == 2)
    process.kill()
    process.communicate(timeout=60)
    eventually(lambda: not build.processes())


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
        'cmake_minimum_required(VERSION 3.18)\nproject(t C)\nadd_executable(t a.c b.c)\n')
    (build.directory / 'a.c').write_text('int b(void); int main(void) { return b(); }\n')
    (build.directory / 'b.c').write_text('int b(void) { return 0; }\n')
    build.run('--report', 'report', command=('sh', '-c', 'cmake -S . -B out -G "Unix Makefiles" && cmake --build out'))
    files = {job['file'] for job in report_of(build)['jobs']}
    assert {'out/CMakeFiles/t.dir/a.c.o', 'out/CMakeFiles/t.dir/b.c.o'} <= files


def test_configured_in_one_run_and_built_in_the_next(build):
    """What CMake keeps of the first run holds in the second, which is watched all the same and repeats nothing."""
    (build.directory / 'CMakeLists.txt').write_text(
        'cmake_minimum_required(VERSION 3.18)\nproject(t C)\nadd_executable(t a.c b.c)\n')
    (build.directory / 'a.c').write_text('int main(void) { return 0; }\n')
    (build.directory / 'b.c').write_text('int b;\n')
    build.run(command=('cmake', '-S', '.', '-B', 'out', '-G', 'Ninja'))
    build.run('--report', 'report', command=('cmake', '--build', 'out'))
    report = json.loads((build.directory / 'report' / 'report.json').read_text())
    assert len(report['jobs']) >= 2
    assert 'no work to do' in build.run(command=('cmake', '--build', 'out'))


def test_mistakes_are_explained(build):
    assert 'what is to be built?' in build.run(status=2, command=())
    assert 'nowhere-to-be-found: No such file' in build.run(status=2, command=('nowhere-to-be-found',))


@pytest.mark.slow
def test_a_thousand_jobs_with_random_kills_end_correct(build):
    for number in range(1000):
        build.job('job%d' % number, 'sleep 0.02', 'content %d' % number)
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
    assert sum(len(job['retries']) for job in report_of(build)['jobs']) >= 20
    for name in build.objects:
        source = (build.directory / name.replace('.o', '.cpp')).read_text()
        expected = hashlib.sha256(('object of ' + ';'.join(source.split('\n'))).encode()).hexdigest()
        assert hashlib.sha256((build.directory / name).read_bytes()).hexdigest() == expected
    build.clean()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason='only root may make memory cgroups')
def test_where_the_kernel_kills_nothing_fails(build, tmp_path):
    """A replay in a real cgroup: 16 jobs at a time would need three times the memory there is."""
    rows = ['user_s,sys_s,peak_mb,file']
    rows += ['%d,0,%d,part%d/job%d.cpp.o' % (20 + at % 7, 300 + 40 * (at % 5), at % 3, at) for at in range(40)]
    (tmp_path / 'trace.csv').write_text('\n'.join(rows) + '\n')
    done = subprocess.run([sys.executable, '-m', 'ramgate', 'replay', str(tmp_path / 'trace.csv'), '--cores', '16',
                           '--memory', '1800M', '--shrink-memory', '4', '--shrink-time', '10',
                           '--json', str(tmp_path / 'result.json'), '--policy', 'ramgate', 'ramgate+profile'],
                          env=build.environment(), cwd=build.directory, timeout=600)
    assert done.returncode == 0
    for result in json.loads((tmp_path / 'result.json').read_text())['results']:
        assert result['complete'] and result['failures'] == 0
    build.clean()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason='only root may make memory cgroups')
@pytest.mark.parametrize('policy', ['fixed', 'ramgate'])
def test_replay_that_is_ended_leaves_nothing(build, tmp_path, policy):
    """SIGTERM: the jobs, the cgroup and the directory go, which once stayed."""
    (tmp_path / 'trace.csv').write_text('user_s,sys_s,peak_mb,file\n900,0,300,long.cpp.o\n')
    process = subprocess.Popen([sys.executable, '-m', 'ramgate', 'replay', str(tmp_path / 'trace.csv'), '--cores', '2',
                                '--memory', '8G', '--shrink-memory', '4', '--shrink-time', '1', '--policy', policy],
                               env=dict(build.environment(), TMPDIR=str(tmp_path)), cwd=build.directory)
    top = '/sys/fs/cgroup/memory' if os.path.isdir('/sys/fs/cgroup/memory') else '/sys/fs/cgroup'
    members = os.path.join(top, 'ramgate-%d' % process.pid, 'cgroup.procs')
    end = time.monotonic() + 60
    while not (os.path.exists(members) and open(members).read()):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    # a cgroup with a process in it could not be removed
    assert not os.path.exists(os.path.dirname(members)) and not list(tmp_path.glob('ramgate-replay.*'))
    build.clean()
