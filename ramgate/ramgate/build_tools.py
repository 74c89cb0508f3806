"""How many compilers build tools may start: as many as cores, and more where all compilers of a tree wait for their
turn anyway, so that ramgate can choose.

This file is also a program that stands in for a build tool on $PATH: DIRECTORY-OF-STAND-INS CORES TOOL ARGUMENTS.
"""
import contextlib
import os
import re
import sys

NINJAS = ('ninja', 'ninja-build', 'samu')
MAKES = ('make', 'gmake')
BUILD_TOOLS = NINJAS + ('cmake',)
# slots for each core
MORE = 4
# slots that somebody gave; without a number: as many as there are files
GIVEN = re.compile(r' (?:-j|--jobs|--parallel)[ =]?(\d*)')


def prepared(directory):
    """True if the compilers of a build directory ask through a launcher."""
    with contextlib.suppress(OSError), open(os.path.join(directory, 'CMakeCache.txt'), 'rb') as file:
        return b'ramgate-cc' in file.read()
    return False


def build_directory(command):
    tool = os.path.basename(command[0])
    option = '--build' if tool == 'cmake' else '-C'
    if tool == 'cmake' or tool in NINJAS + MAKES:
        for word, following in zip(command, command[1:] + ['.']):
            if word.startswith(option):
                return word[len(option):] or following
    return '.'


def with_slots(command, cores, environ):
    """Return the command with the number of slots, unless the user (or a jobserver) gave another."""
    tool = os.path.basename(command[0])
    builds = '--build' in command if tool == 'cmake' else tool in NINJAS + MAKES
    given = GIVEN.search(' '.join(command))
    if not builds or given and given.group(1) != str(cores) or 'jobserver' in environ.get('MAKEFLAGS', ''):
        return command
    slots = cores * MORE if prepared(build_directory(command)) else cores
    # of several, the last holds; what follows -- is no option, but for cmake, which hands it on
    end = command.index('--') if '--' in command and tool != 'cmake' else len(command)
    at = end if given or tool == 'cmake' else 1
    return command[:at] + ['-j%d' % slots] + command[at:]


def main():
    directory, cores = sys.argv[1:3]
    command = with_slots(sys.argv[3:], int(cores), os.environ)
    if os.path.basename(command[0]) == 'cmake' and not {'--build', '-E', '-P'} & set(command):
        # CMake keeps the paths of the compilers that it finds, and these links go when the build ends
        places = os.environ['PATH'].split(os.pathsep)
        os.environ['PATH'] = os.pathsep.join(place for place in places if place != directory)
    os.execv(command[0], command)


if __name__ == '__main__':
    main()
