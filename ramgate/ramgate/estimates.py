"""
What a job will need: from earlier builds of the same file, else of a file of a like name, else from files of the same
directory and language, else from what this build has shown of the language so far, else a first guess.

Earlier builds are the profile that this build keeps, profiles of other versions or machines, and the measurements of
PyTorch in data/. Whatever they say is corrected by how the jobs that have ended so far differ from what they said.
"""
import bisect
import functools
import json
import math
import os
import re
import time

from ramgate import traces
from ramgate.curves import age_of, span
from ramgate.limits import Problem

MB = 2.0 ** 20
# (MB, seconds) of a job of which nothing at all is known, by language; measured on PyTorch
FIRST_GUESS = {'C': (120, 5), 'CXX': (700, 20), 'CUDA': (3000, 240), 'HIP': (3000, 240), 'LINK': (500, 10)}
OTHER_GUESS = (300, 10)
# a first guess counts as much as this many jobs seen, which differ among each other by so much of their mean
GUESS_WEIGHT, GUESS_SPREAD = 1.5, 0.45
VERSION = 1
# jobs of a kind that must have been seen before the kind is believed
ENOUGH = 4
# what is said of an earlier build counts as much as so many seconds, and so many MB, of jobs that ended
TRUST_SECONDS, TRUST_MB = 300.0, 3000.0
# older jobs count less by this factor with every one that ends
FORGET = 0.98
# no build is so much faster or larger than an earlier one; factors go in steps, so that loads can be kept
FACTORS, FACTOR_STEP = (0.2, 5.0), 0.05
# measurements of other versions, compilers and flags: jobs may need more here, until enough have ended
CAUTION = 1.1
# how far off (share of the peak) what is said of the same file is: by this build's own profile, by others; of a file of
# a like name
DOUBT, DOUBT_OTHERS, DOUBT_ALIKE = 0.03, 0.05, 0.1
# so many letters of a file's name, at least, are the same in a like name
ALIKE = 4
# seconds after which what ended is written into the profile: a job that a batch system kills gets no word in
SAVE_EVERY = 60
SHIPPED = tuple(os.path.join(traces.DATA, 'pytorch-%s.csv' % name)
                for name in ('1.13.1-cpu', '2.6.0-cpu', '2.6.0-cuda'))


class Estimate:
    """A job's expected seconds, its curve in MB, how far off (MB) that may be, and the earlier build that said so."""
    __slots__ = ('seconds', 'curve', 'doubt', 'earlier', 'language')

    def __init__(self, seconds, curve, doubt, earlier=None, language=None):
        self.seconds, self.curve, self.doubt, self.earlier, self.language = seconds, curve, doubt, earlier, language

    @property
    def peak(self):
        """The largest expected."""
        return max(self.curve)

    @property
    def known(self):
        """Whether the very file was measured, so that its curve is to be believed."""
        return self.earlier is not None

    @property
    def slowness(self):
        """How much longer jobs take now than when they were measured."""
        return self.earlier.time.factor(self.language) if self.earlier else 1.0


class Kind:
    """What jobs of a kind were seen to do: those that ended, and at each age those that got so far."""

    def __init__(self):
        self.count, self.seconds, self.peaks, self.squares = 0, 0.0, 0.0, 0.0
        self.spans = []     # [number of jobs, sum of MB] for each span of life
        self.estimated = {}

    def saw_span(self, number, memory):
        """One job has lived through a span."""
        while len(self.spans) <= number:
            self.spans.append([0, 0.0])
        self.spans[number][0] += 1
        self.spans[number][1] += memory
        self.estimated = {}

    def saw_end(self, seconds, peak):
        """One job has ended."""
        self.count += 1
        self.seconds += seconds
        self.peaks += peak
        self.squares += peak * peak
        self.estimated = {}

    def estimate(self, guess):
        """The expected course, leaning on the guess as long as little was seen."""
        if guess not in self.estimated:
            self.estimated[guess] = self.reckon(*guess)
        return self.estimated[guess]

    def reckon(self, megabytes, seconds):
        count = self.count + GUESS_WEIGHT
        mean = (self.peaks + GUESS_WEIGHT * megabytes) / count
        spread = (self.squares + GUESS_WEIGHT * megabytes ** 2 * (1 + GUESS_SPREAD ** 2)) / count - mean ** 2
        expected = (self.seconds + GUESS_WEIGHT * seconds) / count
        curve = []
        for number in range(span(expected) + 1):
            seen, total = self.spans[number] if number < len(self.spans) else (0, 0.0)
            # where nobody has been yet: what the oldest had last, or the guess while all are young
            beyond = curve[-1] if curve and seen == 0 and age_of(number) > seconds / 3.0 else mean
            curve.append((total + GUESS_WEIGHT * beyond) / (seen + GUESS_WEIGHT))
        return Estimate(expected, curve, math.sqrt(max(0.0, spread)))


