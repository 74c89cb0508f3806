"""Memory of a compilation over its time, and forecasts of what several take together.

A curve is a list: entry k is the most memory during the k-th span of a compilation's life. Spans get longer with age
(6 % each), so a curve is short, is fine where memory changes fast, and tolerates a machine that is slightly slower.
"""
import functools
import math

FIRST_SPAN = 0.1
GROWTH = 1.06
LOG_GROWTH = math.log(GROWTH)
SPAN_RATE = (GROWTH - 1) / FIRST_SPAN
# steps of a forecast, which get longer as the near future matters most
STEPS = 64
STEP_GROWTH = 1.04
EDGES = [(STEP_GROWTH ** at - 1) / (STEP_GROWTH ** STEPS - 1) for at in range(STEPS + 1)]
# a compilation may be so many spans (2 % of its age) earlier or later than its curve
JITTER = math.log(1.02) / LOG_GROWTH


def exact_span(age):
    return math.log1p(max(0.0, age) * SPAN_RATE) / LOG_GROWTH


def span(age):
    return int(exact_span(age))


def age_of(number):
    return FIRST_SPAN * (GROWTH ** number - 1) / (GROWTH - 1)


class Recorder:
    def __init__(self):
        self.curve = []

    def add(self, age, memory):
        at = span(age)
        if at < len(self.curve):
            self.curve[at] = max(self.curve[at], memory)
            return
        # spans without a measurement may have been as high as those beside them
        skipped = max(self.curve[-1:] + [memory])
        self.curve += [skipped] * (at - len(self.curve))
        self.curve.append(memory)

    @property
    def peak(self):
        return max(self.curve, default=0)


@functools.lru_cache(maxsize=256)
def ranges(horizon, age, slowness):
    """For each step of a forecast: the age in seconds, and the first and the last span (excluded) of the curve."""
    ages = [edge * horizon / slowness + age for edge in EDGES]
    spans = [exact_span(at) for at in ages]
    firsts = [max(0, int(at - JITTER)) for at in spans]
    ends = [int(at + JITTER) + 1 for at in spans[1:]]
    return list(zip([at * slowness for at in ages], firsts, ends))


class Forecast:
    """The memory (MB) that compilations are expected to occupy in each step up to the horizon (seconds, at least 1)."""

    def __init__(self, horizon):
        self.horizon = horizon
        self.load = [0.0] * STEPS

    def steps(self, curve, seconds, age=0.0, slowness=1.0):
        """Return the memory of one compilation in each step: it is `age` old now, by the same clock as `seconds`."""
        last = len(curve) - 1
        found = []
        for since, first, end in ranges(self.horizon, age / slowness, slowness):
            if since >= seconds and found:
                break
            found.append(max(curve[min(first, last):end]))
        return found + [0.0] * (STEPS - len(found))

    def add(self, steps):
        self.load = [have + more for have, more in zip(self.load, steps)]

    def fits(self, steps, limit):
        """True if the load and these steps stay within the limit; steps without memory always fit."""
        return all(not more or have + more <= limit for have, more in zip(self.load, steps))
