"""
Keep what any easyblock compiles within the memory: ``ramgate = True`` in an easyconfig, or a site's hook that calls
``watch``.

From configuring on, programs with the names of the compilers come first in $PATH, as with EasyBuild's own --use-ccache,
and ask a ramgate that runs beside the installation and ends with it, whatever ends EasyBuild.
"""
import os
import shutil
import subprocess

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import read_file, write_file

from hpc_pytorch.rules.resource_needs import profile_to_keep
from hpc_pytorch.source.wheel_build import ramgate, say_what_was_watched

COMPILERS = ('cc', 'c++', 'gcc', 'g++', 'gfortran', 'clang', 'clang++', 'flang', 'icx', 'icpx', 'ifx', 'nvc', 'nvc++',
             'nvfortran', 'nvcc', 'hipcc', 'CC', 'ftn', 'mpicc', 'mpicxx', 'mpic++', 'mpifort', 'mpif90')
# PyTorch's extensions take the directory above that of the first on $PATH for the toolkit's, unless this is set
HOMES = {'nvcc': 'CUDA_HOME', 'hipcc': 'ROCM_HOME'}
# prints where ramgate listens, and lasts until its input ends, as it does with EasyBuild's process
BUILD = ['sh', '-c', 'echo "$RAMGATE_SOCKET"; exec cat']
# stands for a compiler. It leaves $PATH, as what it runs (ccache, mpicc) looks for the compiler by the same name.
WRAPPER = """#!/bin/sh
here="{directory}" path=":$PATH:"
path="${{path%%":$here:"*}}:${{path#*":$here:"}}" path="${{path#:}}" PATH="${{path%:}}"
exec "$here/ramgate-cc" "{compiler}" "$@"
"""
# the ramgate of the installation that runs: (process, the directory of its compilers)
_running = []


def begin(easyblock):
    """Watch an installation whose easyconfig asks for it."""
    if easyblock.cfg.get('ramgate'):
        watch(easyblock)


def watch(easyblock):
    """Watch the compilers of an installation from now on; it may be called twice."""
    # EB_PyTorchHPC does this itself
    if _running or easyblock.dry_run or getattr(easyblock, 'runs_ramgate', False):
        return
    command = ramgate(easyblock, profile_to_keep(easyblock.cfg)) + ['--'] + BUILD
    with open(os.path.join(easyblock.builddir, 'ramgate.log'), 'wb') as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    socket = os.fsdecode(process.stdout.readline()).strip()
    if not socket:
        raise EasyBuildError("ramgate could not start:\n%s", read_file(log.name))
    directory = os.path.dirname(socket)
    for name in COMPILERS:
        compiler = shutil.which(name)
        if not compiler:
            continue
        path = os.path.join(directory, name)
        write_file(path, WRAPPER.format(directory=directory, compiler=compiler))
        os.chmod(path, 0o700)
        if name in HOMES:
            os.environ.setdefault(HOMES[name], os.path.dirname(os.path.dirname(compiler)))
    os.environ['RAMGATE_SOCKET'] = socket
    os.environ['PATH'] = directory + os.pathsep + os.environ['PATH']
    _running.append((process, directory))


def end(easyblock):
    """Stop ramgate: everything is compiled, or the installation has failed."""
    if not _running:
        return
    process, directory = _running.pop()
    process.communicate()
    os.environ.pop('RAMGATE_SOCKET', None)
    paths = os.environ['PATH'].split(os.pathsep)
    os.environ['PATH'] = os.pathsep.join(path for path in paths if path != directory)
    say_what_was_watched(easyblock)
