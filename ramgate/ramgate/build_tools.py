"""
How many compilers build tools may start: as many as cores, and more where all compilers of a tree wait for their turn
anyway, so that ramgate can choose.

This file is also a program that stands in for a build tool on $PATH: DIRECTORY-OF-STAND-INS CORES TOOL ARGUMENTS.
"""
import os
import sys

NINJAS = ('ninja', 'ninja-build', 'samu')
MAKES = ('make', 'gmake')
BUILD_TOOLS = NINJAS + ('cmake',)
# where CMake's launcher is named
TREE_FILES = ('build.ninja', 'CMakeCache.txt')
# slots for each core
MORE = 4


def prepared(directory):
    """True if the compilers of a build directory ask through a launcher."""
    for name in TREE_FILES:
        try:
            with open(os.path.join(directory, name), 'rb') as file:
                if b'ramgate-cc' in file.read():
                    return True
        except OSError:
            pass
    return False


def value_of(words, *options):
    """The value of the first of these options; None if it is not among the words."""
    for at, word in enumerate(words):
        for option in options:
            if word == option:
                return words[at + 1] if at + 1 < len(words) else ''
            if word.startswith(option) and (option.startswith('--') == word.startswith(option + '=')):
                return word[len(option):].lstrip('=')
    return None


def build_directory(command):
    """Where a command builds."""
    words = command[1:]
    tool = os.path.basename(command[0])
    if tool == 'cmake':
        return value_of(words, '--build') or '.'
    return value_of(words, '-C') or '.' if tool in NINJAS + MAKES else '.'


def with_slots(command, cores, environ):
    """The command with the number of slots, unless the user (or a jobserver) gave one that is not ramgate's own."""
    tool = os.path.basename(command[0])
    words = command[1:]
    given = value_of(words, '-j', '--jobs', '--parallel')
    builds = '--build' in words if tool == 'cmake' else tool in NINJAS + MAKES
    if not builds or given not in (None, str(cores)) or 'jobserver' in environ.get('MAKEFLAGS', ''):
        return command
    slots = '-j%d' % (cores * MORE if prepared(build_directory(command)) else cores)
    if given is None:
        at = words.index('--build') + 2 if tool == 'cmake' else 0
        return command[:1] + words[:at] + [slots] + words[at:]
    return command[:1] + replaced(words, given, slots)


def replaced(words, given, slots):
    """The words with other slots for those `given`, in one word or in two."""
    found = []
    for word in words:
        if word == given and found and found[-1] in ('-j', '--jobs', '--parallel'):
            found[-1] = slots
        elif word in ('-j' + given, '--jobs=' + given, '--parallel=' + given):
            found.append(slots)
        else:
            found.append(word)
    return found


def main():
    directory, cores = sys.argv[1:3]
    command = with_slots(sys.argv[3:], int(cores), os.environ)
    if os.path.basename(command[0]) == 'cmake' and not {'--build', '-E', '-P'} & set(command):
        # CMake keeps the paths of the compilers that it finds, and these stand-ins go when the build ends
        places = os.environ['PATH'].split(os.pathsep)
        os.environ['PATH'] = os.pathsep.join(place for place in places if place != directory)
    os.execv(command[0], command)


if __name__ == '__main__':
    main()
