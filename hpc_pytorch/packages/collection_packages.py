"""Packages of this collection, such as torch_mpi: built for the PyTorch, MPI and compiler of an installation."""
import hashlib
import os
import tempfile
from pathlib import Path

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import copy_dir

from hpc_pytorch import collection_path
from hpc_pytorch.packages.lock_files import sha256_of
from hpc_pytorch.packages.programs import ask

FLAGS = ('CFLAGS', 'CPPFLAGS', 'CXXFLAGS', 'LDFLAGS')
# PyTorch may be the module's below
TORCH = """
import sys
sys.path += sys.argv[1:]
import torch
print(torch._C._GLIBCXX_USE_CXX11_ABI, open(torch.version.__file__).read())
"""


def facts(package, pip, variables, modules):
    """
    Return what makes a package's wheel what it is: sources, PyTorch, Python, compiler, MPI, modules; `variables`
    are those that it is built with.
    """
    below = filter(None, variables.get('PYTHONPATH', '').split(os.pathsep))
    sources = [str(path) for path in Path(collection_path(package)).rglob('*') if path.is_file()]
    given = {name: os.environ[name] for name in FLAGS if name in os.environ}
    given.update(variables)
    del given['PATH']
    given.pop('PYTHONPATH', None)
    # the macros of mpi.h have the compiler's version, too, and the processor that it compiles for
    macros = ask(given['MPICXX'], '-x', 'c++', '-E', '-dM', '-', stdin='#include <mpi.h>\n').output
    return {
        'sources': sorted(map(sha256_of, sources)),
        'python': [pip.python.implementation, pip.python.version, pip.python.machine],
        'torch': ask(pip.path, '-I', '-c', TORCH, *below).output,
        'variables': given,
        'modules': sorted(modules),
        'mpi': ask(given['MPICXX'], '-show').output,
        'macros': hashlib.sha256(macros.encode()).hexdigest(),
    }


def build(package, pip, variables):
    """Build a package's wheel from a copy, as building writes beside the sources; returns its path."""
    place = tempfile.mkdtemp(prefix='collection-')
    copy = os.path.join(place, package)
    copy_dir(collection_path(package), copy)
    result = pip('wheel', '--quiet', '--no-index', '--no-build-isolation', '--no-deps', '--no-cache-dir',
                 '--wheel-dir', place, copy, environment=variables)
    if result.exit_code:
        raise EasyBuildError("Building %s of this collection failed: %s", package, result.output.strip()[-2000:])
    return str(next(Path(place).glob('*.whl')))
