"""A module on top of PyTorch's, installed for real on a PyTorch that tests keep."""
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from common import CACHE, EB
from torch_mpi.tests.mpi_installation import kept_venv

BELOW = 'PyTorch/2.13.0-workstation'


@contextmanager
def on_top(easyconfig):
    """On top of hard links to the kept PyTorch, which do not lead to other disks: ./eb, and PyTorch's root."""
    CACHE.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix='on-top-', dir=CACHE))
    os.chmod(directory, 0o755)
    eb = EB(directory / 'prefix')
    try:
        root = eb.prefix / 'software' / BELOW
        root.parent.mkdir(parents=True)
        subprocess.run(['cp', '-al', Path(kept_venv()).parent.parent, root], check=True)
        file = eb.modules / (BELOW + '.lua')
        file.parent.mkdir(parents=True)
        site = root / ('lib/python%d.%d/site-packages' % sys.version_info[:2])
        file.write_text('setenv("EBROOTPYTORCH", "%s")\nprepend_path("PATH", "%s/bin")\n'
                        'pushenv("PYTHONPATH", "%s")\n' % (root, root, site))
        eb.fetch(easyconfig)
        eb(easyconfig)
        yield eb, root
    finally:
        shutil.rmtree(directory)
