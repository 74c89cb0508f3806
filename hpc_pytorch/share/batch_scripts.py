"""Job scripts for programs that run on this system's nodes, for pytorch-run and pytorch-serve."""
import argparse
import configparser
import contextlib
import itertools
import os
import re
import shlex
import shutil
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
# PyTorch's, and those on top of it; extend-venv-activate, which is also where share/ is not, has the same
MODULES = ('PyTorch', 'torch_mpi', 'Transformers', 'vLLM', 'flash-attn')


class Problem(Exception):
    """One message for the user."""


def say(text):
    """Print a line on standard error: standard output is the job's."""
    print("%s: %s" % (os.path.basename(sys.argv[0]), text), file=sys.stderr, flush=True)


def read_share(name):
    """Read the sections of a file that came with the module, as system.cfg, which was checked when it was installed."""
    path = os.path.join(HERE, name)
    parser = configparser.ConfigParser(delimiters=('=',), comment_prefixes=('#',), interpolation=None,
                                       default_section='')
    if not parser.read(path, encoding='utf-8'):
        raise Problem("%s is missing: run the program of an installed module" % path)
    return {section: dict(parser[section]) for section in parser.sections()}


def first_that_fits(rows, kind, words):
    """Return the first section of this kind whose pattern is in what the batch system says; {} without any."""
    for name, row in rows.items():
        if name.startswith(kind) and re.search(name[len(kind):], words):
            return {key: ' '.join(text.split()) for key, text in row.items()}
    return {}


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError("expected a number from 1 on, found '%s'" % text)
    return int(text)


def minutes(text):
    """Parse minutes, or hours:minutes:seconds, of which a begun minute counts."""
    if text.isdigit():
        return positive(text)
    found = re.match(r'(\d+):([0-5]\d):([0-5]\d)$', text)
    if not found:
        raise argparse.ArgumentTypeError("expected minutes, such as 90, or hours:minutes:seconds, such as 1:30:00")
    hours, full, seconds = map(int, found.groups())
    return 60 * hours + full + bool(seconds)


def missing_on_nodes(path, not_mounted):
    """Return which of the directories that nodes lack a path is in; None if it is in none."""
    place = os.path.realpath(path) + os.sep
    return next((top for top in not_mounted if place.startswith(os.path.join(top, ''))), None)


