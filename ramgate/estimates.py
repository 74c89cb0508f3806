"""
What a job will need: from earlier builds of the same file, else from files of the same directory and language, else
from what this build has shown of the language so far, else a first guess.
"""
import json
import math
import os
import re

from ramgate.curves import age_of, span
from ramgate.limits import Problem

MB = 2.0 ** 20
# (MB, seconds) of a job of which nothing at all is known, by language; measured on PyTorch
FIRST_GUESS = {'C': (120, 5), 'CXX': (700, 20), 'CUDA': (3000, 240), 'HIP': (3000, 240), 'LINK': (500, 10)}
OTHER_GUESS = (300, 10)
# a first guess counts as much as this many jobs seen
GUESS_WEIGHT = 1.5
# so many seconds of jobs must have ended before the machine is believed to be half as slow as they say
SLOWNESS_AFTER = 300.0
VERSION = 1
# jobs of a kind that must have been seen before the kind is believed
ENOUGH = 4


class Estimate:
    """A job's expected seconds, its curve in MB, and how far off (MB) the curve may be."""
    __slots__ = ('seconds', 'curve', 'doubt', 'known')

    def __init__(self, seconds, curve, doubt, known):
        self.seconds, self.curve, self.doubt, self.known = seconds, curve, doubt, known

    @property
    def peak(self):
        """The largest expected."""
        return max(self.curve)


class Kind:
    """What jobs of a kind were seen to do: those that ended, and at each age those that got so far."""

    def __init__(self):
        self.count, self.seconds, self.peaks, self.squares = 0, 0.0, 0.0, 0.0
        self.spans = []     # [number of jobs, sum of MB] for each span of life

    def saw_span(self, number, memory):
        """One job has lived through a span."""
        while len(self.spans) <= number:
            self.spans.append([0, 0.0])
        self.spans[number][0] += 1
        self.spans[number][1] += memory

    def saw_end(self, seconds, peak):
        """One job has ended."""
        self.count += 1
        self.seconds += seconds
        self.peaks += peak
        self.squares += peak * peak

    def estimate(self, guess):
        """The expected course, leaning on the guess as long as little was seen."""
        megabytes, seconds = guess
        count = self.count + GUESS_WEIGHT
        mean = (self.peaks + GUESS_WEIGHT * megabytes) / count
        spread = (self.squares + GUESS_WEIGHT * megabytes ** 2 * 1.2) / count - mean ** 2
        expected = (self.seconds + GUESS_WEIGHT * seconds) / count
        curve = []
        for number in range(span(expected) + 1):
            seen, total = self.spans[number] if number < len(self.spans) else (0, 0.0)
            # where nobody has been yet: what the oldest had last, or the guess while all are young
            beyond = curve[-1] if curve and seen == 0 and age_of(number) > seconds / 3.0 else mean
            curve.append((total + GUESS_WEIGHT * beyond) / (seen + GUESS_WEIGHT))
        return Estimate(expected, curve, math.sqrt(max(0.0, spread)), False)


class Knowledge:
    """All that is known about jobs; can be read from a profile and written to one."""

    def __init__(self, path=None, scale=(1.0, 1.0)):
        self.path = path
        self.files = {}
        self.kinds = {}
        # replays are smaller and shorter than life: (memory, time)
        self.scale = scale
        self.slow_actual = self.slow_expected = 0.0
        if path and os.path.exists(path):
            self.load(path)

    def load(self, path):
        """Read a profile."""
        try:
            with open(path) as file:
                data = json.load(file)
            if data['version'] != VERSION:
                raise ValueError('its version is %s' % data['version'])
            for name, entry in data['files'].items():
                self.files[name] = entry
                self.count_in(name, entry['language'], entry['seconds'], entry['curve'])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Problem('%s is no profile of ramgate (%s): remove it or name another file' % (path, error))

    def save(self, path):
        """Write the profile, never half."""
        partial = '%s.%d' % (path, os.getpid())
        with open(partial, 'w') as file:
            json.dump({'version': VERSION, 'files': self.files}, file, separators=(',', ':'), sort_keys=True)
            file.write('\n')
        os.replace(partial, path)

    @staticmethod
    def kinds_of(name, language):
        """From the closest to the widest kind a job belongs to."""
        directory, base = os.path.split(name)
        return ((directory, re.sub(r'\d+', '#', base)), (directory, language), language)

    def kind(self, key):
        """The kind of that key."""
        return self.kinds.setdefault(key, Kind())

    def count_in(self, name, language, seconds, curve):
        """A job has ended with this curve (MB)."""
        for key in self.kinds_of(name, language):
            kind = self.kind(key)
            for number, memory in enumerate(curve):
                kind.saw_span(number, memory)
            kind.saw_end(seconds, max(curve))

    def finished(self, name, language, seconds, recorder, shown):
        """Learn from a job that has ended; `shown` spans of it were learnt while it ran."""
        curve = [max(0.1, round(memory / MB, 1)) for memory in recorder.curve] or [1.0]
        for key in self.kinds_of(name, language):
            kind = self.kind(key)
            for number in range(shown, len(curve)):
                kind.saw_span(number, curve[number])
            kind.saw_end(seconds, max(curve))
        known = self.files.get(name)
        if known:
            self.slow_actual = self.slow_actual * 0.98 + seconds
            self.slow_expected = self.slow_expected * 0.98 + known['seconds']
        self.files[name] = {'seconds': round(seconds, 2), 'curve': curve, 'language': language}

    def lived(self, name, language, recorder, shown):
        """Learn from a job that still runs: spans that it has left behind. Returns how many it has shown."""
        done = max(shown, len(recorder.curve) - 1)
        for key in self.kinds_of(name, language):
            for number in range(shown, done):
                self.kind(key).saw_span(number, recorder.curve[number] / MB)
        return done

    @property
    def slowness(self):
        """How much longer jobs take now than when they were measured."""
        trust = SLOWNESS_AFTER * self.scale[1]
        return min(2.0, max(0.5, (self.slow_actual + trust) / (self.slow_expected + trust)))

    def estimate(self, name, language):
        """What to expect of a job."""
        known = self.files.get(name)
        if known:
            return Estimate(max(known['seconds'], 0.01), known['curve'], 0.03 * max(known['curve']), True)
        megabytes, seconds = FIRST_GUESS.get(language, OTHER_GUESS)
        guess = (megabytes * self.scale[0], seconds * self.scale[1])
        for key in self.kinds_of(name, language):
            kind = self.kinds.get(key)
            if kind and kind.count >= ENOUGH:
                return kind.estimate((kind.peaks / kind.count, kind.seconds / kind.count))
        return self.kind(language).estimate(guess)
