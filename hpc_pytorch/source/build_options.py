"""What PyTorch's own build is told, by version: tables (build_options.cfg, too), and what reads them."""
import difflib
import os
import re
from collections import namedtuple
from pathlib import Path

from hpc_pytorch import HERE
from hpc_pytorch.machine.systems import parse
from hpc_pytorch.machine.versions import CONDITION, holds, satisfies

# How a range of versions is built: the commands after `python`; `configure` only runs CMake, None where there is no
# such command and CMake's decisions are compared after the build. The first row that is not newer than what is built.
Route = namedtuple('Route', 'since configure build')
PEP517 = ('-m', 'build', '--wheel', '--no-isolation', '--outdir', 'dist')
ROUTES = (
    Route('2.14', None, PEP517),
    Route('2.9', ('setup.py', 'build', '--cmake-only'), PEP517),
    Route('1.13', ('setup.py', 'build', '--cmake-only'), ('setup.py', 'bdist_wheel')),
)

# The names under which upstream's easyblock looks for a BLAS among the modules.
BLAS_SOFTWARE = ('imkl', 'FlexiBLAS', 'BLIS', 'OpenBLAS')

TABLE = parse(HERE + '/source/build_options.cfg')

# Where in a source tree the names of options stand.
OPTION_FILES = ('setup.py', 'CMakeLists.txt', 'cmake', os.path.join('tools', 'setup_helpers'),
                os.path.join('caffe2', 'CMakeLists.txt'), os.path.join('third_party', 'gloo', 'CMakeLists.txt'))
# Prefixes that mean something to CMake or compilers whatever the source tree says.
GENERAL = re.compile(r'(CMAKE_\w+|(C|CXX|LD|CPP|F)FLAGS|CC|CXX|FC|MAX_JOBS|VERBOSE|PYTORCH_BUILD_\w+|\w+_ROOT)$')


def route(version):
    return next((row for row in ROUTES if satisfies(version, '>=', row.since)), None)


def unknown_architectures(asked, listing):
    """Return those of 8.0, 9.0a or 9.0+PTX that `nvcc --list-gpu-arch` does not list, without their letters."""
    known = re.findall(r'compute_(\d+)', listing)
    return [word for word in asked if re.sub(r'\D', '', word) not in known] if known else []


def table_options(version, machine, compiler):
    options = {}
    for name, row in TABLE.items():
        when = [CONDITION.match(word).groups() for word in row.get('when', '').split()]
        if 'value' in row and holds(when, (machine, compiler), {'pytorch': version}):
            options[name] = row['value']
    return options


def compiler_family(banner):
    """gcc or clang, from the first line of what `CXX --version` prints; '' for another."""
    if 'clang' in banner.lower():
        return 'clang'
    return 'gcc' if re.search(r'\bgcc\b|\bg\+\+|GCC|Free Software', banner) else ''


def dependency_options(root_of):
    """Return the options that tell where dependencies are; `root_of` returns a software's prefix, or None."""
    options = {}
    for name, row in TABLE.items():
        root = 'of' in row and root_of(row['of'])
        if root:
            places = [os.path.join(root, directory) for directory in row['directories'].split()] or [root]
            options[name] = next(filter(os.path.isdir, places), places[0])
    return options


def as_dict(options):
    """['A=1', 'B=2'] as a dictionary, in the same order; a later one wins; other words are left out."""
    return dict(option.split('=', 1) for option in options if '=' in option)


def unknown_options(options, tree):
    """Return what is wrong with options that the source tree does not know, each with the nearest known one."""
    known = set()
    for entry in OPTION_FILES:
        top = Path(tree, entry)
        for path in [top] + list(top.rglob('*')):
            if path.suffix in ('.py', '.cmake', '.in', '.txt') and path.is_file():
                text = path.read_text(encoding='utf-8', errors='replace')
                known.update(re.findall(r'\b_?[A-Z][A-Z0-9_]{2,}\b', text))
    problems = []
    for option in options:
        name = option.partition('=')[0]
        if name not in known and not GENERAL.match(name):
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = " (did you mean %s?)" % near[0] if near else ""
            problems.append(name + hint)
    return problems


def cloned(tree, asked):
    """Return the directories that a build with these options would clone, which nothing verifies."""
    # from 2.7 on these two are no submodules (tools/optional_submodules.py and build_pytorch_libs.py)
    own_nccl = asked.get('USE_CUDA') == '1' and asked.get('USE_NCCL') != '0' and asked.get('USE_SYSTEM_NCCL') != '1'
    own_eigen = asked.get('USE_SYSTEM_EIGEN_INSTALL') not in ('1', 'ON')
    clones = ((own_nccl, 'third_party/nccl', '.ci/docker/ci_commit_pins/nccl*.txt'),
              (own_eigen, 'third_party/eigen', 'third_party/eigen_pin.txt'))
    return [name for needed, name, tag in clones
            if needed and list(Path(tree).glob(tag)) and not os.path.exists(os.path.join(tree, name))]
