#!/usr/bin/env python3
"""
simulate.py [--same] TRACE[:K] ... CORES PERCENT|SIZE: ramgate's own schedule on a trace in virtual time: cold, with
what ramgate ships of PyTorch, with the profile of the cold run, and packed by somebody who knows everything before.

The build differs from what is shipped, as another version, compiler and machine do: every third file is not in what is
shipped, and each takes 1.3 times as long and 1.2 times as much memory, give or take 15 %; with --same, time and memory
are the trace's.

No processes, no noise from a busy machine: what is studied is what is decided. replay.py is the real thing.
"""
import collections
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ramgate.estimates import MB, SHIPPED, UNCERTAIN_OTHERS, CAUTION, EarlierBuild, Knowledge, load  # noqa: E402
from ramgate.limits import Constraint, size  # noqa: E402
from ramgate.schedule import KILL, RUNNING, START, Schedule  # noqa: E402
from traces import bound, memory_at, peak, read_traces, wanted  # noqa: E402

# of the bound so much passes between two looks, at most
STEP = 0.003
LONGER, LARGER, SPREAD, HELD_OUT = 1.3, 1.2, 0.15, 3
# moments into which a packing divides the bound
MOMENTS = 400
Command = collections.namedtuple('Command', 'name language partial')


def simulate(works, cores, megabytes, knowledge):
    """
    Seconds, the least share of the memory that was free, kills by the kernel, what happened how often, and of each job
    the peak as a multiple of what was expected when it started.
    """
    step = STEP * bound(works, cores, megabytes)[0]
    limit, events, kills, free = megabytes * MB, collections.Counter(), 0, 1.0
    schedule = Schedule(knowledge, cores, Constraint('the node', limit, limit))
    todo, asked, alive, now, peaks = list(works), {}, {}, 0.0, []

    def carry_out(decisions):
        for what, job, _ in decisions:
            events[what] += 1
            if what == START:
                alive[job] = asked[job]
            if what == KILL:
                end(job, 137)

    def end(job, status):
        work = alive.pop(job)
        if status == 0:
            peaks.append(peak(work) / job.estimate.peak)
        carry_out(schedule.ended(job, status, 0, status == 137, False, now))

    while todo or schedule.compilations:
        while todo and len(schedule.compilations) < 4 * cores:
            work = todo.pop(0)
            asked[schedule.asked(Command(work.name, work.language, ''), now)] = work
        for job in [job for job, work in alive.items() if job.state == RUNNING and job.age(now) >= work.seconds - 1e-6]:
            end(job, 0)
        memory = {job: memory_at(work, job.age(now)) * MB for job, work in alive.items()}
        while sum(memory.values()) > limit:
            victim = max(memory, key=memory.get)
            del memory[victim]
            kills += 1
            end(victim, 137)
        free = min(free, 1 - sum(memory.values()) / limit)
        schedule.measured(memory, now)
        schedule.constraint = schedule.constraint._replace(free=limit - sum(memory.values()))
        carry_out(schedule.relieve(step, now))
        carry_out(schedule.plan(now))
        now += min([step] + [work.seconds - job.age(now) for job, work in alive.items() if job.state == RUNNING])
    return now, free, kills, events, sorted(peaks)


def packed(works, cores, megabytes, seconds):
    """Seconds where each job, the longest first, starts at the first moment at which its whole curve fits."""
    step, memory, busy = seconds / MOMENTS, [], []
    for work in sorted(works, key=lambda work: -work.seconds):
        count = int(work.seconds / step) + 1
        curve = [max(memory_at(work, min(1 - 1e-9, (at + part) * step / work.seconds) * work.seconds)
                     for part in (0, 0.5, 1)) for at in range(count)]
        start = 0
        while True:
            until = start + count
            memory += [0.0] * (until - len(memory))
            busy += [0] * (until - len(busy))
            if all(memory[start + at] + curve[at] <= megabytes and busy[start + at] < cores for at in range(count)):
                break
            start += 1
        for at in range(count):
            memory[start + at] += curve[at]
            busy[start + at] += 1
    return step * len(memory)


def other_build(works):
    """The same files, as another version, compiler and machine need for them."""
    chance = random.Random(1)
    return [work._replace(seconds=work.seconds * LONGER * chance.lognormvariate(0, SPREAD),
                          course=[(at, memory * LARGER * factor) for at, memory in work.course])
            for work in works for factor in [chance.lognormvariate(0, SPREAD)]]


def shipped():
    """What ramgate ships, without every third file."""
    files = load(SHIPPED)
    for name in [name for name in sorted(files) if 'flash' not in name][::HELD_OUT]:
        del files[name]
    knowledge = Knowledge()
    knowledge.earlier.append(EarlierBuild(files, UNCERTAIN_OTHERS, CAUTION))
    return knowledge


def profile(cold):
    """What the build after a cold one knows."""
    knowledge = Knowledge()
    knowledge.add_profile(cold.measured)
    return knowledge


def main():
    same, cores = sys.argv[1] == '--same', int(sys.argv[-2])
    works = read_traces(sys.argv[2:-2]) if same else other_build(read_traces(sys.argv[1:-2]))
    most, memory = wanted(works, cores), sys.argv[-1]
    megabytes = most * float(memory) / 100 if memory.isdigit() else size(memory) / MB
    least, why = bound(works, cores, megabytes)
    print('%d jobs, %d cores, %.1f GB (%g %%): bound %.0f s (%s); packed by who knows all: %.2f x bound'
          % (len(works), cores, megabytes / 1024, 100 * megabytes / most, least, why,
             packed(works, cores, megabytes, least) / least), flush=True)
    cold = Knowledge()
    for name, knowledge in (('cold', lambda: cold), ('shipped', shipped), ('profile', lambda: profile(cold))):
        seconds, free, kills, events, peaks = simulate(works, cores, megabytes, knowledge())
        off = [peaks[int(share * (len(peaks) - 1))] for share in (0.05, 0.5, 0.95)]
        print('  %-8s %6.0f s  %.2f x bound; frozen %d, killed %d, run again %d, of them killed by the kernel %d; at '
              'least %.1f %% were free; peaks / expected: %s' % (
                  name, seconds, seconds / least, events['frozen'], events['killed'], events['retried'], kills,
                  100 * free, ' '.join('%.2f' % value for value in off)), flush=True)


if __name__ == '__main__':
    main()
