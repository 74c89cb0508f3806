"""The command line."""
import argparse
import sys

from ramgate import VERSION
from ramgate.build import Build
from ramgate.limits import Problem, size


HELP = """usage: ramgate run [options] -- COMMAND ...
Runs any build within the memory available: when it is short, compilers wait, are paused or restarted.
  --jobs N        most compilers at a time (default: the number of cores)
  --memory SIZE   most memory to use, such as 48G (default: what cgroups, Slurm, PBS and the host allow)
  --profile FILE  memory and time of each file in earlier builds, read and updated; auto: next to the build directory
  --like FILE     a profile of another version or machine, for what --profile does not know
  --report DIR    write report.json, report.html and profile.json to this directory
example: ramgate run --profile auto -- cmake --build build
exit status: the command's (128 + N: ended by signal N); 127: command not found; 126: it cannot run; 2: ramgate cannot
"""


def count(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError('expected a whole number, 1 or more; found %r' % text)
    return int(text)


def main():
    parser = argparse.ArgumentParser(prog='ramgate run', usage='ramgate run [options] -- COMMAND ...')
    parser.format_help = lambda: HELP
    parser.add_argument('--version', action='version', version='ramgate ' + VERSION)
    parser.add_argument('--jobs', type=count)
    parser.add_argument('--memory', type=size)
    parser.add_argument('--profile')
    parser.add_argument('--like', action='append', default=[])
    parser.add_argument('--report')
    parser.add_argument('command', nargs=argparse.REMAINDER)
    try:
        options = parser.parse_args(sys.argv[2:] if sys.argv[1:2] == ['run'] else sys.argv[1:])
        if options.command[:1] == ['--']:
            options.command = options.command[1:]
        if not options.command:
            raise Problem('name the command that builds, such as: ramgate run -- cmake --build .')
        return Build(options).run()
    except Problem as problem:
        sys.stderr.write('ramgate: %s\n' % problem)
        return 2


if __name__ == '__main__':
    sys.exit(main())
