"""Versions that are known to be vulnerable, through ./eb."""
import pytest
from small_software import site

pytestmark = pytest.mark.slow


def test_warned(toys):
    """Before anything is installed; a site may refuse it."""
    easyconfig = toys.directory / 'PyTorch-2.5.1-ARCHER2.eb'
    easyconfig.write_text(toys.write('PyTorch').read_text().replace("version = '1.0'", "version = '2.5.1'"))
    ready = '--stop=ready'
    output = toys.run(easyconfig, ready)
    assert 'WARNING: PyTorch-2.5.1-ARCHER2.eb installs packages with known vulnerabilities' in output
    assert 'torch 2.5.1: 19, mended in 2.13.0: CVE-2026-24747' in output
    output = toys.run(easyconfig, ready, status=None, env=site(toys.directory, '[policy]\nvulnerable = refuse\n'))
    assert "rule 'known vulnerabilities'" in output and 'torch 2.5.1: 19' in output
