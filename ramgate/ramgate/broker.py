"""Listens to compiler wrappers, measures compilations, and carries out what the schedule decides; one thread."""
import contextlib
import os
import selectors
import signal
import socket
import struct
import time

from ramgate.command_lines import Command, ran_out_of_memory
from ramgate.processes import memory_of_groups
from ramgate.schedule import DONE, ENDED, FREEZE, KILL, REFUSE, RETRY, START, THAW

# seconds between two measurements: (while less than this share of the limit is free, seconds)
TICKS = ((0.3, 0.05), (0.6, 0.2))
AMPLE = 0.25
# measuring may take this share of the time
COST = 0.1
# after a plan, so many times as long as it took pass before the next
PLAN_PAUSE = 3
# seconds without a question after which nothing is left of a build whose `ramgate run` was killed
ORPHANED = 3
# what carries out a decision: a signal to the compiler's processes, or a message to its wrapper (compiler_wrapper.c)
SIGNALS = {FREEZE: signal.SIGSTOP, THAW: signal.SIGCONT, KILL: signal.SIGKILL}
MESSAGES = {START: b'g', RETRY: b'r', REFUSE: b'x', DONE: b'd'}
HEADER = struct.Struct('=cI')


def send_signal(compilation, *numbers):
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            if compilation.group:
                os.killpg(compilation.group, number)


def tell(connection, kind, text):
    data = os.fsencode(text)
    # receive() notices a wrapper that has gone
    with contextlib.suppress(OSError):
        connection.sendall(HEADER.pack(kind, len(data)) + data)


def receive(connection):
    """The next message of a compiler wrapper, (kind, data); None if it has gone."""
    with contextlib.suppress(OSError):
        header = connection.recv(HEADER.size, socket.MSG_WAITALL)
        if len(header) == HEADER.size:
            kind, length = HEADER.unpack(header)
            data = connection.recv(length, socket.MSG_WAITALL)
            if len(data) == length:
                return kind, data
    return None


class Broker:
    """
    `control`: a pipe from `ramgate run`, which writes k to kill the build and f when it has ended; `top`: the directory
    where the build began; `watchers` are called with (event, compilation, schedule).
    """

    def __init__(self, listener, control, limits, schedule, top, watchers=()):
        self.listener = listener
        self.control = control
        self.limits = limits
        self.schedule = schedule
        self.top = top
        self.watchers = watchers
        self.selector = selectors.DefaultSelector()
        # {connection: compilation}
        self.asking = {}
        self.next_look = self.next_plan = 0.0
        self.changed = self.finished = False
        self.orphaned = None

    def serve(self):
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.selector.register(self.control, selectors.EVENT_READ, self.controlled)
        # what wrappers have said before the build ended is still to be heard
        while not self.finished or self.selector.select(0):
            due = min(self.next_look, self.next_plan) if self.changed else self.next_look
            wait = max(0.0, due - time.monotonic()) if self.schedule.compilations else 1.0
            for key, _ in self.selector.select(wait):
                key.data(key.fileobj)
            now = time.monotonic()
            if self.orphaned and self.schedule.compilations:
                self.orphaned = now + ORPHANED
            if self.orphaned and now > self.orphaned:
                break
            if now >= self.next_look:
                self.look()
            if self.changed and time.monotonic() >= self.next_plan:
                self.plan()
        for compilation in self.schedule.alive():
            send_signal(compilation, signal.SIGKILL)
        self.notify('finished', None)

    def look(self):
        now = time.monotonic()
        spent = time.process_time()
        groups = {compilation.group: compilation for compilation in self.schedule.alive() if compilation.group}
        memory = memory_of_groups(groups)
        self.schedule.measured({groups[group]: amount for group, amount in memory.items()}, now)
        constraint = self.limits.tightest(self.schedule.own)
        self.schedule.constraint = constraint
        free = constraint.free / constraint.limit
        tick = next((tick for below, tick in TICKS if groups and free < below), AMPLE)
        self.carry_out(self.schedule.relieve(tick, now))
        cost = (time.process_time() - spent) / COST
        self.next_look = now + max(tick, min(AMPLE, cost))
        self.notify('looked', None)

    def plan(self):
        begin = time.monotonic()
        self.carry_out(self.schedule.plan(begin))
        self.changed = False
        end = time.monotonic()
        self.next_plan = end + PLAN_PAUSE * (end - begin)

    def carry_out(self, decisions):
        for what, compilation, text in decisions:
            if what == START:
                compilation.kernel_kills = self.limits.oom_kills()
                self.next_look = min(self.next_look, time.monotonic() + TICKS[0][1])
            if what in SIGNALS:
                send_signal(compilation, SIGNALS[what])
            else:
                tell(compilation.connection, MESSAGES[what], text)
            self.notify(DONE if what == REFUSE else what, compilation)

    def notify(self, event, compilation):
        self.changed = True
        for watcher in self.watchers:
            watcher(event, compilation, self.schedule)

    def accept(self, listener):
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            connection.setblocking(True)
            self.selector.register(connection, selectors.EVENT_READ, self.heard)

    def controlled(self, control):
        word = os.read(control, 1)
        if word == b'f':
            self.finished = True
            self.selector.unregister(control)
            return
        for compilation in self.schedule.alive():
            send_signal(compilation, signal.SIGTERM, signal.SIGCONT)
            compilation.killed = True
        self.schedule.refused = self.schedule.refused or 'the build was stopped'
        if not word:
            # `ramgate run` was killed: refuse what its remains still want to start
            self.selector.unregister(control)
            self.orphaned = time.monotonic() + ORPHANED

    def heard(self, connection):
        kind, data = receive(connection) or (None, b'')
        if kind == b'c':
            self.asked(connection, data)
        elif kind == b'p':
            self.asking[connection].group = int(data)
        elif kind == b'e':
            self.ended(self.asking[connection], data)
        else:
            self.selector.unregister(connection)
            connection.close()
            self.disconnected(self.asking.pop(connection, None))

    def asked(self, connection, data):
        directory, *arguments = [os.fsdecode(word) for word in data.split(b'\0')[:-1]]
        compilation = self.schedule.asked(Command(directory, arguments, self.top), time.monotonic())
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

    def disconnected(self, compilation):
        """A wrapper has gone before its compiler ended: kill the compiler, release its memory."""
        if compilation and compilation.state != ENDED:
            send_signal(compilation, signal.SIGKILL)
            self.schedule.close(compilation, -1, time.monotonic())
            self.notify(DONE, compilation)


def listen(directory):
    """The socket to which wrappers connect; its path may be longer than an address."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    place = os.open(directory, os.O_PATH)
    listener.bind('/proc/self/fd/%d/socket' % place)
    os.close(place)
    listener.listen(1024)
    return listener
