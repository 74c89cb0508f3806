"""The installed PyTorch, compared with what was asked for: what it tells of itself, and its libraries."""
import json
import os
import re
import subprocess

from hpc_pytorch import UsersProblem
from hpc_pytorch.machine.commands import run
from hpc_pytorch.packages.known_errors import excerpt
from hpc_pytorch.source import libraries
from hpc_pytorch.source.build_options import compiler_family
from hpc_pytorch.source.contract import Difference, architectures_of_flags, compare, plain

# How the installed PyTorch calls, among its build settings, what can be asked for.
SETTINGS = {'BLAS_INFO': 'BLAS', 'BUILD_TYPE': 'CMAKE_BUILD_TYPE', 'CXX_COMPILER': 'CMAKE_CXX_COMPILER'}
# Backends of torch.distributed by their switches.
BACKENDS = {'USE_MPI': 'mpi', 'USE_GLOO': 'gloo', 'USE_NCCL': 'nccl'}
# What the installed PyTorch is asked, by its own Python.
PROBE = """
import json, os, torch, torch.distributed as dist
names = %r
print(json.dumps({
    'show': torch.__config__.show(),
    'directory': os.path.dirname(torch.__file__),
    'backends': {name: bool(getattr(dist, 'is_%%s_available' %% name, bool)()) for name in names}}))
""" % list(BACKENDS.values())


def ask_installed(python, options, build_directory=os.devnull):
    """Return all differences between what was asked for and what this Python imports; and what ldd says of it."""
    # where Python finds nothing besides what is installed
    probe = run([python, '-c', PROBE], cwd=os.path.dirname(python), stderr=subprocess.PIPE)
    if probe.returncode:
        raise UsersProblem("PyTorch cannot be imported:\n%s" % excerpt(probe.stderr))
    found = json.loads(probe.stdout.splitlines()[-1])
    paths = libraries.find(found['directory'])
    ldd = libraries.ldd(paths, os.path.dirname(python))
    differences = compare_installed(options, found['show'], found['backends'], ldd)
    differences += libraries.compare(paths, ldd, compiler_family(found['show']), build_directory)
    return differences, ldd


def compare_installed(options, show, backends, ldd):
    """Return all differences between what was asked for and what is installed, as far as it tells."""
    settings = read_settings(show)
    told = set(settings) | {'WITH_BLAS'}
    if settings.get('CMAKE_CXX_COMPILER'):
        told.add('CXX')
    known = {name: options[name] for name in told.intersection(options)}
    differences = [item._replace(places=['torch.__config__.show()']) for item in compare(known, settings, {})]
    for option, backend in BACKENDS.items():
        if plain(options.get(option, '')) != 'ON':
            continue
        if not backends.get(backend):
            differences.append(Difference(option, 'ON', 'no %s backend in torch.distributed' % backend,
                                          ['torch.distributed.is_%s_available()' % backend],
                                          "it was built without, or this is another wheel than the one built here"))
        elif backend == 'mpi' and set(libraries.resolved(ldd, 'libmpi')) <= {'not found'}:
            differences.append(Difference(option, 'ON', 'an mpi backend without its library', ['ldd'],
                                          "the module does not load the MPI that it was built with"))
    return differences


def read_settings(text):
    """Return the build settings that torch.__config__.show() prints, under the names by which they are asked for."""
    line = re.search(r'Build settings: *(.*)', text)
    printed = re.findall(r'(\w+)=(.*?), (?=\w+=|$)', line.group(1).strip(' ,') + ', ') if line else []
    found = {SETTINGS.get(name, name): value for name, value in printed}
    if found.get('CUDA_FLAGS'):
        found['TORCH_CUDA_ARCH_LIST'] = architectures_of_flags(found['CUDA_FLAGS'])
    return found
