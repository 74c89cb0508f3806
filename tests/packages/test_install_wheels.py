"""Wheels that were fetched: uv installs them, pip where uv is missing or fails."""
import subprocess
import sys

import pytest
from common import CHECKOUT, clean_environment, slow
from small_software import make_wheel

# with the uv of ./eb, or with the program that is named
PROGRAM = """
import os, sys
from easybuild.tools import config
from hpc_pytorch.packages import package_files, pip, wheel_tags
config.init_build_options()
if len(sys.argv) > 3:
    pip.own_uv = lambda: {'none': None}.get(sys.argv[3], sys.argv[3])
python = wheel_tags.ask_python(sys.argv[1])
wheel = sys.argv[2]
pip.Pip(python).install_wheels([package_files.entry_of(wheel)], os.path.dirname(wheel))
"""


@pytest.mark.parametrize('program, installer', [((), 'uv'), slow(('none',), 'pip'), slow(('/bin/false',), 'pip')])
def test_installer(tmp_path, program, installer):
    """The same is installed, and nothing of uv's is left."""
    (tmp_path / 'wheels').mkdir()
    wheel = make_wheel(tmp_path / 'wheels', 'toy')
    environment = tmp_path / 'venv'
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', str(environment)], check=True)
    command = [str(CHECKOUT / '.venv/bin/python'), '-c', PROGRAM, str(environment / 'bin/python'), str(wheel), *program]
    done = subprocess.run(command, cwd=CHECKOUT, env=dict(clean_environment(), UV_OFFLINE='no such value'), text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    subprocess.run([str(environment / 'bin/python'), '-I', '-c', 'import toy'], check=True)
    found = next(environment.glob('lib/python3.*/site-packages/toy-*.dist-info/INSTALLER'))
    assert found.read_text().strip() == installer
    assert not list(environment.rglob('.uv'))
