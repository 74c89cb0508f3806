"""Builds the small torch as PyTorch's setup.py builds the real one: options come as environment variables."""
import os
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.dist import Distribution

TOP = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.join(TOP, 'build')
CMAKE_ONLY = '--cmake-only' in sys.argv
sys.argv = [word for word in sys.argv if word != '--cmake-only']


class HasExtension(Distribution):
    """So that the wheel is one for this platform."""

    def has_ext_modules(self):
        return True


def run_cmake():
    """Configure, and unless only that was asked for, compile and install."""
    others = ('BLAS', 'WITH_BLAS', 'MKL_THREADING', 'INTEL_MKL_DIR', '_GLIBCXX_USE_CXX11_ABI')
    options = ['-D%s=%s' % item for item in os.environ.items()
               if item[0].startswith(('USE_', 'BUILD_', 'CMAKE_')) or item[0] in others]
    os.makedirs(BUILD, exist_ok=True)
    subprocess.check_call(['cmake', '-DCMAKE_INSTALL_PREFIX=' + TOP, '-DPython3_EXECUTABLE=' + sys.executable]
                          + options + [TOP], cwd=BUILD)
    if CMAKE_ONLY:
        print('Finished running cmake.')
        sys.exit()
    subprocess.check_call(['cmake', '--build', '.', '--target', 'install'], cwd=BUILD)


run_cmake()
with open(os.path.join(TOP, 'version.txt')) as handle:
    VERSION = os.environ.get('PYTORCH_BUILD_VERSION', handle.read().strip())
setup(name='torch', version=VERSION, packages=['torch'],
      package_data={'torch': ['*.so']}, distclass=HasExtension, cmdclass={'build_ext': build_ext})
