"""What is a compiler, what its command line compiles, and whether it lacked memory when it failed."""
import contextlib
import os
import re
import shlex

EXTENSIONS = {
    'C': '.c',
    'CXX': '.cpp .cc .cxx .c++ .C',
    'CUDA': '.cu',
    'HIP': '.hip',
    'ASM': '.s .S .asm',
    'Fortran': '.f .F .for .f90 .F90 .f95 .f03 .F03 .f08 .F08',
    'Rust': '.rs',
}
# {extension of a source: language}
LANGUAGES = {extension: kind for kind, extensions in EXTENSIONS.items() for extension in extensions.split()}
COMPILE_ONLY = ('-c', '--compile', '-dc', '-E')
# compilers as build tools name them, perhaps with the machine in front and the version behind
DRIVERS = re.compile(r'''(?:[\w.]+-)*(?:
    cc | c\+\+ | gcc | g\+\+ | gfortran | clang | clang\+\+ | flang | flang-new | icc | icpc | ifort | icx | icpx | ifx
  | nvcc | nvc | nvc\+\+ | nvfortran | hipcc | amdclang | amdclang\+\+ | amdflang | CC | ftn | rustc
  | mpicc | mpicxx | mpic\+\+ | mpifort | mpif77 | mpif90
)(?:-\d[\d.]*)?''', re.X)
# what runs a compiler below it; these, too, look for the compiler on $PATH
FRONTS = ('ccache', 'distcc', 'icecc')
# parts of compilers, which show where nothing else is known
PARTS = re.compile(r'cc1|cc1plus|cc1obj|f951|lto1|cicc|ptxas|collect2|ld|ld\.\w+|lld|mold|ifx?com|fortcom|mcpcom')
WRAPPER = 'ramgate-cc'

# how compilers say that memory ran out
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data', 'out-of-memory.txt')) as _file:
    OUT_OF_MEMORY = re.compile(_file.read(), re.M | re.X)
# a place in a source with an error is the user's error, whatever else was written
REAL_ERROR = re.compile(r'^[^\s:][^:\n]*(?::\d+(?::\d+)?:|\(\d+\):) (?:fatal )?error\b'
                        r'(?!: Killed)(?!.*memory exhausted)(?!.*out of memory allocating)', re.M)
KILLED = 137


def ran_out_of_memory(status, output, kernel_killed):
    """True if a compiler that ended so is worth another try; `kernel_killed`: the kernel killed a process meanwhile."""
    if status == KILLED:
        return True
    if status == 0 or REAL_ERROR.search(output):
        return False
    return kernel_killed or bool(OUT_OF_MEMORY.search(output))


def gets_symlink(name):
    """True for the compilers in whose place ramgate puts links on $PATH."""
    return name in FRONTS or bool(DRIVERS.fullmatch(name))


def is_compiler(name):
    return gets_symlink(name) or bool(PARTS.fullmatch(name))


def compiles(words):
    """False for a question (--version), and for a compiler that reads from a pipe: who fills that may have to wait."""
    return '-' not in words and any(not word.startswith('-') for word in words[1:])


def expanded(directory, arguments):
    """Return the arguments with those of response files (@FILE)."""
    for word in arguments:
        path = os.path.join(directory, word[1:])
        if word.startswith('@') and os.path.isfile(path):
            with contextlib.suppress(OSError, ValueError), open(path, errors='replace') as file:
                yield from shlex.split(file.read())
        else:
            yield word


class Command:
    """A compiler's command line: its name in profiles, its language, the file that it writes."""

    def __init__(self, directory, arguments, top):
        arguments = list(expanded(directory, arguments))
        sources = [word for word in arguments[1:] if not word.startswith('-') and extension_of(word) in LANGUAGES]
        options = zip(arguments, arguments[1:])
        output = next((value for option, value in options if option in ('-o', '--output-file')), '')
        self.language = 'LINK'
        language = LANGUAGES[extension_of(sources[-1])] if sources else None
        if language == 'Rust' or language and not set(COMPILE_ONLY).isdisjoint(arguments):
            self.language = language
        # what an interrupted compiler may leave half written
        self.partial = os.path.join(directory, output) if output else ''
        file = output or (sources or [os.path.basename(arguments[0])])[-1]
        path = os.path.normpath(os.path.join(directory, file))
        # elsewhere than below the build's first directory the last parts, as pip's names are random
        self.name = os.path.join(*path.split('/')[-4:])
        if path.startswith(top.rstrip('/') + '/'):
            self.name = os.path.relpath(path, top)


def extension_of(path):
    return os.path.splitext(path)[1]
