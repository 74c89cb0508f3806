"""
What PyTorch's own build is told, by version: tables, and the few functions that read them.

The tables are made by hand, from setup.py and CMakeLists.txt of PyTorch 1.13.1, 2.6.0, 2.9 and 2.14 (November 2026).
Flags for Arm are those of Bede's page (systems/bede/system.cfg).

Standard library only, Python 3.6: used by the PyTorchHPC easyblock.
"""
import difflib
import os
import re
from collections import namedtuple

from hpc_pytorch.machine.versions import within

# How a range of versions is built: the commands after `python`; `configure` only runs CMake, None where there is no
# such command and CMake's decisions are compared after the build. The first row that is not newer than what is built.
Route = namedtuple('Route', 'since configure build')
PEP517 = ('-m', 'build', '--wheel', '--no-isolation', '--outdir', 'dist')
ROUTES = (
    Route('2.14', None, PEP517),
    Route('2.9', ('setup.py', 'build', '--cmake-only'), PEP517),
    Route('1.13', ('setup.py', 'build', '--cmake-only'), ('setup.py', 'bdist_wheel')),
)

# Options that every build has, with the versions that know them: (option, value, since, before).
OPTIONS = (
    ('BUILD_TEST', '0', '1.13', None),
    ('BUILD_CAFFE2', '0', '1.13', '2.4'),
    ('USE_DISTRIBUTED', '1', '1.13', None),
    ('USE_GLOO', '1', '1.13', None),
    ('USE_NUMPY', '1', '1.13', None),
)

# The names under which upstream's easyblock looks for a BLAS among the modules.
BLAS_SOFTWARE = ('imkl', 'FlexiBLAS', 'BLIS', 'OpenBLAS')

# What the build is told of software that is a dependency: (option, software, directories in its prefix; the first that
# is there counts). Upstream's easyblock says the rest.
DEPENDENCY_OPTIONS = (
    ('NCCL_ROOT', 'NCCL', ('',)),
    ('NCCL_INCLUDE_DIR', 'NCCL', ('include',)),
    ('NCCL_LIB_DIR', 'NCCL', ('lib', 'lib64')),
    ('CUDNN_ROOT', 'cuDNN', ('',)),
    ('CUDNN_LIB_DIR', 'cuDNN', ('lib64', 'lib')),
)

# Compiler flags that PyTorch needs on one architecture (`uname -m`), with one compiler, from one version of PyTorch on:
# (architecture, compiler, since, before, variable, value). GCC on Arm refused conversions between vector types that the
# code of early 2024 makes, and warns of a null pointer where there is none; the linker is to keep code that runs
# together together, for which 2.6's setup.py adds the flags itself. The files of 1.13.1 and of 2.6.0 were compiled
# without (tests/benchmarks/source_build).
ARM_FLAGS = '-ffunction-sections -fdata-sections -flax-vector-conversions -Wno-nonnull'
ARCHITECTURE_FLAGS = (
    ('aarch64', 'gcc', '2.0', '2.6', 'CFLAGS', '-ffunction-sections -fdata-sections -flax-vector-conversions'),
    ('aarch64', 'gcc', '2.0', '2.6', 'CXXFLAGS', ARM_FLAGS),
    ('aarch64', 'gcc', '2.0', None, 'USE_PRIORITIZED_TEXT_FOR_LD', '1'),
)

# What trees from 2.7 on clone while they build, as it is no submodule: (directory, files of which one names the tag).
# From tools/optional_submodules.py and build_pytorch_libs.py.
NCCL, EIGEN = 'third_party/nccl', 'third_party/eigen'
CLONED = (
    (NCCL, ('.ci/docker/ci_commit_pins/nccl.txt', '.ci/docker/ci_commit_pins/nccl-cu12.txt')),
    (EIGEN, ('third_party/eigen_pin.txt',)),
)

# Where in a source tree the names of options stand.
OPTION_FILES = ('setup.py', 'CMakeLists.txt', 'cmake', os.path.join('tools', 'setup_helpers'),
                os.path.join('caffe2', 'CMakeLists.txt'), os.path.join('third_party', 'gloo', 'CMakeLists.txt'))
