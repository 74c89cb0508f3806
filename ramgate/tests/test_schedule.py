"""Who starts, freezes, goes on and starts again: false jobs on a false clock, no processes."""
from collections import namedtuple

import pytest

from ramgate.estimates import MB, Knowledge
from ramgate.limits import Constraint
from ramgate.schedule import FROZEN, RUNNING, WAITING, Schedule

Command = namedtuple('Command', 'name language partial')


class Node:
    """A limit of so many MB, and jobs on it that occupy what they are told to."""

    def __init__(self, megabytes, cores=4, **known):
        self.now, self.limit = 1000.0, megabytes * MB
        knowledge = Knowledge()
        knowledge.add_profile({name: {'seconds': seconds, 'curve': [peak], 'language': 'CXX'}
                        for name, (seconds, peak) in known.items()})
        self.schedule = Schedule(knowledge, cores, Constraint('the node', self.limit, self.limit))

    def ask(self, *names):
        return [self.schedule.asked(Command(name, 'CXX', name + '.o'), self.now) for name in names]

    def plan(self):
        return [(what, job.name) for what, job, _ in self.schedule.plan(self.now)]

    def look(self, seconds, memory):
        """So much later the jobs occupy so much, in MB."""
        self.now += seconds
        self.schedule.measured({job: amount * MB for job, amount in memory.items()}, self.now)
        used = sum(memory.values()) * MB
        self.schedule.constraint = self.schedule.constraint._replace(free=self.limit - used)
        return [(what, job.name) for what, job, _ in self.schedule.relieve(0.05, self.now)]

    def end(self, job, status=0, resident=0, out_of_memory=False, kernel_killed=False):
        return self.schedule.ended(job, status, resident * MB, out_of_memory, kernel_killed, self.now)


def test_the_longest_first_and_smaller_ones_beside_it():
    node = Node(1000, long=(100, 600), short=(10, 600), small=(5, 300))
    node.ask('small', 'short', 'long')
    assert node.plan() == [('started', 'long'), ('started', 'small')]


def test_no_more_than_the_cores():
    node = Node(10000, cores=2, a=(10, 100), b=(10, 100), c=(10, 100))
    a, _, _ = node.ask('a', 'b', 'c')
    assert len(node.plan()) == 2 and node.plan() == []
    assert [what for what, _, _ in node.end(a)] == ['ended']
    assert node.plan() == [('started', 'c')]


def test_a_short_job_is_not_passed_over_for_ever():
    """Something may wait for it, such as a program that the build makes and runs."""
    node = Node(1000, cores=1, short=(1, 100), **{'long%d' % at: (100, 100) for at in range(50)})
    node.ask('short')
    started = []
    for at in range(50):
        node.ask('long%d' % at)
        started += [name for _, name in node.plan()]
        node.look(100, {node.schedule.alive()[0]: 100})
        node.end(node.schedule.alive()[0])
    assert 10 < started.index('short') < 30


def test_a_large_job_is_not_passed_over_for_ever():
    """One that, with some doubt, needs all of the memory, while small ones come and go."""
    small = {'small%d' % at: (1, 300) for at in range(300)}
    node = Node(1000, large=(100, 970), **small)
    node.ask('small0')
    node.plan()
    node.ask('large')
    started = []
    for name in list(small)[1:]:
        node.ask(name)
        started += [name for _, name in node.plan()]
        node.look(1, {job: 300 for job in node.schedule.alive()})
        node.end(node.schedule.alive()[0])
    assert 50 < started.index('large') < 100


def test_short_jobs_that_were_passed_over_take_all_cores_at_once():
    node = Node(1000, large=(1, 1200), **{'short%d' % at: (1, 100) for at in range(6)})
    node.ask('short0', 'short1', 'large', 'short2')
    node.schedule.begun += 1000
    node.ask('short3')
    assert [name for _, name in node.plan()] == ['short0', 'short1']


def test_who_was_killed_was_not_passed_over():
    """What started while it ran does not count: the longest is next."""
    node = Node(1000, cores=1, short=(10, 100), long=(100, 100))
    short, = node.ask('short')
    node.plan()
    node.schedule.begun += 1000
    node.ask('long')
    node.look(1, {short: 100})
    assert node.end(short, 137, out_of_memory=True)[0][0] == 'retried'
    assert node.plan() == [('started', 'long')]


def test_alone_even_what_does_not_fit_is_tried():
    node = Node(1000, huge=(10, 5000), other=(5, 5000))
    node.ask('huge', 'other')
    assert node.plan() == [('started', 'huge')]


