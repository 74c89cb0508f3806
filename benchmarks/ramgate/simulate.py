#!/usr/bin/env python3
"""
simulate.py TRACE CORES PERCENT [EVERY]: ramgate's own broker on a trace in virtual time, cold, then with its profile.

No processes, no noise from a busy machine: what is studied is what the broker decides. `ramgate replay` is the real
thing.
"""
import collections
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from ramgate import broker as brokers  # noqa: E402
from ramgate.estimates import MB, Knowledge  # noqa: E402
from ramgate.jobs import LANGUAGES  # noqa: E402
from ramgate.limits import Constraint  # noqa: E402
from ramgate.replay import bound, memory_at, read_trace, wanted  # noqa: E402

STEP = 0.5


class Clock:
    """Stands for the module `time` in the broker."""
    now = 1000.0

    @classmethod
    def monotonic(cls):
        """The virtual time."""
        return cls.now

    @staticmethod
    def process_time():
        """Looking costs nothing."""
        return 0.0


class Silent:
    """Stands for the connection to a launcher, and for other ramgates, of which there are none."""

    def __init__(self):
        self.job = None

    def tell(self, kind, text=''):
        """Nobody listens."""

    def exchange(self, *_):
        """Nobody says anything."""
        return {}


class Node:
    """A machine with a limit; jobs of the trace that live on it."""
    scope, neighbours = '/', {}

    def __init__(self, megabytes):
        self.megabytes, self.alive, self.kills = megabytes, {}, 0

    def memory(self, groups=()):
        """{group: bytes}"""
        return {group: memory_at(job.work, job.age(Clock.now)) * MB for group, job in self.alive.items()}

    def tightest(self, _):
        """The only limit."""
        return Constraint('the node', self.megabytes * MB, self.megabytes * MB - sum(self.memory().values()), '/')

    def oom_kills(self):
        """The kernel's count."""
        return self.kills


class Work:
    """Stands for a command line."""
    partial = ''

    def __init__(self, name):
        self.name, self.language = name, LANGUAGES.get(os.path.splitext(name[:-2])[1], 'CXX')


def simulate(works, cores, megabytes, knowledge):
    """Seconds, and what happened how often."""
    node, events = Node(megabytes), collections.Counter()
    broker = brokers.Broker(None, None, node, knowledge, cores, '/', [lambda event, job, _: events.update([event])])
    broker.groups = node
    todo, begin = list(works), Clock.now
    while todo or broker.jobs:
        while todo and len(broker.jobs) < 4 * cores:
            work = todo.pop(0)
            broker.numbers += 1
            job = brokers.Job(broker.numbers, Work(work.name), Silent())
            job.work, job.connection.job, job.send, broker.changed = work, job, lambda _: None, True
            broker.jobs.append(job)
        for job in list(broker.jobs):
            if job.state == brokers.RUNNING and job.group is None:
                job.group = job.number
                node.alive[job.group] = job
            if job.group in node.alive and (job.killed or job.state == brokers.RUNNING
                                            and job.age(Clock.now) >= job.work.seconds):
                del node.alive[job.group]
                broker.ended(job.connection, b'137 0 0\n' if job.killed else b'0 0 0\n')
        while sum(node.memory().values()) > megabytes * MB:
            memory = node.memory()
            victim = node.alive.pop(max(memory, key=memory.get))
            node.kills += 1
            broker.ended(victim.connection, b'137 0 0\n')
        if Clock.now >= broker.next_look:
            broker.look(Clock.now)
        if broker.changed:
            broker.plan(Clock.now)
            broker.changed = False
        Clock.now += STEP
    return Clock.now - begin, node.kills, events


def main():
    """Print a line for cold and one for profiled."""
    trace, cores, percent, every = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int((sys.argv[4:] or ['1'])[0])
    works, knowledge = read_trace(trace)[::every], Knowledge()
    megabytes = wanted(works, cores) * percent / 100
    least, why = bound(works, cores, megabytes)
    brokers.time, brokers.Neighbours = Clock, Silent
    print('%d jobs, %d cores, %.1f GB (%g %%): bound %.0f s (%s)'
          % (len(works), cores, megabytes / 1024, percent, least, why), flush=True)
    for name in ('cold', 'profile'):
        seconds, kills, events = simulate(works, cores, megabytes, knowledge)
        print('  %-8s %6.0f s  %.2f x bound; frozen %d, killed %d, run again %d, of them killed by the kernel %d' % (
            name, seconds, seconds / least, events['frozen'], events['killed'], events['retried'], kills), flush=True)


if __name__ == '__main__':
    main()
