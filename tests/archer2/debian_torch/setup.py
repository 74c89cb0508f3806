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


def unwanted(directory, names):
    """Links that lead nowhere, as not all of Debian's packages are installed, and what no wheel has."""
    # copytree's own way looks at where a relative link leads from the working directory
    return [name for name in names if name in ('__pycache__', 'test')
            or not os.path.exists(os.path.join(directory, name))]


def pack():
    """Debian's files as a wheel; links to headers and libraries become files, others lead nowhere."""
    shutil.rmtree(ROOT, ignore_errors=True)
    for package in ('torch', 'torchgen', 'functorch'):
        shutil.copytree(DEBIAN / package, ROOT / package, ignore=unwanted)
    version = os.environ['PYTORCH_BUILD_VERSION']
    information = ROOT / ('torch-%s.dist-info' % version)
    information.mkdir()
    (information / 'METADATA').write_text(METADATA % version)
    (information / 'WHEEL').write_text(WHEEL % os.uname().machine)
    Path('dist').mkdir(exist_ok=True)
    subprocess.check_call([sys.executable, '-m', 'wheel', 'pack', str(ROOT), '--dest-dir', 'dist'])


if '--cmake-only' in sys.argv:
    subprocess.check_call(['cmake', '-S', '.', '-B', 'build', '-DCMAKE_BUILD_TYPE=' + os.environ['CMAKE_BUILD_TYPE']])
else:
    pack()
