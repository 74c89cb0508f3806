"""What a compilation will need: what earlier builds measured for its file, else for a file of a similar name, else what
this build has shown of files of the same directory and language, else a first guess.

Earlier builds are the profile that this build keeps, profiles of other versions or machines, and the measurements of
PyTorch in data/. All are corrected by how compilations that have ended differ from them.
"""
import bisect
import contextlib
import functools
import json
import math
import os
import re
import time
from collections import defaultdict, namedtuple

from ramgate.curves import age_of, span
from ramgate.limits import Problem

MB = 2.0 ** 20
VERSION = 1
# (MB, seconds) of a compilation if nothing at all is known, by language; measured on PyTorch
FIRST_GUESS = {
    'C': (120, 5),
    'CXX': (700, 20),
    'CUDA': (3000, 240),
    'HIP': (3000, 240),
    'LINK': (500, 10),
}
OTHER_GUESS = (300, 10)
# a first guess weighs as much as so many compilations, whose peaks differ by so much of their mean
GUESS_WEIGHT = 1.5
GUESS_SPREAD = 0.45
# a kind needs so many compilations to be believed
ENOUGH = 4
# the figures of an earlier build weigh as much as so many seconds, and MB, of compilations that ended
TRUST_SECONDS = 300.0
TRUST_MB = 3000.0
# with each compilation that ends, those before it weigh less
FORGET = 0.98
# factors are limited, and rounded so that steps of forecasts can be kept
LEAST_FACTOR = 0.2
MOST_FACTOR = 5.0
FACTOR_STEP = 0.05
# other versions, compilers and flags: memory may be larger here, until enough compilations have ended
CAUTION = 1.1
# uncertainty (share of the peak) of figures for the same file in this build's profile and in others, and for a file
# of a similar name, which shares at least so many letters of the file name
UNCERTAIN = 0.03
UNCERTAIN_OTHERS = 0.05
UNCERTAIN_SIMILAR = 0.1
SIMILAR = 4
# seconds between two writes of the profile: a build that is killed leaves what it has measured
SAVE_EVERY = 60
SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data', 'pytorch.json')


class Estimate(namedtuple('Estimate', 'seconds curve uncertainty earlier language')):
    """What is expected, in seconds and MB. `earlier`: the build in which this file was measured; None for a guess."""
    __slots__ = ()

    @property
    def peak(self):
        return max(self.curve)

    @property
    def slowness(self):
        """Return how much longer compilations take now than when they were measured."""
        return self.earlier.time.factor(self.language) if self.earlier else 1.0


class Kind:
    """What this build has shown of a kind of files: those that ended, and spans of those that still run."""

    def __init__(self):
        self.count = 0
        self.seconds = self.peaks = self.squares = 0.0
        # {span: [number of compilations, sum of MB]}
        self.spans = defaultdict(lambda: [0, 0.0])

    def add_span(self, number, memory):
        self.spans[number][0] += 1
        self.spans[number][1] += memory

    def add_end(self, seconds, peak):
        self.count += 1
        self.seconds += seconds
        self.peaks += peak
        self.squares += peak * peak

    def estimate(self, megabytes, seconds):
        """Return the mean of what was seen; the less that is, the closer to the guess."""
        count = self.count + GUESS_WEIGHT
        mean = (self.peaks + GUESS_WEIGHT * megabytes) / count
        squares = self.squares + GUESS_WEIGHT * megabytes ** 2 * (1 + GUESS_SPREAD ** 2)
        variance = max(0.0, squares / count - mean ** 2)
        expected = (self.seconds + GUESS_WEIGHT * seconds) / count
        curve = []
        for number in range(span(expected) + 1):
            seen, total = self.spans.get(number, (0, 0.0))
            beyond = mean
            if curve and not seen and age_of(number) > seconds / 3.0:
                # none has come so far: as the oldest had last
                beyond = curve[-1]
            curve.append((total + GUESS_WEIGHT * beyond) / (seen + GUESS_WEIGHT))
        return Estimate(expected, curve, math.sqrt(variance), None, None)


class Ratio:
    """How much more compilations take than expected, by language; all languages count where one is new."""

    def __init__(self, trust, prior):
        self.trust = trust
        self.prior = prior
        # {language, or None for all: (expected, actual)}
        self.sums = {}

    def add(self, language, expected, actual):
        for key in (None, language):
            before = self.sums.get(key, (0.0, 0.0))
            self.sums[key] = (before[0] * FORGET + expected, before[1] * FORGET + actual)

    def factor(self, language):
        found = self.prior
        for key in (None, language):
            expected, actual = self.sums.get(key, (0.0, 0.0))
            found = (actual + found * self.trust) / (expected + self.trust)
        found = min(MOST_FACTOR, max(LEAST_FACTOR, found))
        return FACTOR_STEP * round(found / FACTOR_STEP)


