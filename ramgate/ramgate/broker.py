"""Listens to compiler wrappers, watches for compilers that came without one, measures them all, and carries out what
the schedule decides; one thread.
"""
import contextlib
import os
import selectors
import signal
import socket
import time

from ramgate.command_lines import Command, ran_out_of_memory
from ramgate.processes import cpu_seconds, end_all, in_groups, link, own_memory, send, stat
from ramgate.schedule import (DONE, ENDED, FREEZE, FROZEN, KILL, LAUNCHER, REFUSE, RETRY, RUNNING, START, SYMLINK,
                              THAW, WAITING, WATCHED)

# seconds between two measurements: (while less than this share of the limit is free, seconds)
TICKS = ((0.3, 0.05), (0.6, 0.2))
AMPLE = 0.25
# measuring may take this share of the time
COST = 0.1
# after a plan, so many times as long as it took pass before the next
PLAN_PAUSE = 3
# seconds between two looks for compilers that did not ask, at least
WATCH = 0.02
# after so many seconds without work (CPU seconds) compilers may wait for one that is held
STALLED = 20
WORK = 0.05
# what carries out a decision: a signal to the compiler's processes, or a message to its wrapper (compiler_wrapper.c)
SIGNALS = {FREEZE: signal.SIGSTOP, THAW: signal.SIGCONT, KILL: signal.SIGKILL}
MESSAGES = {START: b'g', RETRY: b'r', REFUSE: b'x', DONE: b'd'}
# bytes of a message (compiler_wrapper.c)
MOST = 65536
# what a wrapper sends first
WAYS = {b'c': LAUNCHER, b's': SYMLINK}


