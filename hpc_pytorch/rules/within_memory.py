"""Keep what any easyblock compiles within the memory: ``ramgate = True`` in an easyconfig, or a site's hook that calls
``watch``. Links to compilers come first in $PATH, and ask a ramgate that ends with the installation.
"""
import itertools
import os
import subprocess

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.environment import restore_env_vars, unset_env_vars
from easybuild.tools.filetools import read_file

from hpc_pytorch.source.wheel_build import WheelBuild, print_summary, profile_to_keep, ramgate_command

# prints what ramgate sets for a build, and lasts until its input ends, as it does with EasyBuild's process
BUILD = ['sh', '-c', 'env | grep -E "^(RAMGATE_SOCKET|CMAKE_[A-Z_]+_LAUNCHER|(CUDA|ROCM)_HOME)="; echo; exec cat']
# the ramgate of the installation that runs: (process, the directory of its links, what was set before)
_running = []


def begin(easyblock):
    if easyblock.cfg.get('ramgate'):
        watch(easyblock)


def watch(easyblock):
    """Watch the compilers of an installation from now on; it may be called twice."""
    # EB_PyTorchHPC does this itself
    if _running or easyblock.dry_run or isinstance(easyblock, WheelBuild):
        return
    command = ramgate_command(easyblock, profile_to_keep(easyblock.cfg)) + ['--'] + BUILD
    with open(os.path.join(easyblock.builddir, 'ramgate.log'), 'wb') as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    lines = map(os.fsdecode, itertools.takewhile(b'\n'.__ne__, process.stdout))
    variables = dict(line.rstrip('\n').partition('=')[::2] for line in lines)
    if 'RAMGATE_SOCKET' not in variables:
        raise EasyBuildError("ramgate could not start:\n%s", read_file(log.name))
    directory = os.path.dirname(variables['RAMGATE_SOCKET'])
    _running.append((process, directory, {name: os.environ.get(name) for name in variables}))
    os.environ.update(variables)
    os.environ['PATH'] = directory + os.pathsep + os.environ['PATH']


def end(easyblock):
    """Stop ramgate: everything is compiled, or the installation has failed."""
    if not _running:
        return
    process, directory, before = _running.pop()
    process.communicate()
    unset_env_vars(before, verbose=False)
    restore_env_vars(before)
    paths = os.environ['PATH'].split(os.pathsep)
    os.environ['PATH'] = os.pathsep.join(path for path in paths if path != directory)
    print_summary(easyblock)
