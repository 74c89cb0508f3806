"""The broker: one thread that listens to launchers, measures jobs, and carries out what the schedule decides."""
import contextlib
import os
import selectors
import signal
import socket
import struct
import time

from ramgate.jobs import Command, out_of_memory
from ramgate.neighbours import CREDENTIALS, Neighbours
from ramgate.processes import Groups
from ramgate.schedule import DONE, ENDED, FREEZE, FROZEN, KILL, REFUSE, RETRY, RUNNING, START, THAW

# seconds between two looks while less than a share of the limit is free; a look may cost that share of the time
TICKS, AMPLE, COST = ((0.3, 0.05), (0.6, 0.2)), 0.25, 0.1
# planning may take a quarter of the time: after a plan, so many times as long as it took pass
PLAN_PAUSE = 3
# seconds without a question after which nothing is left of a build whose `ramgate run` was killed
ORPHANED = 3
# what carries out a decision: a signal to the job's processes, or a word to its launcher (launcher.c)
SIGNALS = {FREEZE: signal.SIGSTOP, THAW: signal.SIGCONT, KILL: signal.SIGKILL}
WORDS = {START: b'g', RETRY: b'r', REFUSE: b'x', DONE: b'd'}


def send(job, number):
    """A signal to all processes of a job."""
    if job.group:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.group, number)


class Connection:
    """A launcher's end: frames in and out (launcher.c says which)."""

    def __init__(self, connected):
        self.socket, self.buffer, self.job = connected, b'', None

    def tell(self, kind, text=''):
        """Send a frame; a launcher that has gone is noticed where it is read."""
        data = os.fsencode(text)
        with contextlib.suppress(OSError):
            self.socket.sendall(kind + struct.pack('=I', len(data)) + data)

    def frames(self):
        """The whole frames that have come; None at the end of the connection."""
        try:
            data = self.socket.recv(1 << 17)
        except OSError:
            data = b''
        if not data:
            return None
        self.buffer += data
        found = []
        while len(self.buffer) >= 5:
            length = struct.unpack('=I', self.buffer[1:5])[0]
            if len(self.buffer) < 5 + length:
                break
            found.append((self.buffer[:1], self.buffer[5:5 + length]))
            self.buffer = self.buffer[5 + length:]
        return found


