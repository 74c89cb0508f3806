"""The command line."""
import argparse
import sys

from ramgate import VERSION
from ramgate.build import Build
from ramgate.limits import Problem, size


def amount(text):
    try:
        return size(text)
    except Problem as problem:
        raise argparse.ArgumentTypeError(str(problem))


def count(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError('expected a whole number, 1 or more; found %r' % text)
    return int(text)


def run(options):
    if options.command[:1] == ['--']:
        options.command = options.command[1:]
    if not options.command:
        raise Problem('name the command that builds, such as: ramgate run -- cmake --build .')
    return Build(options).run()


def arguments():
    parser = argparse.ArgumentParser(prog='ramgate', description='Run a build as fast as memory allows.')
    parser.add_argument('--version', action='version', version='ramgate ' + VERSION)
    commands = parser.add_subparsers(dest='what', metavar='run')
    commands.required = True
    command = commands.add_parser('run', help='run a build', usage='ramgate run [options] -- COMMAND ...')
    command.add_argument('--jobs', type=count, metavar='N',
                         help='compilations at a time (default: the number of cores)')
    command.add_argument('--memory', type=amount, metavar='SIZE',
                         help='memory for the build, such as 48G '
                              '(default: what cgroups, Slurm, PBS and the host allow)')
    command.add_argument('--profile', metavar='FILE',
                         help='what earlier builds needed: read before the build, updated after it')
    command.add_argument('--like', metavar='FILE', action='append', default=[],
                         help='a profile of another version or machine, for what --profile does not know')
    command.add_argument('--report', metavar='DIR',
                         help='write report.json, report.html and the profile to this directory')
    command.add_argument('command', nargs=argparse.REMAINDER, metavar='COMMAND', help=argparse.SUPPRESS)
    command.set_defaults(function=run)
    return parser


def main():
    parser = arguments()
    options = parser.parse_args()
    try:
        return options.function(options)
    except Problem as problem:
        sys.stderr.write('ramgate: %s\n' % problem)
        return 2


if __name__ == '__main__':
    sys.exit(main())
