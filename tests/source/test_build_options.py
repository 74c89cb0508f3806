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


def test_missing_submodules(tmp_path):
    """Those of submodules, too; a tree without a list has all."""
    assert not build_options.missing_submodules(str(tmp_path))
    for name, there in (('third_party/a', True), ('third_party/b', False), ('third_party/a/deep', False)):
        (tmp_path / name).mkdir(parents=True)
        if there:
            (tmp_path / name / 'file').touch()
    (tmp_path / '.gitmodules').write_text('[submodule "a"]\n\tpath = third_party/a\n'
                                          '[submodule "b"]\n\tpath = third_party/b\n')
    (tmp_path / 'third_party/a/.gitmodules').write_text('[submodule "deep"]\n    path = deep\n')
    assert build_options.missing_submodules(str(tmp_path)) == ['third_party/b', 'third_party/a/deep']


def test_unknown_architectures():
    """In the words of nvcc 13.0, which says nothing of 9.0a and PTX; an nvcc that lists nothing is believed."""
    listing = 'compute_75\ncompute_80\ncompute_90\ncompute_100\n'
    assert build_options.unknown_architectures(['8.0', '9.0a', '10.0+PTX', '7.0', '0.9'], listing) == ['7.0', '0.9']
    assert build_options.unknown_architectures(['3.5'], '') == []
