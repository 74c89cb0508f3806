"""
Slurm and PBS Pro behind the same few words: submit, release, cancel, look.

What is asked for is data (Request); how each batch system wants to be asked is one class each. Standard library only,
Python 3.6.
"""
import os
import re
import subprocess
import time
from collections import namedtuple

from hpc_pytorch import UsersProblem

MIB = 2 ** 20
# a batch system that has not answered by then is busy or gone
PATIENCE = 20
# seconds to wait before a submission that met no server is tried again
TRY_AGAIN = (1, 5)

# minutes; memory in bytes or None: all that the node has; options: more words for the command that submits
Request = namedtuple('Request', 'account partition qos cores memory minutes gpus gpus_option exclusive options')
# state is one of WAITING, RUNNING, DONE, FAILED, CANCELLED; word: the batch system's own; about: more, for people
Look = namedtuple('Look', 'state word about')
WAITING, RUNNING, DONE, FAILED, CANCELLED = 'waiting', 'running', 'done', 'failed', 'cancelled'
ALIVE = (WAITING, RUNNING)


class Refused(UsersProblem):
    """The batch system does not want this job; one message."""


class NoAnswer(UsersProblem):
    """The batch system cannot be asked; one message."""


def ask(command, seconds=PATIENCE):
    """Run one of the batch system's commands: (exit status, what it printed)."""
    try:
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, universal_newlines=True, timeout=seconds)
    except OSError as error:
        raise NoAnswer("%s could not be run (%s): is this a host of the cluster?" % (command[0], error.strerror))
    except subprocess.TimeoutExpired:
        raise NoAnswer("%s has not answered for %d seconds" % (command[0], seconds))
    return done.returncode, done.stdout.strip()


# What batch systems say when they refuse a job -> what to do; {variable}: where users keep their project.
REFUSALS = tuple((re.compile(pattern, re.I), remedy) for pattern, remedy in (
    (r'invalid account|account.*(not|denied|unknown)|unauthorized',
     "name a project that you may use here: export {variable}=PROJECT"),
    (r'invalid partition|unknown queue|no default queue',
     "choose another: --job-target-resource=partition=NAME (see: sinfo -s, qstat -Q)"),
    (r'invalid qos', "choose another: --job-target-resource=qos=NAME (see: sacctmgr show qos)"),
    (r'limit|policy|exceeds', "ask for less (--job-target-resource=walltime=1:00:00,memory=16G and --job-cores=8), or "
                              "wait until your other jobs have ended"),
    (r'configuration|can ?not be satisfied|insufficient|resource',
     "no node has that: ask for less with --job-cores and --job-target-resource=memory=SIZE"),
))


def why_refused(text, variable):
    """What to do about a refusal."""
    for pattern, remedy in REFUSALS:
        if pattern.search(text):
            return remedy.format(variable=variable or 'SBATCH_ACCOUNT')
    return "the words are the batch system's own"


class Slurm(object):
    """Slurm's commands."""

    kind = 'slurm'
    # Slurm opens a job's log itself, and writes into it why it killed something
    opens_log = True
    job_variable = 'SLURM_JOB_ID'
    # the user's own choice in Slurm's own words; stands behind the command line only
    variables = {'partition': 'SBATCH_PARTITION', 'qos': 'SBATCH_QOS', 'walltime': 'SBATCH_TIMELIMIT'}
    states = {
        'PENDING': WAITING, 'CONFIGURING': WAITING, 'REQUEUED': WAITING, 'REQUEUE_HOLD': WAITING,
        'SPECIAL_EXIT': WAITING, 'SUSPENDED': RUNNING, 'RUNNING': RUNNING, 'COMPLETING': RUNNING, 'STOPPED': RUNNING,
        'SIGNALING': RUNNING, 'STAGE_OUT': RUNNING, 'RESIZING': RUNNING, 'COMPLETED': DONE, 'CANCELLED': CANCELLED,
    }

    def command(self, request, name, log, after):
        """sbatch with everything but the script."""
        command = ['sbatch', '--parsable', '--hold', '--export=NONE', '--requeue', '--open-mode=truncate',
                   '--job-name=%s' % name, '--output=%s' % log.replace('%', '%%').replace('{job}', '%j'),
                   '--nodes=1', '--ntasks=1', '--cpus-per-task=%d' % request.cores, '--time=%d' % request.minutes,
                   '--mem=%d' % (request.memory / MIB if request.memory else 0)]
        command += ['--%s=%s' % (option, value) for option, value in (
            ('account', request.account), ('partition', request.partition), ('qos', request.qos)) if value]
        if request.gpus:
            command.append('%s%d' % (request.gpus_option or '--gpus-per-node=', request.gpus))
        if after:
            command += ['--dependency=afterok:%s' % ':'.join(after), '--kill-on-invalid-dep=yes']
        return command + [word for word in request.options if not word.startswith('--export')]

    def submit(self, command, script):
        """Submit, held; returns the job's id."""
        status, output = ask(command + [script], seconds=120)
        found = re.search(r'^(\d+)(;\S+)?$', output, re.M)
        if status or not found:
            raise Refused(output or "sbatch ended with exit status %d" % status)
        return found.group(1)

    def release(self, jobs):
        """Let them start."""
        status, output = ask(['scontrol', 'release', ','.join(jobs)])
        if status:
            raise Refused(output)

    def cancel(self, jobs):
        """Take them back."""
        ask(['scancel', '--quiet'] + list(jobs))

    def look(self, job):
        """What Slurm says of a job; None if it has forgotten it."""
        status, output = ask(['scontrol', '--oneliner', 'show', 'job', job])
        facts = dict(re.findall(r'(\w+)=(\S*)', output)) if status == 0 else self.accounted(job)
        if not facts and not re.search('invalid job id', output, re.I):
            raise NoAnswer("scontrol: %s" % output.replace('\n', ' '))
        if not facts:
            return None
        word = facts['JobState']
        about = [facts.get('Reason', 'None')] if word == 'PENDING' else [facts.get('NodeList', '')]
        if int(facts.get('Restarts') or 0):
            about.append("started again %s time(s)" % facts['Restarts'])
        return Look(self.states.get(word, FAILED), word,
                    ', '.join(part for part in about if part not in ('', 'None', '(null)')))

    @staticmethod
    def accounted(job):
        """What the accounting database says, where there is one."""
        try:
            status, output = ask(['sacct', '--noheader', '--parsable2', '--allocations', '--format=State',
                                  '--jobs=%s' % job])
        except NoAnswer:
            return {}
        return {'JobState': output.split()[0].rstrip('+')} if status == 0 and re.match('[A-Z_]+', output) else {}


