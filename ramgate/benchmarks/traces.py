#!/usr/bin/env python3
"""
Measured builds: what each compilation needed, how its memory ran over its time, and what no schedule can beat.

A trace is a CSV file with the columns user_s, sys_s, peak_mb, file, and perhaps curve: the name of a CSV file
(seconds,mb) in data/ that says how the memory of that compilation, or of one like it, ran over its time.

`traces.py TRACE ... > PROFILE` makes a profile for `ramgate run --like`; ramgate/data/pytorch.json was made so.
"""
import csv
import json
import math
import os
import random
import sys
from collections import namedtuple

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from ramgate.command_lines import LANGUAGES, extension_of  # noqa: E402
from ramgate.curves import age_of, span  # noqa: E402
from ramgate.estimates import VERSION  # noqa: E402
from ramgate.limits import Problem  # noqa: E402

# course: [(share of its time, MB)] of a compilation
Work = namedtuple('Work', 'name language seconds course')
# compilations without a curve of their own run like g++ was measured to: share of time, share of peak
GCC = ((0.03, 0.2), (0.1, 0.4), (0.25, 0.63), (0.4, 0.75), (0.7, 0.9), (1.0, 1.0))
POINTS = 40
# of a made-up build
FILES, DIRECTORIES = 900, 30
DATA = os.path.join(HERE, 'data')


def course_of(path):
    """[(share of time, share of peak)] of a measured curve, in few points."""
    with open(path) as file:
        rows = [(float(row['seconds']), float(row['mb'])) for row in csv.DictReader(file)]
    length, peak = rows[-1][0], max(row[1] for row in rows)
    course = []
    for at in range(POINTS):
        part = [mb for seconds, mb in rows if length * at / POINTS <= seconds <= length * (at + 1) / POINTS]
        course.append(((at + 1.0) / POINTS, max(part) / peak))
    return course


def language_of(file):
    """By the extension of a source or an object (x.cu, x.cu.o); C++ where it says nothing."""
    name = file[:-2] if file.endswith('.o') else file
    return LANGUAGES.get(extension_of(name), 'CXX')


def read_trace(path):
    """The compilations of a trace."""
    curves, found = {'': GCC}, []
    try:
        with open(path) as file:
            for row in csv.DictReader(file):
                curve = row.get('curve') or ''
                if curve not in curves:
                    curves[curve] = course_of(os.path.join(DATA, curve))
                seconds, peak = float(row['user_s']) + float(row['sys_s']), float(row['peak_mb'])
                found.append(Work(row['file'], language_of(row['file']), max(0.01, seconds),
                                  [(at, share * peak) for at, share in curves[curve]]))
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise Problem('%s is no trace: %s' % (path, error))
    return found


def heavy_tailed(seed):
    """
    The compilations of a made-up build of C and C++, each about three times as large or as long as another by chance;
    files of a directory are alike, and what takes long takes more memory.
    """
    chance = random.Random(seed)
    found = []
    for directory in range(DIRECTORIES):
        scale = chance.gauss(0, 0.6)
        for file in range(FILES // DIRECTORIES):
            common = scale + chance.gauss(0, 0.6)
            language, ending = ('C', 'c') if chance.random() < 0.15 else ('CXX', 'cpp')
            seconds = 15 * math.exp(common + chance.gauss(0, 0.7))
            megabytes = 300 * math.exp(common + chance.gauss(0, 0.5))
            name = 'src/part%02d/file%02d_%s.%s.o' % (directory, file, chance.choice('abcdefgh'), ending)
            found.append(Work(name, language, seconds, [(at, share * megabytes) for at, share in GCC]))
    chance.shuffle(found)
    return found


def read_traces(words):
    """The compilations of several traces; `PATH:12` is every twelfth of one, `heavy:3` is made up with seed 3."""
    found = []
    for word in words:
        path, _, number = word.partition(':')
        found += heavy_tailed(int(number)) if path == 'heavy' else read_trace(path)[::int(number or 1)]
    return found


def peak(work):
    """MB."""
    return max(memory for _, memory in work.course)


def area(work):
    """MB · seconds of a compilation."""
    total, before, memory = 0.0, 0.0, 0.0
    for at, value in work.course:
        total += (at - before) * (memory + value) / 2
        before, memory = at, value
    return total * work.seconds


def memory_at(work, age):
    """MB of a compilation at an age."""
    share, before, memory = age / work.seconds, 0.0, 0.0
    for at, value in work.course:
        if share <= at:
            return memory + (value - memory) * (share - before) / max(1e-9, at - before)
        before, memory = at, value
    return 0.0


def wanted(works, cores):
    """MB that so many compilations at a time would like: the most at any moment, in the trace's order."""
    running, todo, now, most = [], list(works), 0.0, 0.0
    while running or todo:
        while todo and len(running) < cores:
            work = todo.pop(0)
            running.append((now + work.seconds, now, work))
        most = max(most, sum(memory_at(work, now - begun) for _, begun, work in running))
        most = max(most, sum(memory_at(work, min(end, now + 5) - begun) for end, begun, work in running))
        now = max(now + 0.01, min(end for end, _, _ in running))
        running = [entry for entry in running if entry[0] > now]
    return most


def bound(works, cores, megabytes):
    """Seconds that nothing can beat, and why: the longest one, the cores, the memory, or long ones two to a core."""
    longest = sorted((work.seconds for work in works), reverse=True)
    # of the k * cores + 1 longest some core gets k + 1, which are no shorter than the shortest of them
    rounds = max(sum(longest[k * cores - k:k * cores + 1]) for k in range((len(longest) - 1) // cores + 1))
    return max((longest[0], 'the longest job'), (rounds, 'long jobs'), (sum(longest) / cores, 'the cores'),
               (sum(area(work) for work in works) / megabytes, 'memory'))


def as_profile(works, scale=(1.0, 1.0)):
    """
    {file: entry} as in a profile of ramgate, memory and time being scaled; of a file that several traces have, what
    needs the most.
    """
    files = {}
    for work in sorted(works, key=peak):
        seconds = work.seconds * scale[1]
        ages = [age_of(number) for number in range(span(seconds) + 2)]
        curve = []
        for since, until in zip(ages, ages[1:]):
            moments = [min(work.seconds, age / scale[1]) * 0.9999 for age in (since, (since + until) / 2, until)]
            memory = scale[0] * max(memory_at(work, moment) for moment in moments)
            curve.append(round(memory, 1))
        files[work.name] = {'seconds': round(seconds, 2), 'curve': curve, 'language': work.language}
    return files


def main():
    files = as_profile(read_traces(sys.argv[1:]))
    # a line for each file, so that changes can be seen
    lines = ['%s:%s' % (json.dumps(name), json.dumps(files[name], separators=(',', ':'), sort_keys=True))
             for name in sorted(files)]
    print('{"version":%d,"files":{\n%s\n}}' % (VERSION, ',\n'.join(lines)))


if __name__ == '__main__':
    main()
