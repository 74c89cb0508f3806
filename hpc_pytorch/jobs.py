"""
``eb --job`` for systems that are described in ``systems/``: what a job asks for, its script, and what became of it.

The two backends (job_backends/) are EasyBuild's; what they share is here. Each job has a few files beside EasyBuild's
own locks, in ``<software directory>/.jobs``: its script, a record, and while it runs how far it is.

Python 3.6.
"""
import atexit
import fcntl
import glob
import json
import os
import re
import shlex
import shutil
import sys
import time

from easybuild.base import fancylogger
from easybuild.framework.easyconfig.easyconfig import process_easyconfig
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import build_option, install_path
from easybuild.tools.modules import modules_tool

from hpc_pytorch import HERE, known_errors, schedulers
from hpc_pytorch.needs import OTHERS, fitted, needs_of
from hpc_pytorch.schedulers import ALIVE, NoAnswer, Refused, Request, SCHEDULERS
from hpc_pytorch.system import Problem, current

_log = fancylogger.getLogger('jobs', fname=False)

# What jobs get of the environment of the login node, and why; everything else is the job's own. EasyBuild's options
# are in the command already.
CARRIED = (
    ('HPC_SYSTEM', "a compute node may have a name that tells nothing"),
    ('HPC_SITE_CONFIG', "the site's policies and rules"),
    ('HPC_SITE_HOOKS', "the site's own hooks"),
    ('HPC_IMAGE_SEARCH_PATH', "where images are looked for"),
    ('MODULEPATH', "modules that were found on the login node are found in the job"),
    ('LMOD_CMD', "the modules tool"),
    ('MODULES_CMD', "the modules tool"),
    ('EB_PYTHON', "the Python that EasyBuild runs with"),
    ('PYTHONPATH', "where EasyBuild is, when it comes from a module; ./eb has none"),
)
# where a system.cfg has no default
DEFAULT_WALLTIME = '04:00:00'
# What --job-target-resource can say.
ASKABLE = ('account', 'partition', 'qos', 'walltime', 'memory', 'gpus')

# The batch system's word for how a job ended -> (cause, what to do).
ENDS = tuple((re.compile(pattern), cause, remedy) for pattern, cause, remedy in (
    (r'OUT_OF_MEMORY|exit status (-27|137)$', "it used more memory than the job had ({memory}), and was killed",
     "submit again with more: --job-target-resource=memory=SIZE, or build with fewer cores: --job-cores=N"),
    (r'TIMEOUT|DEADLINE|exit status -29$', "it took longer than the job had time for ({walltime})",
     "submit again with more: --job-target-resource=walltime=HOURS:00:00"),
    (r'NODE_FAIL|BOOT_FAIL|exit status -3$', "the node failed", "submit again"),
    (r'PREEMPTED', "another job was more important", "submit again"),
    (r'exit status (271|143)$', "it was ended from outside: its time was up ({walltime}), or somebody deleted it",
     "submit again, with more time if that was it: --job-target-resource=walltime=HOURS:00:00"),
))


# --- what a job asks for --------------------------------------------------------------------------------------------

def said(text):
    """The words of --job-target-resource as a dict."""
    words = {}
    for part in filter(None, (text or '').split(',')):
        name, equals, value = part.partition('=')
        if name not in ASKABLE or not equals or not value:
            raise EasyBuildError("--job-target-resource: expected NAME=VALUE with names among %s, separated by commas, "
                                 "found %r", ', '.join(ASKABLE), part)
        words[name] = value
    return words


def minutes_of(text, where):
    """Minutes of HOURS:MINUTES:SECONDS."""
    found = re.match(r'(\d+):([0-5]\d)(?::([0-5]\d))?$', text)
    if not found:
        raise EasyBuildError("%s: expected hours:minutes:seconds, such as 4:00:00, found %r", where, text)
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours * 60 + minutes + (1 if seconds else 0)


def memory_of(text):
    """Bytes of 16G."""
    from ramgate.limits import Problem as BadSize, size
    try:
        return size(text)
    except BadSize as problem:
        raise EasyBuildError("--job-target-resource=memory: %s", problem)


