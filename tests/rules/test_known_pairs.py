"""Versions that are known to fail together, through ./eb."""
import pytest
from small_software import Toys, site

pytestmark = pytest.mark.slow


def test_warned(eb, tmp_path):
    """Before anything is installed; a site may refuse it. What works, or is not known, is not told."""
    eb.sources = tmp_path / 'sources'
    toys = Toys(eb, tmp_path, 'ARCHER2', {})
    toys.write('libfabric')
    easyconfig = toys.write('aws-ofi-nccl', after=['libfabric'])
    easyconfig.write_text(easyconfig.read_text().replace("version = '1.0'", "version = '1.21.1'", 1))
    easyconfig = easyconfig.rename(tmp_path / 'aws-ofi-nccl-1.21.1-ARCHER2.eb')
    ready = (easyconfig, '--robot=%s' % tmp_path, '--stop=ready')
    output = toys.run(*ready)
    assert 'WARNING: aws-ofi-nccl-1.21.1-ARCHER2.eb combines versions that are known to be incompatible' in output
    assert 'fails: the plugin is for libfabric 1.11 and newer' in output
    assert 'libfabric-1.0-ARCHER2.eb combines' not in output
    output = toys.run(*ready, status=None, env=site(tmp_path, '[policy]\npairs = refuse\n'))
    assert "rule 'incompatible versions'" in output
