"""The configuration contract: what CMake decided, compared with what was asked for.

PyTorch builds silently without what CMake did not find. CMake's decisions are in its summary and in its cache, which
exist after a minute; libraries.py looks at what was built, and installed.py asks again once it is installed.
"""
import glob
import os
import re
from collections import namedtuple
from pathlib import Path

from hpc_pytorch import UsersProblem

# A switch that can be asked for: the cache variables that tell where CMake looked, and why it usually fails.
Term = namedtuple('Term', 'option places reason')
TERMS = (
    Term('USE_MPI',
         ('MPI_CXX_COMPILER', 'MPI_C_COMPILER', 'MPI_CXX_HEADER_DIR', 'MPI_mpi_LIBRARY'),
         "the MPI's module is not loaded, or the compiler does not find mpi.h by itself (cc and CC do)"),
    Term('USE_DISTRIBUTED', (), "this platform has no support for it"),
    Term('USE_GLOO', ('Gloo_INCLUDE_DIR', 'Gloo_LIBRARY'), "third_party/gloo is missing"),
    Term('USE_CUDA',
         ('CUDA_TOOLKIT_ROOT_DIR', 'CUDAToolkit_BIN_DIR', 'CMAKE_CUDA_COMPILER'),
         "the CUDA module is not loaded, or its nvcc does not support this host compiler"),
    Term('USE_CUDNN', ('CUDNN_INCLUDE_DIR', 'CUDNN_LIBRARY'), "cuDNN's module is not loaded, or for another CUDA"),
    Term('TORCH_CUDA_ARCH_LIST', ('CMAKE_CUDA_FLAGS',), "this CUDA does not know the architecture"),
    Term('USE_NCCL', ('NCCL_INCLUDE_DIRS', 'NCCL_LIBRARIES'), "NCCL's module is not loaded, or no third_party/nccl"),
    Term('USE_SYSTEM_NCCL', ('NCCL_INCLUDE_DIRS', 'NCCL_LIBRARIES'), "NCCL's module is not loaded"),
    Term('USE_ROCM', ('ROCM_PATH', 'HIP_PATH'), "ROCm's module is not loaded"),
    Term('USE_NUMPY', ('NUMPY_INCLUDE_DIR',), "NumPy is not installed for the Python that builds"),
    Term('USE_FBGEMM', (), "the processor has no AVX2, or third_party/fbgemm is missing"),
    Term('USE_MKLDNN', ('MKLDNN_INCLUDE_DIR',), "third_party/ideep is missing"),
    Term('BLAS',
         ('MKL_INCLUDE_DIR', 'INTEL_MKL_DIR', 'BLAS_mkl_intel_lp64_LIBRARY', 'BLAS_LIBRARIES'),
         "its module is not loaded, or not as CMake expects it (without one: libopenblas-dev, openblas-devel)"),
    Term('MKL_THREADING',
         ('BLAS_mkl_sequential_LIBRARY', 'BLAS_mkl_gnu_thread_LIBRARY'),
         "MKL's library for this kind of threading was not found"),
    Term('CMAKE_BUILD_TYPE', (), "something else set it"),
)
KNOWN = {term.option for term in TERMS}
# What PyTorch's setup.py asks for by itself: without Python's headers CMake goes on, and hours later there is no wheel.
BY_ITSELF = {'BUILD_PYTHON': '1'}
# Why other switches usually fail.
REASONS = {
    'BUILD_PYTHON': "Python's headers were not found (python3-dev, python3-devel)",
    'USE_MKL': "MKL's module is not loaded",
    'USE_NUMA': "libnuma or its header was not found (libnuma-dev, numactl-devel)",
}
OTHERWISE = "CMake did not find what it needs, a switch that it depends on is off, or this platform has no support"
OTHER_COMPILER = "the compilers' module is not loaded, or the build was configured before"
# Directories and compilers that are asked for, and where CMake has what it found: another works, and not as it should.
PATHS = (
    ('NCCL_INCLUDE_DIR', 'NCCL_INCLUDE_DIRS', "another NCCL's headers come first: CPATH, or a CMake package of it"),
    ('NCCL_LIB_DIR', 'NCCL_LIBRARIES', "another NCCL comes first, for example the one that PyTorch brings along"),
    ('CUDNN_ROOT', 'CUDNN_LIBRARY_PATH', "the module's is not where CMake looks, and the CUDA toolkit has another"),
    ('CC', 'CMAKE_C_COMPILER', OTHER_COMPILER),
    ('CXX', 'CMAKE_CXX_COMPILER', OTHER_COMPILER),
)

# What CMake's summary and BLAS_INFO call what can be asked for (cmake/Dependencies.cmake)
BLAS_NAMES = {'open': 'OpenBLAS', 'flexi': 'FlexiBLAS', 'atlas': 'ATLAS', 'generic': 'Generic'}
Difference = namedtuple('Difference', 'option asked found places reason')
ROW = """  {option}
    asked for:     {asked}
    found:         {found}
    looked at:     {places}
    likely reason: {reason}"""
TRUE = ('1', 'ON', 'TRUE', 'YES', 'Y')
FALSE = ('', '0', 'OFF', 'FALSE', 'NO', 'N', 'IGNORE', 'NOTFOUND')


def plain(value):
    """CMake's many words for yes and no as one each; everything else as it is."""
    upper = value.upper()
    if upper in TRUE:
        return 'ON'
    return 'OFF' if upper in FALSE or upper.endswith('-NOTFOUND') else value


def is_switch(name):
    return name.startswith(('USE_', 'BUILD_'))


