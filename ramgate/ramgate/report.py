"""What a build did: a live line while it runs; report.json and a page to look at afterwards."""
import json
import os
import shutil
import sys
import time

from ramgate.estimates import MB
from ramgate.limits import human

# seconds between two live lines on a terminal, and without one
LIVE, LOG = 0.5, 60.0
# the same line for whoever looks from another host: the file that this variable names, and seconds between two
PROGRESS, NOTE = 'RAMGATE_PROGRESS', 5.0
# memory is kept for so many moments at most
MOMENTS = 2000
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'report.html')


def duration(seconds):
    """1 h 02 min, 3 min 04 s, 5 s."""
    seconds = int(seconds)
    if seconds >= 3600:
        return '%d h %02d min' % (seconds // 3600, seconds % 3600 // 60)
    return '%d min %02d s' % (seconds // 60, seconds % 60) if seconds >= 60 else '%d s' % seconds


class Live:
    """One line on a terminal, a line a minute elsewhere, on stderr."""

    def __init__(self, stream=None):
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.begin = time.monotonic()
        self.next = self.begin + (LIVE if self.terminal else LOG)
        self.drawn = False
        self.progress, self.next_note = os.environ.get(PROGRESS), self.begin

    def __call__(self, event, job, schedule):
        now = time.monotonic()
        if event == 'finished' and self.drawn:
            self.stream.write('\r\033[K')
        elif now >= self.next and event != 'finished':
            self.next = now + (LIVE if self.terminal else LOG)
            line = 'ramgate: ' + self.line(schedule, now)
            if self.terminal:
                width = shutil.get_terminal_size().columns - 1
                self.stream.write('\r%s\033[K\r' % line[:width])
                self.drawn = True
            else:
                self.stream.write(line + '\n')
        self.stream.flush()
        if self.progress and now >= self.next_note:
            self.next_note = now + NOTE
            self.note(self.line(schedule, now))

    def note(self, line):
        """Leave the line where others find it; not being able to is no reason to stop a build."""
        partial = '%s.%d' % (self.progress, os.getpid())
        try:
            with open(partial, 'w') as file:
                file.write(line + '\n')
            os.replace(partial, self.progress)
        except OSError:
            self.progress = None

    def line(self, schedule, now):
        """How far the build is."""
        counts = {state: len(schedule.in_state(state)) for state in ('running', 'frozen', 'waiting')}
        total = max(schedule.done + sum(counts.values()), schedule.foreseen)
        used = schedule.limit - schedule.constraint.free
        text = '%d/%d done, %d running, ' % (schedule.done, total, counts['running'])
        if counts['frozen']:
            text += '%d frozen, ' % counts['frozen']
        text += '%s of %s' % (human(used), human(schedule.limit))
        if schedule.done and total > schedule.done:
            text += ', about %s left' % duration((now - self.begin) * (total - schedule.done) / schedule.done)
        return text


class Report:
    """Collects what happened and writes it."""

    def __init__(self, directory):
        self.directory, self.begin = directory, time.monotonic()
        self.jobs, self.moments, self.every, self.seen = [], [], 1, 0
        self.events = []

    def __call__(self, event, job, schedule):
        now = time.monotonic() - self.begin
        if event == 'ended':
            self.jobs.append(self.entry(job))
        elif event in ('frozen', 'thawed', 'killed'):
            self.events.append([round(now, 3), event, job.name])
        elif event == 'looked':
            self.look(now, schedule)
        elif event == 'finished':
            self.write(schedule)

    def entry(self, job):
        """What the report says about a job."""
        entry = {'start': (job.started or job.asked) - self.begin, 'end': job.ended - self.begin,
                 'seconds': job.seconds, 'frozen': job.frozen_for, 'waited': job.waited}
        entry = {name: round(value, 3) for name, value in entry.items()}
        entry.update(file=job.name, language=job.language, status=job.status, peak_mb=round(job.recorder.peak / MB, 1),
                     expected_mb=round(job.estimate.peak, 1) if job.estimate else None,
                     retries=[{'start': round(start - self.begin, 3), 'end': round(end - self.begin, 3),
                               'peak_mb': round(peak, 1), 'why': why} for start, end, peak, why in job.retries])
        return entry

    def look(self, now, schedule):
        """One moment of memory; of many only every second is kept."""
        self.seen += 1
        if self.seen % self.every:
            return
        megabytes = (schedule.own, schedule.limit - schedule.constraint.free, schedule.limit)
        self.moments.append([round(now, 2)] + [round(amount / MB, 1) for amount in megabytes]
                            + [len(schedule.in_state(state)) for state in ('running', 'frozen', 'waiting')])
        if len(self.moments) > MOMENTS:
            self.moments, self.every = self.moments[::2], self.every * 2

    def write(self, schedule):
        """report.json, report.html and the profile."""
        os.makedirs(self.directory, exist_ok=True)
        seconds = round(time.monotonic() - self.begin, 2)
        data = {'seconds': seconds, 'cores': schedule.cores, 'limit_mb': round(schedule.limit / MB), 'limited_by':
                schedule.constraint.name, 'jobs': self.jobs, 'events': self.events,
                'memory': {'columns': ['seconds', 'jobs_mb', 'used_mb', 'limit_mb', 'running', 'frozen', 'waiting'],
                           'rows': self.moments}}
        text = json.dumps(data, indent=None, separators=(',', ':'))
        with open(PAGE) as file:
            # no name of a file can end the script that holds the data
            page = file.read().replace('@DATA@', text.replace('<', '\\u003c'))
        for name, text in (('report.json', text + '\n'), ('report.html', page)):
            partial = os.path.join(self.directory, '.%s.%d' % (name, os.getpid()))
            with open(partial, 'w') as file:
                file.write(text)
            os.replace(partial, os.path.join(self.directory, name))
        schedule.knowledge.save(os.path.join(self.directory, 'profile.json'))
