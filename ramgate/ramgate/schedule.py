"""Decides which compilation starts, is frozen, continues, is killed or starts again.

Pure decision logic: callers pass measurements and the time, and execute the decisions, [(what, compilation, text)]. The
oldest compilation is never frozen nor killed while another could be, so something always finishes.
"""
import math

from ramgate import curves
from ramgate.estimates import MB
from ramgate.limits import human

# states
WAITING = 'waiting'
RUNNING = 'running'
FROZEN = 'frozen'
ENDED = 'ended'
# decisions
START = 'started'
FREEZE = 'frozen'
THAW = 'thawed'
KILL = 'killed'
RETRY = 'retried'
REFUSE = 'refused'
DONE = 'ended'
# how a compiler came
LAUNCHER = 'by launcher'
SYMLINK = 'by link'
WATCHED = 'only watched'

# free memory (share of the limit) that forecasts leave, below which compilations are frozen, and one is killed
MARGIN = 0.02
FREEZE_BELOW = 0.015
KILL_BELOW = 0.005
# seconds by which a measurement may be late: memory grows until then
LATE = 0.05
# seconds after which memory of a killed process is no longer expected to become free
DYING = 5
# killing a compilation below this share of the limit frees nothing
WORTH = 0.001
# a compilation that was killed more often, and not by ramgate, is not started again
ATTEMPTS = 10
# a compilation that ran out of memory gets so many times what it was seen to need (what was expected, if the kernel
# killed it), but not all of the limit
MORE = 1.4
MOST = 0.9
# a compilation that ran alone and took this share of the limit does not fit; less if it was killed, as its peak was
# then not measured
ALONE = 0.6
ALONE_KILLED = 0.3
# of a process's largest resident memory at least this share is its own
UNSHARED = 0.8
# a compilation so much above its curve is larger than expected: the curve is raised, by at most this share of what it
# has, as a peak that came early is not larger later
ABOVE = 1.05
RAISE = 0.5
# a running compilation may take so much longer than expected
LONGER = 1.1
# after this share of its time a compilation has no curve left: it stays slightly above its memory, for this share of
# its age
OVERDUE = 0.98
STAY = 1.02
REMAINS = 0.15
# of the memory that a compilation has, this share counts against its uncertainty
SEEN = 0.5
# one that waits while so many others for each core started is the next to start, and the others wait for it
PATIENCE = 16
# horizons of forecasts are powers of this, so that their ranges() serve for many plans
HORIZON_STEP = 1.25


class Compilation:
    """One compiler or linker, from its first question to its end."""

    def __init__(self, command, now, way=LAUNCHER):
        self.command = command
        self.way = way
        # of one that is only watched
        self.pid = None
        self.name = command.name
        self.language = command.language
        self.state = WAITING
        self.asked = now
        self.waited = self.seconds = 0.0
        # MB that it gets at least, after it ran out of memory
        self.reserved = 0.0
        # (start, end, peak in MB, why) of earlier attempts
        self.retries = []
        self.failures = 0
        self.reset()

    def reset(self):
        self.group = self.estimate = None
        self.started = self.measured = self.frozen_at = None
        self.memory = self.growth = self.frozen_for = 0.0
        self.recorder = curves.Recorder()
        self.alone = self.killed = False
        # spans that were learnt from; kills by the kernel when it started
        self.learnt = self.kernel_kills = 0

    def age(self, now):
        """Return the seconds for which it has been running, without those for which it was frozen."""
        return (self.frozen_at or now) - self.started - self.frozen_for

    @property
    def repeatable(self):
        """True unless a compiler is only watched: it is its build tool's child, and killing it would fail the build."""
        return self.way != WATCHED

    def measure(self, memory, now):
        if self.measured is not None and now > self.measured:
            self.growth = max(0.0, (memory - self.memory) / (now - self.measured))
        self.memory = memory
        self.measured = now
        self.recorder.add(self.age(now), memory)

    def thaw(self, now):
        self.frozen_for += now - self.frozen_at
        self.frozen_at = self.measured = None
        self.growth = 0.0
        self.state = RUNNING


