"""
Which job starts, freezes, goes on, is killed or starts again.

Nothing here talks, measures or reads a clock: whoever calls says what is so and when, and carries out what comes back,
a list of (what, job, text). The oldest job is never frozen nor killed while another could be, so something always
finishes.
"""
import math

from ramgate import curves
from ramgate.estimates import MB, Estimate
from ramgate.limits import human

WAITING, RUNNING, FROZEN, ENDED = 'waiting', 'running', 'frozen', 'ended'
START, FREEZE, THAW, KILL, RETRY, REFUSE, DONE = 'started', 'frozen', 'thawed', 'killed', 'retried', 'refused', 'ended'

# shares of the limit: what forecasts leave free, what must be free lest jobs are frozen, and lest one is killed
MARGIN, SCARCE, GONE = 0.02, 0.015, 0.005
# where all wait for memory for this share of the time, one more job is frozen; for so many seconds nothing is started
STALLED, PAUSE = 0.2, 2.0
# memory is measured a little later than planned: growth until then is reckoned with
LATE = 0.05
# seconds after which a killed process that still holds memory is not waited for any more
DYING = 5
# to kill a job that holds less than this share of the limit frees nothing
WORTH = 0.001
# a job that was killed this often is not started again
ATTEMPTS = 10
# a job that ran out of memory claims this much more than it was seen to need (where the kernel killed it: than was
# expected), but not all of the limit
MORE, MOST = 1.4, 0.9
# a job that ran alone and took this share of the limit does not fit; less where it was killed before it was measured
ALONE, ALONE_KILLED = 0.6, 0.3
# of a process's largest resident memory at least this much is its own
UNSHARED = 0.8
# a known job whose peak is this share (or so many doubts) below what its age foresees is behind (a slower machine,
# a neighbour on the core): its true age is where its curve is still below its peak times the last factor
BEHIND, DOUBTS, CAUGHT_UP = 0.15, 3, 1.1
# a job this much above its curve (measurements differ by less) is larger than foreseen: its curve is raised, what is to
# come by at most this share of what it holds, as a peak that came early is not larger later
ABOVE, RAISE = 1.05, 0.5
# a running job may take this much longer than foreseen
HOLD = 1.1
# after this share of its time a job has no curve left: it stays a little above what it has, for this share of its age
OVERDUE, STAY, REMAINS = 0.98, 1.02, 0.15
# of what a job holds, this share counts against the doubt about what it will take
SEEN = 0.5
# horizons of forecasts are powers of this, so that the loads of waiting jobs serve for many plans
HORIZON_STEP = 1.25
# so many jobs that wait for memory have their place in the forecast; smaller ones start where they delay none of them
RESERVED = 1
NOTHING = [0.0] * curves.STEPS


class Job:
    """One compile or link, from its first question to its end."""

    def __init__(self, number, command, now):
        self.number, self.command = number, command
        self.name, self.language = command.name, command.language
        self.state, self.asked = WAITING, now
        self.waited, self.retries, self.claim, self.seconds = 0.0, [], 0.0, 0.0
        self.reset()

    def reset(self):
        """Before each attempt."""
        self.group, self.started, self.frozen_for, self.frozen_at = None, None, 0.0, None
        self.memory, self.growth, self.measured = 0.0, 0.0, None
        self.recorder, self.shown, self.alone, self.kills = curves.Recorder(), 0, False, 0
        self.killed, self.estimate = False, None

    def age(self, now):
        """Seconds it has been running, not counting when it was frozen."""
        return (self.frozen_at or now) - self.started - self.frozen_for

    def measure(self, memory, now):
        """It occupies so much now."""
        if self.measured is not None and now > self.measured:
            self.growth = max(0.0, (memory - self.memory) / (now - self.measured))
        self.memory, self.measured = memory, now
        self.recorder.add(self.age(now), memory)