# Prefixes that mean something to CMake or compilers whatever the source tree says.
GENERAL = re.compile(r'(CMAKE_\w+|(C|CXX|LD|CPP|F)FLAGS|CC|CXX|FC|MAX_JOBS|VERBOSE|PYTORCH_BUILD_\w+|\w+_ROOT)$')


def route(version):
    """How this version is built; None if nobody knows."""
    return next((row for row in ROUTES if within(version, row.since, None)), None)


def unknown_architectures(asked, listing):
    """Those of 8.0, 9.0a or 9.0+PTX that `nvcc --list-gpu-arch` does not list, all without their letters."""
    known = re.findall(r'compute_(\d+)', listing)
    return [word for word in asked if known and re.sub(r'\D', '', word) not in known]


def common_options(version):
    """The options of every build of this version, as a dictionary."""
    return {name: value for name, value, since, before in OPTIONS if within(version, since, before)}


def architecture_flags(architecture, compiler, version):
    """What the table says for one architecture and compiler, as a dictionary."""
    flags = {}
    for machine, name, since, before, variable, value in ARCHITECTURE_FLAGS:
        if (machine, name) == (architecture, compiler) and within(version, since, before):
            flags[variable] = value
    return flags


def compiler_family(banner):
    """gcc or clang, from the first line of what `CXX --version` prints; '' for another."""
    if 'clang' in banner.lower():
        return 'clang'
    return 'gcc' if re.search(r'\bgcc\b|\bg\+\+|GCC|Free Software', banner) else ''


def dependency_options(root_of):
    """The options that tell where dependencies are; `root_of` returns a software's prefix, or None."""
    options = {}
    for name, software, directories in DEPENDENCY_OPTIONS:
        root = root_of(software)
        if root:
            places = [os.path.join(root, directory).rstrip(os.sep) for directory in directories]
            options[name] = next(filter(os.path.isdir, places), places[0])
    return options


def as_dict(options):
    """['A=1', 'B=2'] as a dictionary, in the same order; a later one wins; other words are left out."""
    return dict(option.split('=', 1) for option in options if '=' in option)


def option_names(tree):
    """All names in a source tree that can be options."""
    names = set()
    suffixes = ('.py', '.cmake', '.in', '.txt')
    for entry in OPTION_FILES:
        top = os.path.join(tree, entry)
        paths = [top] if os.path.isfile(top) else [os.path.join(where, name) for where, _, files in os.walk(top)
                                                   for name in files if name.endswith(suffixes)]
        for path in paths:
            with open(path, encoding='utf-8', errors='replace') as handle:
                names.update(re.findall(r'\b_?[A-Z][A-Z0-9_]{2,}\b', handle.read()))
    return names


def unknown_options(options, tree):
    """What is wrong with options that the source tree does not know, each with the nearest that it does."""
    known = option_names(tree)
    problems = []
    for option in options:
        name, equals, _ = option.partition('=')
        if not equals or not re.match(r'[A-Za-z_]\w*$', name):
            problems.append("%r is not NAME=VALUE" % option)
        elif name not in known and not GENERAL.match(name):
            near = difflib.get_close_matches(name, sorted(known), n=1)
            problems.append("%s%s" % (name, " (did you mean %s?)" % near[0] if near else ""))
    return problems


def cloned(tree, asked):
    """The directories that a build with these options would clone."""
    wanted = {
        NCCL: (asked.get('USE_CUDA'), asked.get('USE_NCCL', '1'), asked.get('USE_SYSTEM_NCCL', '0')) == ('1', '1', '0'),
        EIGEN: asked.get('USE_SYSTEM_EIGEN_INSTALL') not in ('1', 'ON'),
    }
    found = []
    for name, pins in CLONED:
        pinned = any(os.path.isfile(os.path.join(tree, pin)) for pin in pins)
        if pinned and wanted[name] and not os.path.exists(os.path.join(tree, name)):
            found.append(name)
    return found
