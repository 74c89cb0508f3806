"""
Replays a measured build with real processes that occupy memory and wait, in a memory cgroup where the kernel kills.

Only jobs enter the cgroup: ninja and ramgate themselves cannot be made smaller as the jobs are. `--neighbour SHARE`
takes that share of the memory after a third of the bound.
"""
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from ramgate.limits import Cgroup, Problem, mounts
from ramgate.report import Report
from ramgate.run import HERE, Build
from ramgate.traces import bound, read_traces, wanted

# what flash-attention takes a heavy job to need, in MB
HEAVY = 5 * 1024
# steve's floor: a share of the memory that must be available when a job starts
FLOOR = 0.1
# a policy that takes this many times the bound is stopped
PATIENCE = 12


class Room:
    """A memory cgroup of its own with a limit, for the time of a replay."""

    def __init__(self, limit):
        version, mount, _ = min(mounts(), default=(0, '', ''))
        if not version:
            raise Problem('no memory cgroup is mounted here')
        self.directory = os.path.join(mount, 'ramgate-%d' % os.getpid())
        try:
            os.mkdir(self.directory)
            self.cgroup = Cgroup(self.directory, version, '/' + os.path.basename(self.directory))
            for name in {1: ('memory.limit_in_bytes', 'memory.memsw.limit_in_bytes'), 2: ('memory.max',)}[version]:
                if os.path.exists(self.cgroup.file(name)) or 'memsw' not in name:
                    with open(self.cgroup.file(name), 'w') as file:
                        file.write(str(limit))
        except OSError as error:
            raise Problem('a replay needs a memory cgroup that it may write, as root: %s' % error)

    def processes(self):
        """Who is in it."""
        with open(self.cgroup.file('cgroup.procs')) as file:
            return [int(line) for line in file]

    def close(self):
        """Remove it with all of its processes."""
        for _ in range(500):
            try:
                for pid in self.processes():
                    os.kill(pid, 9)
                os.rmdir(self.directory)
                return
            except OSError:
                time.sleep(0.02)


class Stage:
    """A directory with the build of a trace, scaled down, and a cgroup."""

    def __init__(self, works, options):
        self.works, self.options = works, options
        self.megabytes = options.memory / 2.0 ** 20
        self.limit = options.memory // options.shrink_memory
        self.directory = tempfile.mkdtemp(prefix='ramgate-replay.')
        self.occupy = os.path.join(self.directory, 'occupy')
        if subprocess.call(['cc', '-O1', '-static', '-o', self.occupy, os.path.join(HERE, 'occupy.c')]):
            raise Problem('a replay needs a C compiler')
        seconds, self.why = bound(works, options.cores, self.megabytes)
        self.bound = seconds / options.shrink_time
        self.room = Room(self.limit)

    def write(self, launcher):
        """build.ninja: each job through the launcher, if any. Slashes are kept, directories are made."""
        lines = ['rule job', '  command = %s %s/stand-in -c $source -o $out $course' % (launcher, self.directory)]
        objects = []
        for work in self.works:
            course = ' '.join('%.3f:%d' % (at * work.seconds / self.options.shrink_time,
                                           value * 1024 / self.options.shrink_memory) for at, value in work.course)
            lines += ['build %s: job' % work.name, '  source = %s' % re.sub(r'\.o$', '', work.name),
                      '  course = %s' % course]
            os.makedirs(os.path.join(self.directory, os.path.dirname(work.name)), exist_ok=True)
            objects.append(work.name)
        lines += ['build all: phony %s' % ' '.join(objects), 'default all', '']
        with open(os.path.join(self.directory, 'build.ninja'), 'w') as file:
            file.write('\n'.join(lines))

    def clear(self):
        """Forget what was built."""
        for work in self.works:
            path = os.path.join(self.directory, work.name)
            if os.path.exists(path):
                os.unlink(path)
        for name in glob.glob(os.path.join(self.directory, '.ninja*')):
            os.unlink(name)

    def complete(self):
        """Whether everything was built."""
        return all(os.path.exists(os.path.join(self.directory, work.name)) for work in self.works)

    def close(self):
        """Remove everything."""
        self.room.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class Neighbour:
    """Takes a share of the memory from a third of the bound on, until closed."""

    def __init__(self, stage):
        self.stage, self.process = stage, None
        self.timer = threading.Timer(stage.bound / 3, self.come)
        if stage.options.neighbour:
            self.timer.start()

    def come(self):
        """Grow to the share within a second."""
        kilobytes = int(self.stage.limit * self.stage.options.neighbour / 1024)
        self.process = subprocess.Popen([self.stage.occupy, '/dev/null', self.stage.room.directory, '1:%d' % kilobytes,
                                         '86400:%d' % kilobytes])
        # the kernel is not to choose the neighbour, which not every root may say
        with contextlib.suppress(PermissionError), \
                open('/proc/%d/oom_score_adj' % self.process.pid, 'w') as file:
            file.write('-1000')

    def close(self):
        """It goes."""
        self.timer.cancel()
        if self.process:
            self.process.kill()
            self.process.wait()


