"""The house keeps its order: who may import whom, and the tests of each module are found by its name."""
import ast
import importlib.util
import sysconfig

import pytest
from house import CHECKOUT, broken_by, imports, place, covering

# data flows from the first to the last; a room imports from itself and from those before it
ROOMS = ('machine', 'packages', 'source', 'rules', 'jobs')
MODULES = [path for path in sorted((CHECKOUT / 'hpc_pytorch').glob('*/*.py')) if path.name != '__init__.py']
# what EasyBuild finds by its place: these may use the rooms, and are used by none
OUTSIDE = [path for room in ('easyblocks', 'hooks', 'job_backends') for path in sorted((CHECKOUT / room).rglob('*.py'))]
SCRIPTS = [path for path in sorted((CHECKOUT / 'scripts').rglob('*')) if path.is_file() and not path.suffix == '.pyc']


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


def pythons_own(name):
    """Whether a module comes with Python; 3.9 has no list of their names."""
    place = importlib.util.find_spec(name).origin
    return place in ('built-in', 'frozen') or (
        place.startswith(sysconfig.get_paths()['stdlib']) and 'site-packages' not in place)


def test_ramgate_stands_alone():
    """It is a program of its own: the standard library and itself."""
    for path in (CHECKOUT / 'ramgate').glob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            for name in names:
                assert name.split('.')[0] == 'ramgate' or pythons_own(name.split('.')[0]), (path.name, name)


@pytest.mark.parametrize('path', MODULES + OUTSIDE + SCRIPTS, ids=place)
def test_code_has_tests(path):
    """test_NAME.py, or a test that imports it or names it with its place."""
    assert covering(path)


@pytest.mark.parametrize('name, test', [
    ('hpc_pytorch/rules/sbom.py', 'tests/rules/test_provenance.py'),
    ('hpc_pytorch/source/contract.py', 'tests/easyblocks/test_pytorchhpc.py'),
    ('torch_mpi/setup.py', 'tests/torch_mpi'), ('systems/lumi/system.cfg', 'tests/lumi'),
    ('scripts/pytorch-srun', 'tests/scripts/test_pytorch_srun.py'),
    ('tests/batch_systems/real_slurm.py', 'tests/frontier/test_frontier.py'),
    ('easyconfigs/p/PyTorch/PyTorch-2.13.0-workstation.eb', 'tests/workstation/test_workstation.py'),
])
def test_changed(name, test):
    """What a change can break, by way of others, too."""
    assert test in broken_by(name)


def test_changed_is_not_everything():
    """A change in one room leaves most tests alone."""
    others = ('tests/torch_mpi', 'tests/ramgate')
    assert not any(test.startswith(others) for test in broken_by('hpc_pytorch/rules/sbom.py'))
