"""The command line."""
import argparse
import sys
from pathlib import Path

from ramgate import VERSION
from ramgate.build import Build
from ramgate.limits import Problem, size

HELP = Path(__file__).with_name('usage.txt').read_text(encoding='utf-8')


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
