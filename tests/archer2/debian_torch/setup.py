"""Packs Debian's PyTorch into a wheel, where PyTorch's setup.py compiles."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

DEBIAN = Path('/usr/lib/python3/dist-packages')
ROOT = Path('build/wheel')
METADATA = """Metadata-Version: 2.1
Name: torch
Version: %s
Requires-Dist: typing-extensions
"""
WHEEL = """Wheel-Version: 1.0
Root-Is-Purelib: false
Tag: cp311-cp311-linux_%s
"""


def pack():
    """Debian's files as a wheel; links to headers and libraries become files, others lead nowhere."""
    shutil.rmtree(ROOT, ignore_errors=True)
    for package in ('torch', 'torchgen', 'functorch'):
        shutil.copytree(DEBIAN / package, ROOT / package, ignore_dangling_symlinks=True,
                        ignore=shutil.ignore_patterns('__pycache__', 'bin'))
    version = os.environ['PYTORCH_BUILD_VERSION']
    information = ROOT / ('torch-%s.dist-info' % version)
    information.mkdir()
    (information / 'METADATA').write_text(METADATA % version)
    (information / 'WHEEL').write_text(WHEEL % os.uname().machine)
    Path('dist').mkdir(exist_ok=True)
    subprocess.check_call([sys.executable, '-m', 'wheel', 'pack', str(ROOT), '--dest-dir', 'dist'])


if '--cmake-only' in sys.argv:
    subprocess.check_call(['cmake', '-S', '.', '-B', 'build'])
else:
    pack()
