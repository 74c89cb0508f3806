"""SystemSettings: modules that set what a system's data say, here Frontier's proxy and caches."""
import pytest
from common import ModulesTool

pytestmark = pytest.mark.slow


@pytest.mark.parametrize('name, syntax', [('Lmod', 'Lua'), ('Lmod', 'Tcl'), ('Environment Modules', 'Tcl')])
def test_settings_as_modules(eb, name, syntax, tmp_path):
    """The proxy and the caches: off unless loaded."""
    modules = tmp_path / 'modules'
    eb('proxy-1.0-Frontier.eb', 'caches-1.0-Frontier.eb', '--rehearse', '--module-syntax=%s' % syntax,
       '--installpath-modules=%s' % modules)
    output = ModulesTool(name).run("""
        module use %s/all
        module load proxy; echo "loaded $https_proxy $no_proxy"
        module unload proxy; echo "unloaded $https_proxy"
        module load caches; echo "without $HF_DATASETS_CACHE."
        export HPC_CACHES=/orion/me
        module load caches; echo "with $HF_DATASETS_CACHE $TORCH_HOME"
        module unload caches; echo "after $HF_DATASETS_CACHE."
    """ % modules)
    for line in ('loaded http://proxy.ccs.ornl.gov:3128/ localhost,127.0.0.0/8,*.ccs.ornl.gov', 'unloaded ',
                 'without .', 'with /orion/me/huggingface/datasets /orion/me/torch', 'after .'):
        assert line in output.splitlines(), output
    assert 'set HPC_CACHES to a directory first' in output
