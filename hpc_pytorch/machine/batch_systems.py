"""Slurm and PBS Pro behind the same methods; their words are in batch_systems.cfg, beside this file."""
import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections import namedtuple

from hpc_pytorch import HERE, UsersProblem, parse
from hpc_pytorch.machine.commands import run

MIB = 2 ** 20
# a batch system that has not answered by then is busy or gone
PATIENCE = 20
# seconds to wait before each attempt to submit: one that met no server is tried again
TRY_AGAIN = (0, 1, 5)

# minutes; memory in bytes or None: all that the node has; options: more words for the command that submits
Request = namedtuple('Request', 'account partition qos cores memory minutes gpus gpus_option exclusive options refused')
# state is one of those below; word: the batch system's own; about: more, for people. UNKNOWN: nobody may act on it
Look = namedtuple('Look', 'state word about')
WAITING, RUNNING, DONE, FAILED, CANCELLED = 'waiting', 'running', 'done', 'failed', 'cancelled'
UNKNOWN = 'unknown'
ALIVE = (WAITING, RUNNING)
WORDS = parse(HERE + '/machine/batch_systems.cfg')


def exports_for_jobs():
    """Return the lines of a job's script that set what it gets of this environment."""
    names = list(WORDS['carried'])
    if run([sys.executable, '-I', '-c', ''], env={}).returncode:
        # a Python that EasyBuild built does not find its own library without its module
        names.append('LD_LIBRARY_PATH')
    return ['export %s=%s' % (name, shlex.quote(os.environ[name])) for name in names if os.environ.get(name)]


class Refused(UsersProblem):
    """The batch system refused this job; one message."""


class NoAnswer(UsersProblem):
    """The batch system cannot be asked; one message."""


class Uncertain(NoAnswer):
    """A submission without an answer: the job may be in the queue or not."""


class BatchSystem(object):
    # variables that its commands are given
    added = {}
    # for so many seconds it may not know a new job yet
    forgets_after = 0

    def __init__(self):
        self.words = words = WORDS[self.kind]
        self.not_reached = re.compile(words['not_reached'], re.I)
        self.uncertain = re.compile(words['uncertain'], re.I)
        states = (WAITING, RUNNING, DONE, CANCELLED, UNKNOWN)
        self.states = {word: state for state in states for word in words[state].split()}

    def environment(self):
        """Return the user's environment without what would change what the commands do or print."""
        kept = self.words['kept'].split()
        cleared = [name for name in os.environ if re.match(self.words['cleared'], name) and name not in kept]
        return {name: value for name, value in dict(os.environ, **self.added).items() if name not in cleared}

    def ask(self, command, seconds=PATIENCE):
        """Run one of the batch system's commands; returns its exit status and what it printed."""
        try:
            done = run(command, timeout=seconds, env=self.environment())
        except OSError as error:
            raise NoAnswer("%s could not be run (%s)" % (command[0], error.strerror))
        except subprocess.TimeoutExpired:
            raise NoAnswer("%s has not answered for %d seconds" % (command[0], seconds))
        return done.returncode, done.stdout.strip()

    def demand(self, command):
        """Return what a command printed that must succeed."""
        status, output = self.ask(command)
        if status:
            raise NoAnswer("%s: %s" % (command[0], output.replace('\n', ' ')))
        return output

    def away(self, output):
        return self.not_reached.search(output) or self.uncertain.search(output)

    def submit(self, command, script):
        for delay in TRY_AGAIN:
            time.sleep(delay)
            try:
                status, output = self.ask(command + [script], seconds=120)
            except NoAnswer as problem:
                raise Uncertain(str(problem))
            found = re.match(self.words['job_id'], output.split('\n')[-1])
            if status == 0 and found:
                return found.group()
            if status == 0 or self.uncertain.search(output):
                raise Uncertain("%s: %s" % (command[0], output.replace('\n', ' ')))
            if not self.not_reached.search(output):
                raise Refused(output or "%s ended with exit status %d" % (command[0], status))
        raise NoAnswer("%s: %s" % (command[0], output.replace('\n', ' ')))

    def cancel(self, jobs):
        """The last first: none becomes ready in between, and one that is somebody else's keeps what it waits for."""
        for job in reversed(jobs):
            command = self.words['cancel'].split() + [job]
            output = self.ask(command)[1]
            if re.search('denied|unauthorized', output, re.I):
                raise Refused(output.replace('\n', ' '))
            if self.away(output):
                raise NoAnswer("%s: %s" % (command[0], output.replace('\n', ' ')))

    def wait_for_end(self, job, seconds=120):
        """Wait until a job that was cancelled has ended: its processes may take a while."""
        deadline = time.time() + seconds
        while True:
            look = self.look(job)
            if look is None or look.state not in ALIVE + (UNKNOWN,):
                return
            if time.time() > deadline:
                raise NoAnswer("job %s was cancelled %d seconds ago and has not ended" % (job, seconds))
            time.sleep(0.5)


