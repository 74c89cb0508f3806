"""
The configuration contract: what CMake decided, compared with what was asked for.

PyTorch builds silently without what CMake did not find. CMake's decisions are in its summary and in its cache, which
exist after a minute; what comes out of it is asked again when it is installed (PROBE, compare_installed).

Standard library only, Python 3.6.
"""
import fnmatch
import glob
import json
import os
import re
import subprocess
from collections import namedtuple

from hpc_pytorch import UsersProblem
from hpc_pytorch.packages.known_errors import excerpt

# A switch that can be asked for: the cache variables that tell where CMake looked, and why it usually fails.
Term = namedtuple('Term', 'option places reason')
TERMS = (
    Term('USE_MPI', ('MPI_CXX_COMPILER', 'MPI_C_COMPILER', 'MPI_CXX_HEADER_DIR', 'MPI_mpi_LIBRARY'),
         "the MPI's module is not loaded, or the compiler does not find mpi.h by itself (cc and CC do)"),
    Term('USE_DISTRIBUTED', (), "this platform has no support for it"),
    Term('USE_GLOO', ('Gloo_INCLUDE_DIR', 'Gloo_LIBRARY'), "third_party/gloo is missing"),
    Term('USE_CUDA', ('CUDA_TOOLKIT_ROOT_DIR', 'CUDAToolkit_BIN_DIR', 'CMAKE_CUDA_COMPILER'),
         "the CUDA module is not loaded, or its nvcc does not support this host compiler"),
    Term('USE_CUDNN', ('CUDNN_INCLUDE_DIR', 'CUDNN_LIBRARY'), "cuDNN's module is not loaded, or for another CUDA"),
    Term('TORCH_CUDA_ARCH_LIST', ('CMAKE_CUDA_FLAGS',), "this CUDA does not know the architecture"),
    Term('USE_NCCL', ('NCCL_INCLUDE_DIRS', 'NCCL_LIBRARIES'), "NCCL's module is not loaded, or no third_party/nccl"),
    Term('USE_SYSTEM_NCCL', ('NCCL_INCLUDE_DIRS', 'NCCL_LIBRARIES'), "NCCL's module is not loaded"),
    Term('USE_ROCM', ('ROCM_PATH', 'HIP_PATH'), "ROCm's module is not loaded"),
    Term('USE_NUMPY', ('NUMPY_INCLUDE_DIR',), "NumPy is not installed for the Python that builds"),
    Term('USE_FBGEMM', (), "the processor has no AVX2, or third_party/fbgemm is missing"),
    Term('USE_MKLDNN', ('MKLDNN_INCLUDE_DIR',), "third_party/ideep is missing"),
    Term('BLAS', ('MKL_INCLUDE_DIR', 'INTEL_MKL_DIR', 'BLAS_mkl_intel_lp64_LIBRARY', 'BLAS_LIBRARIES'),
         "the BLAS's module is not loaded, or its directory has another layout than FindMKL.cmake expects"),
    Term('MKL_THREADING', ('BLAS_mkl_sequential_LIBRARY', 'BLAS_mkl_gnu_thread_LIBRARY'),
         "MKL's library for this kind of threading was not found"),
    Term('CMAKE_BUILD_TYPE', (), "something else set it"),
)
KNOWN = {term.option for term in TERMS}
# What PyTorch's setup.py asks for by itself: without Python's headers CMake goes on, and hours later there is no wheel.
BY_ITSELF = {'BUILD_PYTHON': '1'}
# Why switches usually fail that are compared if the version has them.
REASONS = {'BUILD_PYTHON': "Python's headers are not there (python3-dev, python3-devel)",
           'USE_MKL': "MKL's module is not loaded",
           'USE_NUMA': "libnuma or its header is not there (libnuma-dev, numactl-devel)"}
# Compilers are asked for by command and found as paths.
COMPILERS = (('CC', 'CMAKE_C_COMPILER'), ('CXX', 'CMAKE_CXX_COMPILER'))
# Directories that are asked for, and what must have been found in them: another one works, and not as it should.
DIRECTORIES = (
    ('NCCL_INCLUDE_DIR', 'NCCL_INCLUDE_DIRS', "another NCCL's headers come first: CPATH, or a CMake package of it"),
    ('NCCL_LIB_DIR', 'NCCL_LIBRARIES', "another NCCL comes first, for example the one that PyTorch brings along"),
    ('CUDNN_ROOT', 'CUDNN_LIBRARY_PATH', "the module's is not where CMake looks, and the CUDA toolkit has another"),
)

