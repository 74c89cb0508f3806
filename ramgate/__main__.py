"""The command line."""
import argparse
import sys

from ramgate.limits import Problem, size
from ramgate.run import Build


def amount(text):
    """A size, for argparse."""
    try:
        return size(text)
    except Problem as problem:
        raise argparse.ArgumentTypeError(str(problem))


def count(text):
    """A positive number, for argparse."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError('a number of jobs from 1 was expected, found %r' % text)
    return int(text)


def run(options):
    """ramgate run."""
    options.command = options.command[1:] if options.command[:1] == ['--'] else options.command
    if not options.command:
        raise Problem('what is to be built? For instance: ramgate run -- cmake --build .')
    options.scale = (1.0, 1.0)
    return Build(options, []).run()


def arguments():
    """The parser."""
    parser = argparse.ArgumentParser(prog='ramgate', description='Run a build as fast as memory allows, and never out of it.')
    commands = parser.add_subparsers(dest='what', metavar='run | replay')
    command = commands.add_parser('run', help='run a build', usage='ramgate run [options] -- COMMAND ...')
    command.add_argument('--jobs', type=count, metavar='N', help='jobs that work at a time (default: the cores there are)')
    command.add_argument('--memory', type=amount, metavar='SIZE', help='use at most so much, for instance 48G (default: '
                         'what cgroups, Slurm, PBS and the host allow)')
    command.add_argument('--profile', metavar='FILE', help='what earlier builds needed; read before, updated afterwards')
    command.add_argument('--report', metavar='DIR', help='write report.json, report.svg and the profile there')
    command.add_argument('command', nargs=argparse.REMAINDER, metavar='COMMAND', help=argparse.SUPPRESS)
    command.set_defaults(function=run)
    return parser


def main():
    """The program; its exit status."""
    parser = arguments()
    options = parser.parse_args()
    if not options.what:
        parser.print_help()
        return 2
    try:
        return options.function(options)
    except Problem as problem:
        sys.stderr.write('ramgate: %s\n' % problem)
        return 2


if __name__ == '__main__':
    sys.exit(main())
