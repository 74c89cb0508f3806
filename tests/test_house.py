"""The house keeps its order: who may import whom, and the tests of each module are found by its name."""
import ast
import re
import sys
from pathlib import Path

import pytest
from common import CHECKOUT

# data flows from the first to the last; a room imports from itself and from those before it
ROOMS = ('machine', 'packages', 'source', 'rules', 'jobs')
TESTS = [path for path in (CHECKOUT / 'tests').rglob('test_*.py') if path.name != Path(__file__).name]
MODULES = [path for path in sorted((CHECKOUT / 'hpc_pytorch').glob('*/*.py')) if path.name != '__init__.py']
# what EasyBuild finds by its place: these may use the rooms, and are used by none
OUTSIDE = [path for room in ('easyblocks', 'hooks', 'job_backends') for path in sorted((CHECKOUT / room).rglob('*.py'))]
SCRIPTS = [path for path in sorted((CHECKOUT / 'scripts').rglob('*')) if path.is_file() and not path.suffix == '.pyc']


def place(path):
    """A file's name from the top of the checkout."""
    return str(path.relative_to(CHECKOUT))


def imports(path):
    """The dotted names that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level or path.parts[-2] == 'ramgate', "%s: name the whole module" % path
            yield from ('.'.join(filter(None, [node.module, alias.name])) for alias in node.names)


def rooms(path):
    """The rooms of hpc_pytorch that a file imports from."""
    found = {name.split('.')[1] for name in imports(path) if name.startswith('hpc_pytorch.')}
    return found & set(path.name for path in (CHECKOUT / 'hpc_pytorch').iterdir() if path.is_dir())


def test_rooms_are_all_known():
    """A new room has its place in the order."""
    assert {path.parent.name for path in MODULES} == set(ROOMS)


@pytest.mark.parametrize('path', MODULES, ids=place)
def test_imports_go_one_way(path):
    """Never to a later room, nor to what is outside of them."""
    allowed = ROOMS[:ROOMS.index(path.parent.name) + 1]
    assert rooms(path) <= set(allowed)
    outside = {'easyblocks', 'hooks', 'job_backends'} | {other.stem for other in OUTSIDE}
    assert not [name for name in imports(path) if outside & set(name.split('.')) and 'easybuild.tools' not in name]


@pytest.mark.parametrize('path', OUTSIDE, ids=place)
def test_what_easybuild_finds_knows_the_rooms_alone(path):
    """Easyblocks may build on one another, and nothing else is reached past the rooms."""
    assert rooms(path) <= set(ROOMS)
    others = {other.stem for other in OUTSIDE
              if other.parent.name != path.parent.name and 'easyblocks' not in place(path)}
    assert not [name for name in imports(path) if others & set(name.split('.'))]


def test_ramgate_stands_alone():
    """It is a program of its own: the standard library and itself."""
    if not hasattr(sys, 'stdlib_module_names'):
        pytest.skip("this Python does not know the names of its own modules: 3.10 and newer do")
    for path in (CHECKOUT / 'ramgate').glob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            for name in names:
                assert name.split('.')[0] in set(sys.stdlib_module_names) | {'ramgate'}, (path.name, name)


def found_by_name(path, *words):
    """Tests whose name is the file's, or that name it."""
    stem = 'test_' + path.stem.replace('-', '_')
    return [test for test in TESTS if test.stem == stem or test.stem.startswith(stem + '_')
            or any(re.search(word, test.read_text()) for word in words)]


@pytest.mark.parametrize('path', MODULES, ids=place)
def test_modules_have_tests(path):
    """test_NAME.py, or a test that names hpc_pytorch/ROOM/NAME.py, or imports it."""
    room, name = path.parent.name, path.stem
    assert found_by_name(path, r'hpc_pytorch[./]%s[./]%s\b' % (room, name),
                         r'hpc_pytorch\.%s import [^\n]*\b%s\b' % (room, name))


@pytest.mark.parametrize('path', OUTSIDE, ids=place)
def test_what_easybuild_finds_has_tests(path):
    """Likewise."""
    assert found_by_name(path, re.escape(place(path)))


@pytest.mark.parametrize('path', SCRIPTS, ids=place)
def test_scripts_have_tests(path):
    """Likewise; what users type is named without its directory."""
    assert found_by_name(path, r'(?<![\w-])%s(?![\w-])' % re.escape(path.name))