class Slurm(BatchSystem):
    kind = 'slurm'
    tool = 'scontrol'
    # Slurm opens a job's log itself, and writes into it why it killed something
    opens_log = True

    def command(self, request, name, mark, log, after):
        """Return sbatch with everything but the script."""
        log = log.replace('%', '%%').replace('{job}', '%j')
        command = ['sbatch', '--parsable', '--export=NONE', '--propagate=NONE', '--requeue', '--open-mode=truncate',
                   '--job-name=' + name, '--comment=' + mark, '--output=' + log, '--input=/dev/null',
                   '--nodes=1', '--ntasks=1', '--cpus-per-task=%d' % request.cores,
                   '--time=%d' % request.minutes, '--mem=%d' % ((request.memory or 0) // MIB)]
        given = [(option, getattr(request, option)) for option in ('account', 'partition', 'qos')]
        command += ['--%s=%s' % (option, value) for option, value in given if value]
        if after:
            command += ['--dependency=afterok:' + ':'.join(after), '--kill-on-invalid-dep=yes']
        if request.gpus and request.gpus_option:
            command.append(request.gpus_option + str(request.gpus))
        command += [word for word in request.options if not word.startswith(('--export', '--mem'))]
        return [word for word in command if not word.startswith(tuple(request.refused))]

    def find(self, name, mark):
        """Return the living jobs of this name that carry this mark: [(id, the mark with its token)]."""
        output = self.demand(['squeue', '--noheader', '--name=' + name, '--format=%A|%k'])
        return re.findall(r'^ *(\d+)\|(%s.*?) *$' % re.escape(mark), output, re.M)

    def look(self, job):
        status, output = self.ask(['scontrol', '--oneliner', 'show', 'job', job])
        facts = self.accounted(job) if status else dict(re.findall(r'(\w+)=(\S*)', output))
        if status and not facts and re.search('invalid job id', output, re.I):
            return None
        if not facts:
            raise NoAnswer("scontrol: %s" % output.replace('\n', ' '))
        word = facts['JobState']
        # other words mean that it failed
        state = self.states.get(word, FAILED)
        return Look(state, word, about(facts, state))

    def accounted(self, job):
        command = ['sacct', '--noheader', '--parsable2', '--allocations', '--format=State', '--jobs=' + job]
        with contextlib.suppress(NoAnswer):
            word = re.match('[A-Z_]+', self.demand(command))
            if word:
                return {'JobState': word.group()}
        return {}


def about(facts, state):
    """Say why one of Slurm's jobs waits or has failed, and where it ran."""
    found = []
    reason = facts.get('Reason')
    if state in (WAITING, FAILED) and reason not in (facts['JobState'].title(), 'NonZeroExitCode'):
        found.append(reason)
    if state != WAITING:
        found.append(facts.get('NodeList'))
    if facts.get('Restarts', '0') != '0':
        found.append("requeued %s time(s)" % facts['Restarts'])
    return ', '.join(part for part in found if part not in (None, '', 'None', '(null)'))


class Pbs(BatchSystem):
    """PBS Pro's commands (also OpenPBS)."""

    kind = 'pbs'
    tool = 'qstat'
    # PBS brings the output at the end: the script writes the log, and PBS's own words go elsewhere
    opens_log = False
    # qstat may be NCAR's qstat-cache, which knows nothing of what is younger than a minute unless it is asked this
    # way; an older one, or another site's, may not listen
    added = {'QSCACHE_BYPASS': 'true'}
    forgets_after = 300

    def command(self, request, name, mark, log, after):
        chunk = 'select=1:ncpus=%d' % request.cores
        if request.memory:
            chunk += ':mem=%dmb' % (request.memory // MIB)
        if request.gpus:
            chunk += ':ngpus=%d' % request.gpus
        time_limit = 'walltime=%d:%02d:00' % divmod(request.minutes, 60)
        command = ['qsub', '-r', 'y', '-S', '/bin/bash', '-N', name, '-j', 'oe', '-o', log,
                   '-v', 'HPC_JOB_MARK=' + mark, '-l', chunk, '-l', time_limit]
        # a reservation is a queue, too
        for option, value in (('-A', request.account), ('-q', request.partition)):
            if value:
                command += [option, value]
        if request.exclusive:
            command += ['-l', 'place=excl']
        if after:
            command += ['-W', 'depend=afterok:' + ':'.join(after)]
        return command + list(request.options)

    def find(self, name, mark):
        found = []
        for job in self.demand(['qselect', '-N', name]).split():
            facts = self.facts(job) or {}
            carried = re.search(r'HPC_JOB_MARK=(%s\w*)' % mark, facts.get('Variable_List', ''))
            if carried and facts['job_state'] not in 'FX':
                found.append((job, carried.group(1)))
        return found

    def facts(self, job):
        """Return all that PBS says of a job; None if it does not know it."""
        for history in ([], ['-x']):
            output = self.ask(['qstat'] + history + ['-f', job])[1]
            # long values go on in lines that begin with a tab
            facts = dict(re.findall(r'^    ([\w.]+) = (.*)$', output.replace('\n\t', ''), re.M))
            if 'job_state' in facts:
                return facts
            # a server without history says so of all jobs: the first answer counts
            if not history or 'maintain job history' not in output:
                unknown = re.search('unknown job', output, re.I)
        if unknown:
            return None
        raise NoAnswer("qstat: %s" % (output.replace('\n', ' ') or "nothing: servers may hide other people's jobs"))

    def look(self, job):
        facts = self.facts(job)
        if facts is None:
            return None
        word = facts['job_state']
        comment = facts.get('comment', '')
        # for PBS, a job that was deleted runs until its processes have ended
        if word == 'R' and ' and terminated' in comment:
            word = 'E'
        if word in self.states:
            held = facts.get('Hold_Types', 'u')
            # more than the comment says of jobs that are held, run or were moved to another server
            more = {
                'H': 'Dependency' if 'depend' in facts and held == 's' else 'Hold_Types = ' + held,
                'R': facts.get('exec_host', '').split('/')[0],
                'M': "moved to another server, and not known here",
            }
            return Look(self.states[word], word, more.get(word, comment))
        exit_status = facts.get('Exit_status')
        # a running job that was deleted has one that says nothing (OpenPBS 23.06: 0; 265 after qdel -W force)
        if exit_status is None or ' and terminated' in comment:
            return Look(CANCELLED, word, comment)
        return Look(DONE if exit_status == '0' else FAILED, 'exit status %s' % exit_status, comment)


SCHEDULERS = {scheduler.kind: scheduler for scheduler in (Slurm(), Pbs())}


def own_job(environ=os.environ):
    """Return the job that this process is in, as kind:id; None outside jobs."""
    for scheduler in SCHEDULERS.values():
        job = environ.get(scheduler.words['job_variable'])
        if job:
            return '%s:%s' % (scheduler.kind, job)
    return None


def job_on_this_node(environ=os.environ):
    """Return the job, unless salloc's shell is on the login node, where Slurm names no node."""
    job = own_job(environ)
    on_login_node = job and job.startswith('slurm:') and not environ.get('SLURMD_NODENAME')
    return None if on_login_node else job


def alive(job, age):
    """True if a job (kind:id) of this age in seconds waits or runs, or if that cannot be determined."""
    kind, _, number = job.partition(':')
    try:
        look = SCHEDULERS[kind].look(number)
    except (KeyError, NoAnswer):
        return True
    if look is None:
        return age < SCHEDULERS[kind].forgets_after
    return look.state in ALIVE + (UNKNOWN,)
