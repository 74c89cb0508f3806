"""Which versions are known to go together, or to fail."""
import configparser
import datetime

import pytest

from hpc_pytorch.machine import systems, versions


def test_table():
    """Each row has all keys, conditions that can hold, a result that is known, and the date of its source."""
    table = configparser.ConfigParser(interpolation=None, delimiters=('=',))
    table.read(versions.PAIRS)
    assert len(table.sections()) > 10
    for section in table.sections():
        row = table[section]
        assert list(row) == ['when', 'result', 'why', 'source', 'date'] and row['result'] in versions.RESULTS
        assert all(map(versions.CONDITION.match, row['when'].split())), section
        assert datetime.date(2023, 1, 1) < datetime.date.fromisoformat(row['date']) <= datetime.date.today()


def test_order():
    """Numbers are compared as numbers; what is no version, a module's `latest`, comes first."""
    order = ['latest', '1.0', '2.4.0', '2.4.0.1', '2.4.1', '2.10.0', '2.21.5', '3.9', '3.14']
    assert sorted(reversed(order), key=versions.release) == order
    assert versions.release('2.0') == versions.release('v2.0.0') == versions.release('2.0.0rc1') == [2]


@pytest.mark.parametrize('version, relation, bound, expected', [
    ('2.4.0a0', '>=', '2.4', True), ('2.10.0rc1', '<', '2.10', False), ('2.3.1', '>=', '2.4', False),
    ('2.3.1', '<', '2.4', True), ('2.10', '>=', '2.9', True), ('8.8.1.3-12', '>=', '8.8.1.3', True),
    ('latest', '>=', '2.0', False),
])
def test_satisfies(version, relation, bound, expected):
    """A pre-release has what its release has."""
    assert versions.satisfies(version, relation, bound) is expected


@pytest.mark.parametrize('words, found, results', [
    ('slingshot', {'aws-ofi-nccl': '1.19.2'}, ['fails']),
    ('slingshot', {'aws-ofi-nccl': '1.21.1', 'nccl': '2.26.6-1'}, []),
    ('slingshot aarch64', {'aws-ofi-nccl': '1.20.0', 'nccl': '2.27.7', 'libfabric': '1.22'},
     ['fails', 'slow', 'works']),
    ('aarch64', {'nccl': '2.30.7+cuda13'}, []),
    ('', {'aws-ofi-rccl': '1.4.0', 'libfabric': '1.22.0'}, ['fails']),
    ('', {'aws-ofi-rccl': '1.4.0', 'libfabric': '1.15.2.0', 'rocm': '6.4.1'}, []),
    ('', {'cuda': '13.0', 'driver': '575.57.08'}, ['fails']),
    ('', {'cuda': '13.0', 'driver': '580.65.06'}, []),
    ('BLAS-OpenBLAS', {'pytorch': '2.8.0'}, ['fails']),
    ('BLAS-OpenBLAS', {'pytorch': '2.9.0'}, []),
    ('BLAS-Eigen WITH_BLAS-open', {'pytorch': '2.8.0'}, []),
    ('torch_mpi', {'gcc': '8.5.0', 'pytorch': '2.7.1'}, ['fails']),
    ('torch_mpi', {'gcc': '9.3.0', 'pytorch': '2.11.0'}, []),
    ('torch_mpi', {'gcc': '10.2.1', 'pytorch': '2.14.1+cu126'}, ['fails']),
    ('torch_mpi', {'gcc': '11.3.0', 'pytorch': '2.15.0'}, []),
    ('', {'gcc': '8.5.0', 'pytorch': '2.15.0'}, []),
    # what nobody knows fits nothing
    ('slingshot aarch64 gfx942', {}, []),
])
def test_known(words, found, results):
    """The worst comes first."""
    assert [row['result'] for row in versions.known(found, words.split())] == results


def test_words():
    """What a system is, by its system.cfg."""
    assert {'slingshot', 'gfx90a', 'x86_64'} <= systems.load('frontier').words
    assert 'slingshot' not in systems.load('bede').words
