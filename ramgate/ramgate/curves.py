"""
How memory runs over a job's time, and whether another job fits beside those that run.

A curve is a list: entry k is the most memory that the job had during the k-th span of its life. Spans get longer with
age (6 % each), so a curve of any job is short, is fine where memory moves fast, and forgives a machine that is some
per cent slower.
"""
import math

FIRST_SPAN = 0.1
GROWTH = 1.06
LOG_GROWTH = math.log(GROWTH)
# spans of a forecast: the near future matters most
STEPS = 64
STEP_GROWTH = 1.04
EDGES = [(STEP_GROWTH ** k - 1) / (STEP_GROWTH ** STEPS - 1) for k in range(STEPS + 1)]
SPAN_RATE = (GROWTH - 1) / FIRST_SPAN
# a job may be so many spans (2 % of its age) earlier or later than its curve
JITTER = math.log(1.02) / LOG_GROWTH


def span(age):
    """The number of the span of a job's life at an age in seconds."""
    return int(math.log1p(age * SPAN_RATE) / LOG_GROWTH) if age > 0 else 0


def age_of(number):
    """The age at which a span begins."""
    return FIRST_SPAN * (GROWTH ** number - 1) / (GROWTH - 1)


class Recorder:
    """Makes a curve from what is measured while a job runs."""

    def __init__(self):
        self.curve = []

    def add(self, age, memory):
        """Memory was measured at this age."""
        at = span(age)
        if at >= len(self.curve):
            # spans that no measurement fell into may have been as high as those beside them
            self.curve += [max(self.curve[-1:] + [memory])] * (at - len(self.curve)) + [memory]
        else:
            self.curve[at] = max(self.curve[at], memory)

    @property
    def peak(self):
        """The most so far."""
        return max(self.curve, default=0)


class Forecast:
    """Memory that running jobs are expected to occupy from now on."""

    def __init__(self, horizon):
        self.edges = [edge * max(horizon, 1.0) for edge in EDGES]
        self.load = [0.0] * STEPS
        self.spans = {}

    def run(self, curve, seconds, age=0.0, start=0.0, slowness=1.0):
        """The load of a job of that curve, now `age` old (or beginning `start` seconds from now), for each step."""
        last, steps = len(curve) - 1, []
        for since, first, beyond in self.ranges(age, start, slowness):
            if since >= seconds and steps:
                break
            steps.append(max(curve[min(first, last):beyond]) if beyond else 0.0)
        return steps + [0.0] * (STEPS - len(steps))

    def ranges(self, age, start, slowness):
        """
        For each step (age at its begin, first span, span after the last); the same for all jobs that begin together.
        """
        key = (start, slowness) if not age else None
        if key in self.spans:
            return self.spans[key]
        ages = [(edge - start) / slowness + age for edge in self.edges]
        spans = [math.log1p(max(0.0, at) * SPAN_RATE) / LOG_GROWTH for at in ages]
        found = [(ages[at] * slowness, max(0, int(spans[at] - JITTER)),
                  int(spans[at + 1] + JITTER) + 1 if ages[at + 1] > 0 else 0) for at in range(STEPS)]
        if key:
            self.spans[key] = found
        return found

    def add(self, steps):
        """Count a job in."""
        self.load = [have + more for have, more in zip(self.load, steps)]

    def fits(self, steps, room):
        """Whether a job fits at every moment."""
        for have, more in zip(self.load, steps):
            if have + more > room and more:
                return False
        return True

    def earliest(self, curve, seconds, room, slowness=1.0):
        """The load of a job that begins as soon as it fits; None where it does not within the forecast."""
        for at in range(2, STEPS, 2):
            if self.load[at] + curve[0] <= room:
                steps = self.run(curve, seconds, start=self.edges[at], slowness=slowness)
                if self.fits(steps, room):
                    return steps
        return None
