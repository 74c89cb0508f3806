#!/usr/bin/env python3
"""
Replays a measured build under several policies, with real processes that occupy memory and wait, in a memory cgroup
where the kernel kills. As root.

Only jobs enter the cgroup: ninja and ramgate themselves cannot be made smaller as the jobs are. `--neighbour SHARE`
takes that share of the memory after a third of the bound.
"""
import argparse
import contextlib
import fcntl
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

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from memory_cgroup import MemoryCgroup  # noqa: E402
from ramgate import build, estimates  # noqa: E402
from ramgate.__main__ import count  # noqa: E402
from ramgate.limits import Cgroup, Limits, Problem, size  # noqa: E402
from traces import as_profile, bound, read_traces, wanted  # noqa: E402

# what flash-attention takes a heavy job to need, in MB
HEAVY = 5 * 1024
# steve's floor: a share of the memory that must be available when a job starts
FLOOR = 0.1
# replay.py itself is the compiler wrapper of a policy, with this argument
AVAIL = '--start-when-available'
# what ramgate/data/pytorch.json was made of
SHIPPED = [os.path.join(HERE, 'data', 'pytorch-%s.csv' % name) for name in ('1.13.1-cpu', '2.6.0-cpu', '2.6.0-cuda')]
# a policy that takes this many times the bound is stopped
PATIENCE = 12


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
        self.cgroup = MemoryCgroup(self.limit)

    def write(self, wrapper):
        """build.ninja: each job through the compiler wrapper, if any. Slashes are kept, directories are made."""
        lines = ['rule job', '  command = %s %s/stand-in -c $source -o $out $course' % (wrapper, self.directory)]
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
        self.cgroup.close()
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
        self.process = subprocess.Popen([self.stage.occupy, '/dev/null', self.stage.cgroup.directory,
                                         '1:%d' % kilobytes, '86400:%d' % kilobytes])
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


def by_hand(slots, wrapper=lambda stage: ''):
    """A policy of plain ninja: `slots(stage, attempt)` jobs, started again by a human until it is done."""
    def policy(stage, until):
        failures = restarts = 0
        stage.write(wrapper(stage))
        while True:
            done, failed = ninja(stage, max(1, slots(stage, restarts)), until)
            failures += failed
            if done or time.monotonic() > until:
                return failures, restarts
            restarts += 1
    return policy


def write_profile(path, works, scale):
    with open(path, 'w') as file:
        json.dump({'version': estimates.VERSION, 'files': as_profile(works, scale)}, file)


def scale_down(memory, seconds):
    """What ramgate knows of compilers in general, for jobs that are so much smaller and shorter."""
    for language, (megabytes, guess) in estimates.FIRST_GUESS.items():
        estimates.FIRST_GUESS[language] = (megabytes * memory, guess * seconds)
    estimates.OTHER_GUESS = (estimates.OTHER_GUESS[0] * memory, estimates.OTHER_GUESS[1] * seconds)
    estimates.TRUST_MB *= memory
    estimates.TRUST_SECONDS *= seconds


def ramgate(profiled=False, knows_pytorch=False):
    """ramgate itself; with a profile from a run before, or with the measurements it has."""
    def policy(stage, until):
        options = stage.options
        stage.write('ramgate-cc')
        scale = 1.0 / options.shrink_memory, 1.0 / options.shrink_time
        profile, shipped = [os.path.join(stage.directory, name) for name in ('profile.json', 'shipped.json')]
        write_profile(shipped, read_traces(SHIPPED) if knows_pytorch else [], scale)
        if not profiled and os.path.exists(profile):
            os.unlink(profile)
        counts = os.path.join(stage.directory, 'counts')
        with open(counts, 'w') as file:
            pid = os.fork()
            if pid == 0:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                scale_down(*scale)
                build.SHIPPED = shipped
                run = build.Build(argparse.Namespace(
                    jobs=options.cores, memory=None, profile=profile, like=[],
                    report=options.report and os.path.join(options.report, stage.policy),
                    command=['ninja', '-C', stage.directory]))
                run.limits = Limits(groups=[stage.cgroup])
                os._exit(run.run())
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
    'avail': by_hand(lambda stage, attempt: stage.options.cores, lambda stage: '%s %s %s %s %d %s' % (
        sys.executable, os.path.abspath(__file__), AVAIL, stage.cgroup.directory, stage.cgroup.version,
        os.path.join(stage.directory, 'turn'))),
    'ramgate': ramgate(),
    'ramgate+shipped': ramgate(knows_pytorch=True),
    'ramgate+profile': ramgate(profiled=True),
}