class Ratio:
    """How much more jobs of a language take than was foreseen. What all take says it where the language has not yet."""

    def __init__(self, trust, caution):
        self.trust, self.caution, self.sums = trust, caution, {}

    def saw(self, language, expected, actual):
        """A job has ended."""
        for key in (None, language):
            sums = self.sums.setdefault(key, [0.0, 0.0])
            sums[:] = sums[0] * FORGET + expected, sums[1] * FORGET + actual

    def factor(self, language):
        """So many times what was foreseen."""
        found = self.caution
        for key in (None, language):
            expected, actual = self.sums.get(key, (0.0, 0.0))
            found = (actual + found * self.trust) / (expected + self.trust)
        return FACTOR_STEP * round(min(FACTORS[1], max(FACTORS[0], found)) / FACTOR_STEP)


class Earlier:
    """
    Builds that were measured: {file: entry of a profile, or Work of a trace}, and how this one differs from them.
    """

    def __init__(self, files, doubt, caution=1.0, scale=(1.0, 1.0)):
        self.files, self.doubt, self.scale = files, doubt, scale
        self.memory, self.time = Ratio(TRUST_MB * scale[0], caution), Ratio(TRUST_SECONDS * scale[1], 1.0)
        self.entries, self.scaled = {}, {}
        # (key, file) sorted by language, so that a file's neighbours are those of the most alike names
        self.sorted = None
        self.kinds = {}

    def entry(self, name):
        """(seconds, curve in MB) of a file."""
        known = self.files[name]
        if isinstance(known, dict):
            return known['seconds'], known['curve']
        if name not in self.entries:
            seconds = known.seconds * self.scale[1]
            ages = [age_of(number) for number in range(span(seconds) + 2)]
            curve = [self.scale[0] * max(traces.memory_at(known, min(known.seconds, age / self.scale[1]) * 0.9999)
                                         for age in (since, (since + until) / 2, until))
                     for since, until in zip(ages, ages[1:])]
            self.entries[name] = seconds, curve
        return self.entries[name]

    def sort(self):
        """Once somebody asks for a name that is not there."""
        self.sorted = {}
        for name, known in self.files.items():
            language = known['language'] if isinstance(known, dict) else known.language
            self.sorted.setdefault(language, []).append((key_of(name), name))
            for kind in kinds_of(name, language):
                self.kinds.setdefault(kind, []).append(name)
        for names in self.sorted.values():
            names.sort()

    def find(self, name, language):
        """(file, how far off): the same file, wherever the build lies; else one of the most alike name beside it."""
        if name in self.files:
            return name, self.doubt
        if self.sorted is None:
            self.sort()
        names, key = self.sorted.get(language, []), key_of(name)
        at = bisect.bisect(names, (key, ''))
        near = [(len(os.path.commonprefix([key, other])), file) for other, file in names[max(0, at - 1):at + 1]]
        same, file = max(near, default=(0, None))
        if same == len(key):
            return file, self.doubt
        return (file, DOUBT_ALIKE) if same >= key.rfind('/') + 1 + ALIKE else (None, 0.0)

    def estimate(self, name, language):
        """What to expect of a job; None where nothing like it was measured."""
        found, doubt = self.find(name, language)
        if found is None:
            return None
        seconds, curve = self.entry(found)
        factor = self.memory.factor(language)
        if (found, factor) not in self.scaled:
            self.scaled[found, factor] = [memory * factor for memory in curve]
        curve = self.scaled[found, factor]
        return Estimate(max(seconds, 0.01), curve, doubt * max(curve), self, language)

    def guess(self, kind, language):
        """(MB, seconds) of a kind of jobs; None where too few were measured."""
        names = self.kinds.get(kind, [])
        if len(names) < ENOUGH:
            return None
        entries = [self.entry(name) for name in names]
        return (sum(max(curve) for _, curve in entries) / len(names) * self.memory.factor(language),
                sum(seconds for seconds, _ in entries) / len(names) * self.time.factor(language))

    def saw(self, name, language, seconds, peak):
        """A job has ended: it took so many seconds and MB."""
        found = self.find(name, language)[0]
        if found is not None:
            expected, curve = self.entry(found)
            self.time.saw(language, expected, seconds)
            self.memory.saw(language, max(curve), peak)


