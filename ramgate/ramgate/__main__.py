"""The command line."""
import argparse
import sys

from ramgate import VERSION
from ramgate.limits import Problem, size
from ramgate.replay import POLICIES, replay
from ramgate.report import Live, Report
from ramgate.run import Build


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
    options.command = options.command[1:] if options.command[:1] == ['--'] else options.command
    if not options.command:
        raise Problem('name the command that builds, such as: ramgate run -- cmake --build .')
    # only replays say otherwise
    options.scale, options.groups, options.shipped = (1.0, 1.0), None, True
    return Build(options, [Live()] + ([Report(options.report)] if options.report else [])).run()


def arguments():
    parser = argparse.ArgumentParser(prog='ramgate',
                                     description='Run a build as fast as memory allows.')
    parser.add_argument('--version', action='version', version='ramgate ' + VERSION)
    commands = parser.add_subparsers(dest='what', metavar='run | replay')
    command = commands.add_parser('run', help='run a build', usage='ramgate run [options] -- COMMAND ...')
    command.add_argument('--jobs', type=count, metavar='N',
                         help='jobs at a time (default: the number of cores)')
    command.add_argument('--memory', type=amount, metavar='SIZE',
                         help='memory for the build, such as 48G (default: '
                         'what cgroups, Slurm, PBS and the host allow)')
    command.add_argument('--profile', metavar='FILE',
                         help='what earlier builds needed: read before the build, updated after it')
    command.add_argument('--like', metavar='FILE', action='append', default=[],
                         help='a profile of another version or machine, for what --profile does not know')
    command.add_argument('--report', metavar='DIR', help='write report.json, report.html and the profile there')
    command.add_argument('--jobserver', action='store_true',
                         help='be a jobserver for make, ninja 1.13, cargo: for builds that cannot take a launcher')
    command.add_argument('command', nargs=argparse.REMAINDER, metavar='COMMAND', help=argparse.SUPPRESS)
    command.set_defaults(function=run)

    command = commands.add_parser('replay', help='replay a measured build under several policies')
    command.add_argument('trace', nargs='+', metavar='TRACE[:K]',
                         help='CSV file: user_s, sys_s, peak_mb, file, perhaps curve; of it, every K-th job')
    command.add_argument('--cores', type=count, required=True, metavar='N', help='cores of the machine that is studied')
    memory = command.add_mutually_exclusive_group(required=True)
    memory.add_argument('--memory', type=amount, metavar='SIZE', help='memory of the machine that is studied')
    memory.add_argument('--share', type=count, metavar='PERCENT',
                        help='its memory, as a share of what N jobs would like')
    command.add_argument('--policy', nargs='+', choices=sorted(POLICIES), default=['ramgate', 'ramgate+profile'])
    command.add_argument('--shrink-memory', type=count, default=15, metavar='FACTOR', help='default: %(default)s')
    command.add_argument('--shrink-time', type=count, default=10, metavar='FACTOR', help='default: %(default)s')
    command.add_argument('--neighbour', type=float, default=0, metavar='SHARE',
                         help='a neighbour takes this share midway')
    command.add_argument('--report', metavar='DIR', help="keep ramgate's reports there")
    command.add_argument('--json', metavar='FILE', help='write the results there too')
    command.set_defaults(function=replay)
    return parser


def main():
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
