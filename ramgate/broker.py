"""
The broker: one thread that listens to launchers, measures jobs, and says who starts, freezes, goes on or starts again.

What keeps a build going: the oldest job is never frozen nor killed while another could be, so something always
finishes.
"""
import errno
import os
import selectors
import signal
import socket
import struct
import time

from ramgate import curves
from ramgate.estimates import MB, Estimate, Knowledge
from ramgate.jobs import Command, out_of_memory
from ramgate.limits import human
from ramgate.neighbours import Neighbours
from ramgate.processes import Groups

# seconds between two looks at memory: when it is tight and when it is ample; a look may cost this share of the time
TIGHT, AMPLE, COST = 0.05, 0.25, 0.1
# shares of the limit: what forecasts leave free, what must be free lest jobs are frozen, and lest one is killed
MARGIN, FREEZE, KILL = 0.02, 0.015, 0.005
# seconds without a question after which nothing is left of a build whose `ramgate run` was killed
ORPHANED = 3
# a running job may take this much longer than foreseen
HOLD = 1.1
# a job that was killed this often is not started again
ATTEMPTS = 10
# a job that ran out of memory claims this much more than it was seen to need
MORE = 1.4
# of this share of the limit a job that ran alone must have taken for the limit to be too small
ALONE = 0.6
# of a process's largest resident memory at least this much is its own
UNSHARED = 0.8
WAITING, RUNNING, FROZEN, ENDED = 'waiting', 'running', 'frozen', 'ended'


class Job:
    """One compile or link, from its first question to its end."""

    def __init__(self, number, command, connection):
        self.number, self.command, self.connection = number, command, connection
        self.name, self.language = command.name, command.language
        self.state, self.asked = WAITING, time.monotonic()
        self.waited, self.retries, self.claim, self.seconds = 0.0, [], 0.0, 0.0
        self.killed = False
        self.reset()

    def reset(self):
        """Before each attempt."""
        self.group, self.started, self.frozen_for, self.frozen_at = None, None, 0.0, None
        self.memory, self.growth, self.measured = 0.0, 0.0, None
        self.recorder, self.shown, self.alone, self.kills = curves.Recorder(), 0, False, 0
        self.estimate, self.future_cache = None, None

    def age(self, now):
        """Seconds it has been running, not counting when it was frozen."""
        return (self.frozen_at or now) - self.started - self.frozen_for

    def measure(self, memory, now):
        """It occupies so much now."""
        if self.measured is not None and now > self.measured:
            self.growth = max(0.0, (memory - self.memory) / (now - self.measured))
        self.memory, self.measured = memory, now
        self.recorder.add(self.age(now), memory)

    def send(self, number):
        """A signal to all its processes."""
        if self.group:
            try:
                os.killpg(self.group, number)
            except OSError as error:
                if error.errno != errno.ESRCH:
                    raise