def request_for(system, scheduler, needs, hours=None):
    """What a job asks for: from the system's file, from what the software needs, from the command line."""
    settings, node = system.scheduler, system.node
    words = said(build_option('job_target_resource'))
    shared = settings['build_partition'] or not settings['nodes_exclusive']
    cores, memory, minutes = fitted(needs, node)
    if not shared:
        # nobody else gets what is left of the node
        cores, memory, needs = node['cores'] or cores, None, needs._replace(gpus=node['gpus'] or 0)
    minutes = max(minutes or minutes_of(settings['walltime'] or DEFAULT_WALLTIME, 'walltime'), 60 * (hours or 0))
    if 'walltime' in words:
        minutes = minutes_of(words['walltime'], '--job-target-resource=walltime')
    minutes = min(minutes, 60 * build_option('job_max_walltime'))
    environment = {name: None if name in words else os.environ.get(variable)
                   for name, variable in scheduler.variables.items()}
    return Request(
        account=account(system, words),
        partition=words.get('partition') or environment.get('partition') or settings['build_partition']
        or settings['partition'],
        qos=words.get('qos') or environment.get('qos') or (None if settings['build_partition'] else settings['qos']),
        cores=build_option('job_cores') or cores,
        memory=memory_of(words['memory']) if 'memory' in words else memory,
        minutes=minutes, gpus=int(words.get('gpus', needs.gpus)), gpus_option=settings['gpus_option'],
        exclusive=not shared, options=settings['options'])


def account(system, words):
    """The project that pays; asked for by name before anything is submitted."""
    variable = system.scheduler['account_variable']
    found = words.get('account') or (os.environ.get(variable) if variable else None)
    if variable and not found:
        raise EasyBuildError("%s wants to know which project pays for the jobs, and nothing says it, so nothing was "
                             "submitted. Type: export %s=PROJECT   or add: --job-target-resource=account=PROJECT",
                             system.system['title'], variable)
    return found


# --- the files of a job ---------------------------------------------------------------------------------------------

def directory():
    """Where the files of all jobs for this prefix are, beside EasyBuild's locks."""
    return os.path.join(install_path('software'), '.jobs')


def record_path(name):
    """The files of a job begin with this."""
    return os.path.join(directory(), re.sub(r'[^\w.+-]', '_', name))


def write_record(record):
    """Write what is known of a job, never half."""
    path = record_path(record['name']) + '.json'
    partial = '%s.%d' % (path, os.getpid())
    with open(partial, 'w') as handle:
        json.dump(record, handle, indent=2, sort_keys=True)
        handle.write('\n')
    os.replace(partial, path)


def read_record(path):
    """What is known of a job; None if there is nothing."""
    try:
        with open(path) as handle:
            return json.load(handle)
    except (OSError, ValueError):
        return None


def first_line(path):
    """The first line of a file, None if there is none."""
    try:
        with open(path, errors='replace') as handle:
            return handle.readline().strip()
    except OSError:
        return None


def write_script(name, command, log):
    """The script of a job: what belongs to this one, then what all have in common."""
    record = record_path(name)
    lines = ['#!/usr/bin/env bash', '# made by eb --job for %s' % name]
    lines += ['export %s=%s' % (variable, shlex.quote(os.environ[variable]))
              for variable, _ in CARRIED if os.environ.get(variable)]
    if build_option('job_eb_cmd') == 'eb' and os.environ.get('EB_SCRIPT_PATH'):
        # the eb that is called here is found in the job, too
        here = os.path.dirname(os.path.abspath(os.environ['EB_SCRIPT_PATH']))
        lines.append('export PATH=%s:"$PATH"' % shlex.quote(here))
    lines += ['record=%s' % shlex.quote(record), 'log=%s' % shlex.quote(log), 'build() {', command, '}', '']
    with open(os.path.join(HERE, 'job-script')) as handle:
        text = '\n'.join(lines) + handle.read()
    path = record + '.sh'
    with open(path, 'w') as handle:
        handle.write(text)
    os.chmod(path, 0o755)
    return path


# --- what both backends share ---------------------------------------------------------------------------------------

class Job(object):
    """One job, as EasyBuild's parallelbuild wants it; it sets `module` afterwards."""

    def __init__(self, name, command, hours):
        self.name, self.command, self.hours = name, command, hours
        self.module = self.jobid = self.after = None
        self.already = False

    def ids_before(self):
        """The jobs that have to end well first."""
        return [job.jobid for job in self.after if job.jobid]

    def easyconfig(self):
        """The easyconfig that the command names; parsed already."""
        path = next(word for word in shlex.split(self.command) if word.endswith('.eb'))
        return process_easyconfig(path)[0]['ec']


