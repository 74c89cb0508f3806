"""The libraries of a built PyTorch: where they search for others, and whose OpenMP they load."""
import glob
import os
import re
import zipfile

from hpc_pytorch.machine.commands import run
from hpc_pytorch.source.contract import Difference, inside

# OpenMP's runtimes by the beginnings of their names, and the compilers (build_options.compiler_family) they belong to.
RUNTIMES = (('libgomp', 'gcc'), ('libomp', 'clang'), ('libiomp5', 'clang'))

STUBS = "CUDA's stubs, which are no driver: put their directory into LIBRARY_PATH before CMake runs for the first time"
BUILD_DIRECTORY = "the build directory, which others may fill once it is removed"


def find(directory):
    found = glob.glob(os.path.join(glob.escape(directory), '**', '*.so*'), recursive=True)
    return sorted(path for path in found if re.search(r'\.so(\.[^/]*)?$', path) and os.path.isfile(path))


def unpack(wheel, directory):
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(directory, [name for name in packed.namelist() if '.so' in os.path.basename(name)])
    return find(directory)


def ldd(paths, directory):
    return run(['ldd'] + paths, cwd=directory).stdout


def resolved(printed, name):
    """Find the libraries of this name in what ldd prints: a list of paths, or 'not found'."""
    return re.findall(r'^\s*%s[\w.-]* => (not found|\S+)' % re.escape(name), printed, re.M)


def compare_search_paths(paths, build_directory):
    """Return the directories that no installed library may search, and these do by RUNPATH or RPATH."""
    differences = []
    for library in paths:
        values = re.findall(r'\((?:RUNPATH|RPATH)\).*\[(.*)\]', run(['readelf', '-d', library]).stdout)
        for path in filter(None, ':'.join(values).split(':')):
            reason = STUBS if 'stubs' in path.split(os.sep) else BUILD_DIRECTORY
            # $ORIGIN is where the library will be
            if reason == STUBS or os.path.isabs(path) and inside(path, build_directory):
                differences.append(Difference('RUNPATH', "nothing of CUDA's stubs or the build directory",
                                              path, [library], reason))
    return differences


def runtimes(printed):
    """Return the OpenMP runtimes that ldd shows: {path: compiler that it belongs to}."""
    # libgomp.so.1, or libgomp-a34b.so.1 by auditwheel; one that was linked by its path has no name before it
    pattern = r'^\s+(?:{0}[.-]\S* => )?(\S*/{0}[.-]\S*)'
    return {os.path.realpath(path): compiler for name, compiler in RUNTIMES
            for path in re.findall(pattern.format(name), printed, re.M)}


def compare_openmp(printed, compiler):
    """Check that there is one runtime of OpenMP at most, the compiler's where its family is known."""
    found = runtimes(printed)
    if len(found) < 2 and (not compiler or set(found.values()) <= {compiler}):
        return []
    return [Difference('OpenMP', "one runtime, %s's" % (compiler or 'the compiler'), ', '.join(sorted(found)), ['ldd'],
                       "another one was found before the compiler's, in the system or in a dependency")]


def compare(paths, printed, compiler, build_directory):
    return compare_search_paths(paths, build_directory) + compare_openmp(printed, compiler)
