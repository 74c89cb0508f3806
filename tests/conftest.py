"""The fixtures that all tests share; what they are made of is in common.py."""
import pytest
from common import CHECKOUT, EB, ModulesTool

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


@pytest.fixture(params=['Lmod', 'Environment Modules'])
def modules_tool(request):
    """Each of the two modules tools."""
    return ModulesTool(request.param)


@pytest.fixture
def lmod():
    """Lmod alone, where the tool makes no difference."""
    return ModulesTool('Lmod')