# How the installed PyTorch calls, among its build settings, what can be asked for.
SETTINGS = {'BLAS_INFO': 'BLAS', 'BUILD_TYPE': 'CMAKE_BUILD_TYPE'}
# What CMake's summary and BLAS_INFO call what can be asked for (cmake/Dependencies.cmake)
BLAS_NAMES = {'open': 'OpenBLAS', 'flexi': 'FlexiBLAS', 'atlas': 'ATLAS', 'generic': 'Generic'}
# Backends of torch.distributed: the switch of each, and the library without which it is none.
BACKENDS = (('mpi', 'USE_MPI', 'libmpi'), ('gloo', 'USE_GLOO', None), ('nccl', 'USE_NCCL', None))
# What the installed PyTorch is asked, by its own Python.
PROBE = """
import json, os, torch, torch.distributed as dist
names = %r
print(json.dumps({
    'show': torch.__config__.show(),
    'directory': os.path.dirname(torch.__file__),
    'backends': {name: bool(getattr(dist, 'is_%%s_available' %% name, bool)()) for name in names}}))
""" % ([backend for backend, _, _ in BACKENDS],)

# The libraries of PyTorch with its own device code; others have what static libraries bring along.
DEVICE_LIBRARIES = 'libtorch_cuda*.so'

Difference = namedtuple('Difference', 'option asked found places reason')

TRUE = ('1', 'ON', 'TRUE', 'YES', 'Y')
FALSE = ('', '0', 'OFF', 'FALSE', 'NO', 'N', 'IGNORE', 'NOTFOUND')


def plain(value):
    """CMake's many words for yes and no as one each; everything else as it is."""
    upper = value.upper()
    if upper in TRUE:
        return 'ON'
    return 'OFF' if upper in FALSE or upper.endswith('-NOTFOUND') else value


def is_switch(name):
    """Whether a name is one of those that PyTorch's switches have."""
    return name.startswith(('USE_', 'BUILD_'))


def read_cache(path):
    """
    CMakeCache.txt as a dictionary. A switch that depends on one that is off stays in it as it was asked for, INTERNAL,
    and is off; of one that no file declares (UNINITIALIZED), nor the table, it says nothing.
    """
    with open(path, encoding='utf-8', errors='replace') as handle:
        entries = re.findall(r'^([\w.+-]+):(\w+)=(.*)$', handle.read(), re.M)
    return {name: 'OFF' if is_switch(name) and kind == 'INTERNAL' else value for name, kind, value in entries
            if not (is_switch(name) and kind == 'UNINITIALIZED' and name not in KNOWN)}


def read_summary(text):
    """The decisions that CMake prints, `--   USE_MPI   : OFF`."""
    start = text.rfind('******** Summary ********')
    found = dict(re.findall(r'^--\s+(\w[\w ]*?)\s*:[ \t]*(.*?)\s*$', text[start:], re.M)) if start >= 0 else {}
    flags = re.findall(r'Added CUDA NVCC flags for: *(.*)', text)
    if flags:
        found['TORCH_CUDA_ARCH_LIST'] = architectures_of_flags(flags[-1])
    return found


def architectures_of_flags(flags):
    """'-gencode;arch=compute_80,code=sm_80' as TORCH_CUDA_ARCH_LIST says it: 8.0."""
    codes = re.findall(r'code=\[?(sm|compute)_(\d+)(\d)(\w?)', flags)
    return ';'.join(sorted({'%s.%s%s%s' % (major, minor, letter, '+PTX' if kind == 'compute' else '')
                            for kind, major, minor, letter in codes}))


def architectures(asked):
    """A TORCH_CUDA_ARCH_LIST as it is compared: sorted, and 8.0+PTX is 8.0 besides."""
    words = re.split(r'[;,\s]+', asked.strip())
    return ';'.join(sorted(set(words) | {word[:-len('+PTX')] for word in words if word.endswith('+PTX')}))