class Schedule:
    """All compilations of a build. Callers update `constraint`; `own`: bytes of all compilations when last measured."""

    def __init__(self, knowledge, cores, constraint):
        self.knowledge = knowledge
        self.cores = cores
        self.constraint = constraint
        self.compilations = []
        self.own = self.done = self.begun = 0
        # {way: compilers}; how many the kernel killed that could not be repeated
        self.ways = dict.fromkeys((SYMLINK, LAUNCHER, WATCHED), 0)
        self.lost = 0
        # {compilation that was killed: when}
        self.killing = {}
        # why nothing is started any more
        self.refused = None
        self.decided = []

    def in_state(self, *states):
        found = [compilation for compilation in self.compilations if compilation.state in states]
        # oldest first
        return sorted(found, key=lambda compilation: compilation.started or compilation.asked)

    def alive(self):
        return self.in_state(RUNNING, FROZEN)

    @property
    def limit(self):
        return self.constraint.limit

    def decide(self, what, compilation, text=''):
        self.decided.append((what, compilation, text))

    def decisions(self):
        decided = self.decided
        self.decided = []
        return decided

    def asked(self, command, now, way=LAUNCHER):
        compilation = Compilation(command, now, way)
        # how many have started before it
        compilation.begun = self.begun
        self.compilations.append(compilation)
        self.ways[way] += 1
        return compilation

    def measured(self, memory, now):
        for compilation, amount in memory.items():
            compilation.measure(amount, now)
            self.knowledge.learn_spans(compilation)
        self.own = sum(compilation.memory for compilation in self.alive())

    def ended(self, compilation, status, resident, out_of_memory, kernel_killed, now):
        """End an attempt. `resident`: bytes of its largest process, as the kernel counts them."""
        # a peak between two measurements is only in the kernel's figure, which includes shared pages
        resident *= UNSHARED
        if resident > compilation.recorder.peak:
            compilation.recorder.add(compilation.age(now), resident)
        self.killing.pop(compilation, None)
        if compilation.killed or out_of_memory:
            self.retry(compilation, kernel_killed, now)
        else:
            self.close(compilation, status, now)
            self.decide(DONE, compilation)
        return self.decisions()

    def close(self, compilation, status, now):
        self.killing.pop(compilation, None)
        if compilation.started:
            compilation.seconds = compilation.age(now)
            if status == 0:
                self.knowledge.learn_end(compilation)
        compilation.state = ENDED
        compilation.status = status
        compilation.ended = now
        self.compilations.remove(compilation)
        self.done += 1

    def retry(self, compilation, kernel_killed, now):
        """Let a compilation that lacked memory, or was killed to make room, start again, with more if it lacked it."""
        peak = compilation.recorder.peak
        why = 'made room' if compilation.killed else 'out of memory'
        compilation.retries.append((now - compilation.age(now), now, peak / MB, why))
        compilation.failures += not compilation.killed
        too_large = ALONE_KILLED if kernel_killed or compilation.killed else ALONE
        if self.refused:
            self.refuse(compilation, 137, self.not_started(compilation), now)
        elif compilation.alone and peak > too_large * self.limit:
            self.refused = '%s needs more memory than the limit' % compilation.name
            self.refuse(compilation, 137, self.does_not_fit(compilation), now)
        elif compilation.failures > ATTEMPTS:
            self.refuse(compilation, 137, 'ramgate: giving up on %s: killed %d times by something other than ramgate'
                        % (compilation.name, compilation.failures), now)
        else:
            self.reserve(compilation, peak / MB, kernel_killed)
            compilation.state = WAITING
            compilation.asked = now
            compilation.begun = self.begun
            compilation.reset()
            self.decide(RETRY, compilation, compilation.command.partial)

    def reserve(self, compilation, peak, kernel_killed):
        """Raise what a compilation gets at its next attempt, unless it only made room for others."""
        expected = compilation.estimate.peak
        if compilation.killed and peak <= expected:
            return
        amounts = [compilation.reserved, MORE * peak]
        if kernel_killed:
            amounts.append(min(MORE * expected, MOST * self.limit / MB))
        compilation.reserved = max(amounts)

    def refuse(self, compilation, status, line, now):
        self.close(compilation, status, now)
        self.decide(REFUSE, compilation, line)

    def does_not_fit(self, compilation):
        return ('ramgate: %s does not fit: alone it needs more than %s, and the limit is %s (%s), %s of it for '
                'compilers. Give the build more memory (a larger job or another node), or compile this file with less '
                'optimisation or debugging.'
                % (compilation.name, human(compilation.recorder.peak), human(self.limit), self.constraint.name,
                   human(self.constraint.free + self.own)))

    def not_started(self, compilation):
        return 'ramgate: %s is not started: %s' % (compilation.name, self.refused)

    def relieve(self, tick, now):
        """Freeze the newest if memory runs out within `tick` seconds; kill if that is not enough."""
        self.killing = {compilation: when for compilation, when in self.killing.items() if now - when <= DYING}
        alive = self.alive()
        free = self.constraint.free + sum(compilation.memory for compilation in self.killing)
        working = [compilation for compilation in alive
                   if compilation.state == RUNNING and compilation not in self.killing]

        def left():
            return free - sum(compilation.growth for compilation in working) * (tick + LATE)

        while len(working) > 1 and left() < FREEZE_BELOW * self.limit + self.owed(alive):
            newest = working.pop()
            newest.state = FROZEN
            newest.frozen_at = now
            self.decide(FREEZE, newest)
        frozen = self.in_state(FROZEN)
        if left() < KILL_BELOW * self.limit:
            victim = self.victim(alive)
            if victim:
                self.kill(victim, now)
        elif len(frozen) > max(1, len(working)) and frozen[-1].repeatable:
            # idle memory serves nobody: the newest has least to lose
            self.kill(frozen[-1], now)
        elif frozen and not working:
            self.thaw(frozen[0], now)
        return self.decisions()

    @staticmethod
    def owed(alive):
        """Bytes that those leave free which cannot be killed: what the oldest still needs to come to its end."""
        if all(compilation.repeatable for compilation in alive[1:]):
            return 0
        estimate = alive[0].estimate
        return max(0, (estimate.peak + estimate.uncertainty) * MB - alive[0].memory)

    def victim(self, alive):
        """Choose the newest that frees memory; the oldest only if it is alone and the limit is exceeded."""
        for compilation in reversed(alive[1:]):
            large = compilation.memory > WORTH * self.limit
            if compilation.repeatable and compilation not in self.killing and large:
                return compilation
        alone = len(alive) == 1 and alive[0].repeatable
        if alone and self.constraint.free < 0 and alive[0].memory > ALONE * self.limit:
            return alive[0]
        return None

    def kill(self, compilation, now):
        compilation.killed = True
        self.killing[compilation] = now
        if compilation.state == FROZEN:
            compilation.thaw(now)
        self.decide(KILL, compilation)

    def thaw(self, compilation, now):
        compilation.thaw(now)
        self.decide(THAW, compilation)

    def expected(self, compilation):
        """Return the estimate of a waiting compilation, with what it is known to need since earlier attempts."""
        estimate = self.knowledge.estimate(compilation.name, compilation.language)
        if compilation.reserved <= estimate.peak:
            return estimate
        factor = compilation.reserved / estimate.peak
        return estimate._replace(seconds=estimate.seconds * estimate.slowness,
                                 curve=[memory * factor for memory in estimate.curve], earlier=None)

    def future(self, compilation, now):
        """Return (curve, seconds, age, slowness) of a running compilation: its estimate, corrected by its memory."""
        # the curve's spans are on the clock of the build in which they were measured, age and seconds on ours
        estimate = compilation.estimate
        curve = estimate.curve
        slow = estimate.slowness
        age = compilation.age(now)
        seconds = estimate.seconds * slow
        at = min(curves.span(age / slow), len(curve) - 1)
        if age >= seconds * OVERDUE:
            return [compilation.memory / MB * STAY], max(0.1, age * REMAINS), 0.0, 1.0
        return self.raised(curve, at, compilation.memory / MB), seconds * LONGER, age, slow

    @staticmethod
    def raised(curve, at, memory):
        """Return the curve of a compilation in span `at`, raised if it has more memory than that."""
        here = max(curve[at:at + 2])
        if memory <= here * ABOVE:
            return curve
        factor = min(memory / max(here, 1.0), 1.0 + memory * RAISE / max(1.0, max(curve[at:])))
        found = [value * factor for value in curve]
        found[:at + 2] = [max(value, memory) for value in found[:at + 2]]
        return found

    @staticmethod
    def uncertainty(compilation, now):
        """MB that a running compilation may still take beyond its forecast: less the further it has come."""
        estimate = compilation.estimate
        if not estimate.earlier:
            return max(0.0, estimate.uncertainty - SEEN * compilation.memory / MB)
        at = min(curves.span(compilation.age(now) / estimate.slowness), len(estimate.curve) - 1)
        return estimate.uncertainty * max(estimate.curve[at:]) / estimate.peak

    def plan(self, now):
        """Thaw frozen compilations and start waiting ones, as they fit."""
        if self.refused:
            for compilation in filter(lambda waiting: waiting.repeatable, self.in_state(WAITING)):
                self.refuse(compilation, 1, self.not_started(compilation), now)
        waiting = self.in_state(WAITING)
        alive = self.alive()
        frozen = self.in_state(FROZEN)
        working = len(alive) - len(frozen)
        if not frozen and (not waiting or working >= self.cores):
            return self.decisions()
        estimates = {compilation: self.expected(compilation) for compilation in waiting}
        room = (self.constraint.free + self.own - MARGIN * self.limit) / MB
        squares = sum(self.uncertainty(compilation, now) ** 2 for compilation in alive)
        longest = max((estimate.seconds for estimate in estimates.values()), default=0.0)
        forecast = self.forecast(alive, longest, now)
        for compilation in frozen:
            steps = forecast.steps(*self.future(compilation, now))
            has = compilation.memory / MB
            forecast.add([max(0.0, step - has) for step in steps])
            full = working >= self.cores or max(forecast.load) > room - squares ** 0.5
            if working and full:
                return self.decisions()
            self.thaw(compilation, now)
            working += 1
        self.admit(estimates, forecast, room, squares, now)
        return self.decisions()

    def overtaken(self, compilation):
        return self.begun - compilation.begun > PATIENCE * self.cores

    def forecast(self, alive, longest, now):
        """Return the memory of those that are alive, until they and one of `longest` seconds have ended."""
        futures = {compilation: self.future(compilation, now) for compilation in alive}
        remaining = [seconds - age for _, seconds, age, _ in futures.values()]
        power = math.log(max([1.0, longest] + remaining), HORIZON_STEP)
        forecast = curves.Forecast(HORIZON_STEP ** math.ceil(power))
        for compilation, future in futures.items():
            has = compilation.memory / MB
            if compilation.state == FROZEN:
                forecast.add([has] * curves.STEPS)
            else:
                steps = forecast.steps(*future)
                steps[0] = max(steps[0], has)
                forecast.add(steps)
        return forecast

    def admit(self, estimates, forecast, room, squares, now):
        """Start what was overtaken too often, then the longest, and shorter ones where one of these does not fit."""
        alive = self.alive()
        working = len(self.in_state(RUNNING))
        refused = set()
        order = sorted(estimates, key=lambda compilation:
                       -math.inf if self.overtaken(compilation) else -estimates[compilation].seconds)
        for compilation in order:
            estimate = estimates[compilation]
            if working >= self.cores:
                return
            shape = (len(estimate.curve), round(estimate.peak, 1), round(estimate.seconds, 1))
            if shape in refused:
                continue
            slow = estimate.slowness
            steps = forecast.steps(estimate.curve, estimate.seconds * slow, slowness=slow)
            free = room - (squares + estimate.uncertainty ** 2) ** 0.5
            if not alive or forecast.fits(steps, free):
                self.start(compilation, estimate, alive, now)
                alive.append(compilation)
                forecast.add(steps)
                squares += estimate.uncertainty ** 2
                working += 1
            elif self.overtaken(compilation):
                return
            else:
                refused.add(shape)

    def release(self, now):
        """Nothing works: let one go on, for which what works may wait (a pipe between two compilers)."""
        for compilation in self.in_state(FROZEN)[:1]:
            self.thaw(compilation, now)
            return self.decisions()
        for compilation in self.in_state(WAITING)[:1]:
            self.start(compilation, self.expected(compilation), self.alive(), now)
        return self.decisions()

    def start(self, compilation, estimate, alive, now):
        for other in alive:
            other.alone = False
        compilation.alone = not alive
        compilation.state = RUNNING
        compilation.started = now
        compilation.estimate = estimate
        compilation.waited += now - compilation.asked
        self.begun += 1
        self.decide(START, compilation)