class EarlierBuild:
    """The files of a profile, and how this build differs from them."""

    def __init__(self, files, uncertain, caution):
        self.files = files
        self.uncertain = uncertain
        self.memory = Ratio(TRUST_MB, caution)
        self.time = Ratio(TRUST_SECONDS, 1.0)
        # {language: sorted [(key, file)]}: neighbours have the most similar names
        self.sorted = {}
        for key, name in sorted((key_of(name), name) for name in files):
            self.sorted.setdefault(files[name]['language'], []).append((key, name))

    def find(self, name, language):
        """(entry, uncertainty) of the same file, wherever the build lies, else of the most similar name beside it."""
        if name in self.files:
            return self.files[name], self.uncertain
        key = key_of(name)
        names = self.sorted.get(language, [])
        at = bisect.bisect(names, (key, ''))
        near = [(len(os.path.commonprefix([key, other])), file) for other, file in names[max(0, at - 1):at + 1]]
        same, file = max(near, default=(0, None))
        if same == len(key):
            return self.files[file], self.uncertain
        if same >= key.rfind('/') + 1 + SIMILAR:
            return self.files[file], UNCERTAIN_SIMILAR
        return None, 0.0

    def estimate(self, name, language):
        entry, uncertain = self.find(name, language)
        if not entry:
            return None
        factor = self.memory.factor(language)
        curve = [memory * factor for memory in entry['curve']]
        return Estimate(max(entry['seconds'], 0.01), curve, uncertain * max(curve), self, language)

    def compare(self, name, language, seconds, peak):
        entry, _ = self.find(name, language)
        if entry:
            self.time.add(language, entry['seconds'], seconds)
            self.memory.add(language, max(entry['curve']), peak)


def key_of(name):
    """Return a file's name with its nearest directories, which is the same in other build directories and versions."""
    return '/'.join(name.split('/')[-3:])


@functools.lru_cache(maxsize=None)
def kinds_of(name, language):
    """From the closest to the widest kind to which a file belongs."""
    directory, base = os.path.split(key_of(name))
    return (directory, re.sub(r'\d+', '#', base)), (directory, language), language


class Knowledge:
    """All that is known about files. `profile`: read now, written during the build; `others`: only read."""

    def __init__(self, profile=None, others=()):
        self.profile = profile
        self.saved = time.monotonic()
        self.measured = {}
        self.kinds = defaultdict(Kind)
        self.earlier = []
        self.warnings = []
        # how many compilations there will be, if an earlier build knows
        self.foreseen = 0
        if profile and os.path.exists(profile):
            self.add_profile(load(profile))
        for other in others:
            try:
                self.earlier.append(EarlierBuild(load(other), UNCERTAIN_OTHERS, CAUTION))
            except (Problem, OSError) as error:
                self.warnings.append('the build does without a profile: %s' % error)

    def add_profile(self, files):
        """Add what this very build measured last time."""
        self.earlier.append(EarlierBuild(files, UNCERTAIN, 1.0))
        self.foreseen = len(files)

    def save(self, path):
        """Write the profile; files that another build has added meanwhile stay."""
        files = load(path) if os.path.exists(path) else {}
        files.update(self.measured)
        text = json.dumps({'version': VERSION, 'files': files}, separators=(',', ':'), sort_keys=True)
        write_whole(path, text + '\n')

    def learn_spans(self, compilation):
        curve = compilation.recorder.curve
        while compilation.learnt < len(curve) - 1:
            for key in kinds_of(compilation.name, compilation.language):
                self.kinds[key].add_span(compilation.learnt, curve[compilation.learnt] / MB)
            compilation.learnt += 1

    def learn_end(self, compilation):
        name = compilation.name
        language = compilation.language
        seconds = compilation.seconds
        curve = [max(0.1, round(memory / MB, 1)) for memory in compilation.recorder.curve] or [1.0]
        for key in kinds_of(name, language):
            kind = self.kinds[key]
            for number in range(compilation.learnt, len(curve)):
                kind.add_span(number, curve[number])
            kind.add_end(seconds, max(curve))
        for earlier in self.earlier:
            earlier.compare(name, language, seconds, max(curve))
        self.measured[name] = {'seconds': round(seconds, 2), 'curve': curve, 'language': language}
        if self.profile and time.monotonic() >= self.saved + SAVE_EVERY:
            # a failure is reported when the build ends
            with contextlib.suppress(OSError, Problem):
                self.save(self.profile)
            self.saved = time.monotonic()

    def estimate(self, name, language):
        for earlier in self.earlier:
            found = earlier.estimate(name, language)
            if found:
                return found
        for key in kinds_of(name, language):
            kind = self.kinds[key]
            if kind.count >= ENOUGH:
                return kind.estimate(kind.peaks / kind.count, kind.seconds / kind.count)
        return self.kinds[language].estimate(*FIRST_GUESS.get(language, OTHER_GUESS))


def write_whole(path, text):
    partial = '%s.%d' % (path, os.getpid())
    with open(partial, 'w') as file:
        file.write(text)
    os.replace(partial, path)


def load(path):
    """{file: {'seconds', 'curve' (MB), 'language'}} of a profile."""
    try:
        with open(path) as file:
            data = json.load(file)
        if data['version'] != VERSION:
            raise ValueError('its version is %s' % data['version'])
        for entry in data['files'].values():
            # each raises TypeError where a value is of another type
            entry['seconds'] + 0.0
            max(entry['curve']) + 0.0
            entry['language'] + ''
        return data['files']
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Problem('%s is no profile of ramgate (%s): remove it or name another file' % (path, error))