def ninja(stage, slots, until):
    """One run of ninja: whether everything was built, how many jobs failed."""
    process = subprocess.Popen(['ninja', '-j%d' % slots], cwd=stage.directory, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
    timer = threading.Timer(max(0.1, until - time.monotonic()), lambda: os.killpg(process.pid, 15))
    timer.start()
    try:
        output = process.communicate()[0].decode(errors='replace')
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        raise
    finally:
        timer.cancel()
    return process.returncode == 0, output.count('FAILED: ')


def by_hand(slots, launcher=''):
    """A policy of plain ninja: `slots(stage, attempt)` jobs, started again by a human until it is done."""
    def policy(stage, until):
        failures = restarts = 0
        stage.write(launcher)
        while True:
            done, failed = ninja(stage, max(1, slots(stage, restarts)), until)
            failures += failed
            if done or time.monotonic() > until:
                return failures, restarts
            restarts += 1
    return policy


def ramgate(profiled=False, knows_pytorch=False):
    """ramgate itself; with a profile from a run before, or with the measurements it has."""
    def policy(stage, until):
        options = stage.options
        stage.write('ramgate-cc')
        profile = os.path.join(stage.directory, 'profile.json')

        class Run:
            """As the command line gives it."""
            jobs, memory, command = options.cores, None, ['ninja', '-C', stage.directory]
            jobserver = False
            scale, like, shipped = (1.0 / options.shrink_memory, 1.0 / options.shrink_time), [], knows_pytorch
        Run.groups = [stage.room.cgroup]
        if not profiled and os.path.exists(profile):
            os.unlink(profile)
        Run.profile = profile
        counts = os.path.join(stage.directory, 'counts')
        with open(counts, 'w') as file:
            pid = os.fork()
            if pid == 0:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                watchers = [Report(os.path.join(options.report, stage.policy))] if options.report else []
                os._exit(Build(Run, watchers).run())
        try:
            os.waitpid(pid, 0)
        except BaseException:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
            raise
        text = open(counts).read()
        return text.count('FAILED: '), 0
    return policy


POLICIES = {
    'seed': by_hand(lambda stage, attempt: 1 if attempt else stage.options.cores),
    'halving': by_hand(lambda stage, attempt: stage.options.cores >> attempt),
    'fixed': by_hand(lambda stage, attempt: min(stage.options.cores, int(stage.megabytes / HEAVY)) >> attempt),
    'avail': by_hand(lambda stage, attempt: stage.options.cores, '%s -m ramgate.replay' % sys.executable),
    'ramgate': ramgate(),
    'ramgate+shipped': ramgate(knows_pytorch=True),
    'ramgate+profile': ramgate(profiled=True),
}


def avail(command):
    """The launcher of the policy `avail`: start when a floor of memory is available, or nothing runs."""
    import fcntl
    group = Cgroup(os.environ['RAMGATE_ROOM'], int(os.environ['RAMGATE_ROOM_VERSION']), '/')
    with open(os.environ['RAMGATE_ROOM_TURN'], 'a') as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        while True:
            room = group.constraint()
            if room.free > FLOOR * room.limit or not open(group.file('cgroup.procs')).read():
                break
            time.sleep(0.02)
        pid = os.fork()
        if pid == 0:
            os.execvp(command[0], command)
        time.sleep(0.01)
    status = os.waitpid(pid, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def replay(options):
    """ramgate replay."""
    works = read_traces(options.trace)
    if options.share:
        options.memory = int(wanted(works, options.cores) * options.share / 100 * 2 ** 20)
    # so that the cgroup and the jobs go, too
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    stage = Stage(works, options)
    results = []
    try:
        with open(os.path.join(stage.directory, 'stand-in'), 'w') as file:
            file.write('#!/bin/sh\nout=$4\nshift 4\nexec %s "$out" %s "$@"\n' % (stage.occupy, stage.room.directory))
        os.chmod(os.path.join(stage.directory, 'stand-in'), 0o755)
        os.environ.update(PYTHONPATH=os.path.dirname(HERE), RAMGATE_ROOM=stage.room.directory,
                          RAMGATE_ROOM_VERSION=str(stage.room.cgroup.version),
                          RAMGATE_ROOM_TURN=os.path.join(stage.directory, 'turn'))
        print('%d jobs, %d cores, %.1f GB; in 1/%d of the memory and 1/%d of the time: %.0f MB; bound %.1f s (%s)' % (
            len(works), options.cores, stage.megabytes / 1024, options.shrink_memory, options.shrink_time,
            stage.limit / 2 ** 20, stage.bound, stage.why), flush=True)
        for policy in options.policy:
            stage.clear()
            stage.policy = policy
            neighbour, begin, kills = Neighbour(stage), time.monotonic(), stage.room.cgroup.oom_kills()
            try:
                failures, restarts = POLICIES[policy](stage, begin + PATIENCE * stage.bound)
            finally:
                neighbour.close()
            seconds = time.monotonic() - begin
            results.append({'policy': policy, 'seconds': round(seconds, 2), 'bound': round(seconds / stage.bound, 2),
                            'complete': stage.complete(), 'failures': failures, 'restarts': restarts,
                            'kernel kills': stage.room.cgroup.oom_kills() - kills})
            print('%-16s %7.1f s %6.2f x bound  %s, %d jobs failed, started again %d times, the kernel killed %d' % (
                policy, seconds, seconds / stage.bound, 'complete' if stage.complete() else 'STOPPED', failures,
                restarts, results[-1]['kernel kills']), flush=True)
    finally:
        stage.close()
    if options.json:
        with open(options.json, 'w') as file:
            json.dump({'trace': options.trace, 'bound': stage.bound, 'results': results}, file,
                      indent=1)
    return 0 if all(result['complete'] for result in results if result['policy'].startswith('ramgate')) else 1


if __name__ == '__main__':
    sys.exit(avail(sys.argv[1:]))