class SystemJobs(object):
    """
    A JobBackend's methods for a system that is described in systems/. Nothing is submitted before all sources are
    there, and all jobs or none are.
    """

    scheduler = None

    def init(self):
        """Refuse what cannot be submitted, before hours of fetching."""
        self.jobs, self.submitted = [], []
        try:
            self.system = current(next((word for word in sys.argv if word.endswith('.eb')), ''))
            os.makedirs(directory(), exist_ok=True)
            self.lock = open(os.path.join(directory(), '.lock'), 'w')
        except (Problem, OSError) as problem:
            raise EasyBuildError(str(problem))
        kind = self.system.scheduler['kind']
        if kind != self.scheduler.kind:
            raise EasyBuildError("--job-backend=%s is for %s, and %s has: %s. Its own is in its easybuild.cfg",
                                 type(self).__name__, self.scheduler.kind, self.system.system['title'], kind)
        # what is wrong with the command line is said now
        request_for(self.system, self.scheduler, OTHERS)
        try:
            # one submission at a time, so that none submits what the other is just submitting
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        except OSError as error:
            self.log.warning("%s cannot be locked: %s", self.lock.name, error)

    def make_job(self, script, name, env_vars=None, hours=None, cores=None):
        """A job that is not submitted yet."""
        return Job(name, script, hours)

    def queue(self, job, dependencies=frozenset()):
        """Remember it; all sources are fetched before the first is submitted."""
        job.after = list(dependencies)
        self.jobs.append(job)

    def complete(self):
        """Submit all that are not submitted yet, and let them start."""
        atexit.register(self.take_back)
        for job in self.jobs:
            job.already = self.submitted_before(job)
        try:
            for job in self.jobs:
                if not job.already:
                    self.submit(job)
            # Slurm looks at what held jobs ask for only now
            if self.submitted:
                self.scheduler.release([job.jobid for job in self.submitted])
        except (Refused, NoAnswer) as problem:
            raise EasyBuildError("%s was refused, so no job was submitted: %s\n%s", job.name, problem,
                                 schedulers.why_refused(str(problem), self.system.scheduler['account_variable']))
        self.submitted = []
        self.lock.close()
        for job in self.jobs:
            if job.jobid:
                print_msg("%s is job %s%s%s", job.module, job.jobid, " already" if job.already else "",
                          ", after %s" % ', '.join(job.ids_before()) if job.ids_before() else "", log=self.log)
            else:
                print_msg("%s is there by now", job.module, log=self.log)
        print_msg("To see how they are: %s", status_command(), log=self.log)

    def submitted_before(self, job):
        """
        Whether a job for the same is waiting or running, whose id is this job's from now on; or has just ended well,
        after it was found out what is missing.
        """
        record = read_record(record_path(job.name) + '.json')
        if record is None:
            return False
        try:
            look = self.scheduler.look(record['job'])
        except NoAnswer as problem:
            raise EasyBuildError("%s was submitted before as job %s, and whether that is still there cannot be found "
                                 "out: %s. Nothing was submitted; try again.", job.name, record['job'], problem)
        if look is None or look.state not in ALIVE:
            wanted_again = build_option('force') or build_option('rebuild')
            return bool(look and look.state == schedulers.DONE and not wanted_again
                        and modules_tool().exist([job.module])[0])
        job.jobid = record['job']
        return True

    def submit(self, job):
        """Submit one job, held."""
        ec = job.easyconfig()
        request = request_for(self.system, self.scheduler, needs_of(ec), job.hours)
        log = os.path.join(os.path.abspath(build_option('job_output_dir') or ''), job.name + '-{job}.out')
        opens_log = self.scheduler.opens_log
        script = write_script(job.name, job.command, '' if opens_log else log)
        after = job.ids_before()
        job.jobid = self.scheduler.submit(self.scheduler.command(
            request, job.name, log if opens_log else record_path(job.name) + '.out', after), script)
        self.submitted.append(job)
        for old in ('.ended', '.progress', '.out'):
            if os.path.exists(record_path(job.name) + old):
                os.remove(record_path(job.name) + old)
        write_record({'job': job.jobid, 'name': job.name, 'module': job.module, 'scheduler': self.scheduler.kind,
                      'easyconfig': ec.path, 'log': log.replace('{job}', job.jobid), 'after': after,
                      'submitted': time.strftime('%Y-%m-%d %H:%M:%S'), 'memory': request.memory,
                      'minutes': request.minutes, 'cores': request.cores})

    def take_back(self):
        """Nothing stays in the queue that nobody is going to release."""
        if self.submitted:
            try:
                self.scheduler.cancel([job.jobid for job in self.submitted])
            except NoAnswer as problem:
                print_msg("these jobs could not be taken back: %s (%s)",
                          ' '.join(job.jobid for job in self.submitted), problem)
            for job in self.submitted:
                if os.path.exists(record_path(job.name) + '.json'):
                    os.remove(record_path(job.name) + '.json')