def decided(term, cache, summary):
    """What CMake decided about one option; None if it does not say."""
    # the summary has the last word: a cache entry may be shadowed by an ordinary variable
    value = summary.get(term.option, cache.get(term.option))
    return None if value is None else plain(BLAS_NAMES.get(value, value) if term.option == 'BLAS' else value)


def same(asked, found):
    """Whether a decision is what was asked for; names of libraries come in any case."""
    return plain(asked).lower() == (found or '').lower()


def inside(path, directory):
    """Whether a path is this directory or in it, whatever links lead there."""
    return any((path + os.sep).startswith(directory.rstrip(os.sep) + os.sep) for path, directory in (
        (path, directory), (os.path.realpath(path), os.path.realpath(directory))))


def other_switches(named):
    """A term for each switch that was asked for by name and is not in the table."""
    otherwise = "CMake did not find what it needs, a switch that it depends on is off, or this platform has no support"
    return tuple(Term(name, (), REASONS.get(name, otherwise))
                 for name, value in sorted(named.items())
                 if name not in KNOWN and is_switch(name) and plain(value) in ('ON', 'OFF'))


def unknown(named, cache, summary):
    """The switches that were asked for by name, and of which CMake does not say what became of them."""
    return [term.option for term in other_switches(named) if decided(term, cache, summary) is None]


def compare(options, cache, summary, named=()):
    """
    All differences between what was asked for, a dictionary, and what CMake decided; `named` are those options that
    somebody asked for by name, which are compared whether or not the table has them.
    """
    differences = []
    silent = unknown(dict(named), cache, summary)
    for term in TERMS + other_switches(dict(named)):
        if term.option not in options or term.option in silent:
            continue
        asked, found = plain(options[term.option]), decided(term, cache, summary)
        if term.option == 'TORCH_CUDA_ARCH_LIST':
            asked = architectures(asked)
        # what this version does not know and was not wanted is no difference
        if same(asked, found) or (found is None and asked == 'OFF'):
            continue
        places = ['%s=%s' % (name, cache[name]) for name in term.places if name in cache]
        differences.append(Difference(term.option, asked, found or 'nothing', places, term.reason))
    for option, variable, reason in DIRECTORIES:
        # what is not wanted is not looked for
        off = plain(options.get('USE_' + option.split('_')[0], 'ON')) == 'OFF'
        if option in options and not off and not inside(cache.get(variable, ''), options[option]):
            differences.append(Difference(option, options[option], cache.get(variable, 'nothing'), [], reason))
    for option, variable in COMPILERS:
        if option in options and os.path.basename(cache.get(variable, '')) != os.path.basename(options[option]):
            differences.append(Difference(option, options[option], cache.get(variable, 'nothing'), [],
                                          "the compilers' module is not loaded, or the build was configured before"))
    return differences


def check(tree, output, asked, named):
    """
    Stop when CMake decided otherwise than was asked for; its cache is wherever this version puts it. Returns the
    switches of which it does not say what it decided.
    """
    found = glob.glob(os.path.join(glob.escape(tree), 'build', '**', 'CMakeCache.txt'), recursive=True)
    if not found:
        raise UsersProblem("CMake left no CMakeCache.txt in %s/build: what it decided cannot be compared" % tree)
    wanted = downloads(output)
    if wanted:
        raise UsersProblem("CMake downloads %s by itself, so nothing was built: name it in `sources` or "
                           "build_lock_files, which are fetched and compared before" % ', '.join(wanted))
    asked, named = dict(BY_ITSELF, **asked), dict(BY_ITSELF, **named)
    decisions = read_cache(min(found, key=len)), read_summary(output)
    differences = compare(asked, *decisions, named=named)
    if differences:
        raise UsersProblem("CMake decided otherwise than was asked for (%s), so nothing was built:\n%s" % (
            ', '.join(item.option for item in differences), table(differences)))
    return unknown(named, *decisions)


def downloads(text):
    """
    What CMake downloaded, with no checksum, or could not: it often goes on without, and the build ends much later.
    """
    return sorted(set(re.findall(r"error: downloading '([^']+)' failed", text))) or sorted(
        set(re.findall(r'^-- Downloading (\w+) to /', text, re.M))) or (
        ['something'] if 'Each download failed!' in text else [])


