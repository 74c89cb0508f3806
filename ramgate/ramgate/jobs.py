"""What a command line compiles, and how its end is to be understood."""
import os
import re

# extension of a source: language
LANGUAGES = {'.c': 'C', '.cpp': 'CXX', '.cc': 'CXX', '.cxx': 'CXX', '.c++': 'CXX', '.C': 'CXX', '.cu': 'CUDA',
             '.hip': 'HIP', '.s': 'ASM', '.S': 'ASM', '.asm': 'ASM'}
LANGUAGES.update(dict.fromkeys(('.f', '.F', '.for', '.f90', '.F90', '.f95', '.f03', '.F03', '.f08', '.F08'), 'Fortran'))

# how compilers say that memory ran out. Each begins its line, so that a quotation from a source never matches.
OUT_OF_MEMORY = re.compile(r'''^(?:
    \S*:\ (?:fatal\ error|error|internal\ compiler\ error):\ Killed\b                    # gcc: a signal, a program
  | \S*:\ error:\ unable\ to\ execute\ command:\ Killed                                  # clang
  | \S*nvcc\S*\ error\s*:\ '[^']*'\ died\ due\ to\ signal\ 9\b
  | (?:\S*:\ )?(?:fatal\ error:\ )?(?:virtual\ memory\ exhausted|out\ of\ memory\ allocating\b)
  | \S*:\ fatal\ error:\ cannot\ execute\ .*:\ Cannot\ allocate\ memory
  | (?:\S*:\ )?(?:vfork|fork|posix_spawn):\ Cannot\ allocate\ memory
  | (?:\S*:\ )?fatal\ error:\ (?:\S*ld\S*)\ terminated\ with\ signal\ 9\b                  # collect2
  | (?:\S*:\ )?(?:\S*ld\S*)\ terminated\ with\ signal\ 9\b
  | \S*ld\S*:\ (?:.*:\ )?(?:[Mm]emory\ exhausted|Cannot\ allocate\ memory|out\ of\ memory)\b
  | terminate\ called\ after\ throwing\ an\ instance\ of\ 'std::bad_alloc'
  | (?:\S*:\ )?(?:fatal\ error:\ )?std::bad_alloc\b
  | (?:\S*:\ )?LLVM\ ERROR:\ [Oo]ut\ of\ memory
  | (?:\S*:\ )?fatal\ error:\ error\ in\ backend:\ [Oo]ut\ of\ memory
  | ptxas\ fatal\s*:\ (?:.*\b)?(?:[Mm]emory\ allocation\ failure|[Oo]ut\ of\ [Mm]emory)
  | (?:.*/)?(?:sh|bash|dash|\S+\.sh):\ (?:line\ )?\d+:\ +(?:\d+\ )?Killed\b
  | Killed$
)''', re.M | re.X)
# a place in a source with an error is the user's error, whatever else was written
REAL_ERROR = re.compile(r'^[^\s:][^:\n]*(?::\d+(?::\d+)?:|\(\d+\):) (?:fatal )?error\b'
                        r'(?!: Killed)(?!.*memory exhausted)(?!.*out of memory allocating)', re.M)
KILLED = (137, -9)


def language_of(path):
    """By a source's or an object's extension (x.cu, x.cu.o); C++ where it says nothing."""
    return LANGUAGES.get(os.path.splitext(re.sub(r'\.o$', '', path))[1], 'CXX')


def out_of_memory(status, output, kernel_killed):
    """Whether a job that ended so ended for lack of memory."""
    if status in KILLED:
        return True
    if status == 0 or REAL_ERROR.search(output):
        return False
    return bool(OUT_OF_MEMORY.search(output)) or kernel_killed


class Command:
    """A command line: the file it makes, its name in profiles, its language."""

    def __init__(self, directory, arguments, top):
        self.directory, self.arguments = directory, arguments
        sources = [word for word in arguments[1:] if os.path.splitext(word)[1] in LANGUAGES
                   and not word.startswith('-')]
        self.output = self.after('-o', '--output-file')
        compiles = '-c' in arguments or '--compile' in arguments or '-dc' in arguments or '-E' in arguments
        self.language = LANGUAGES[os.path.splitext(sources[-1])[1]] if sources and compiles else 'LINK'
        self.name = self.short(self.output or (sources[-1] if sources else os.path.basename(arguments[0])), top)

    def after(self, *options):
        """The word after one of the options, None where there is none."""
        words = self.arguments
        for at, word in enumerate(words):
            if word in options and at + 1 < len(words):
                return words[at + 1]
        return None

    def short(self, path, top):
        """The path below where the build began; elsewhere (pip's directories have random names) its last parts."""
        path = os.path.normpath(os.path.join(self.directory, path))
        if path.startswith(top.rstrip('/') + '/'):
            return os.path.relpath(path, top)
        return os.path.join(*path.split('/')[-4:])

    @property
    def partial(self):
        """What an interrupted run may have left, '' where nothing."""
        return os.path.join(self.directory, self.output) if self.output else ''
