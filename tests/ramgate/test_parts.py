"""The parts by themselves: limits, words of compilers, curves, neighbours."""
import os
import subprocess
import sys

import pytest

from ramgate.curves import Forecast, Recorder, span
from ramgate.estimates import Knowledge
from ramgate.jobs import Command, out_of_memory
from ramgate.limits import Limits, Problem, cgroups, pbs_grant, size, slurm_grant
from ramgate.processes import Groups

GB = 2 ** 30
# says to other ramgates what it is going to take until it has heard one, and for a while longer; prints what it heard
EXCHANGE = """
import sys, time
from ramgate.neighbours import Neighbours
me, heard, end = Neighbours(), {}, time.monotonic() + 30
while (int(sys.argv[2]), "/here") not in heard.values() and time.monotonic() < end:
    heard = me.exchange(int(sys.argv[1]), "/here")
    time.sleep(0.05)
print(sorted(heard.values()))
for _ in range(40):
    me.exchange(int(sys.argv[1]), "/here")
    time.sleep(0.05)
"""


@pytest.mark.parametrize('text, amount', [('12G', 12 * GB), ('1.5 GiB',
                         3 * GB // 2), ('800M', 800 * 2 ** 20), ('7', 7)])
def test_sizes(text, amount):
    assert size(text) == amount


@pytest.mark.parametrize('text', ['', 'much', '-3G', '0', '12X'])
def test_wrong_sizes_are_refused(text):
    with pytest.raises(Problem, match='a size such as'):
        size(text)


@pytest.mark.parametrize('status, output', [
    (137, ''),
    (1, 'c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n'),
    (1, 'g++: internal compiler error: Killed (program cc1plus)\n'),
    (1, "nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n"),
    (1, "nvcc error   : 'ptxas' died due to signal 9 (Kill signal)\n"),
    (1, 'virtual memory exhausted: Cannot allocate memory\n'),
    (1, 'cc1plus: out of memory allocating 65536 bytes after a total of 14696448 bytes\n'),
    (1, "a.cpp: In function 'f':\ncc1plus: out of memory allocating 4072 bytes after a total of 21524480 bytes\n"),
    (1, "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"),
    (1, 'collect2: fatal error: ld terminated with signal 9 [Killed]\n'),
    (1, 'LLVM ERROR: out of memory\n'),
    (1, 'clang++: error: unable to execute command: Killed\n'),
    (1, 'ptxas fatal   : Memory allocation failure\n'),
    (1, '/usr/bin/ld: final link failed: memory exhausted\n'),
    (1, '/usr/bin/ld: main.o: memory exhausted\n'),
    (1, 'sh: line 1: 4711 Killed                  gcc -c x.c\n'),
])
def test_words_for_out_of_memory(status, output):
    assert out_of_memory(status, output, False)


@pytest.mark.parametrize('output', [
    'a.cpp:3:5: error: expected a semicolon\n',
    'a.cpp:3:5: error: no member bad_alloc\n    3 |  throw std::bad_alloc();\n      |        ^\n',
    'a.cpp:3: error: "out of memory"\n',
    'a.cpp(12): error: identifier "Killed" is undefined\n',
    'a.cpp:1:2: error: #error LLVM ERROR: out of memory\n',
    'a.cpp:9:1: error: real\ng++: fatal error: Killed signal terminated program cc1plus\n',
    'collect2: error: ld returned 1 exit status\n',
    '',
])
def test_words_that_are_none(output):
    assert not out_of_memory(1, output, False)


def test_success_is_never_out_of_memory():
    assert not out_of_memory(0, 'cc1plus: out of memory allocating 1 bytes', True)


@pytest.mark.parametrize('line, name, language', [
    ('g++ -O2 -c /src/a.cpp -o x/a.cpp.o', 'x/a.cpp.o', 'CXX'),
    ('nvcc -x cu -c k.cu -o k.cu.o', 'k.cu.o', 'CUDA'),
    ('gcc a.o b.o -o prog', 'prog', 'LINK'),
    ('g++ a.cpp -o prog', 'prog', 'LINK'),
    ('gcc -c b.c', 'b.c', 'C'),
    ('gcc -c b.c -o /tmp/pip-req-build-x1y2/build/temp/src/b.o', 'build/temp/src/b.o', 'C'),
])
def test_command_lines(line, name, language):
    command = Command('/build', line.split(), '/build')
    assert (command.name, command.language) == (name, language)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(text) + '\n')


def test_cgroup_1_every_level_counts(tmp_path):
    write(tmp_path / 'proc/self/cgroup', '9:name=systemd:/\n4:memory:/slurm/job')
    write(tmp_path / 'proc/self/mountinfo', '30 20 0:26 / /cg rw - cgroup cgroup rw,memory')
    for path, limit, usage in (('cg', 2 ** 63 - 4096, 9 * GB), ('cg/slurm',
                               8 * GB, 5 * GB), ('cg/slurm/job', 6 * GB, GB)):
        write(tmp_path / path / 'memory.limit_in_bytes', limit)
        write(tmp_path / path / 'memory.usage_in_bytes', usage)
        write(tmp_path / path / 'memory.stat', 'cache 7\ntotal_inactive_file %d\ntotal_active_file 0' % (GB // 2))
    found = [group.constraint() for group in cgroups(str(tmp_path))]
    assert [constraint and constraint.limit for constraint in found] == [6 * GB, 8 * GB, None]
    # another member of the outer one leaves less than the inner one would give
    assert [constraint.free for constraint in found[:2]] == [5.5 * GB, 3.5 * GB]


def test_cgroup_2_in_a_container(tmp_path):
    write(tmp_path / 'proc/self/cgroup', '0::/pod/container')
    write(tmp_path / 'proc/self/mountinfo', '30 20 0:26 /pod /cg rw - cgroup2 cgroup2 rw')
    write(tmp_path / 'cg/container/memory.max', 4 * GB)
    write(tmp_path / 'cg/container/memory.high', 3 * GB)
    write(tmp_path / 'cg/container/memory.current', GB)
    write(tmp_path / 'cg/container/memory.stat', 'inactive_file 0\nactive_file 0')
    write(tmp_path / 'cg/container/memory.events', 'oom 5\noom_kill 3')
    group = cgroups(str(tmp_path))[0]
    assert (group.constraint().limit, group.constraint().free, group.oom_kills()) == (3 * GB, 2 * GB, 3)


def test_grants(tmp_path, monkeypatch):
    assert slurm_grant({'SLURM_MEM_PER_NODE': '4096'}) == 4 * GB
    assert slurm_grant({'SLURM_MEM_PER_CPU': '1024', 'SLURM_CPUS_ON_NODE': '8'}) == 8 * GB
    assert slurm_grant({'SLURM_MEM_PER_NODE': '0'}) is None
    write(tmp_path / 'qstat', '#!/bin/sh\necho "    Resource_List.mem = 24gb"\necho "    Resource_List.nodect = 2"')
    (tmp_path / 'qstat').chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
    assert pbs_grant({'PBS_JOBID': '1.server'}) == 12 * GB
    assert pbs_grant({}) is None


def test_the_smallest_limit_wins():
    tightest = Limits(GB, environ={'SLURM_MEM_PER_NODE': '512'}, groups=[]).tightest(100)
    assert (tightest.name, tightest.limit, tightest.free) == ('the Slurm job', GB // 2, GB // 2 - 100)


def test_address_space_limit():
    code = 'from ramgate.limits import Limits; print(Limits(groups=[]).tightest(0).name)'
    script = 'ulimit -v 2000000; exec "$0" -c "%s"' % code
    done = subprocess.run(['bash', '-c', script, sys.executable], stdout=subprocess.PIPE, text=True, check=True,
                          cwd=os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    assert done.stdout == 'the address space limit (ulimit -v)\n'


def test_memory_of_a_group_counts_its_whole_tree():
    script = 'import os,time; os.fork(); data = bytearray(b"x" * 50000000); os.write(1, b"there\\n"); time.sleep(60)'
    process = subprocess.Popen([sys.executable, '-S', '-c', script], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout.readline() + process.stdout.readline() == b'there\n' * 2
        memory = Groups().memory([process.pid])[process.pid]
        assert 100e6 < memory < 160e6
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()


def recorded(points):
    recorder = Recorder()
    for age, memory in points:
        recorder.add(age, memory)
    return recorder.curve


def test_peaks_are_staggered_where_the_tails_fit():
    curve = recorded([(second / 10, 100 if 10 < second < 20 else 30) for second in range(100)])
    forecast = Forecast(10)
    forecast.add(forecast.run(curve, 10))
    assert not forecast.fits(forecast.run(curve, 10), 150)
    later = Forecast(10)
    later.add(later.run(curve, 10, age=3.0))
    assert later.fits(later.run(curve, 10), 150)
    assert max(forecast.earliest(curve, 10, 150)) == 100


def test_spans_grow_with_age():
    assert span(0) == 0 and span(0.2) == 1
    assert span(3600) < 140


def test_knowledge_goes_from_files_to_kinds(tmp_path):
    knowledge = Knowledge(str(tmp_path / 'profile'))
    first = knowledge.estimate('d/a.o', 'CXX')
    for number in range(20):
        recorder = Recorder()
        recorder.add(0.0, 2 ** 20)
        recorder.add(5.0, 100 * 2 ** 20)
        knowledge.finished('d/file%d.o' % number, 'CXX', 5.0, recorder, 0)
    knowledge.save(str(tmp_path / 'profile'))
    again = Knowledge(str(tmp_path / 'profile'))
    assert again.estimate('d/file3.o', 'CXX').known
    assert again.estimate('d/file3.o', 'CXX').peak == 100
    assert not again.estimate('d/new.o', 'CXX').known
    assert again.estimate('d/new.o', 'CXX').peak < 130 < first.peak


def test_two_ramgates_see_each_other():
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    both = [subprocess.Popen([sys.executable, '-c', EXCHANGE, mine, other], stdout=subprocess.PIPE, text=True, cwd=top)
            for mine, other in (('1111', '2222'), ('2222', '1111'))]
    said = [process.communicate(timeout=60)[0] for process in both]
    # other builds on this machine may be heard, too
    assert "(2222, '/here')" in said[0] and "(1111, '/here')" in said[1]


def test_help():
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run([sys.executable, '-m', 'ramgate', '--help'],
                          stdout=subprocess.PIPE, text=True, check=True, cwd=top)
    assert 'run' in done.stdout and 'replay' in done.stdout