class Connection:
    """A launcher's end: frames in and out (launcher.c says which)."""

    def __init__(self, connected):
        self.socket, self.buffer, self.job = connected, b'', None

    def tell(self, kind, text=''):
        """Send a frame; a launcher that has gone is noticed where it is read."""
        data = os.fsencode(text)
        try:
            self.socket.sendall(kind + struct.pack('=I', len(data)) + data)
        except OSError:
            pass

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
    """See above. `events` gets (time, name, job) of everything that a report or a live line wants to know."""

    def __init__(self, listener, control, limits, knowledge, jobs, top, watchers=()):
        self.listener, self.control, self.limits, self.knowledge = listener, control, limits, knowledge
        self.cores, self.top, self.watchers = jobs, top, watchers
        self.selector = selectors.DefaultSelector()
        self.groups, self.neighbours = Groups(), Neighbours()
        self.jobs, self.numbers = [], 0
        # ended so far, and how many jobs an earlier build had
        self.done, self.foreseen = 0, len(knowledge.files)
        self.constraint = limits.tightest(0)
        self.own = 0
        self.tick, self.next_look = TIGHT, 0.0
        self.changed, self.next_plan = False, 0.0
        self.steps_cache = (None, {})
        self.killing = {}
        self.refused = self.orphaned = None
        self.finished = False

    # what is happening

    def in_state(self, *states):
        """The jobs in those states, oldest first."""
        return sorted((job for job in self.jobs if job.state in states), key=lambda job: job.started or job.asked)

    @property
    def limit(self):
        """The tightest limit in bytes."""
        return self.constraint.limit

    # the loop

    def serve(self):
        """Until the build has ended."""
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.selector.register(self.control, selectors.EVENT_READ, self.controlled)
        while not self.finished:
            due = min(self.next_look, self.next_plan if self.changed else self.next_look)
            wait = max(0.0, due - time.monotonic()) if self.jobs else 1.0
            for key, _ in self.selector.select(wait):
                key.data(key.fileobj)
            now = time.monotonic()
            if self.orphaned:
                self.orphaned = now + ORPHANED if self.jobs else self.orphaned
                self.finished = self.finished or now > self.orphaned
            if now >= self.next_look:
                self.look(now)
                now = time.monotonic()
            # planning takes time itself: much at once rather than after every word
            if self.changed and now >= self.next_plan:
                self.plan(now)
                self.changed, end = False, time.monotonic()
                self.next_plan = end + 3 * (end - now)
        for job in self.in_state(RUNNING, FROZEN):
            job.send(signal.SIGKILL)

    def accept(self, listener):
        """A launcher connects."""
        try:
            connected = listener.accept()[0]
        except OSError:
            return
        connected.setblocking(True)
        connected.settimeout(10)
        connection = Connection(connected)
        self.selector.register(connected, selectors.EVENT_READ, lambda _: self.heard(connection))

    def controlled(self, control):
        """The program that started the broker says that the build has ended, or has ended itself."""
        word = os.read(control, 1)
        if word == b'k' or not word:
            for job in self.in_state(RUNNING, FROZEN):
                job.send(signal.SIGTERM)
                job.send(signal.SIGCONT)
                job.killed = True
            self.refused = self.refused or 'ramgate: stopped'
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
            if connection.job:
                self.gone(connection.job)
            return
        for kind, data in frames:
            {b'j': self.asked, b'p': self.started, b'e': self.ended}[kind](connection, data)

    def asked(self, connection, data):
        """A job wants to start."""
        words = [os.fsdecode(word) for word in data.split(b'\0')]
        self.numbers += 1
        connection.job = Job(self.numbers, Command(words[0], words[1:-1], self.top), connection)
        self.jobs.append(connection.job)
        self.notify('asked', connection.job)

    def started(self, connection, data):
        """It runs."""
        connection.job.group = int(data)

    def ended(self, connection, data):
        """It has ended, well or not."""
        job, now = connection.job, time.monotonic()
        head, _, output = data.partition(b'\n')
        status, resident, _ = (int(word) for word in head.split())
        # a peak between two looks is in the kernel's own figure, which counts pages shared with others too
        if resident * 1024 * UNSHARED > job.recorder.peak:
            job.recorder.add(job.age(now), resident * 1024 * UNSHARED)
        self.killing.pop(job, None)
        kernel_killed = self.limits.oom_kills() > job.kills and b'error' not in output
        if job.killed or out_of_memory(status, output.decode(errors='replace'), kernel_killed):
            self.again(job, kernel_killed, now)
            return
        self.close(job, status, now)
        connection.tell(b'd')

    def close(self, job, status, now):
        """A job has ended for good."""
        if job.started:
            job.seconds = job.age(now)
            if status == 0:
                self.knowledge.finished(job.name, job.language, job.seconds, job.recorder, job.shown)
        job.state, job.status, job.ended = ENDED, status, now
        job.memory = 0
        self.jobs.remove(job)
        job.connection.job = None
        self.done += 1
        self.notify('ended', job)

    def again(self, job, kernel_killed, now):
        """A job ran out of memory, or was killed to make room: it starts again with a larger claim."""
        peak = job.recorder.peak
        reason = 'made room' if job.killed else 'out of memory'
        job.retries.append((now - job.age(now), now, peak / MB, reason))
        too_big = job.alone and (kernel_killed or job.killed or peak > ALONE * self.limit) and peak > 0.3 * self.limit
        if self.refused or too_big or len(job.retries) > ATTEMPTS:
            line = self.refused or (self.does_not_fit(job) if too_big else
                                    'ramgate: %s was killed %d times: by whom?' % (job.name, len(job.retries)))
            if too_big:
                self.refused = line
            self.close(job, 137, now)
            job.connection.tell(b'x', line)
            return
        if not job.killed or peak / MB > job.estimate.peak:
            job.claim = max(job.claim, MORE * peak / MB, min(MORE * job.estimate.peak, 0.9 * self.limit / MB)
                            if kernel_killed else 0.0)
        self.notify('retried', job)
        connection = job.connection
        job.state, job.killed, job.asked = WAITING, False, now
        job.reset()
        connection.tell(b'r', job.command.partial)

    def does_not_fit(self, job):
        """The one line for a job that does not fit even alone."""
        return ('ramgate: %s does not fit: alone it needs more than %s, and the limit is %s (%s). Give the build more '
                'memory (a larger job or another node), or compile this file with less optimisation or debugging.'
                % (job.name, human(job.recorder.peak), human(self.limit), self.constraint.name))

    def gone(self, job):
        """A launcher has gone without a word: its job goes too, its claim comes back."""
        job.send(signal.SIGKILL)
        self.killing.pop(job, None)
        self.close(job, -1, time.monotonic())

    def notify(self, event, job):
        """Something has changed: plans are made anew, watchers told."""
        self.changed = True
        for watcher in self.watchers:
            watcher(event, job, self)

    # measuring, and what must be done at once

    def look(self, now):
        """Measure everything; freeze or kill where it must be."""
        spent = time.process_time()
        alive = self.in_state(RUNNING, FROZEN)
        memory = self.groups.memory([job.group for job in alive if job.group])
        for job in alive:
            if job.group:
                job.measure(memory[job.group], now)
                job.shown = self.knowledge.lived(job.name, job.language, job.recorder, job.shown)
        self.own = sum(job.memory for job in alive)
        claim = sum(max(0.0, max(job.estimate.peak, job.claim) * MB - job.memory) for job in alive)
        self.limits.neighbours = self.neighbours.exchange(int(claim), self.limits.scope)
        self.constraint = self.limits.tightest(self.own)
        self.relieve(alive, now)
        cost = time.process_time() - spent
        share = self.constraint.free / max(1.0, self.limit)
        self.tick = max(TIGHT if share < 0.3 else TIGHT * 4 if share < 0.6 else AMPLE, min(AMPLE, cost / COST))
        if not alive:
            self.tick = AMPLE
        self.next_look = now + self.tick
        self.notify('looked', None)

    def relieve(self, alive, now):
        """Freeze the newest while memory is about to run out; kill where that is not enough."""
        free, limit = self.constraint.free, self.limit
        for job, when in list(self.killing.items()):
            if now - when > 5:
                del self.killing[job]
        dying = sum(job.memory for job in self.killing)
        working = [job for job in alive if job.state == RUNNING and job not in self.killing]
        growth = {job: job.growth * (self.tick + TIGHT) for job in working}
        while len(working) > 1 and free + dying - sum(growth[job] for job in working) < FREEZE * limit:
            job = working.pop()
            job.send(signal.SIGSTOP)
            job.state, job.frozen_at = FROZEN, now
            self.notify('frozen', job)
        frozen = [job for job in alive if job.state == FROZEN and job not in self.killing]
        needed = sum(growth[job] for job in working)
        if free + dying - needed < KILL * limit:
            oldest = alive[0] if alive else None
            victim = next((job for job in reversed(alive) if job is not oldest and job not in self.killing
                           and job.memory > 0.001 * limit), None)
            if victim is None and oldest and len(alive) == 1 and free < 0 and oldest.memory > ALONE * limit:
                victim = oldest
            if victim:
                self.kill(victim, now)
        elif len(frozen) > max(1, len(working)):
            # memory that lies idle serves nobody: the newest has least to lose
            self.kill(frozen[-1], now)
        elif frozen and not working:
            self.thaw(frozen[0], now)

    def kill(self, job, now):
        """Kill a job; it will start again."""
        job.killed = True
        self.killing[job] = now
        job.send(signal.SIGKILL)
        if job.state == FROZEN:
            job.frozen_for += now - job.frozen_at
            job.frozen_at = None
        job.state = RUNNING
        self.notify('killed', job)

    def thaw(self, job, now):
        """A frozen job goes on."""
        job.frozen_for += now - job.frozen_at
        job.state, job.frozen_at, job.growth = RUNNING, None, 0.0
        job.measured = None
        job.send(signal.SIGCONT)
        self.notify('thawed', job)

    # planning

    def expected(self, job):
        """What a job that waits is expected to need, its claim from earlier attempts counted."""
        estimate = self.knowledge.estimate(job.name, job.language)
        if job.claim > estimate.peak:
            factor = job.claim / estimate.peak
            estimate = Estimate(estimate.seconds, [memory * factor for memory in estimate.curve], estimate.doubt, False)
        return estimate

    def future(self, job, now):
        """(curve, seconds, age) for the rest of a running job's life: its estimate, corrected by what was measured."""
        estimate, age, slow = job.estimate, job.age(now), self.slow(job.estimate)
        memory, peak, curve = job.memory / MB, job.recorder.peak / MB, estimate.curve
        at = min(curves.span(age / slow), len(curve) - 1)
        seconds = estimate.seconds * slow
        if estimate.known and peak < 0.85 * max(curve[:at + 1]):
            # it has not come as far as its age says
            while at and max(curve[:at + 1]) > peak * 1.1:
                at -= 1
            age = curves.age_of(at) * slow
        here = max(curve[at:at + 2])
        if memory > here * 1.05:
            factor = memory / max(here, 1.0)
            factor = min(factor, 1.0 + memory * 0.5 / max(1.0, max(curve[at:])))
            curve = [max(value * factor, memory) if number <= at + 1 else value * factor
                     for number, value in enumerate(curve)]
        if age >= seconds * 0.98:
            return [memory * 1.02], max(0.1, age * 0.15), 0.0, 1.0
        return curve, seconds * HOLD, age, slow

    def slow(self, estimate):
        """The factor on an estimate's time."""
        return round(self.knowledge.slowness, 1) if estimate.known else 1.0

    def plan(self, now):
        """Let go on and start whoever fits."""
        waiting = self.in_state(WAITING)
        if self.refused:
            for job in waiting:
                self.close(job, 1, now)
                job.connection.tell(b'x', self.refused if self.numbers == 0 else 'ramgate: not started')
            return
        alive = self.in_state(RUNNING, FROZEN)
        frozen = [job for job in alive if job.state == FROZEN]
        working = len(alive) - len(frozen)
        if not frozen and (not waiting or working >= self.cores):
            return
        estimates = {job: self.expected(job) for job in waiting}
        limit = self.limit / MB
        room = self.constraint.free / MB + self.own / MB - MARGIN * limit
        doubt = sum(self.doubt_of(job) ** 2 for job in alive)
        longest = max((estimate.seconds for estimate in estimates.values()), default=0.0)
        forecast = self.forecast(alive, now, longest)

        for job in frozen:
            curve, seconds, age, slow = self.future(job, now)
            steps = forecast.run(curve, seconds, age / slow, slowness=slow)
            still = job.memory / MB
            forecast.add([max(0.0, step - still) for step in steps])
            if not (working == 0 or forecast.fits([1e-9] * curves.STEPS, room - doubt ** 0.5)) or working >= self.cores:
                return
            self.thaw(job, now)
            working += 1
        self.admit(sorted(waiting, key=lambda job: -estimates[job].seconds), estimates, forecast, room, doubt, alive,
                   now)

    @staticmethod
    def doubt_of(job):
        """How much more than expected a running job may still take: less the further it has come."""
        return max(0.0, job.estimate.doubt - 0.5 * job.memory / MB * (not job.estimate.known))

    def forecast(self, alive, now, longest):
        """The memory that running jobs will occupy."""
        futures = [(job, self.future(job, now)) for job in alive]
        remaining = max((seconds - age for _, (_, seconds, age, _) in futures), default=0.0)
        remaining = max(remaining, longest)
        # few different horizons, so that loads of waiting jobs can be kept
        horizon = 1.25 ** int(1 + 4.5 * curves.math.log(max(1.0, remaining)))
        forecast = curves.Forecast(horizon)
        for job, (curve, seconds, age, slow) in futures:
            if job.state == FROZEN:
                forecast.add([job.memory / MB] * curves.STEPS)
            else:
                steps = forecast.run(curve, seconds, age / slow, slowness=slow)
                steps[0] = max(steps[0], job.memory / MB)
                forecast.add(steps)
        if self.steps_cache[0] != horizon:
            self.steps_cache = (horizon, {})
        return forecast

    def admit(self, waiting, estimates, forecast, room, doubt, alive, now):
        """Start jobs, the longest first; smaller ones beside a long one that waits, where they do not delay it."""
        working = sum(1 for job in alive if job.state == RUNNING)
        reserved, cache = None, self.steps_cache[1]
        refused = set()
        for job in waiting:
            if working >= self.cores:
                return
            estimate = estimates[job]
            shape = (len(estimate.curve), round(estimate.peak, 1), round(estimate.seconds, 1))
            if shape in refused:
                continue
            slow = self.slow(estimate)
            key = (job.name if estimate.known else shape, shape, round(slow, 1))
            if key not in cache:
                cache[key] = forecast.run(estimate.curve, estimate.seconds * slow, slowness=slow)
            steps = cache[key]
            free = room - (doubt + estimate.doubt ** 2) ** 0.5
            if not alive or forecast.fits(steps, free):
                self.start(job, estimate, alive, now)
                forecast.add(steps)
                doubt += estimate.doubt ** 2
                working += 1
                continue
            refused.add(shape)
            if reserved is None:
                reserved = forecast.earliest(estimate.curve, estimate.seconds * slow, free, slow) or ()
                forecast.add(reserved or [0.0] * curves.STEPS)

    def start(self, job, estimate, alive, now):
        """Let a job start."""
        for other in alive:
            other.alone = False
        job.state, job.started, job.estimate, job.alone = RUNNING, now, estimate, not alive
        job.waited += now - job.asked
        job.kills = self.limits.oom_kills()
        alive.append(job)
        job.connection.tell(b'g')
        self.next_look = min(self.next_look, now + self.tick)
        self.notify('started', job)


def listen(path):
    """The socket that launchers connect to."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(1024)
    return listener


__all__ = ['Broker', 'Knowledge', 'listen']