def key_of(name):
    """A file's name with its nearest directories, which is the same in other build directories and versions."""
    return '/'.join(name.split('/')[-3:])


@functools.lru_cache(maxsize=None)
def kinds_of(name, language):
    """From the closest to the widest kind a job belongs to."""
    directory, base = os.path.split(key_of(name))
    return ((directory, re.sub(r'\d+', '#', base)), (directory, language), language)


class Knowledge:
    """
    All that is known about jobs. `path`: the profile that is read before and written afterwards; `others`: profiles of
    other versions or machines; `shipped`: whether the measurements of PyTorch count.
    """

    def __init__(self, path=None, scale=(1.0, 1.0), others=(), shipped=False):
        self.scale = scale
        self.path, self.saved = path, time.monotonic()
        # what ended in this build
        self.ended, self.kinds = {}, {}
        self.foreseen, self.earlier = 0, []
        if path and os.path.exists(path):
            self.keep(load(path))
        self.warnings = []
        for other in others:
            try:
                self.earlier.append(Earlier(load(other), DOUBT_OTHERS, CAUTION, scale))
            except (Problem, OSError) as error:
                self.warnings.append('the build does without a profile: %s' % error)
        if shipped:
            # of a file that several versions have, what needs the most
            found = sorted(traces.read_traces(SHIPPED), key=lambda work: max(memory for _, memory in work.course))
            works = {work.name: work for work in found}
            self.earlier.append(Earlier(works, DOUBT_OTHERS, CAUTION, scale))

    def keep(self, files):
        """What the build's own profile says."""
        self.earlier.append(Earlier(files, DOUBT, scale=self.scale))
        self.foreseen = len(files)

    def save(self, path):
        """Write what ended into the profile, beside what others have written there meanwhile; never half."""
        partial = '%s.%d' % (path, os.getpid())
        files = dict(load(path) if os.path.exists(path) else {}, **self.ended)
        with open(partial, 'w') as file:
            json.dump({'version': VERSION, 'files': files}, file, separators=(',', ':'), sort_keys=True)
            file.write('\n')
        os.replace(partial, path)

    def kind(self, key):
        """What this build has shown of a kind of jobs."""
        return self.kinds.setdefault(key, Kind())

    def finished(self, name, language, seconds, recorder, shown):
        """Learn from a job that has ended; `shown` spans of it were learnt while it ran."""
        curve = [max(0.1, round(memory / MB, 1)) for memory in recorder.curve] or [1.0]
        for key in kinds_of(name, language):
            kind = self.kind(key)
            for number in range(shown, len(curve)):
                kind.saw_span(number, curve[number])
            kind.saw_end(seconds, max(curve))
        for earlier in self.earlier:
            earlier.saw(name, language, seconds, max(curve))
        self.ended[name] = {'seconds': round(seconds, 2), 'curve': curve, 'language': language}
        if self.path and time.monotonic() >= self.saved + SAVE_EVERY:
            self.save_meanwhile()

    def save_meanwhile(self):
        """The build goes on without; what is wrong with the profile's place is told when it ends."""
        try:
            self.save(self.path)
        except (OSError, Problem):
            pass
        self.saved = time.monotonic()

    def lived(self, name, language, recorder, shown):
        """Learn from a job that still runs: spans that it has left behind. Returns how many it has shown."""
        done = max(shown, len(recorder.curve) - 1)
        for key in kinds_of(name, language):
            for number in range(shown, done):
                self.kind(key).saw_span(number, recorder.curve[number] / MB)
        return done

    def estimate(self, name, language):
        """What to expect of a job."""
        for earlier in self.earlier:
            found = earlier.estimate(name, language)
            if found:
                return found
        for key in kinds_of(name, language):
            kind = self.kinds.get(key)
            if kind and kind.count >= ENOUGH:
                return kind.estimate((kind.peaks / kind.count, kind.seconds / kind.count))
            for earlier in self.earlier:
                guess = earlier.guess(key, language)
                if guess:
                    return self.kind(key).estimate(guess)
        megabytes, seconds = FIRST_GUESS.get(language, OTHER_GUESS)
        return self.kind(language).estimate((megabytes * self.scale[0], seconds * self.scale[1]))


def load(path):
    """{file: entry} of a profile."""
    try:
        with open(path) as file:
            data = json.load(file)
        if data['version'] != VERSION:
            raise ValueError('its version is %s' % data['version'])
        for entry in data['files'].values():
            entry['seconds'] + 0.0, max(entry['curve']) + 0.0, entry['language'] + ''
        return data['files']
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Problem('%s is no profile of ramgate (%s): remove it or name another file' % (path, error))