def status_command():
    """What to type to see the jobs."""
    eb = os.environ.get('HPC_PYTORCH_COMMAND')
    return '%s --job-status' % eb if eb else 'python3 -m hpc_pytorch.jobs'


# --- --job-status ---------------------------------------------------------------------------------------------------

def state_of(record):
    """(state, the batch system's word, more) of a job; what its own files say where it has been forgotten."""
    try:
        look = SCHEDULERS[record['scheduler']].look(record['job'])
    except NoAnswer as problem:
        return schedulers.Look('unknown', '', str(problem))
    ended = first_line(record_path(record['name']) + '.ended')
    if look is None and ended is not None:
        state = schedulers.DONE if ended == '0' else schedulers.FAILED
        return schedulers.Look(state, 'exit status %s' % ended, '')
    return look or schedulers.Look(schedulers.FAILED, 'forgotten', "the batch system does not know it any more, and it "
                                   "did not end by itself: killed, or deleted")


def log_tail(record, lines=400):
    """The end of a job's log, and what the batch system said besides."""
    found = []
    for path in (record['log'], record_path(record['name']) + '.out'):
        try:
            with open(path, errors='replace') as handle:
                found += [line.rstrip() for line in handle.read().splitlines()[-lines:] if line.strip()]
        except OSError:
            continue
    return found


def step_of(record):
    """The step that a running job is in, and the last that was heard."""
    lines = log_tail(record)
    steps = [line for line in lines if line.startswith('== ')]
    last = first_line(record_path(record['name']) + '.progress') or (lines[-1] if lines else None)
    if not steps:
        return [last or "nothing in its log yet"]
    return [steps[-1][3:]] + ([last.strip()] if last != steps[-1] else [])


def why_failed(record, look):
    """Causes and remedies, and the last that was said."""
    asked = {'memory': '%d MiB' % (record['memory'] / schedulers.MIB) if record.get('memory') else 'the whole node',
             'walltime': '%d:%02d h' % divmod(record.get('minutes') or 0, 60)}
    found = ["cause: %s\nwhat to do: %s" % (cause.format(**asked), remedy)
             for pattern, cause, remedy in ENDS if pattern.search(look.word)]
    lines = log_tail(record)
    errors = [line for line in lines if line.startswith(('ERROR', '=>> PBS', 'slurmstepd: error'))]
    explained = known_errors.explain('\n'.join(lines))
    return '\n'.join(found + [explained] * bool(explained) + (errors or lines)[-3:])


def describe(record, look, states):
    """A job in a few lines."""
    lines = ["%s  job %s  %s%s" % (record['module'], record['job'], look.state,
                                   ' (%s)' % ', '.join(filter(None, (look.word, look.about))))]
    if look.state == schedulers.RUNNING:
        lines += step_of(record)
    elif look.state == schedulers.FAILED:
        lines += why_failed(record, look).splitlines()
    elif look.state == schedulers.CANCELLED:
        failed = [states[job][0] for job in record['after'] if job in states
                  and states[job][1].state in (schedulers.FAILED, schedulers.CANCELLED)]
        lines += ["because %s is not there; submit again when it is" % ', '.join(failed) if failed else
                  "somebody deleted it"]
    if look.state not in (schedulers.WAITING, schedulers.DONE):
        lines.append("log: %s" % record['log'])
    return '\n    '.join(lines)


def show_jobs():
    """All jobs for this prefix, the oldest first."""
    records = [read_record(path) for path in glob.glob(os.path.join(glob.escape(directory()), '*.json'))]
    records = sorted(filter(None, records), key=lambda record: (record['submitted'], record['job']))
    looks = [(record, state_of(record)) for record in records]
    states = {record['job']: (record['module'], look) for record, look in looks}
    for record, look in looks:
        print(describe(record, look, states))
    if not records:
        print("No jobs were submitted for %s" % install_path('software'))


def main(arguments):
    """``./eb --job-status``, with EasyBuild's options that say which prefix; also ``python3 -m hpc_pytorch.jobs``."""
    from easybuild.tools.options import set_up_configuration
    try:
        temporary = set_up_configuration(args=arguments, silent=True)[1][5]
        show_jobs()
    except EasyBuildError as error:
        print("ERROR: %s" % error.msg, file=sys.stderr)
        return 1
    shutil.rmtree(temporary, ignore_errors=True)
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
