"""Measured builds with processes that only occupy memory."""
import json
import os
import signal
import subprocess
import time

import pytest


@pytest.mark.nightly
@pytest.mark.slow
def test_where_the_kernel_kills_nothing_fails(as_root, build, top, tmp_path):
    """A replay in a real cgroup: 16 jobs at a time would need three times the memory there is."""
    rows = ['user_s,sys_s,peak_mb,file']
    rows += ['%d,0,%d,part%d/job%d.cpp.o' % (20 + at % 7, 300 + 40 * (at % 5), at % 3, at) for at in range(40)]
    (tmp_path / 'trace.csv').write_text('\n'.join(rows) + '\n')
    done = subprocess.run([top / 'benchmarks/replay.py', tmp_path / 'trace.csv', '--cores', '16',
                           '--memory', '1800M', '--shrink-memory', '4', '--shrink-time', '10',
                           '--json', str(tmp_path / 'result.json'), '--policy', 'ramgate', 'ramgate+profile'],
                          env=build.environment(), cwd=build.directory, timeout=600)
    assert done.returncode == 0
    for result in json.loads((tmp_path / 'result.json').read_text())['results']:
        assert result['complete'] and result['failures'] == 0
    build.clean()


@pytest.mark.slow
@pytest.mark.parametrize('policy', ['fixed', 'ramgate'])
def test_replay_that_is_ended_leaves_nothing(as_root, build, top, tmp_path, policy):
    """SIGTERM: the jobs, the cgroup and the directory go, which once stayed."""
    (tmp_path / 'trace.csv').write_text('user_s,sys_s,peak_mb,file\n900,0,300,long.cpp.o\n')
    process = subprocess.Popen([top / 'benchmarks/replay.py', tmp_path / 'trace.csv', '--cores', '2',
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