def test_the_newest_is_frozen_and_goes_on_when_there_is_room():
    node = Node(1000, old=(100, 300), new=(50, 300))
    old, new = node.ask('old', 'new')
    node.plan()
    assert node.look(1, {old: 300, new: 300}) == []
    assert node.look(1, {old: 495, new: 300}) == []
    assert node.look(1, {old: 495, new: 492}) == [('frozen', 'new')]
    assert new.state == FROZEN and old.state == RUNNING
    age = new.age(node.now)
    # the old one comes to its end, while the new one gets no older
    assert node.look(40, {old: 400, new: 492}) == []
    assert new.age(node.now) == age
    node.end(old)
    assert node.look(1, {new: 492}) == [('thawed', 'new')]


def test_what_is_not_enough_is_killed_and_claims_no_more_for_it():
    node = Node(1000, old=(100, 300), new=(50, 300))
    old, new = node.ask('old', 'new')
    node.plan()
    node.look(1, {old: 300, new: 300})
    assert node.look(1, {old: 700, new: 299}) == [('frozen', 'new'), ('killed', 'new')]
    decisions = node.end(new, 137, out_of_memory=True)
    assert decisions == [('retried', new, 'new.o')]
    assert new.state == WAITING and new.reserved == 0 and new.retries[0][3] == 'made room'
    assert node.plan() == []


def test_more_frozen_than_working_is_worth_nothing():
    node = Node(1000, **{name: (100 - at, 200) for at, name in enumerate('abcd')})
    jobs = node.ask(*'abcd')
    node.plan()
    node.look(1, {job: 240 for job in jobs})
    decisions = node.look(1, dict.fromkeys(jobs, 247))
    assert decisions == [('frozen', 'd'), ('frozen', 'c'), ('frozen', 'b'), ('killed', 'd')]


def test_who_ran_out_of_memory_claims_more():
    node = Node(1000, job=(10, 100), other=(5, 100))
    job, _ = node.ask('job', 'other')
    node.plan()
    node.look(1, {job: 200})
    assert node.end(job, 1, out_of_memory=True) == [('retried', job, 'job.o')]
    assert job.reserved == pytest.approx(280)
    assert node.schedule.expected(job).peak == pytest.approx(280)


def test_alone_and_too_big_ends_the_build_and_says_why():
    node = Node(1000, huge=(10, 900), small=(5, 500))
    huge, small = node.ask('huge', 'small')
    node.plan()
    node.look(1, {huge: 950})
    node.schedule.constraint = node.schedule.constraint._replace(free=20 * MB)
    what, _, line = node.end(huge, 137, out_of_memory=True, kernel_killed=True)[0]
    assert what == 'refused' and ('huge does not fit: alone it needs more than 950.0 MB, and the limit is 1000.0 MB '
                                  '(the node), 970.0 MB of it for compilers.') in line
    assert node.schedule.plan(node.now) == [
        ('refused', small, 'ramgate: small is not started: huge needs more memory than the limit')]


def test_a_job_that_is_always_killed_is_given_up():
    node = Node(1000, job=(10, 100), other=(90, 100))
    job, _ = node.ask('job', 'other')
    for _ in range(10):
        node.plan()
        assert node.end(job, 137, out_of_memory=True)[0][0] == 'retried'
    node.plan()
    what, _, line = node.end(job, 137, out_of_memory=True)[0]
    assert what == 'refused' and 'giving up on job: killed 11 times' in line


def test_a_job_that_only_made_room_is_not_given_up():
    node = Node(1000, old=(1000, 300), new=(50, 300))
    old, new = node.ask('old', 'new')
    for _ in range(20):
        node.plan()
        node.look(1, {old: 300, new: 300})
        assert ('killed', 'new') in node.look(1, {old: 700, new: 299})
        assert node.end(new, 137) == [('retried', new, 'new.o')]
        node.look(1, {old: 300})


def test_a_peak_between_two_looks_is_in_the_kernel_s_figure():
    node = Node(1000, job=(10, 100))
    job, = node.ask('job')
    node.plan()
    node.look(1, {job: 50})
    node.end(job, resident=500)
    assert max(node.schedule.knowledge.measured['job']['curve']) == 400


def test_what_is_larger_than_its_curve_is_expected_to_stay_so():
    node = Node(1000)
    node.schedule.knowledge.add_profile({'job': {'seconds': 10, 'curve': [100] * 10 + [800] * 20, 'language': 'CXX'}})
    job, = node.ask('job')
    node.plan()
    node.look(5, {job: 100})
    curve, seconds, age, _ = node.schedule.future(job, node.now)
    assert max(curve) == 800 and age == 5 and seconds == pytest.approx(11)
    node.look(1, {job: 900})
    assert max(node.schedule.future(job, node.now)[0]) >= 900
    # and one past its time has only the present
    node.look(5, {job: 500})
    curve, seconds, age, _ = node.schedule.future(job, node.now)
    assert curve == [pytest.approx(510)] and seconds == pytest.approx(1.65) and age == 0
