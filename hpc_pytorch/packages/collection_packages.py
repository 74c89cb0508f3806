"""Packages of this collection, such as torch_mpi: built for the PyTorch, MPI and compiler of an installation."""
import glob
import hashlib
import os
import tempfile

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import copy_dir
from easybuild.tools.run import run_shell_cmd

from hpc_pytorch import collection_path
from hpc_pytorch.packages.lock_files import sha256_of

FLAGS = ('CFLAGS', 'CPPFLAGS', 'CXXFLAGS', 'LDFLAGS')
TORCH = "import torch; print(torch._C._GLIBCXX_USE_CXX11_ABI, open(torch.version.__file__).read())"


def output_of(*command):
    return run_shell_cmd(list(command), stdin='#include <mpi.h>\n', use_bash=False, fail_on_error=False, hidden=True,
                         output_file=False).output


def facts(package, pip, variables, modules):
    """What makes a package's wheel what it is: sources, PyTorch, Python, compiler, MPI and the modules loaded."""
    sources = glob.glob(os.path.join(glob.escape(collection_path(package)), '**'), recursive=True)
    variables = dict({name: os.environ[name] for name in FLAGS if name in os.environ}, **variables)
    del variables['PATH']
    # the macros of mpi.h have the compiler's version, too, and the processor that it compiles for
    macros = output_of(variables['MPICXX'], '-x', 'c++', '-E', '-dM', '-')
    return {
        'sources': sorted(sha256_of(path) for path in sources if os.path.isfile(path)),
        'python': [pip.python.implementation, pip.python.version, pip.python.machine],
        'torch': output_of(pip.path, '-I', '-c', TORCH),
        'variables': variables,
        'modules': sorted(modules),
        'mpi': output_of(variables['MPICXX'], '-show'),
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
    return glob.glob(os.path.join(place, '*.whl'))[0]
