"""What is left of a build to be looked at."""
import html
import json
import re
import subprocess
import time
from collections import namedtuple

import pytest

from ramgate.estimates import MB, Knowledge
from ramgate.limits import Constraint
from ramgate.report import Progress, Report, Summary, duration
from ramgate.schedule import Schedule

Command = namedtuple('Command', 'name language partial')


def some_build(*watchers):
    """Two jobs, one of which was run again."""
    knowledge = Knowledge()
    names = ('a&b</script>.o', 'c.cpp.o')
    knowledge.add_profile({name: {'seconds': 9, 'curve': [100], 'language': 'CXX'} for name in names})
    schedule = Schedule(knowledge, 2, Constraint('the <node>', 1000 * MB, 900 * MB))
    now = time.monotonic()

    def happened(decisions):
        for what, job, _ in decisions:
            for watcher in watchers:
                watcher(what, job, schedule)

    jobs = [schedule.asked(Command(name, 'CXX', ''), now) for name in names]
    happened(schedule.plan(now))
    for at in range(1, 5):
        schedule.measured({job: 40 * at * MB for job in jobs}, now + at)
        for watcher in watchers:
            watcher('looked', None, schedule)
    happened(schedule.ended(jobs[0], 1, 0, True, False, now + 5))
    happened(schedule.plan(now + 5))
    for job in jobs:
        happened(schedule.ended(job, 0, 0, False, False, now + 9))
    for watcher in watchers:
        watcher('finished', None, schedule)


@pytest.mark.parametrize('peak, held', [(100, ''), (600, '; memory held some back for 8 s: ')])
def test_held_by_memory(monkeypatch, peak, held):
    """Not the moment from a compiler's question to the next plan, which is long on a busy machine."""
    clock = [0.0]
    monkeypatch.setattr(time, 'monotonic', lambda: clock[0])
    summary, knowledge = Summary(), Knowledge()
    knowledge.add_profile({name: {'seconds': 9, 'curve': [peak], 'language': 'CXX'} for name in 'ab'})
    schedule = Schedule(knowledge, 2, Constraint('the node', 1000 * MB, 1000 * MB))

    def at(now, *events):
        clock[0] = now
        for event in events:
            summary(event, None, schedule)

    jobs = [schedule.asked(Command(name, 'CXX', ''), 0.0) for name in 'ab']
    at(1, 'looked')
    schedule.plan(1)
    at(1, 'planned')
    at(9, 'looked')
    schedule.ended(jobs[0], 0, 0, False, False, 9)
    schedule.plan(9)
    at(9, 'planned')
    schedule.ended(jobs[1], 0, 0, False, False, 10)
    at(10)
    line, = summary.lines(schedule, None)
    assert re.fullmatch(r'2 compilers in 10 s [^;]*' + held + '.*' * bool(held), line), line


def test_report(tmp_path):
    summary = Summary()
    some_build(summary, Report(str(tmp_path / 'report'), summary))
    report = json.loads((tmp_path / 'report' / 'report.json').read_text())
    # the last line that was printed
    last, = report['summary']
    assert re.fullmatch(r'2 compilers in \d+ s \(2 by launcher\), at most 320.0 MB of 1000.0 MB, 1 run again', last)
    jobs = {job['file']: job for job in report['compilations']}
    assert jobs['c.cpp.o']['peak_mb'] == 160 and jobs['c.cpp.o']['seconds'] == 9
    assert [retry['why'] for retry in jobs['a&b</script>.o']['retries']] == ['out of memory']
    assert [row[1] for row in report['memory']['rows']] == [80, 160, 240, 320]
    assert json.loads((tmp_path / 'report' / 'profile.json').read_text())['files'].keys() == jobs.keys()


# points at the first bar, then draws a part of the time
HAND = """<script>
const first = document.querySelector('.compilation');
first.dispatchEvent(new MouseEvent('mousemove', {bubbles: true, clientX: 1, clientY: 1}));
document.body.append(`pointed at ${tip.textContent}; bars ${document.querySelectorAll('.compilation').length}; `);
draw(8, 9);
document.body.append(`then ${document.querySelectorAll('.compilation').length}`);
</script>"""


@pytest.mark.slow
def test_the_page_in_a_browser(tmp_path):
    some_build(Report(str(tmp_path / 'report'), Summary()))
    page = (tmp_path / 'report' / 'report.html').read_text()
    # self-contained, and no file's name is taken for a part of the page
    assert set(re.findall('https?://[^\'" ]*', page)) == {'http://www.w3.org/2000/svg'} and '</script>.o' not in page
    (tmp_path / 'page.html').write_text(page + HAND)
    done = subprocess.run(['chromium', '--headless', '--no-sandbox', '--disable-gpu', '--dump-dom',
                           '--user-data-dir=%s' % (tmp_path / 'profile'), (tmp_path / 'page.html').as_uri()],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=300, check=True)
    text = html.unescape(done.stdout)
    assert '2 compilations in ' in text and 'on 2 cores, 1 run again; at most 320 MB of 1000 MB (the <node>)' in text
    assert 'pointed at a&b</script>.o' in text and 'out of memory: run again; bars 3; then 2' in text
    assert 'Estimates of memory were off by ' in text


def test_a_line_while_it_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('RAMGATE_PROGRESS', str(tmp_path / 'progress'))
    some_build(Progress(Summary()))
    summary = r'ramgate: 2 compilers in \d+ s \(2 by launcher\), at most 320.0 MB of 1000.0 MB, 1 run again\n'
    assert re.fullmatch(summary, capsys.readouterr().err)
    assert (tmp_path / 'progress').read_text().startswith('0/2 done, 2 running, ')


def test_durations():
    assert [duration(seconds) for seconds in (5, 184, 3720)] == ['5 s', '3 min 04 s', '1 h 02 min']
