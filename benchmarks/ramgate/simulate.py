#!/usr/bin/env python3
"""
simulate.py TRACE CORES PERCENT [EVERY]: ramgate's own schedule on a trace in virtual time, cold, then with its profile.

No processes, no noise from a busy machine: what is studied is what is decided. `ramgate replay` is the real
thing.
"""
import collections
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from ramgate.estimates import MB, Knowledge  # noqa: E402
from ramgate.jobs import LANGUAGES  # noqa: E402
from ramgate.limits import Constraint  # noqa: E402
from ramgate.replay import bound, memory_at, read_trace, wanted  # noqa: E402
from ramgate.schedule import KILL, RUNNING, START, Schedule  # noqa: E402

# seconds of virtual time between two looks
STEP = 0.5


class Work:
    """Stands for a command line."""
    partial = ''

    def __init__(self, name):
        self.name, self.language = name, LANGUAGES.get(os.path.splitext(name[:-2])[1], 'CXX')


def simulate(works, cores, megabytes, knowledge):
    """Seconds, kills by the kernel, and what happened how often."""
    limit, events, kills = megabytes * MB, collections.Counter(), 0
    schedule = Schedule(knowledge, cores, Constraint('the node', limit, limit, '/'))
    todo, alive, now = list(works), {}, 0.0

    def carry_out(decisions):
        """As the broker does."""
        for what, job, _ in decisions:
            events[what] += 1
            if what == START:
                alive[job] = works[job.number - 1]
            if what == KILL:
                end(job, 137)

    def end(job, status):
        """Its attempt is over."""
        del alive[job]
        carry_out(schedule.ended(job, status, 0, status == 137, False, now))

    while todo or schedule.jobs:
        while todo and len(schedule.jobs) < 4 * cores:
            schedule.asked(Work(todo.pop(0).name), now)
        for job in [job for job, work in alive.items() if job.state == RUNNING and job.age(now) >= work.seconds]:
            end(job, 0)
        memory = {job: memory_at(work, job.age(now)) * MB for job, work in alive.items()}
        while sum(memory.values()) > limit:
            victim = max(memory, key=memory.get)
            del memory[victim]
            kills += 1
            end(victim, 137)
        schedule.measured(memory, now)
        schedule.constraint = schedule.constraint._replace(free=limit - sum(memory.values()))
        carry_out(schedule.relieve(STEP, now))
        carry_out(schedule.plan(now))
        now += STEP
    return now, kills, events


def main():
    """Print a line for cold and one for profiled."""
    trace, cores, percent, every = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int((sys.argv[4:] or ['1'])[0])
    works, knowledge = read_trace(trace)[::every], Knowledge()
    megabytes = wanted(works, cores) * percent / 100
    least, why = bound(works, cores, megabytes)
    print('%d jobs, %d cores, %.1f GB (%g %%): bound %.0f s (%s)'
          % (len(works), cores, megabytes / 1024, percent, least, why), flush=True)
    for name in ('cold', 'profile'):
        seconds, kills, events = simulate(works, cores, megabytes, knowledge)
        print('  %-8s %6.0f s  %.2f x bound; frozen %d, killed %d, run again %d, of them killed by the kernel %d' % (
            name, seconds, seconds / least, events['frozen'], events['killed'], events['retried'], kills), flush=True)


if __name__ == '__main__':
    main()
