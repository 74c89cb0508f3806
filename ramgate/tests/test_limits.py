"""Sizes, cgroups as recorded file trees, grants of schedulers."""
import os
import re
import subprocess
import sys

import pytest

from ramgate.limits import Limits, Problem, cgroups, pbs_grant, size, slurm_grant

GB = 2 ** 30


@pytest.mark.parametrize('text, amount', [('12G', 12 * GB), ('1.5 GiB',
                         3 * GB // 2), ('800M', 800 * 2 ** 20), ('7b', 7)])
def test_sizes(text, amount):
    assert size(text) == amount


@pytest.mark.parametrize('text', ['', 'much', '-3G', '0', '7', '12X'])
def test_wrong_sizes_are_refused(text):
    with pytest.raises(Problem, match='a size such as'):
        size(text)


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


SLURM = 'system.slice/slurmstepd.scope/job_123/step_batch/user/task_0'
SYSTEMD = 'user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope'


def tree(root, path, **files):
    """A cgroup version 2 hierarchy as /proc and /sys/fs/cgroup show it to a process in `path`; files by level."""
    write(root / 'proc/self/cgroup', '0::/' + path)
    write(root / 'proc/self/mountinfo', '35 24 0:30 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate')
    levels = path.split('/')
    for at in range(1, len(levels) + 1):
        level = root / 'sys/fs/cgroup' / '/'.join(levels[:at])
        for name, text in dict({'max': 'max', 'high': 'max', 'current': GB, 'oom.group': 0, 'stat': 'inactive_file 0',
                                'events': 'oom 0\noom_kill 0\noom_group_kill 0'},
                               **files.get(re.sub(r'\W', '_', levels[at - 1]), {})).items():
            write(level / ('memory.' + name), text)
    return Limits(environ={}, groups=cgroups(str(root)))


def test_a_slurm_job_s_limit_is_three_levels_up(tmp_path):
    limits = tree(tmp_path, SLURM, job_123={'max': 8 * GB, 'current': 5 * GB}, task_0={'events': 'oom 1\noom_kill 2'})
    tightest = min((group.constraint() for group in limits.cgroups if group.constraint()), key=lambda found: found.free)
    assert (tightest.limit, tightest.free) == (8 * GB, 3 * GB)
    assert tightest.name.endswith('slurmstepd.scope/job_123')
    assert limits.oom_kills() == 2 and limits.warnings() == []


def test_a_scope_whose_processes_are_killed_together(tmp_path):
    """systemd's OOMPolicy=kill: free is less, and the user is told."""
    limits = tree(tmp_path, SYSTEMD, run_r1_scope={'high': 6 * GB, 'max': 8 * GB, 'oom.group': 1})
    constraint = limits.cgroups[0].constraint()
    assert constraint.limit == 6 * GB and constraint.free == pytest.approx(5 * GB - 0.03 * 6 * GB)
    assert len(limits.warnings()) == 1 and 'memory.oom.group' in limits.warnings()[0]


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


def test_address_space_limit(top):
    code = 'from ramgate.limits import Limits; print(Limits(groups=[]).tightest(0).name)'
    script = 'ulimit -v 2000000; exec "$0" -c "%s"' % code
    done = subprocess.run(['bash', '-c', script, sys.executable], cwd=top, stdout=subprocess.PIPE, text=True,
                          check=True)
    assert done.stdout == 'the address space limit (ulimit -v)\n'
