"""Errors of PyTorch's build that many have met: what is in the log, why, and what to do."""
import re
from collections import namedtuple

Known = namedtuple('Known', 'pattern cause remedy')
KNOWN = tuple(Known(re.compile(pattern), cause, remedy) for pattern, cause, remedy in (
    (r'died due to signal 9|Killed signal terminated program|'
     r'internal compiler error: Killed|c\+\+: fatal error: Killed|oom-kill|'
     r'virtual memory exhausted|cc1plus: out of memory',
     "the machine, or the job, ran out of memory",
     "build where you have more (a compute node), or with fewer jobs: --parallel=N"),
    (r'[Dd]isk quota exceeded', "your quota is used up",
     "make room, or build elsewhere: --buildpath=DIRECTORY"),
    (r'[Nn]o space left on device', "the disk is full",
     "build elsewhere: --buildpath=DIRECTORY (about 20 GB), and --tmpdir=DIRECTORY"),
    (r"cannot convert ['\u2018]?u?int16x4_t|int16x4_t.*-flax-vector-conversions",
     "GCC is strict about conversions between Arm's vector types",
     "add CXXFLAGS=-flax-vector-conversions to custom_opts"),
    (r'is not a supported wheel on this platform',
     "the wheel was made for another Python, or for another processor: its name says which (cp312: Python 3.12; "
     "aarch64: Arm)",
     "load the Python that the wheel was built with, or build a wheel for this one"),
    (r'third_party/\S+.*(does not contain a CMakeLists.txt|does not exist|not found)|Did you run .git submodule|'
     r"third_party/\S+\s+which is not an\s+existing directory|No module named '(peachpy|opcodes|fp16)\b",
     "submodules are missing in the source tree",
     "use the release tarball, or in the tree: git submodule update --init --recursive --depth 1 --jobs 8"),
    (r'Compatibility with CMake < 3\.5 has been removed', "CMake 4 is too new for this PyTorch",
     "load a CMake 3 module, or add CMAKE_POLICY_VERSION_MINIMUM=3.5 to custom_opts"),
    (r'CMake (\S+ )?or higher is required', "CMake is too old", "load a newer CMake module"),
    (r"No module named 'distutils'|Py_UNICODE|'PyFrameObject'.*incomplete|only supports Python",
     "Python is too new for this PyTorch", "load an older Python's module; python_versions says which"),
    (r"numpy/arrayobject\.h: No such file|_ARRAY_API not found|compiled using NumPy 1\.x",
     "NumPy is missing, or NumPy 2 with a PyTorch made for NumPy 1", "add numpy<2 to the lock file for building"),
    (r"pkg_resources.*packaging|No module named 'pkg_resources", "setuptools is too new for this PyTorch",
     "add setuptools<70 to the lock file for building"),
    (r'(cc|CC|ftn): (command )?not found|The CMAKE_CXX_COMPILER:\s+\S+\s+is not (a full path|able)',
     "the compiler wrappers were not found", "load the programming environment: PrgEnv-gnu in the dependencies"),
    (r"No module named 'six'", "NNPACK's code generator has no six, and could not download it",
     "add six to the lock file for building"),
    (r'Could not find (OpenBLAS|BLIS|FlexiBLAS)|MKL library not found',
     "the BLAS that was asked for (BLAS=...) is not there, or its headers are not",
     "load its module in the dependencies, or install it with its headers (OpenBLAS: libopenblas-dev, openblas-devel)"),
    (r'Cannot find (gloo|onnx|cpuinfo|sleef|pthreadpool|XNNPACK|google benchmark|system pybind11)',
     "a library that USE_SYSTEM_... asks for is not there, or its headers are not",
     "load its module or install it with its headers; without that option the tree's own is built"),
    (r'mpi\.h: No such file', "the MPI's headers were not found", "load the MPI's module in the dependencies"),
))


def explain(text):
    """Causes and remedies for what is in a log, the most frequent first; '' if nothing is known."""
    found = [known for known in KNOWN if known.pattern.search(text)]
    return '\n'.join("  likely cause: %s\n  what to do:   %s" % (known.cause, known.remedy) for known in found)


# How tools begin to say what went wrong: what they print afterwards is seldom of use.
BEGINNINGS = re.compile(r'^(CMake Error|FAILED: |ninja: error|\S+:\d+:\d+: (fatal )?error: |\w*(Error|Exception): )')
EXCERPT_LINES = 15
# commands of compilers have kilobytes, and the reason would be lost between them
EXCERPT_WIDTH = 300
# Where setup.py was when the compiler failed says nothing; the line after it may.
TRACEBACK = re.compile(r'^Traceback \(most recent call last\):\n([ \t].*\n)*', re.M)

# Nor do the commands that ninja shows of other jobs, which end after the one that failed.
PROGRESS = re.compile(r'\[\d+/\d+\] ')


def excerpt(text):
    """The part of a log to show: from the first line that says what went wrong, else its end."""
    lines = TRACEBACK.sub('', text).strip().splitlines()
    lines = [line for line in lines if not PROGRESS.match(line)] or lines
    begin = max(len(lines) - EXCERPT_LINES, 0)
    for number, line in enumerate(lines[:begin]):
        if BEGINNINGS.match(line):
            begin = number
            break
    shown = []
    for line in lines[begin:begin + EXCERPT_LINES]:
        shown.append(line if len(line) <= EXCERPT_WIDTH else line[:EXCERPT_WIDTH] + ' ...')
    return '\n'.join(shown)


def why_not_built(output):
    """What a package's own build said, which pip only shows among everything else; '' if nothing was built."""
    if 'error: subprocess-exited-with-error' not in output:
        return ''
    lines = [line.strip() for line in output.splitlines()]
    return '\n'.join(['', excerpt('\n'.join(lines)), explain(output)])