class Schedule:
    """All jobs of a build, and what becomes of them. `constraint` and `own` (bytes of all jobs): as last measured."""

    def __init__(self, knowledge, cores, constraint):
        self.knowledge, self.cores, self.constraint = knowledge, cores, constraint
        self.jobs, self.own, self.numbers = [], 0, 0
        # ended so far, and how many jobs an earlier build had
        self.done, self.foreseen = 0, knowledge.foreseen
        self.killing, self.decided = {}, []
        # why nothing is started any more
        self.refused = None
        self.steps_cache, self.pause = (None, {}), 0.0

    def in_state(self, *states):
        """The jobs in those states, oldest first."""
        return sorted((job for job in self.jobs if job.state in states), key=lambda job: job.started or job.asked)

    @property
    def limit(self):
        """The tightest limit in bytes."""
        return self.constraint.limit

    def decisions(self):
        """All that were made since the last call."""
        decided, self.decided = self.decided, []
        return decided

    # a job's life

    def asked(self, command, now):
        """A job wants to start."""
        self.numbers += 1
        self.jobs.append(Job(self.numbers, command, now))
        return self.jobs[-1]

    def measured(self, memory, now):
        """The jobs occupy so much: {job: bytes}. Returns what they are still going to take."""
        for job, amount in memory.items():
            job.measure(amount, now)
            job.shown = self.knowledge.lived(job.name, job.language, job.recorder, job.shown)
        alive = self.in_state(RUNNING, FROZEN)
        self.own = sum(job.memory for job in alive)
        return sum(max(0.0, max(job.estimate.peak, job.claim) * MB - job.memory) for job in alive)

    def ended(self, job, status, resident, starved, kernel_killed, now):
        """An attempt has ended. `resident`: bytes of its largest process; `starved`: it lacked memory."""
        # a peak between two looks is in the kernel's own figure, which counts pages shared with others too
        if resident * UNSHARED > job.recorder.peak:
            job.recorder.add(job.age(now), resident * UNSHARED)
        self.killing.pop(job, None)
        if job.killed or starved:
            self.again(job, kernel_killed, now)
        else:
            self.close(job, status, now)
            self.decided.append((DONE, job, ''))
        return self.decisions()

    def close(self, job, status, now):
        """A job has ended for good."""
        self.killing.pop(job, None)
        if job.started:
            job.seconds = job.age(now)
            if status == 0:
                self.knowledge.finished(job.name, job.language, job.seconds, job.recorder, job.shown)
        job.state, job.status, job.ended, job.memory = ENDED, status, now, 0
        self.jobs.remove(job)
        self.done += 1

    def again(self, job, kernel_killed, now):
        """A job ran out of memory, or was killed to make room: it starts again with a larger claim."""
        peak = job.recorder.peak
        job.retries.append((now - job.age(now), now, peak / MB, 'made room' if job.killed else 'out of memory'))
        least = ALONE_KILLED if kernel_killed or job.killed else ALONE
        too_big = job.alone and peak > least * self.limit
        if self.refused or too_big or len(job.retries) > ATTEMPTS:
            line = self.not_started(job) if self.refused else self.does_not_fit(job) if too_big else (
                'ramgate: %s was killed %d times: by whom?' % (job.name, len(job.retries)))
            self.refused = self.refused or ('%s needs more memory than the limit' % job.name if too_big else None)
            self.close(job, 137, now)
            self.decided.append((REFUSE, job, line))
            return
        if not job.killed or peak / MB > job.estimate.peak:
            job.claim = max(job.claim, MORE * peak / MB, min(MORE * job.estimate.peak, MOST * self.limit / MB)
                            if kernel_killed else 0.0)
        job.state, job.asked = WAITING, now
        job.reset()
        self.decided.append((RETRY, job, job.command.partial))

    def does_not_fit(self, job):
        """The one line for a job that does not fit even alone."""
        return ('ramgate: %s does not fit: alone it needs more than %s, and the limit is %s (%s), %s of it for jobs. '
                'Give the build more memory (a larger job or another node), or compile this file with less '
                'optimisation or debugging.' % (
                    job.name, human(job.recorder.peak), human(self.limit), self.constraint.name,
                    human(self.constraint.free + self.own)))

    def not_started(self, job):
        """The line for a job that would have been started, had the build not come to its end."""
        return 'ramgate: %s is not started: %s' % (job.name, self.refused)

    # what must be done at once

    def relieve(self, tick, now, pressure=0.0):
        """
        Freeze the newest while memory is about to run out before the next look; kill where that is not enough.
        `pressure`: the share of the time in which all waited for memory (a cgroup's memory.high, swap).
        """
        alive, free, limit = self.in_state(RUNNING, FROZEN), self.constraint.free, self.limit
        self.killing = {job: when for job, when in self.killing.items() if now - when <= DYING}
        dying = sum(job.memory for job in self.killing)
        working = [job for job in alive if job.state == RUNNING and job not in self.killing]
        growth = {job: job.growth * (tick + LATE) for job in working}
        short = len(working) > 1 and pressure > STALLED
        self.pause = now + PAUSE if short else self.pause
        while len(working) > 1 and (short or free + dying - sum(growth[job] for job in working) < SCARCE * limit):
            short = False
            job = working.pop()
            job.state, job.frozen_at = FROZEN, now
            self.decided.append((FREEZE, job, ''))
        frozen = [job for job in alive if job.state == FROZEN and job not in self.killing]
        needed = sum(growth[job] for job in working)
        if free + dying - needed < GONE * limit:
            oldest = alive[0] if alive else None
            victim = next((job for job in reversed(alive) if job is not oldest and job not in self.killing
                           and job.memory > WORTH * limit), None)
            if victim or len(alive) == 1 and free < 0 and oldest.memory > ALONE * limit:
                self.kill(victim or oldest, now)
        elif len(frozen) > max(1, len(working)):
            # memory that lies idle serves nobody: the newest has least to lose
            self.kill(frozen[-1], now)
        elif frozen and not working:
            self.thaw(frozen[0], now)
        return self.decisions()

    def kill(self, job, now):
        """Kill a job; it will start again."""
        job.killed = True
        self.killing[job] = now
        if job.state == FROZEN:
            job.frozen_for += now - job.frozen_at
            job.frozen_at = None
        job.state = RUNNING
        self.decided.append((KILL, job, ''))

    def thaw(self, job, now):
        """A frozen job goes on."""
        job.frozen_for += now - job.frozen_at
        job.state, job.frozen_at, job.growth, job.measured = RUNNING, None, 0.0, None
        self.decided.append((THAW, job, ''))

    # planning

    def expected(self, job):
        """What a job that waits is expected to need, its claim from earlier attempts counted."""
        estimate = self.knowledge.estimate(job.name, job.language)
        if job.claim > estimate.peak:
            factor = job.claim / estimate.peak
            estimate = Estimate(estimate.seconds * estimate.slowness, [memory * factor for memory in estimate.curve],
                                estimate.doubt)
        return estimate

    def future(self, job, now):
        """
        (curve, seconds, age, slowness) of a running job for its forecast: its estimate, corrected by what was measured.
        Age and seconds are on the clock of this build, the curve's spans on that of its measurement.
        """
        estimate, age, slow = job.estimate, job.age(now), job.estimate.slowness
        memory, peak, curve = job.memory / MB, job.recorder.peak / MB, estimate.curve
        at = min(curves.span(age / slow), len(curve) - 1)
        seconds = estimate.seconds * slow
        behind = 1 - max(BEHIND, DOUBTS * estimate.doubt / estimate.peak)
        if estimate.known and peak < behind * max(curve[:at + 1]):
            while at and max(curve[:at + 1]) > peak * CAUGHT_UP:
                at -= 1
            age = curves.age_of(at) * slow
        here = max(curve[at:at + 2])
        if memory > here * ABOVE:
            factor = min(memory / max(here, 1.0), 1.0 + memory * RAISE / max(1.0, max(curve[at:])))
            curve = [max(value * factor, memory) if number <= at + 1 else value * factor
                     for number, value in enumerate(curve)]
        if age >= seconds * OVERDUE:
            return [memory * STAY], max(0.1, age * REMAINS), 0.0, 1.0
        return curve, seconds * HOLD, age, slow

    def plan(self, now):
        """Continue frozen jobs and start others, as they fit."""
        waiting = self.in_state(WAITING)
        if self.refused:
            for job in waiting:
                self.close(job, 1, now)
                self.decided.append((REFUSE, job, self.not_started(job)))
            return self.decisions()
        alive = self.in_state(RUNNING, FROZEN)
        frozen = [job for job in alive if job.state == FROZEN]
        working = len(alive) - len(frozen)
        if not frozen and (not waiting or working >= self.cores) or now < self.pause and working:
            return []
        estimates = {job: self.expected(job) for job in waiting}
        room = self.constraint.free / MB + self.own / MB - MARGIN * self.limit / MB
        doubt = sum(self.doubt_of(job, now) ** 2 for job in alive)
        longest = max((estimate.seconds for estimate in estimates.values()), default=0.0)
        forecast = self.forecast(alive, now, longest)

        for job in frozen:
            curve, seconds, age, slow = self.future(job, now)
            steps = forecast.run(curve, seconds, age / slow, slowness=slow)
            still = job.memory / MB
            forecast.add([max(0.0, step - still) for step in steps])
            if working and (working >= self.cores or max(forecast.load) > room - doubt ** 0.5):
                return self.decisions()
            self.thaw(job, now)
            working += 1
        self.admit(sorted(waiting, key=lambda job: -estimates[job].seconds), estimates, forecast, room, doubt, alive,
                   now)
        return self.decisions()

    @staticmethod
    def doubt_of(job, now):
        """How much more than expected a running job may still take: less the further it has come."""
        estimate = job.estimate
        if not estimate.known:
            return max(0.0, estimate.doubt - SEEN * job.memory / MB)
        at = min(curves.span(job.age(now) / estimate.slowness), len(estimate.curve) - 1)
        return estimate.doubt * max(estimate.curve[at:]) / estimate.peak

    def forecast(self, alive, now, longest):
        """The memory that running jobs will occupy."""
        futures = [(job, self.future(job, now)) for job in alive]
        remaining = max((seconds - age for _, (_, seconds, age, _) in futures), default=0.0)
        horizon = HORIZON_STEP ** math.ceil(math.log(max(1.0, remaining, longest), HORIZON_STEP))
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
        reserved, cache, refused = 0, self.steps_cache[1], set()
        for job in waiting:
            if working >= self.cores:
                return
            estimate = estimates[job]
            shape = (len(estimate.curve), round(estimate.peak, 1), round(estimate.seconds, 1))
            if shape in refused:
                continue
            slow = estimate.slowness
            key = (job.name if estimate.known else shape, shape, slow)
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
            if reserved < RESERVED:
                reserved += 1
                forecast.add(forecast.earliest(estimate.curve, estimate.seconds * slow, free, slow) or NOTHING)

    def start(self, job, estimate, alive, now):
        """Let a job start."""
        for other in alive:
            other.alone = False
        job.state, job.started, job.estimate, job.alone = RUNNING, now, estimate, not alive
        job.waited += now - job.asked
        alive.append(job)
        self.decided.append((START, job, ''))
