"""The house keeps its order: imports go one way, and ramgate stands alone."""
import ast
import importlib.util
import sysconfig

import pytest
from common import CHECKOUT

# data flows from the first to the last; a room imports from itself and from those before it
ROOMS = ('machine', 'packages', 'source', 'rules', 'jobs')
MODULES = [path for room in ROOMS for path in sorted((CHECKOUT / 'hpc_pytorch' / room).glob('*.py'))]
# what EasyBuild finds by its place: these may use the rooms, and no room uses them
OUTSIDE = [path for place in ('easyblocks', 'hooks', 'hpc_pytorch/job_backends')
           for path in sorted((CHECKOUT / place).rglob('*.py'))]
RAMGATE = sorted((CHECKOUT / 'ramgate/ramgate').glob('*.py'))


def name_of(path):
    """Its path from the top of the checkout."""
    return str(path.relative_to(CHECKOUT))


def imports(path):
    """The dotted names that a Python file imports, wherever in it; relative ones begin with a dot."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield '.' * node.level + '.'.join(filter(None, [node.module, alias.name]))


def rooms(path):
    """The rooms that a file imports from."""
    return {name.split('.')[1] for name in imports(path) if name.startswith('hpc_pytorch.')} & set(ROOMS)


def test_rooms_are_all_known():
    """A new room has its place in the order."""
    found = {path.parent.name for path in (CHECKOUT / 'hpc_pytorch').glob('*/*.py')}
    assert found - {'job_backends', 'reframe', 'share', 'stand_ins'} == set(ROOMS)


@pytest.mark.parametrize('path', MODULES, ids=name_of)
def test_imports_go_one_way(path):
    """Never to a later room, nor to what EasyBuild finds by its place, nor to the tests."""
    assert rooms(path) <= set(ROOMS[:ROOMS.index(path.parent.name) + 1])
    outside = {'easyblocks', 'hooks', 'job_backends', 'tests', 'common'} | {other.stem for other in OUTSIDE}
    assert not [name for name in imports(path) if outside & set(name.split('.')) and 'easybuild.tools' not in name]


@pytest.mark.parametrize('path', OUTSIDE, ids=name_of)
def test_what_easybuild_finds_uses_the_rooms_alone(path):
    """Easyblocks may build on one another; a hook imports no easyblock, and a job backend neither."""
    others = {other.stem for other in OUTSIDE
              if other.parent.name != path.parent.name and 'easyblocks' not in name_of(path)}
    assert not [name for name in imports(path) if others & set(name.split('.'))]


def comes_with_python(name):
    """Whether a module comes with Python; 3.9 has no list of their names."""
    place = importlib.util.find_spec(name).origin
    return place in ('built-in', 'frozen') or (
        place.startswith(sysconfig.get_paths()['stdlib']) and 'site-packages' not in place)


@pytest.mark.parametrize('path', RAMGATE, ids=name_of)
def test_ramgate_stands_alone(path):
    """It is a program of its own: the standard library and itself."""
    for name in imports(path):
        top = name.split('.')[0]
        assert top in ('', 'ramgate') or comes_with_python(top), name
