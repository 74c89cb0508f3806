"""Every easyconfig of the collection resolves on the stand-in of its system."""

import pytest
from common import CHECKOUT

pytestmark = pytest.mark.slow

EASYCONFIGS = sorted(path.name for path in (CHECKOUT / 'easyconfigs').glob('*/*/*.eb'))


@pytest.mark.parametrize('name', EASYCONFIGS)
def test_resolves(eb, name):
    """All dependencies are there: modules of the stand-in, or easyconfigs of the collection."""
    output = eb('--rehearse', name, '-D', '--robot').stdout
    assert 'rehearsing on the stand-in of' in output
    # $CFGS is the directory that all of them have in common
    assert '/%s (module:' % name in output.replace('\n', ' '), output
