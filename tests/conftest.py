"""The fixtures that all tests share; what they are made of is in common.py."""
import subprocess
from pathlib import Path

import pytest
from common import CHECKOUT, EB, ModulesTool, needs_program
from small_software import Toy, Toys

# fixtures of single topics
pytest_plugins = ['lumi.lumi_site', 'frontier.frontier_site']


@pytest.fixture
def checkout():
    """The top of the checkout."""
    return CHECKOUT


@pytest.fixture
def eb(tmp_path):
    """./eb with a prefix in the test's own directory."""
    return EB(tmp_path / 'prefix')


@pytest.fixture
def toy(eb, tmp_path):
    """See Toy; ./eb has a source path of the test's own."""
    eb.sources = tmp_path / 'sources'
    return Toy(tmp_path)


@pytest.fixture
def toys(eb, tmp_path):
    """Toys for ARCHER2, sources of the test's own."""
    eb.sources = tmp_path / 'sources'
    return Toys(eb, tmp_path, 'ARCHER2', {})


@pytest.fixture(scope='session')
def on_arm(tmp_path_factory):
    """The environment in which EasyBuild takes this machine for an aarch64 one."""
    needs_program('gcc')
    library = tmp_path_factory.mktemp('arm') / 'arm.so'
    subprocess.run(['gcc', '-shared', '-fPIC', '-O1', '-Wall', '-Werror', '-o', library,
                    Path(__file__).with_name('arm.c')], check=True)
    return {'LD_PRELOAD': str(library)}


@pytest.fixture(params=['Lmod', 'Environment Modules'])
def modules_tool(request):
    """Each of the two modules tools."""
    return ModulesTool(request.param)


@pytest.fixture
def lmod():
    """Lmod alone, where the tool makes no difference."""
    return ModulesTool('Lmod')


# Side by side (pytest-xdist) every process makes its own fixtures, so tests that share one which takes long run in the
# same process. What a fixture listed here makes takes no time, or is kept behind a lock for all processes.
ANYWHERE = {'builds', 'with_mpi', 'stand_ins', 'apptainer', 'small_image', 'on_arm', 'check', 'script', 'python',
            'archive', 'search_index', 'unpacked'}
# What takes or waits for minutes is begun first, then what takes seconds; what takes no time fills the gaps in the end.
FIRST = ('archer2/test_stack.py', 'frontier/test_frontier.py', 'workstation/', 'lumi/', 'torch_mpi/',
         'bede/test_bede_wheel.py', 'archer2/', 'easyblocks/test_pytorchhpc.py', 'derecho/',
         'scripts/test_pytorch_run.py', 'scripts/test_run_scripts.py', 'jobs/', 'checks/', 'machine/', 'bede/')
SECONDS = ('ramgate/tests/test_any_build.py', 'ramgate/tests/test_broker.py', 'ramgate/tests/test_run.py',
           'packaging/', 'easyblocks/', 'jobs/', 'test_style.py', 'docs/')


def shared_fixture(item):
    """The name of the fixture, and of its parameter, that a test shares with others; None without one."""
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():
        definition = definitions[-1]
        own = not definition.func.__module__.startswith(('_pytest', 'xdist'))
        if definition.scope in ('module', 'session') and own and name not in ANYWHERE:
            parameter = item.callspec.params.get(name, '') if hasattr(item, 'callspec') else ''
            # two files may have fixtures of one name
            return '%s-%s-%s' % (definition.baseid.rpartition('/')[2], name, parameter)
    return None


def when(item):
    """The place of a test in the order."""
    name = str(item.path.relative_to(CHECKOUT)).removeprefix('tests/')
    slow = item.get_closest_marker('slow')
    places = [place for place, begin in enumerate(FIRST if slow else SECONDS) if name.startswith(begin)]
    return not slow, (places + [len(FIRST)])[0]


def pytest_collection_modifyitems(config, items):
    """Groups and order for several processes; one process keeps the order of the files."""
    if hasattr(config, 'workerinput'):
        for item in items:
            group = shared_fixture(item)
            if group:
                name_with_group(item, group)
        items.sort(key=when)


def name_with_group(item, group):
    """As xdist_group does it, which since pytest 9.1 quietly does nothing (pytest-xdist 3.8.0)."""
    name = '%s@%s' % (item.nodeid, group)
    if hasattr(item, '_nodeid'):
        item._nodeid = name
    else:
        item._id = type(item._id).parse(name)
