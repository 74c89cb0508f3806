"""PyTorch's own tests: how each ended, whatever ends it (packages/record_tests.py), and what that comes to."""
import sys

import pytest
from torch_mpi.tests.mpi_installation import kept_venv

from hpc_pytorch import UsersProblem
from hpc_pytorch.packages import own_tests

TESTS = """
import os, time, unittest
class Case(unittest.TestCase):
    def test_a_passes(self):
        pass
    def test_b_fails(self):
        self.assertEqual(1, 2)
    def test_c_is_skipped(self):
        self.skipTest('no GPU')
    def test_d_has_parts(self):
        for number in (1, 2):
            with self.subTest(number=number):
                self.assertEqual(number, 1)
    @unittest.expectedFailure
    def test_e_is_expected_to_fail(self):
        raise ValueError
    def test_serialization_2gb_file(self):
        raise OSError('full')
    def test_z_ends_the_process(self):
        %s
if __name__ == '__main__':
    unittest.main()
"""


def run(tmp_path, text, *arguments, **options):
    """{test: (outcome, why)} of a file."""
    path = tmp_path / 'test_some.py'
    path.write_text(text)
    found = own_tests.run(sys.executable, '', str(tmp_path / 'place'), 'test_some.py', str(path), arguments, **options)
    return {test.split('.')[-1] if test != 'test_some.py' else test: outcome for test, outcome in found.items()}


def test_how_each_ended(tmp_path):
    """As unittest says; a failure that is known is not counted."""
    found = run(tmp_path, TESTS % 'pass')
    assert found == {
        'test_a_passes': ('passed', ''), 'test_b_fails': ('failed', 'AssertionError: 1 != 2'),
        'test_c_is_skipped': ('not counted', 'no GPU'), 'test_d_has_parts': ('failed', 'AssertionError: 2 != 1'),
        'test_e_is_expected_to_fail': ('passed', ''),
        'test_serialization_2gb_file': (
            'not counted', 'failed, as is known: it writes 2 GB to the temporary directory'),
        'test_z_ends_the_process': ('passed', '')}
    lines = own_tests.table({'test_some.py': found})
    assert lines[1].split() == ['test_some.py', '3', '2', '2']
    assert 'failed: test_b_fails: AssertionError: 1 != 2' in lines
    assert own_tests.verdict({'test_some.py': found}, 1) == '2 failed, and max_failed_tests is 1'
    assert own_tests.verdict({'test_some.py': found}, 2) is None
    found = run(tmp_path, TESTS % 'pass', '-k', 'test_a', '-k', '2gb')
    assert own_tests.verdict({'test_some.py': found}, 0) is None, found


def test_process_that_ends(tmp_path):
    """The test that it ended in has failed, and so has the file, however many tests may fail: others did not run."""
    found = run(tmp_path, TESTS % 'os.abort()', '-k', 'test_a', '-k', 'test_z')
    assert found == {'test_a_passes': ('passed', ''), 'test_some.py': ('failed', 'its exit status is -6'),
                     'test_z_ends_the_process': ('failed', 'the process ended while it ran')}
    assert own_tests.verdict({'test_some.py': found}, 10) == 'test_some.py did not run to the end'


def test_known_failure_that_ends_the_process(tmp_path):
    """That it is known does not hide what did not run."""
    found = run(tmp_path, TESTS.replace("raise OSError('full')", 'os._exit(0)') % 'pass')
    assert found['test_serialization_2gb_file'][0] == 'not counted'
    assert own_tests.verdict({'test_some.py': found}, 10) == 'test_some.py did not run to the end'


def test_too_long(tmp_path):
    """It is stopped, with what it has started."""
    found = run(tmp_path, TESTS % "os.system('sleep 1000')", '-k', 'test_z', minutes=0.02)
    assert found == {'test_z_ends_the_process': ('failed', 'the process ended while it ran'),
                     'test_some.py': ('failed', 'it was stopped after 0.02 minutes')}


@pytest.mark.parametrize('text, outcome', [
    ("import no_such_module", ('failed', 'its exit status is 1')),
    ("import sys; sys.exit(0)", ('not counted', 'it has no tests for this machine')),
])
def test_no_test_ran(tmp_path, text, outcome):
    """Never a pass."""
    found = run(tmp_path, text)
    assert found == {'test_some.py': outcome}
    assert own_tests.verdict({'test_some.py': found}, 10) in ('none passed', 'test_some.py did not run to the end')


def test_files(tmp_path):
    """Those of a version's tree; of a wheel a part, or nothing."""
    (tmp_path / 'test').mkdir()
    (tmp_path / 'test' / 'test_nn.py').touch()
    assert own_tests.files('core', str(tmp_path)) == [('test_nn.py', str(tmp_path / 'test' / 'test_nn.py'))]
    assert [name for name, _ in own_tests.files('distributed')] == ['distributed/test_distributed_spawn.py']
    with pytest.raises(UsersProblem, match="a wheel has none of the list 'core'"):
        own_tests.files('core')


@pytest.mark.slow
def test_a_real_wheel(tmp_path, monkeypatch):
    """Two of PyTorch's own, each on two processes: packages/wheel_distributed.py; also where somebody's CI installs."""
    monkeypatch.setenv('CI', 'true')
    (name, path), = own_tests.files('distributed')
    chosen = ['-k', 'test_all_gather_into_cat_tensor_cuda', '-k', 'test_get_rank_size_full_group']
    found = own_tests.run(kept_venv(), '', str(tmp_path / 'place'), name, path, chosen)
    assert sorted(how for how, _ in found.values()) == ['not counted', 'passed'], found
