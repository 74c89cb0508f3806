"""
``ramgate = yes`` in a site's rule, or ``ramgate = True`` in an easyconfig: what is compiled stays within the memory.

Programs with the names of the compilers come first in $PATH from configuring on, as with EasyBuild's own --use-ccache,
and ask a ramgate that runs beside the installation and ends with it, whatever ends EasyBuild.

Python 3.6.
"""
import os
import shutil
import subprocess

from easybuild.base import fancylogger
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import read_file

from hpc_pytorch.rules import site_rules
from hpc_pytorch.rules.resource_needs import profile_to_keep
from hpc_pytorch.source.wheel_build import ramgate, say_what_was_watched

_log = fancylogger.getLogger('within_memory', fname=False)

COMPILERS = ('cc', 'c++', 'gcc', 'g++', 'gfortran', 'clang', 'clang++', 'flang', 'icx', 'icpx', 'ifx', 'nvc', 'nvc++',
             'nvfortran', 'nvcc', 'hipcc', 'CC', 'ftn', 'mpicc', 'mpicxx', 'mpic++', 'mpifort', 'mpif90')
# PyTorch's extensions take the directory above that of the first on $PATH for the toolkit's, unless this is set
HOMES = {'nvcc': 'CUDA_HOME', 'hipcc': 'ROCM_HOME'}
# tells where ramgate listens, and lasts until its input ends, as it does with EasyBuild's process
BUILD = ['sh', '-c', 'echo "$RAMGATE_SOCKET"; exec cat']
# stands for a compiler. It leaves $PATH, as what it runs (ccache, mpicc) looks for the compiler by the same name.
STAND_IN = """#!/bin/sh
here="{directory}" path=":$PATH:"
path="${{path%%":$here:"*}}:${{path#*":$here:"}}" path="${{path#:}}" PATH="${{path%:}}"
exec "$here/ramgate-cc" "{real}" "$@"
"""
# the ramgate of the installation that runs: (process, the directory of its compilers)
_running = []


def begin(easyblock):
    """The installation is about to be configured, perhaps not for the first time."""
    cfg = easyblock.cfg
    asked = 'ramgate' in cfg and cfg['ramgate'] or site_rules.has(cfg, 'ramgate')
    if _running or easyblock.dry_run or getattr(easyblock, 'runs_ramgate', False) or not asked:
        return
    command = ramgate(cfg, report_directory(easyblock), profile_to_keep(cfg)) + ['--'] + BUILD
    with open(os.path.join(easyblock.builddir, 'ramgate.log'), 'wb') as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    socket = os.fsdecode(process.stdout.readline()).strip()
    if not socket:
        raise EasyBuildError("ramgate, which the easyconfig or a rule of the site asks for, could not start:\n%s",
                             read_file(log.name))
    directory = os.path.dirname(socket)
    for name in COMPILERS:
        real = shutil.which(name)
        if real:
            path = os.path.join(directory, name)
            with open(path, 'w') as file:
                file.write(STAND_IN.format(directory=directory, real=real))
            os.chmod(path, 0o700)
            if name in HOMES and not os.environ.get(HOMES[name]):
                os.environ[HOMES[name]] = os.path.dirname(os.path.dirname(real))
    os.environ['RAMGATE_SOCKET'] = socket
    os.environ['PATH'] = directory + os.pathsep + os.environ['PATH']
    _running.append((process, directory))
    _log.info("ramgate watches the compilers of %s: %s", cfg['name'], directory)


def end(easyblock):
    """Everything is compiled, or the installation has failed."""
    if not _running:
        return
    process, directory = _running.pop()
    process.communicate()
    os.environ.pop('RAMGATE_SOCKET', None)
    os.environ['PATH'] = os.pathsep.join(place for place in os.environ['PATH'].split(os.pathsep) if place != directory)
    say_what_was_watched(report_directory(easyblock), easyblock.log)


def report_directory(easyblock):
    """Where provenance finds it."""
    return os.path.join(easyblock.builddir, 'ramgate')