class Script:
    """A job script: what follows from the system and the options of `job_options`, for either batch system."""

    def __init__(self, system, options, name, program, alone):
        self.system = system
        self.options = options
        self.node = system.get('node', {})
        self.scheduler = system['scheduler']
        self.launcher = system['launcher']
        self.kind = self.scheduler['kind']
        self.program = program
        self.batch_systems = read_share('batch_scripts.cfg')
        if self.kind not in self.batch_systems:
            raise Problem("there is no batch system here; on one machine: " + alone)
        self.words = self.batch_systems[self.kind]
        self.parts = self.batch_systems['parts of scripts']
        self.launcher_words = read_share('launchers.cfg')[self.launcher['command']]
        # who starts the script in a job waits for its status
        self.in_a_job = self.words['inside'] in os.environ
        self.preparation = self.parts['outputs']
        if self.in_a_job:
            self.preparation += '\n' + self.parts['remove']
        # batch systems take no blanks or quotes in names, and no empty one; PBS no letters beyond ASCII
        self.name = re.sub(r'[^\w.+-]+', '_', name, flags=re.ASCII).lstrip('.-') or 'job'
        self.account = options.account or os.environ.get(self.scheduler.get('account_variable', ''))
        self.partition = options.partition or self.scheduler.get('partition')
        # a partition that the user names may be another than the system's
        self.shared = options.partition or self.scheduler.get('nodes_exclusive') != 'yes'
        self.all_gpus = int(self.node.get('gpus', 0))
        self.gpus = options.gpus or self.all_gpus
        self.ranks = options.ranks_per_node or self.gpus or 1
        self.all_cores = int(self.node.get('cores', self.ranks))
        # part of a node has its share of the cores
        self.share = self.gpus / self.all_gpus if self.all_gpus else 1
        self.cores = max(int(self.usable_cores() * self.share) // self.ranks, 1)
        self.clock = '%02d:%02d:00' % divmod(options.time, 60)
        # seconds before the time limit at which the program gets the signal to save; Slurm's may come a minute earlier
        self.lead = min(120, 15 * options.time)
        self.check()

    def usable_cores(self):
        """Count the cores of a node that jobs get: those named beside GPUs; others may be the operating system's."""
        near_gpus = 0
        for first, last in re.findall(r'(\d+)(?:-(\d+))?', self.node.get('gpu_cores', '')):
            near_gpus += int(last or first) - int(first) + 1
        return near_gpus or self.all_cores

    def check(self):
        """Refuse what would fail only when the job starts."""
        if not self.account and 'account_variable' in self.scheduler:
            raise Problem("jobs on %s need a project: --account NAME, or set $%s" % (
                self.system['system']['title'], self.scheduler['account_variable']))
        if self.gpus and self.ranks not in (1, self.gpus):
            raise Problem("the job has %d GPUs on a node: start one rank for each of them, or one in all"
                          " (--ranks-per-node 1); fewer GPUs: --gpus N" % self.gpus)
        if self.gpus > self.all_gpus:
            raise Problem("--gpus %d: expected at most %d, as a node has" % (self.gpus, self.all_gpus))
        if self.gpus < self.all_gpus and not self.shared:
            raise Problem("--gpus %d: jobs have whole nodes in the partition %s; name one whose nodes are shared with"
                          " --partition" % (self.gpus, self.partition))
        if self.ranks > self.all_cores:
            raise Problem("a node has %d cores: start at most as many ranks on it (--ranks-per-node)" % self.all_cores)
        if self.options.stage and not os.path.exists(os.path.join(os.path.dirname(HERE), 'bin/pytorch-stage')):
            raise Problem("--stage: this module has no pytorch-stage; a container's packages: make-squashfs")

    def slurm_head(self):
        lines = ['--job-name=' + self.name, '--nodes=%d' % self.options.nodes, '--time=' + self.clock]
        qos = self.options.qos or self.scheduler.get('qos')
        optional = (('--partition=', self.partition), ('--qos=', qos), ('--account=', self.account))
        lines += [option + value for option, value in optional if value]
        if self.gpus and 'gpus_option' in self.scheduler:
            lines.append(self.scheduler['gpus_option'] + str(self.gpus))
        # where others may have a part of the node, a job has only the cores that it asks for, whatever its GPUs
        if self.shared:
            lines += ['--ntasks-per-node=%d' % self.ranks, '--cpus-per-task=%d' % self.cores]
        if self.options.requeue:
            lines += ['--requeue', '--open-mode=append']
            # mpirun's ranks are no step of Slurm's
            if self.launcher['command'] == 'srun':
                lines.append('--signal=USR1@%d' % self.lead)
        lines += self.scheduler.get('options', '').split()
        if self.options.stage and 'local_storage_option' in self.node:
            lines.append(self.node['local_storage_option'])
        return lines

    def pbs_head(self):
        cores = self.all_cores if self.gpus == self.all_gpus else self.cores * self.ranks
        chunk = 'select=%d:ncpus=%d:mpiprocs=%d' % (self.options.nodes, cores, self.ranks)
        if self.gpus:
            chunk += ':ngpus=%d' % self.gpus
        # where others may have a part of the node, PBS refuses jobs that ask for no memory, or gives them little
        if self.shared and 'memory' in self.node:
            number, unit = re.match(r'(\d+) ?(.)', self.node['memory']).groups()
            megabytes = int(number) * 1024 ** ('KMGT'.index(unit) - 1)
            chunk += ':mem=%dmb' % (float(self.words['memory']) * self.share * megabytes)
        lines = ['-N ' + self.name, '-l ' + chunk]
        if self.options.nodes > 1:
            # PBS's default, free, gives one node to all chunks that fit on it
            lines.append('-l place=scatter' + ('' if self.shared else ':excl'))
        lines += ['-l walltime=' + self.clock, '-j oe']
        optional = (('-q ', self.partition), ('-A ', self.account), ('', self.scheduler.get('options')))
        return lines + [option + value for option, value in optional if value]

    def head(self, followed=False):
        """Return the options of the job; one that is `followed` says where its output goes."""
        options = self.slurm_head() if self.kind == 'slurm' else self.pbs_head()
        if followed:
            options.insert(1, self.words['output option'].format(name=self.name))
        return options

    def launch(self):
        """Return the command that starts the ranks, as words; pytorch-srun puts the GPUs of a node in order."""
        words = self.launcher_words
        binding = words['binding']
        # where Slurm does not count GPUs, it refuses steps that ask for some
        if self.gpus and self.scheduler.get('gpus_option'):
            binding = words.get('gpu_binding', binding)
        if self.gpus == self.all_gpus and self.ranks > 1:
            binding = self.launcher.get('gpu_options', binding)
        failure = words.get('failure in turns' if self.options.requeue else 'failure', '')
        parts = [self.launcher['command'], words['ranks'], words.get('per_node', ''), failure, binding]
        launcher = ' '.join(parts).format(nodes=self.options.nodes, ranks=self.options.nodes * self.ranks,
                                          per_node=self.ranks, cores=self.cores, gpus=self.gpus)
        command = launcher.split() + self.program
        if self.options.requeue and self.launcher['command'] != 'srun':
            # mpirun and mpiexec hand it on to the ranks
            return ['before_the_end', str(60 * self.options.time - self.lead)] + command
        return command

    def text(self, followed=False):
        """Return the script; one that is `followed` says how the program has ended."""
        lines = ['#!/bin/bash -l']
        lines += ['%s %s' % (self.words['head'], option) for option in self.head(followed)]
        lines.append('')
        if followed:
            lines.append(self.words['output'].format(name=self.name))
        lines += filter(None, [self.words['directory'], self.words['begin']])
        if self.in_a_job and not followed:
            lines.append('cd %s || exit' % shlex.quote(os.getcwd()))  # a login shell may have changed it
        # below srun --pty, whose step has all cores of the job
        if 'SLURM_STEP_ID' in os.environ:
            lines.append('export SLURM_OVERLAP=1')
        lines.append('')
        lines += load_module('{ %s; }' % self.parts['no module'] if followed else 'exit')
        if self.options.stage:
            lines += ['', self.parts['stage']]
        turn = ''
        if self.options.requeue:
            turn = self.words['turn']
            lines.append(self.words['restarts'])
        lines += ['', self.preparation.format(name=self.name, job=self.words['job'], turn=turn), '']
        if self.options.requeue:
            # also where a user has added `set -e`
            before = self.words['time limit'] + '\n' + self.parts['before the end']
            lines += [self.launcher_words.get('requeue', before), 'set +e']
        lines.append(' '.join(map(shlex.quote, self.launch())))
        if followed or self.options.requeue or self.in_a_job or 'own status' in self.launcher_words:
            lines.append(self.parts['status'])
            if self.options.requeue:
                again = self.words['again'].format(share=shlex.quote(HERE))
                lines.append(self.parts['again'].format(again=again, count=self.words['count'],
                                                        times=self.options.requeue))
            if followed:
                lines.append(self.parts['end'])
            # lines that users add below it count
            lines.append('(exit "$status")')
        return '\n'.join(lines) + '\n'

    def not_on_nodes(self):
        """Yield a message for each directory that the job needs, and that compute nodes lack."""
        for place, advice in (('.', "change to a directory that they have, and type the same there"),
                              (active_environment(), "create the virtual environment in a directory that they have")):
            top = missing_on_nodes(place, self.node.get('not_mounted', '').split())
            if place and top:
                yield "compute nodes of %s do not have %s: %s" % (self.system['system']['title'], top, advice)

    def not_as_here(self):
        """Yield messages on what is other in the job than the user may expect."""
        environment = os.environ.get('VIRTUAL_ENV')
        if environment and not active_environment():
            yield "the job does not activate %s, as another python comes first: activate it again" % environment
        conda = os.environ.get('CONDA_PREFIX')
        if conda and shutil.which('python') == os.path.join(conda, 'bin/python'):
            yield "the job does not activate %s, as conda's python is not the module's: deactivate it" % conda
        if self.options.dry_run:
            yield from self.not_on_nodes()
            for name in filter(os.environ.get, self.words['heeded'].split()):
                if '=%s\n' % os.environ[name] not in self.text():
                    yield "sbatch heeds $%s (%s) rather than the script: unset it" % (name, os.environ[name])

    def write(self):
        """Write the script that is followed under a name that is free; returns the name."""
        text = self.text(followed=True)
        for problem in self.not_on_nodes():
            raise Problem(problem)
        try:
            for number in itertools.count(1):
                path = '%s-%d.job' % (self.name, number)
                with contextlib.suppress(FileExistsError), open(path, 'x', encoding='utf-8') as handle:
                    handle.write(text)
                    return path
        except OSError as problem:
            if not problem.filename:
                # it was opened, and there is no room
                os.remove(path)
            raise Problem("the job script, and later the output, cannot be written to this directory (%s): make room, "
                          "or change to another one" % problem.strerror)


def active_environment():
    """Return the virtual environment whose python the user's shell starts, in a container or without; '' if none."""
    environment = os.environ.get('VIRTUAL_ENV', '')
    first = shutil.which('python') == os.path.join(environment, 'bin/python')
    return environment if first or os.environ.get('SINGULARITYENV_USERS_VENV') == environment else ''


def load_module(otherwise):
    """Return lines that load this program's module from where it was found, as a job may not know that."""
    # a group's own module has a name of its own, and an environment as ours
    names = [name for name in os.environ.get('LOADEDMODULES', '').split(':')
             if name.split('/')[0] in MODULES or os.path.exists(root_of(name) + '/pyvenv.cfg')]
    if not names:
        raise Problem("load the PyTorch module first: the job loads the same one")
    # a warning, as that a module is to be removed, is a failure for Lmod otherwise
    lines = ['LMOD_QUIET=1 module load %s || %s' % (' '.join(map(shlex.quote, names)), otherwise)]
    for path in filter(None, os.environ.get('MODULEPATH', '').split(':')):
        files = [os.path.join(path, name) for name in names]
        if any(os.path.exists(file) or os.path.exists(file + '.lua') for file in files):
            lines.insert(0, 'module use %s' % shlex.quote(path))
    if 'MODULES_CMD' in os.environ:
        # Environment Modules do not load again what is loaded, even where a profile has set $PATH anew
        lines.append('command -v pytorch-srun >/dev/null || module reload || %s' % otherwise)
    environment = active_environment()
    if environment:
        lines.append('source %s || %s' % (shlex.quote(os.path.join(environment, 'bin/activate')), otherwise))
    added = added_to_path(names)
    if added:
        lines.append('export PYTHONPATH=%s"${PYTHONPATH:+:$PYTHONPATH}"' % shlex.quote(':'.join(added)))
    return lines


def root_of(module):
    """Return where EasyBuild installed a module that is loaded; '' if it did not."""
    return os.environ.get('EBROOT' + module.split('/')[0].upper().replace('-', 'MINUS'), '')


def added_to_path(modules):
    """Return what the user has added to $PYTHONPATH since the modules were loaded: loading them again sets it anew."""
    roots = [root_of(module) for module in modules] + [os.environ.get('VIRTUAL_ENV')]
    own = [os.path.join(root, '') for root in roots if root]
    return [path for path in os.environ.get('PYTHONPATH', '').split(':') if path and not path.startswith(tuple(own))]


def job_options(description):
    """Return a parser with the options of every job; add those of the program itself."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--dry-run', action='store_true', help="only write the job script to standard output")
    parser.add_argument('--nodes', type=positive, default=1, metavar='N', help="number of nodes; default: 1")
    parser.add_argument('--time', type=minutes, default=60, metavar='MINUTES', help="or H:MM:SS; default: 60")
    parser.add_argument('--account', help="project; default: $SBATCH_ACCOUNT or the system's own variable")
    parser.add_argument('--partition', help="partition or queue; default: the system's")
    parser.add_argument('--qos', help="Slurm's quality of service; default: the system's")
    parser.add_argument('--stage', action='store_true', help="start Python from the nodes' own disks (pytorch-stage)")
    parser.add_argument('--gpus', type=positive, metavar='N', help="GPUs of each node, on shared nodes; default: all")
    # those of programs that have no such option
    parser.set_defaults(ranks_per_node=None, requeue=0)
    return parser
