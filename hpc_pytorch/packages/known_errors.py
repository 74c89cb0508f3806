"""Errors of PyTorch's build that many have met (known_errors.cfg): what is in the log, why, and what to do."""
import re
from collections import namedtuple

from hpc_pytorch import HERE
from hpc_pytorch.machine.systems import parse

Known = namedtuple('Known', 'pattern cause remedy')


def read_table(name, flags=0):
    parser = parse('%s/packages/%s.cfg' % (HERE, name))
    return [Known(re.compile(row['pattern'].replace('\n', ''), flags), row.name, row.get('remedy'))
            for row in map(parser.__getitem__, parser.sections())]


KNOWN = read_table('known_errors')


def explain(text):
    """Return causes and remedies for what is in a log, the most frequent first; '' if nothing is known."""
    found = [known for known in KNOWN if known.pattern.search(text)]
    return '\n'.join("  likely cause: %s\n  what to do:   %s" % (known.cause, known.remedy) for known in found)


# How tools begin to say what went wrong: what they print afterwards is seldom of use.
BEGINNINGS = re.compile(r'^(CMake Error|FAILED: |ninja: error|\S+:\d+:\d+: (fatal )?error: |\w*(Error|Exception): )')
EXCERPT_LINES = 15
# commands of compilers have kilobytes, and the reason would be lost between them
EXCERPT_WIDTH = 300
# Where setup.py was when the compiler failed says nothing; the line after it may.
TRACEBACK = re.compile(r'^Traceback \(most recent call last\):\n([ \t].*\n)*', re.M)
# Nor do the commands that ninja shows of other jobs, which end after the one that failed.
PROGRESS = re.compile(r'\[\d+/\d+\] ')


def excerpt(text):
    """Return the part of a log to show: from the first line that says what went wrong, else its end."""
    lines = TRACEBACK.sub('', text).strip().splitlines()
    lines = [line for line in lines if not PROGRESS.match(line)] or lines
    tail = max(len(lines) - EXCERPT_LINES, 0)
    begin = next((number for number in range(tail) if BEGINNINGS.match(lines[number])), tail)
    shown = lines[begin:begin + EXCERPT_LINES]
    return '\n'.join(line[:EXCERPT_WIDTH] + ' ...' * (len(line) > EXCERPT_WIDTH) for line in shown)


def why_not_built(output):
    """Extract the output of a package's own build from pip's; '' if nothing was built."""
    if 'error: subprocess-exited-with-error' not in output:
        return ''
    lines = [line.strip() for line in output.splitlines()]
    return '\n'.join(['', excerpt('\n'.join(lines)), explain(output)])
