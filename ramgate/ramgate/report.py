"""What a build did: a line while it runs; report.json and report.html afterwards."""
import json
import os
import sys
import time

from ramgate.estimates import MB, write_whole
from ramgate.limits import human
from ramgate.schedule import DONE, FROZEN, RETRY, RUNNING, WAITING, WATCHED

# seconds between two lines
LOG = 60.0
# the summary proposes a profile where compilers were held for more than this share of the time
WORTH = 0.05
# names the file that has the same line for whoever looks from another host; seconds between two
PROGRESS = 'RAMGATE_PROGRESS'
NOTE = 5.0
# the report has so many rows of memory at most
ROWS = 2000
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'report.html')


def duration(seconds):
    """1 h 02 min, 3 min 04 s, 5 s."""
    minutes, seconds = divmod(int(seconds), 60)
    if minutes >= 60:
        return '%d h %02d min' % divmod(minutes, 60)
    return '%d min %02d s' % (minutes, seconds) if minutes else '%d s' % seconds


def say(line):
    print('ramgate:', line, file=sys.stderr, flush=True)


def counts(schedule):
    return [len(schedule.in_state(state)) for state in (RUNNING, FROZEN, WAITING)]


def manner(schedule):
    """12 by launcher, 3 only watched."""
    return ', '.join('%d %s' % (count, way) for way, count in schedule.ways.items() if count)


class Summary:
    """What a build took, in a line when it has ended."""

    def __init__(self):
        self.begin = self.planned = time.monotonic()
        self.peak = self.held = 0.0
        self.retried = self.holding = 0
        # of all compilations, in bytes
        self.peaks = []

    def __call__(self, event, compilation, schedule):
        now = time.monotonic()
        if event == 'looked':
            self.peak = max(self.peak, schedule.own)
        elif event == 'planned':
            # one that waits only until the next plan is not held
            self.held += self.holding * (now - self.planned)
            running, frozen, waiting = counts(schedule)
            self.holding, self.planned = running < schedule.cores and frozen + waiting > 0, now
        elif event == DONE:
            self.peaks.append(compilation.recorder.peak)
        elif event == RETRY:
            self.retried += 1

    def lines(self, schedule, profile):
        seconds = time.monotonic() - self.begin
        if not schedule.done:
            yield 'no compiler was seen in %s' % duration(seconds)
            return
        text = '%d compilers in %s (%s), at most %s' % (schedule.done, duration(seconds), manner(schedule),
                                                        human(self.peak))
        text += ' of %s, %d run again' % (human(schedule.limit), self.retried)
        largest = sum(sorted(self.peaks)[-schedule.cores:])
        if self.held > WORTH * seconds:
            text += '; memory held some back for %s: the %d largest at once take %s' % (
                duration(self.held), min(schedule.cores, len(self.peaks)), human(largest))
            text += '' if profile else '. Next time --profile auto may be faster'
        yield text
        if schedule.lost or self.peak > schedule.limit and schedule.ways[WATCHED]:
            what = 'the kernel killed %d' % schedule.lost if schedule.lost else 'they took %s' % human(self.peak)
            yield ('%d compilers were only watched, as the build names them by their paths, and %s: ramgate can hold '
                   'such, not start them again. Configure a new build directory within `ramgate run`, or give --jobs'
                   % (schedule.ways[WATCHED], what))


class Progress:
    """A line a minute that says how far the build is; what the user should know; a summary."""

    def __init__(self, summary, profile=None):
        self.summary = summary
        self.profile = profile
        self.begin = self.next_note = time.monotonic()
        self.next_line = self.begin + LOG
        self.file = os.environ.get(PROGRESS)

    def __call__(self, event, compilation, schedule):
        now = time.monotonic()
        self.summary(event, compilation, schedule)
        if event == 'finished':
            for line in self.summary.lines(schedule, self.profile):
                say(line)
        elif event == 'looked' and now >= self.next_line:
            self.next_line = now + LOG
            say(self.line(schedule, now))
        if self.file and now >= self.next_note:
            self.next_note = now + NOTE
            try:
                write_whole(self.file, self.line(schedule, now) + '\n')
            except OSError:
                # no reason to stop a build
                self.file = None

    def line(self, schedule, now):
        running, frozen, waiting = counts(schedule)
        done = schedule.done
        total = max(done + running + frozen + waiting, schedule.knowledge.foreseen)
        used = schedule.limit - schedule.constraint.free
        text = '%d/%d done, %d running, ' % (done, total, running)
        if frozen:
            text += '%d frozen, ' % frozen
        text += '%s of %s' % (human(used), human(schedule.limit))
        if done + running:
            text += ' (%s)' % manner(schedule)
        if done and total > done:
            text += ', about %s left' % duration((now - self.begin) * (total - done) / done)
        return text


class Report:
    """Collects what happens in a build, and writes it when the build has finished; Progress feeds the summary."""

    def __init__(self, directory, summary):
        self.directory = directory
        self.summary = summary
        self.compilations = []
        # of memory, only every so many measurements are kept
        self.rows = []
        self.every = 1
        self.looks = 0

    def __call__(self, event, compilation, schedule):
        if event == DONE:
            self.compilations.append(self.entry(compilation))
        elif event == 'looked':
            self.looked(schedule)
        elif event == 'finished':
            self.write(schedule)

    def since(self, moment):
        return round(moment - self.summary.begin, 3)

    def entry(self, compilation):
        return {
            'file': compilation.name,
            'language': compilation.language,
            'status': compilation.status,
            'came': compilation.way,
            'start': self.since(compilation.started or compilation.asked),
            'end': self.since(compilation.ended),
            'seconds': round(compilation.seconds, 3),
            'waited': round(compilation.waited, 3),
            'frozen': round(compilation.frozen_for, 3),
            'peak_mb': round(compilation.recorder.peak / MB, 1),
            'expected_mb': compilation.estimate and round(compilation.estimate.peak, 1),
            'retries': [{'start': self.since(start), 'end': self.since(end), 'peak_mb': round(peak, 1), 'why': why}
                        for start, end, peak, why in compilation.retries],
        }

    def looked(self, schedule):
        self.looks += 1
        if self.looks % self.every:
            return
        used = schedule.limit - schedule.constraint.free
        memory = [round(amount / MB, 1) for amount in (schedule.own, used, schedule.limit)]
        self.rows.append([self.since(time.monotonic())] + memory + counts(schedule))
        if len(self.rows) > ROWS:
            self.rows = self.rows[::2]
            self.every *= 2

    def write(self, schedule):
        columns = ['seconds', 'compilers_mb', 'used_mb', 'limit_mb', 'running', 'frozen', 'waiting']
        text = json.dumps({
            'seconds': self.since(time.monotonic()),
            'cores': schedule.cores,
            'limit_mb': round(schedule.limit / MB),
            'limited_by': schedule.constraint.name,
            'summary': list(self.summary.lines(schedule, True)),
            'ways': schedule.ways,
            'retries': self.summary.retried,
            'compilations': self.compilations,
            'memory': {'columns': columns, 'rows': self.rows},
        }, separators=(',', ':'))
        with open(PAGE) as file:
            # no name of a file can end the script that has the data
            page = file.read().replace('@DATA@', text.replace('<', '\\u003c'))
        os.makedirs(self.directory, exist_ok=True)
        write_whole(os.path.join(self.directory, 'report.json'), text + '\n')
        write_whole(os.path.join(self.directory, 'report.html'), page)
        schedule.knowledge.save(os.path.join(self.directory, 'profile.json'))
