"""What is known of PyTorch's build by version."""
import pytest

from hpc_pytorch.source import build_options


@pytest.mark.parametrize('version, found, words', [
    ('2.8.0', {'CMake': '3.18.4', 'Python': '3.9', 'GCC': '9.4.0'}, []),
    ('2.9.1', {'CMake': '3.29.4', 'Python': '3.10', 'GCC': '9.4.0'}, []),
    ('2.9.1', {'CMake': '3.21.3', 'Python': '3.9'}, ['CMake 3.27 or newer (3.21.3 is here)',
                                                     'Python 3.10 or newer (3.9 is here)']),
    ('2.15.0', {'GCC': '11.2.0'}, ['GCC 11.3 or newer (11.2.0 is here)']),
])
def test_lacking(version, found, words):
    """What is there decides; of what nobody knows nothing is said."""
    assert build_options.lacking(version, found) == words