def read_cache(path):
    # A switch that depends on one that is off stays in it as it was asked for, INTERNAL, and is off. Of one that no
    # file declares (UNINITIALIZED), nor the table, it says nothing.
    with open(path, encoding='utf-8', errors='replace') as handle:
        entries = re.findall(r'^([\w.+-]+):(\w+)=(.*)$', handle.read(), re.M)
    found = {}
    for name, kind, value in entries:
        if is_switch(name) and kind == 'INTERNAL':
            found[name] = 'OFF'
        elif not (is_switch(name) and kind == 'UNINITIALIZED' and name not in KNOWN):
            found[name] = value
    return found


def read_summary(text):
    """Return the decisions that CMake prints, `--   USE_MPI   : OFF`."""
    _, title, summary = text.rpartition('******** Summary ********')
    found = dict(re.findall(r'^--\s+(\w[\w ]*?)\s*:[ \t]*(.*?)\s*$', summary, re.M)) if title else {}
    flags = re.findall(r'Added CUDA NVCC flags for: *(.*)', text)
    if flags:
        found['TORCH_CUDA_ARCH_LIST'] = architectures_of_flags(flags[-1])
    return found


def architectures_of_flags(flags):
    """'-gencode;arch=compute_80,code=sm_80' as TORCH_CUDA_ARCH_LIST says it: 8.0."""
    codes = set(re.findall(r'code=\[?(sm|compute)_(\d+)(\d)(\w?)', flags))
    return ';'.join(sorted('%s.%s%s%s' % (major, minor, letter, '+PTX' if kind == 'compute' else '')
                           for kind, major, minor, letter in codes))


def architectures(asked):
    """Normalise a TORCH_CUDA_ARCH_LIST to compare it: sorted, and 8.0+PTX is also 8.0."""
    words = set(re.split(r'[;,\s]+', asked.strip()))
    return ';'.join(sorted(words | {word.replace('+PTX', '') for word in words}))


def compare(options, cache, summary, named=()):
    """Return all differences between options and CMake's decisions; those in `named` need not be in the table."""
    differences = []
    if 'BLAS' in options:
        # upstream asks for BLAS=Eigen, and with WITH_BLAS for what is linked
        options = dict(options, BLAS=BLAS_NAMES.get(options.get('WITH_BLAS'), options['BLAS']))
    others = tuple(Term(name, (), REASONS.get(name, OTHERWISE)) for name in sorted(named)
                   if is_switch(name) and name not in KNOWN and plain(named[name]) in ('ON', 'OFF'))
    for term in TERMS + others:
        if term.option in options:
            differences += compare_switch(term, options[term.option], cache, summary)
    return differences + compare_paths(options, cache)


def compare_switch(term, asked, cache, summary):
    asked = plain(asked)
    if term.option == 'TORCH_CUDA_ARCH_LIST':
        asked = architectures(asked)
    # the summary has the last word: a cache entry may be shadowed by an ordinary variable
    found = summary.get(term.option, cache.get(term.option))
    if term.option == 'BLAS':
        found = BLAS_NAMES.get(found, found)
    # settings of setup.py are in no cache, and what this version does not know and was not wanted is no difference
    if found is None and (term.option not in KNOWN or asked == 'OFF'):
        return []
    found = '' if found is None else plain(found)
    # names of libraries come in any case
    if asked.lower() == found.lower():
        return []
    places = ['%s=%s' % (name, cache[name]) for name in term.places if name in cache]
    return [Difference(term.option, asked, found or 'nothing', places, term.reason)]


def compare_paths(options, cache):
    differences = []
    for option, variable, reason in PATHS:
        # what is not wanted is not looked for
        switch = 'USE_' + option.split('_')[0]
        wanted = options.get(option) and plain(options.get(switch, 'ON')) != 'OFF'
        asked, found = options.get(option, ''), cache.get(variable, '')
        # compilers are asked for by command and found as paths
        same_compiler = reason == OTHER_COMPILER and os.path.basename(found) == os.path.basename(asked)
        if wanted and not same_compiler and not inside(found, asked):
            differences.append(Difference(option, asked, found or 'nothing', [], reason))
    return differences


def inside(path, directory):
    """True if a path is this directory or in it, whatever links lead there."""
    pairs = (path, directory), (os.path.realpath(path), os.path.realpath(directory))
    return any(Path(top) in [Path(place), *Path(place).parents] for place, top in pairs)


def check(tree, output, asked, named):
    """Stop unless CMake decided what was asked for; its cache is wherever this version puts it."""
    found = glob.glob(os.path.join(glob.escape(tree), 'build', '**', 'CMakeCache.txt'), recursive=True)
    if not found:
        raise UsersProblem("CMake left no CMakeCache.txt in %s/build: what it decided cannot be compared" % tree)
    wanted = downloads(output)
    if wanted:
        raise UsersProblem("CMake downloads %s by itself; build stopped: name it in `sources` or build_lock_files, "
                           "which are fetched and compared before" % ', '.join(wanted))
    cache = read_cache(min(found, key=len))
    asked, named = dict(BY_ITSELF, **asked), dict(BY_ITSELF, **named)
    differences = compare(asked, cache, read_summary(output), named)
    if differences:
        names = ', '.join(item.option for item in differences)
        raise UsersProblem("CMake did not enable the requested options (%s); build stopped:\n%s" % (
            names, table(differences)))


def downloads(text):
    """Return what CMake downloaded, with no checksum, or could not: the build may fail much later."""
    failed = re.findall(r"error: downloading '([^']+)' failed", text)
    found = failed or re.findall(r'^-- Downloading (\w+) to /', text, re.M)
    return sorted(set(found)) or ['something'] * ('Each download failed!' in text)


def table(differences):
    rows = [item._replace(places='; '.join(item.places) or 'CMake does not say') for item in differences]
    return '\n'.join(ROW.format(**row._asdict()) for row in rows)
