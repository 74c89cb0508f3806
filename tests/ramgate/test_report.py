"""What is left of a build to be looked at."""
import io
import json
import xml.etree.ElementTree
from collections import namedtuple

from ramgate.estimates import MB, Knowledge
from ramgate.limits import Constraint
from ramgate.report import Live, Report, duration
from ramgate.schedule import Schedule

Command = namedtuple('Command', 'name language partial')


def some_build(*watchers):
    """Two jobs, one of which was run again."""
    knowledge = Knowledge()
    knowledge.keep({name: {'seconds': 9, 'curve': [100], 'language': 'CXX'} for name in ('a&b.cpp.o', 'c.cpp.o')})
    schedule = Schedule(knowledge, 2, Constraint('the <node>', 1000 * MB, 900 * MB, '/'))
    now = watchers[0].begin

    def happened(decisions):
        for what, job, _ in decisions:
            for watcher in watchers:
                watcher(what, job, schedule)

    jobs = [schedule.asked(Command(name, 'CXX', ''), now) for name in ('a&b.cpp.o', 'c.cpp.o')]
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


def test_report(tmp_path):
    some_build(Report(str(tmp_path / 'report')))
    report = json.loads((tmp_path / 'report' / 'report.json').read_text())
    jobs = {job['file']: job for job in report['jobs']}
    assert jobs['c.cpp.o']['peak_mb'] == 160 and jobs['c.cpp.o']['seconds'] == 9
    assert [retry['why'] for retry in jobs['a&b.cpp.o']['retries']] == ['out of memory']
    assert [row[1] for row in report['memory']['rows']] == [80, 160, 240, 320]
    assert json.loads((tmp_path / 'report' / 'profile.json').read_text())['files'].keys() == jobs.keys()
    picture = xml.etree.ElementTree.parse(str(tmp_path / 'report' / 'report.svg'))
    assert any('a&b.cpp.o' in (title.text or '') for title in picture.iter('{http://www.w3.org/2000/svg}title'))


def test_a_line_while_it_runs(tmp_path, monkeypatch):
    monkeypatch.setenv('RAMGATE_PROGRESS', str(tmp_path / 'progress'))
    some_build(Live(io.StringIO()))
    assert (tmp_path / 'progress').read_text().startswith('0/2 done, 2 running, ')


def test_durations():
    assert [duration(seconds) for seconds in (5, 184, 3720)] == ['5 s', '3 min 04 s', '1 h 02 min']