def avail(directory, version, turn, *command):
    """The compiler wrapper of the policy `avail`: start when a floor of memory is available, or nothing runs."""
    cgroup = Cgroup(directory, int(version))
    with open(turn, 'a') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        while True:
            room = cgroup.constraint()
            if room.free > FLOOR * room.limit or not open(os.path.join(directory, 'cgroup.procs')).read():
                break
            time.sleep(0.02)
        pid = os.fork()
        if pid == 0:
            os.execvp(command[0], command)
        time.sleep(0.01)
    status = os.waitpid(pid, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def replay(options):
    """Run each policy; the exit status."""
    works = read_traces(options.trace)
    if options.share:
        options.memory = int(wanted(works, options.cores) * options.share / 100 * 2 ** 20)
    # so that the cgroup and the jobs go, too
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    stage = Stage(works, options)
    results = []
    try:
        with open(os.path.join(stage.directory, 'stand-in'), 'w') as file:
            file.write('#!/bin/sh\nout=$4\nshift 4\nexec %s "$out" %s "$@"\n' % (
                stage.occupy, stage.cgroup.directory))
        os.chmod(os.path.join(stage.directory, 'stand-in'), 0o755)
        print('%d jobs, %d cores, %.1f GB; in 1/%d of the memory and 1/%d of the time: %.0f MB; bound %.1f s (%s)' % (
            len(works), options.cores, stage.megabytes / 1024, options.shrink_memory, options.shrink_time,
            stage.limit / 2 ** 20, stage.bound, stage.why), flush=True)
        for policy in options.policy:
            stage.clear()
            stage.policy = policy
            neighbour, begin, kills = Neighbour(stage), time.monotonic(), stage.cgroup.oom_kills()
            try:
                failures, restarts = POLICIES[policy](stage, begin + PATIENCE * stage.bound)
            finally:
                neighbour.close()
            seconds = time.monotonic() - begin
            results.append({'policy': policy, 'seconds': round(seconds, 2), 'bound': round(seconds / stage.bound, 2),
                            'complete': stage.complete(), 'failures': failures, 'restarts': restarts,
                            'kernel kills': stage.cgroup.oom_kills() - kills})
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


def main():
    if sys.argv[1:2] == [AVAIL]:
        return avail(*sys.argv[2:])
    parser = argparse.ArgumentParser(description='Replay a measured build under several policies; see README.rst.')
    parser.add_argument('trace', nargs='+', metavar='TRACE[:K]',
                        help='CSV file: user_s, sys_s, peak_mb, file, perhaps curve; of it, every K-th job')
    parser.add_argument('--cores', type=count, required=True, metavar='N', help='cores of the machine that is studied')
    memory = parser.add_mutually_exclusive_group(required=True)
    memory.add_argument('--memory', type=size, metavar='SIZE', help='memory of the machine that is studied')
    memory.add_argument('--share', type=count, metavar='PERCENT',
                        help='its memory, as a share of what N jobs would like')
    parser.add_argument('--policy', nargs='+', choices=sorted(POLICIES), default=['ramgate', 'ramgate+profile'])
    parser.add_argument('--shrink-memory', type=count, default=15, metavar='FACTOR', help='default: %(default)s')
    parser.add_argument('--shrink-time', type=count, default=10, metavar='FACTOR', help='default: %(default)s')
    parser.add_argument('--neighbour', type=float, default=0, metavar='SHARE',
                        help='a neighbour takes this share midway')
    parser.add_argument('--report', metavar='DIR', help="keep ramgate's reports there")
    parser.add_argument('--json', metavar='FILE', help='write the results there too')
    try:
        return replay(parser.parse_args())
    except Problem as problem:
        sys.stderr.write('replay: %s\n' % problem)
        return 2


if __name__ == '__main__':
    sys.exit(main())