class Broker:
    """Answers the compilers of the build that began in `top`; `watchers` get (event, compilation, schedule)."""

    def __init__(self, limits, schedule, top, tree, watchers=()):
        self.limits = limits
        self.schedule = schedule
        self.top = top
        self.watchers = watchers
        self.tree = tree
        self.selector = selectors.DefaultSelector()
        # {connection: compilation}
        self.asking = {}
        # {process: compilation} of those that are only watched
        self.watched = {}
        self.next_look = self.next_plan = self.next_watch = 0.0
        self.looked = time.monotonic()
        self.changed = self.finished = False
        # (CPU seconds, compilations that have ended) when compilers last worked, and the time
        self.work = ((0.0, 0), time.monotonic())

    def serve(self, listener, control):
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, self.accept)
        # a pipe from `ramgate run`, which writes k to kill the build and f when it has ended
        self.selector.register(control, selectors.EVENT_READ, self.controlled)
        # what wrappers have said before the build ended is still to be heard
        while not self.finished or self.selector.select(0):
            for key, _ in self.selector.select(self.pause()):
                key.data(key.fileobj)
            if time.monotonic() >= self.next_watch:
                self.watch()
            if time.monotonic() >= self.next_look:
                self.look()
            if self.changed and time.monotonic() >= self.next_plan:
                self.plan()
        self.watch()
        for compilation in self.schedule.alive():
            self.signal(compilation, signal.SIGKILL)
        self.notify('finished', None)

    def pause(self):
        due = self.next_watch
        if self.schedule.compilations:
            due = min(due, self.next_look, self.next_plan if self.changed else due)
        return max(0.0, due - time.monotonic())

    def watch(self):
        """Hold compilers that start without asking until it is their turn; notice the end of those that had it."""
        now = time.monotonic()
        spent = time.process_time()
        for pid, words in self.tree.look():
            send([pid], signal.SIGSTOP)
            # it may have become another program meanwhile, such as a script that begins the real compiler
            command = Command(link(pid, 'cwd'), words, self.top)
            compilation = self.watched[pid] = self.schedule.asked(command, now, WATCHED)
            compilation.pid = pid
            self.notify('asked', compilation)
        below = self.tree.below(self.watched)
        for pid, compilation in list(self.watched.items()):
            if not stat(pid):
                self.watched_ended(pid, compilation, now)
            elif compilation.state in (WAITING, FROZEN):
                # with what it has started since
                send(below[pid], signal.SIGSTOP)
        self.next_watch = now + max(WATCH, (time.process_time() - spent) / COST)

    def watched_ended(self, pid, compilation, now):
        """Note the end of a compiler that was only watched; only its parent knows its status."""
        del self.watched[pid]
        killed = compilation.started and self.limits.oom_kills() > compilation.kernel_kills
        self.schedule.lost += bool(killed)
        self.schedule.close(compilation, 137 if killed else 0, now)
        self.notify(DONE, compilation)

    def processes(self):
        """{compilation: its processes} of those that were started."""
        alive = self.schedule.alive()
        groups = in_groups([compilation.group for compilation in alive if compilation.group])
        trees = self.tree.below(self.watched)
        return {compilation: trees.get(compilation.pid) or groups.get(compilation.group, []) for compilation in alive}

    def signal(self, compilation, *numbers):
        if compilation.pid:
            send(self.tree.below([compilation.pid])[compilation.pid], *numbers)
        elif compilation.group:
            send([-compilation.group], *numbers)

    def look(self):
        now = time.monotonic()
        spent = time.process_time()
        groups = self.processes()
        memory = {compilation: sum(map(own_memory, pids)) for compilation, pids in groups.items()}
        self.schedule.measured(memory, now)
        constraint = self.limits.tightest(self.schedule.own)
        self.schedule.constraint = constraint
        free = constraint.free / constraint.limit
        tick = next((tick for below, tick in TICKS if groups and free < below), AMPLE)
        # on a busy machine the next look comes as late as this one did
        self.carry_out(self.schedule.relieve(max(tick, now - self.looked), now))
        self.looked = now
        self.look_at_held(groups, now)
        cost = (time.process_time() - spent) / COST
        self.next_look = now + max(tick, min(AMPLE, cost))
        self.notify('looked', None)

    def look_at_held(self, groups, now):
        """Let one go on for which all others may wait."""
        if not self.schedule.in_state(WAITING, FROZEN):
            self.work = (self.work[0], now)
            return
        working = [compilation for compilation in groups if compilation.state == RUNNING]
        work = (sum(cpu_seconds(pid) for compilation in working for pid in groups[compilation]), self.schedule.done)
        (cpu, done), since = self.work
        if abs(work[0] - cpu) > WORK or work[1] != done:
            self.work = (work, now)
        elif now - since > STALLED:
            self.work = (work, now)
            self.carry_out(self.schedule.release(now))

    def plan(self):
        begin = time.monotonic()
        self.carry_out(self.schedule.plan(begin))
        self.notify('planned', None)
        self.changed = False
        end = time.monotonic()
        self.next_plan = end + PLAN_PAUSE * (end - begin)

    def carry_out(self, decisions):
        for what, compilation, text in decisions:
            if what == START:
                compilation.kernel_kills = self.limits.oom_kills()
                self.next_look = min(self.next_look, time.monotonic() + TICKS[0][1])
            if what in SIGNALS:
                self.signal(compilation, SIGNALS[what])
            elif compilation.pid:
                self.signal(compilation, signal.SIGCONT)
            else:
                # heard() notices a wrapper that has gone
                with contextlib.suppress(OSError):
                    compilation.connection.send(MESSAGES[what] + os.fsencode(text))
            self.notify(DONE if what == REFUSE else what, compilation)

    def notify(self, event, compilation):
        self.changed = True
        for watcher in self.watchers:
            watcher(event, compilation, self.schedule)

    def accept(self, listener):
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            self.selector.register(connection, selectors.EVENT_READ, self.heard)

    def controlled(self, control):
        word = os.read(control, 1)
        if word != b'k':
            self.finished = True
            self.selector.unregister(control)
        if word == b'f':
            return
        for compilation in self.schedule.compilations:
            self.signal(compilation, signal.SIGTERM, signal.SIGCONT)
            compilation.killed = True
        self.schedule.refused = self.schedule.refused or 'the build was stopped'
        if not word:
            # `ramgate run` was killed: end what it has left
            end_all(self.tree.members)

    def heard(self, connection):
        message = b''
        with contextlib.suppress(OSError):
            message = connection.recv(MOST)
        kind, data = message[:1], message[1:]
        if kind in WAYS:
            self.asked(connection, data, WAYS[kind])
        elif kind == b'p':
            self.asking[connection].group = int(data)
        elif kind == b'e':
            self.ended(self.asking[connection], data)
        else:
            self.selector.unregister(connection)
            connection.close()
            compilation = self.asking.pop(connection, None)
            if compilation and compilation.state != ENDED:
                # the compiler of a wrapper that is gone is killed, and its memory released
                self.signal(compilation, signal.SIGKILL)
                self.schedule.close(compilation, -1, time.monotonic())
                self.notify(DONE, compilation)

    def asked(self, connection, data, way):
        directory, *arguments = [os.fsdecode(word) for word in data.split(b'\0')[:-1]]
        compilation = self.schedule.asked(Command(directory, arguments, self.top), time.monotonic(), way)
        compilation.connection = connection
        self.asking[connection] = compilation
        self.notify('asked', compilation)

    def ended(self, compilation, data):
        head, _, output = data.partition(b'\n')
        status, resident = [int(word) for word in head.split()]
        kernel_killed = self.limits.oom_kills() > compilation.kernel_kills and b'error' not in output
        lacking = ran_out_of_memory(status, output.decode(errors='replace'), kernel_killed)
        self.carry_out(self.schedule.ended(compilation, status, resident * 1024, lacking, kernel_killed,
                                           time.monotonic()))


def listen(directory):
    """Return the socket to which wrappers connect; its path may be longer than an address."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    place = os.open(directory, os.O_PATH)
    listener.bind('/proc/self/fd/%d/socket' % place)
    os.close(place)
    listener.listen(1024)
    return listener