def read_settings(text):
    """The build settings that torch.__config__.show() prints, under the names by which they are asked for."""
    line = re.search(r'Build settings: *(.*)', text)
    found = dict(re.findall(r'(\w+)=(.*?), (?=\w+=|$)', line.group(1).strip(' ,') + ', ')) if line else {}
    if found.get('CUDA_FLAGS'):
        found['TORCH_CUDA_ARCH_LIST'] = architectures_of_flags(found['CUDA_FLAGS'])
    found = {SETTINGS.get(name, name): value for name, value in found.items()}
    return dict(found, CMAKE_CXX_COMPILER=found.get('CXX_COMPILER', ''))


def resolved(ldd, name):
    """Where the loader finds the libraries of this name, from what ldd prints: a list of paths, or 'not found'."""
    return [path for _, path in re.findall(r'^\s*(%s[\w.-]*) => (not found|\S+)' % re.escape(name), ldd, re.M)]


def ask_installed(python, options, architectures_of=None):
    """
    All differences between what was asked for and what this Python imports as torch; and what ldd says of it.
    `architectures_of` gives those of a library's device code ('8.0'), where there is a program that tells.
    """
    directory = os.path.dirname(python)
    probe = run([python, '-c', PROBE], directory)
    if probe.returncode:
        raise UsersProblem("PyTorch cannot be imported:\n%s" % excerpt(probe.stderr))
    found = json.loads(probe.stdout.splitlines()[-1])
    libraries = [path for pattern in ('*.so', 'lib/*.so') for path in
                 glob.glob(os.path.join(glob.escape(found['directory']), pattern))]
    ldd = run(['ldd'] + libraries, directory).stdout
    differences = compare_installed(options, found['show'], found['backends'], ldd)
    if architectures_of and options.get('TORCH_CUDA_ARCH_LIST'):
        paths = fnmatch.filter(libraries, os.path.join('*', DEVICE_LIBRARIES)) or libraries
        code = {architecture for path in paths for architecture in architectures_of(path) or ()}
        differences += compare_device_code(options['TORCH_CUDA_ARCH_LIST'], code, paths)
    return differences, ldd


def compare_device_code(asked, found, paths):
    """Whether the libraries have machine code for each architecture; static libraries may bring more along."""
    asked = {word for word in architectures(asked).split(';') if not word.endswith('+PTX')}
    if asked <= found:
        return []
    return [Difference('TORCH_CUDA_ARCH_LIST', ';'.join(sorted(asked)), ';'.join(sorted(found)) or 'no device code',
                       ['cuobjdump ' + path for path in paths],
                       "the build forgot the architecture, or this is another wheel than the one built here")]


def run(command, directory):
    """Run a command in a directory, where Python finds nothing besides what is installed."""
    return subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True)


def compare_installed(options, show, backends, ldd):
    """All differences between what was asked for and what is installed; nothing is said of what it does not tell."""
    settings = read_settings(show)
    known = {name: value for name, value in options.items() if name in settings and name not in ('CC', 'CXX')}
    if settings['CMAKE_CXX_COMPILER'] and 'CXX' in options:
        known['CXX'] = options['CXX']
    differences = [item._replace(places=['torch.__config__.show()']) for item in compare(known, settings, {})]
    for backend, option, library in BACKENDS:
        if plain(options.get(option, '')) != 'ON':
            continue
        if not backends.get(backend):
            differences.append(Difference(option, 'ON', 'no %s backend in torch.distributed' % backend,
                                          ['torch.distributed.is_%s_available()' % backend],
                                          "it was built without, or this is another wheel than the one built here"))
        elif library and set(resolved(ldd, library)) <= {'not found'}:
            differences.append(Difference(option, 'ON', 'a %s backend without its library' % backend, ['ldd'],
                                          "the module does not load the MPI that it was built with"))
    return differences


def table(differences):
    """The differences for people."""
    lines = []
    for item in differences:
        lines += ["  %s" % item.option,
                  "    asked for:     %s" % item.asked,
                  "    found:         %s" % item.found,
                  "    looked at:     %s" % ('; '.join(item.places) or 'CMake does not say'),
                  "    likely reason: %s" % item.reason]
    return '\n'.join(lines)
