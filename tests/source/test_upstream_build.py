"""The hook for upstream's builds of PyTorch: where CMake cannot be run alone, a line says that nothing is compared."""
import subprocess

import pytest
from common import CHECKOUT, clean_environment

# without quiet options of EasyBuild's, which print_msg asks for
PROGRAM = """
import sys
from types import SimpleNamespace
from hpc_pytorch.source import upstream_build
upstream_build.print_msg = lambda text, *words: print(text % words)
easyblock = SimpleNamespace(version=sys.argv[1], dry_run=False, cfg={'prebuildopts': 'USE_MPI=1 '})
upstream_build.compare_with_cmake(easyblock)
"""


@pytest.mark.parametrize('version', ['2.14.0', '2.15.1', '1.12.0'])
def test_versions_without_a_command(version):
    """Newer and older ones: no command is run."""
    said = subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', PROGRAM, version], check=True, text=True,
                          env=dict(clean_environment(), PYTHONPATH=str(CHECKOUT)), stdout=subprocess.PIPE).stdout
    assert "not compared: setup.py of PyTorch %s cannot run CMake alone" % version in said
