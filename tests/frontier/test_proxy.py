"""The module for the way to the internet from Frontier's compute nodes."""
import pytest
from common import ModulesTool

pytestmark = pytest.mark.slow


@pytest.mark.parametrize('name, syntax', [('Lmod', 'Lua'), ('Lmod', 'Tcl'), ('Environment Modules', 'Tcl')])
def test_proxy(eb, name, syntax, tmp_path):
    """Off unless it is loaded."""
    modules = tmp_path / 'modules'
    eb('proxy-1.0-Frontier.eb', '--rehearse', '--module-syntax=%s' % syntax, '--installpath-modules=%s' % modules)
    output = ModulesTool(name).run("""
        module use %s/all
        module load proxy; echo "loaded $https_proxy $no_proxy"
        module unload proxy; echo "unloaded $https_proxy"
    """ % modules, env={'https_proxy': '', 'no_proxy': ''})
    assert 'loaded http://proxy.ccs.ornl.gov:3128/ localhost,127.0.0.0/8,*.ccs.ornl.gov' in output.splitlines(), output
    assert 'unloaded ' in output.splitlines(), output