class Broker:
    """Watchers get (event, job, schedule) of everything that a report or a live line wants to know."""

    def __init__(self, listener, control, limits, schedule, top, watchers=()):
        self.listener, self.control, self.limits, self.schedule = listener, control, limits, schedule
        self.top, self.watchers = top, watchers
        self.selector = selectors.DefaultSelector()
        self.groups, self.neighbours = Groups(), Neighbours()
        self.next_look, self.changed, self.next_plan = 0.0, False, 0.0
        self.orphaned, self.finished = None, False

    # the loop

    def serve(self):
        """Until the build has ended."""
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.selector.register(self.control, selectors.EVENT_READ, self.controlled)
        while not self.finished:
            due = min(self.next_look, self.next_plan if self.changed else self.next_look)
            wait = max(0.0, due - time.monotonic()) if self.schedule.jobs else 1.0
            for key, _ in self.selector.select(wait):
                key.data(key.fileobj)
            now = time.monotonic()
            if self.orphaned:
                self.orphaned = now + ORPHANED if self.schedule.jobs else self.orphaned
                self.finished = self.finished or now > self.orphaned
            if now >= self.next_look:
                self.look(now)
                now = time.monotonic()
            if self.changed and now >= self.next_plan:
                self.carry_out(self.schedule.plan(now))
                self.changed, end = False, time.monotonic()
                self.next_plan = end + PLAN_PAUSE * (end - now)
        for job in self.schedule.in_state(RUNNING, FROZEN):
            send(job, signal.SIGKILL)
        self.notify('finished', None)

    def look(self, now):
        """Measure everything; freeze or kill where it must be."""
        spent = time.process_time()
        alive = {job.group: job for job in self.schedule.in_state(RUNNING, FROZEN) if job.group}
        memory = self.groups.memory(list(alive))
        claim = self.schedule.measured({alive[group]: amount for group, amount in memory.items()}, now)
        self.limits.neighbours = self.neighbours.exchange(int(claim), self.limits.scope)
        self.schedule.constraint = self.limits.tightest(self.schedule.own)
        share = self.schedule.constraint.free / max(1.0, self.schedule.limit)
        tick = next((tick for below, tick in TICKS if share < below and alive), AMPLE)
        self.carry_out(self.schedule.relieve(tick, now, self.limits.pressure(now)))
        self.next_look = now + max(tick, min(AMPLE, (time.process_time() - spent) / COST))
        self.notify('looked', None)

    def carry_out(self, decisions):
        """Do what the schedule has decided."""
        for what, job, text in decisions:
            if what == START:
                job.kills = self.limits.oom_kills()
                self.next_look = min(self.next_look, time.monotonic() + TICKS[0][1])
            if what in SIGNALS:
                send(job, SIGNALS[what])
            else:
                job.connection.tell(WORDS[what], text)
            self.notify(DONE if what == REFUSE else what, job)

    def notify(self, event, job):
        """Something has changed: make plans again, tell watchers."""
        self.changed = True
        for watcher in self.watchers:
            watcher(event, job, self.schedule)

    # what others say

    def accept(self, listener):
        try:
            connected = listener.accept()[0]
            who = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        except OSError:
            return
        if CREDENTIALS.unpack(who)[1] not in (0, os.getuid()):
            connected.close()
            return
        connected.settimeout(10)
        connection = Connection(connected)
        self.selector.register(connected, selectors.EVENT_READ, lambda _: self.heard(connection))

    def controlled(self, control):
        """The program that started the broker says that the build has ended, or has ended itself."""
        word = os.read(control, 1)
        if word == b'k' or not word:
            for job in self.schedule.in_state(RUNNING, FROZEN):
                send(job, signal.SIGTERM)
                send(job, signal.SIGCONT)
                job.killed = True
            self.schedule.refused = self.schedule.refused or 'the build was stopped'
        if word == b'f':
            self.finished = True
        elif not word:
            # whatever the dead build's remains still want to start is refused, until nobody has asked for a while
            self.selector.unregister(control)
            self.orphaned = time.monotonic() + ORPHANED

    def heard(self, connection):
        """A launcher says something, or has gone."""
        frames = connection.frames()
        if frames is None:
            self.selector.unregister(connection.socket)
            connection.socket.close()
            if connection.job and connection.job.state != ENDED:
                self.gone(connection.job)
            return
        for kind, data in frames:
            {b'j': self.asked, b'p': self.started, b'e': self.ended}[kind](connection, data)

    def asked(self, connection, data):
        words = [os.fsdecode(word) for word in data.split(b'\0')]
        connection.job = self.schedule.asked(Command(words[0], words[1:-1], self.top), time.monotonic())
        connection.job.connection = connection
        self.notify('asked', connection.job)

    def started(self, connection, data):
        connection.job.group = int(data)

    def ended(self, connection, data):
        """It has ended, well or not."""
        job, (head, _, output) = connection.job, data.partition(b'\n')
        status, resident, _ = (int(word) for word in head.split())
        kernel_killed = self.limits.oom_kills() > job.kills and b'error' not in output
        starved = out_of_memory(status, output.decode(errors='replace'), kernel_killed)
        self.carry_out(self.schedule.ended(job, status, resident * 1024, starved, kernel_killed, time.monotonic()))

    def gone(self, job):
        """A launcher has gone without a word: its job goes too, its claim comes back."""
        send(job, signal.SIGKILL)
        self.schedule.close(job, -1, time.monotonic())
        self.notify(DONE, job)


def listen(directory):
    """The socket that launchers connect to; its path may be longer than an address."""
    listener, place = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), os.open(directory, os.O_PATH)
    listener.bind('/proc/self/fd/%d/socket' % place)
    os.close(place)
    listener.listen(1024)
    return listener