class Pbs(object):
    """PBS Pro's commands (also OpenPBS)."""

    kind = 'pbs'
    # PBS brings the output at the end: the script writes the log, and PBS's own words go elsewhere
    opens_log = False
    job_variable = 'PBS_JOBID'
    variables = {}
    states = {'Q': WAITING, 'H': WAITING, 'W': WAITING, 'T': WAITING, 'M': WAITING, 'R': RUNNING, 'E': RUNNING,
              'S': RUNNING, 'U': RUNNING, 'B': RUNNING}
    # the server was not there: nothing was submitted
    transient = re.compile(r'cannot connect to server|connection (refused|timed out)|server.*not.*(up|running)|'
                           r'premature end of message|no permission to connect|try again', re.I)

    def command(self, request, name, log, after):
        """qsub with everything but the script."""
        chunk = 'select=1:ncpus=%d' % request.cores
        if request.memory:
            chunk += ':mem=%dmb' % (request.memory / MIB)
        if request.gpus:
            chunk += ':ngpus=%d' % request.gpus
        command = ['qsub', '-h', '-r', 'y', '-S', '/bin/bash', '-N', name, '-j', 'oe', '-o', log, '-l', chunk, '-l',
                   'walltime=%d:%02d:00' % divmod(request.minutes, 60)]
        if request.account:
            command += ['-A', request.account]
        if request.partition:
            command += ['-q', request.partition]
        if request.exclusive:
            command += ['-l', 'place=excl']
        if after:
            command += ['-W', 'depend=afterok:%s' % ':'.join(after)]
        return command + list(request.options)

    def submit(self, command, script):
        """Submit, held; returns the job's id."""
        for delay in TRY_AGAIN + (None,):
            status, output = ask(command + [script], seconds=120)
            if status == 0 and re.match(r'\d+[\w.\[\]-]*$', output.split('\n')[-1]):
                return output.split('\n')[-1]
            if delay is None or not self.transient.search(output):
                raise Refused(output or "qsub ended with exit status %d" % status)
            time.sleep(delay)

    def release(self, jobs):
        """Let them start."""
        status, output = ask(['qrls'] + list(jobs))
        if status:
            raise Refused(output)

    def cancel(self, jobs):
        """Take them back; the last first, so that none becomes ready in between."""
        ask(['qdel'] + list(jobs)[::-1])

    def look(self, job):
        """What PBS says of a job, with its history; None if it has forgotten it."""
        status, output = ask(['qstat', '-x', '-f', job])
        if status and re.search('unknown job|has finished', output, re.I):
            return None
        facts = dict(re.findall(r'^\s+([\w.]+) = (.*)$', output, re.M))
        if status or 'job_state' not in facts:
            raise NoAnswer("qstat: %s" % output.replace('\n', ' '))
        word, exit_status = facts['job_state'], facts.get('Exit_status')
        about = facts.get('comment', '')
        if word == 'R':
            about = facts.get('exec_host', '').split('/')[0]
        if word in self.states:
            return Look(self.states[word], word, about)
        if exit_status is None:
            return Look(CANCELLED, word, about)
        state = DONE if exit_status == '0' else FAILED
        return Look(state, 'exit status %s' % exit_status, about)


SCHEDULERS = {scheduler.kind: scheduler for scheduler in (Slurm(), Pbs())}


def own_job(environ=os.environ):
    """The job that this process is in, as kind:id; None outside jobs."""
    for scheduler in SCHEDULERS.values():
        if environ.get(scheduler.job_variable):
            return '%s:%s' % (scheduler.kind, environ[scheduler.job_variable])
    return None


def alive(job):
    """Whether a job, as kind:id, is waiting or running; True where that cannot be found out."""
    kind, _, number = job.partition(':')
    try:
        look = SCHEDULERS[kind].look(number)
    except (KeyError, NoAnswer):
        return True
    return look is not None and look.state in ALIVE
