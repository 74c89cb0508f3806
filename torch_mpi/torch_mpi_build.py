"""Refuse an environment without what the build needs, then have setuptools do what pip asks for.

pyproject.toml requires nothing and this imports nothing else first: so one line says what is missing, where pip would
download another PyTorch and compile for that one, which takes minutes and does not work.
"""

import sys
from importlib.util import find_spec

OLDEST_TORCH = "2.1"
COMMAND = "pip install --no-build-isolation --no-deps ./torch_mpi"


def release(version):
    return tuple(int(part) for part in version.split(".")[:2])


def pytorch():
    """Return the PyTorch of this Python, or exit with one line that says how to get it."""
    expected = "torch_mpi: expected PyTorch %s or newer in %s, found " % (OLDEST_TORCH, sys.executable)
    try:
        import torch
    except ImportError as error:
        sys.exit(expected + "no PyTorch (%s); install it there if it is missing, then, as pip hides it "
                 "otherwise, run: %s" % (error, COMMAND))
    if release(torch.__version__) < release(OLDEST_TORCH):
        sys.exit(expected + "%s; install a newer one, for example: pip install 'torch>=%s'" % (
            torch.__version__, OLDEST_TORCH))
    return torch


pytorch()
# setuptools has its own command for wheels from 70.1 on
if not find_spec("setuptools") or not (find_spec("wheel") or find_spec("setuptools.command.bdist_wheel")):
    sys.exit("torch_mpi: expected setuptools and wheel in %s; run: pip install setuptools wheel, then: %s" % (
        sys.executable, COMMAND))

from setuptools.build_meta import *  # noqa: E402,F401,F403
