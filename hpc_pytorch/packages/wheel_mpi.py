"""
Which MPI a wheel runs with: mpi4py's wheel has a module for each kind of MPI, and takes the one that lies in its own
environment or that the dynamic linker finds. Where that is the machine's own, nothing needs to be compiled.
"""
import os
import re
import tempfile

from easybuild.tools.filetools import write_file

from hpc_pytorch.packages.pip import Pip
from hpc_pytorch.packages.programs import ask

WHEELS = ('mpi4py',)
PROGRAM = '#include <mpi.h>\nint main(void) { return MPI_Init(0, 0); }\n'
LOADED_BY_WHEEL = """
import os, sys
sys.path.insert(0, sys.argv[1])
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(*{line.split()[-1] for line in open('/proc/self/maps') if os.path.basename(line.strip()).startswith('libmpi')})
"""


def try_wheel(python, compiler, entry, files):
    """Install the wheel aside and compile a program; True if both run with the same libmpi."""
    place = tempfile.mkdtemp(prefix='mpi-')
    program = os.path.join(place, 'program')
    write_file(program + '.c', PROGRAM)
    Pip(python).install([entry], files, '--only-binary', ':all:', '--no-compile', '--target', place)
    compiled = ask(compiler, '-o', program, program + '.c')
    linked = ask('ldd', program)
    loaded = ask(python.path, '-I', '-c', LOADED_BY_WHEEL, place)
    if compiled.exit_code or linked.exit_code or loaded.exit_code:
        return False
    libraries = {os.path.realpath(path) for path in re.findall(r'^\s*libmpi\S* => (\S+)', linked.output, re.M)}
    return libraries == set(loaded.output.split())
