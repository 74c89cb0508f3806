"""
Slurm and PBS Pro behind the same methods: command, submit, find, look, cancel.

What is asked for is data (Request); each batch system is a class.
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
# state is one of those below; word: the batch system's own; about: more, for people. UNKNOWN: nobody may act on it
Look = namedtuple('Look', 'state word about')
WAITING, RUNNING, DONE, FAILED, CANCELLED = 'waiting', 'running', 'done', 'failed', 'cancelled'
UNKNOWN = 'unknown'
ALIVE = (WAITING, RUNNING)


class Refused(UsersProblem):
    """The batch system refused this job; one message."""


class NoAnswer(UsersProblem):
    """The batch system cannot be asked; one message."""


class Uncertain(NoAnswer):
    """A submission without an answer: the job may be in the queue or not."""


# How batch systems write a time (sbatch(1), --time): the seconds that each part of it counts for.
TIMES = ((r'(\d+)$', (60,)), (r'(\d+):(\d+)$', (60, 1)), (r'(\d+):(\d+):(\d+)$', (3600, 60, 1)),
         (r'(\d+)-(\d+)$', (86400, 3600)), (r'(\d+)-(\d+):(\d+)$', (86400, 3600, 60)),
         (r'(\d+)-(\d+):(\d+):(\d+)$', (86400, 3600, 60, 1)))


def seconds_of(text):
    """1-02:00:00 -> seconds; None for words such as infinite."""
    for pattern, weights in TIMES:
        found = re.match(pattern, text)
        if found:
            return sum(int(part) * weight for part, weight in zip(found.groups(), weights))
    return None


class BatchSystem(object):
    # the user's environment would change what the commands do or print: variables that are removed, those of these that
    # are kept, and those that are added
    cleared, kept, added = None, (), {}
    # for so many seconds it may not know a new job yet
    forgets_after = 0
    # nothing was submitted, as the server was not reached; the connection broke, so it is unknown
    not_reached = uncertain = None

    def ask(self, command, seconds=PATIENCE):
        """Run one of the batch system's commands; returns its exit status and what it printed."""
        environment = {name: value for name, value in os.environ.items()
                       if name in self.kept or not self.cleared.match(name)}
        environment.update(self.added)
        try:
            done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  stdin=subprocess.DEVNULL, universal_newlines=True, timeout=seconds, env=environment)
        except OSError as error:
            raise NoAnswer("%s could not be run (%s): is this a host of the cluster?" % (command[0], error.strerror))
        except subprocess.TimeoutExpired:
            raise NoAnswer("%s has not answered for %d seconds" % (command[0], seconds))
        return done.returncode, done.stdout.strip()

    def submit(self, command, script):
        """Submit a script; returns the job's id."""
        for delay in TRY_AGAIN + (None,):
            try:
                status, output = self.ask(command + [script], seconds=120)
            except NoAnswer as problem:
                raise Uncertain(str(problem))
            found = self.job_id.match(output.split('\n')[-1])
            if status == 0 and found:
                return found.group()
            if status == 0 or self.uncertain.search(output):
                raise Uncertain("%s: %s" % (command[0], output.replace('\n', ' ')))
            if delay is None or not self.not_reached.search(output):
                raise Refused(output or "%s ended with exit status %d" % (command[0], status))
            time.sleep(delay)

    def state_of(self, word):
        """Translate the batch system's word for a job's state; None for another word."""
        return next((state for state, words in self.states.items() if word in words.split()), None)

    def end(self, command):
        """Run a command that ends jobs; others' jobs are theirs."""
        output = self.ask(command)[1]
        if re.search('denied|unauthorized', output, re.I):
            raise Refused(output.replace('\n', ' '))

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
    kind, tool = 'slurm', 'scontrol'
    # Slurm opens a job's log itself, and writes into it why it killed something
    opens_log = True
    job_variable = 'SLURM_JOB_ID'
    job_id = re.compile(r'\d+(;\S+)?$')
    # the input variables in the manual pages of sbatch, squeue, scontrol, scancel and sacct (22.05): SBATCH_ARRAY_INX
    # would make several jobs of one, SBATCH_WAIT would wait for its end, SCANCEL_INTERACTIVE would ask, SQUEUE_FORMAT
    # would print something else; of the others most ask for what the job has been given already
    cleared = re.compile('(SBATCH|SLURM|SQUEUE|SCANCEL|SCONTROL|SACCT|SINFO)_')
    kept = (
        # where Slurm is, and who asks
        'SLURM_CONF', 'SLURM_CONF_SERVER', 'SLURM_JWT', 'SLURM_CLUSTERS', 'SBATCH_CLUSTERS',
        # what users may have to say at their site, and is not given otherwise
        'SBATCH_RESERVATION', 'SBATCH_CONSTRAINT', 'SBATCH_WCKEY', 'SBATCH_NETWORK')
    not_reached = re.compile('connect failure|Unable to contact|Connection refused|temporarily unable to accept', re.I)
    uncertain = re.compile('timed out|Zero Bytes|Unexpected message|Communication|Transport endpoint', re.I)
    # other states mean that it failed; REVOKED: a federation has given it to another cluster
    states = {WAITING: 'PENDING CONFIGURING REQUEUED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT',
              RUNNING: 'RUNNING SUSPENDED COMPLETING STOPPED SIGNALING STAGE_OUT RESIZING',
              DONE: 'COMPLETED', CANCELLED: 'CANCELLED', UNKNOWN: 'REVOKED'}

    def command(self, request, name, mark, log, after):
        """Return sbatch with everything but the script."""
        command = ['sbatch', '--parsable', '--export=NONE', '--propagate=NONE', '--requeue', '--open-mode=truncate',
                   '--job-name=%s' % name, '--comment=%s' % mark,
                   '--output=%s' % log.replace('%', '%%').replace('{job}', '%j'), '--input=/dev/null',
                   '--nodes=1', '--ntasks=1', '--cpus-per-task=%d' % request.cores, '--time=%d' % request.minutes,
                   '--mem=%d' % (request.memory / MIB if request.memory else 0)]
        command += ['--%s=%s' % (option, value) for option, value in (
            ('account', request.account), ('partition', request.partition), ('qos', request.qos)) if value]
        if request.gpus:
            command.append('%s%d' % (request.gpus_option or '--gpus-per-node=', request.gpus))
        if after:
            numbers = [job.split(';')[0] for job in after]
            command += ['--dependency=afterok:%s' % ':'.join(numbers), '--kill-on-invalid-dep=yes']
        return command + [word for word in request.options if not word.startswith(('--export', '--mem'))]

    @staticmethod
    def of_cluster(tool, job):
        """Return a command for a job, which may be another cluster's (as id;cluster), and its number."""
        number, _, cluster = job.partition(';')
        return [tool] + (['--clusters=%s' % cluster] if cluster else []), number

    def cancel(self, jobs):
        for job in jobs:
            command, number = self.of_cluster('scancel', job)
            self.end(command + ['--quiet', number])

    def find(self, name, mark):
        """Return the living jobs of this name that carry this mark: [(id, the mark with its token)]."""
        status, output = self.ask(['squeue', '--noheader', '--name=%s' % name, '--format=%A|%k'])
        if status:
            raise NoAnswer("squeue: %s" % output.replace('\n', ' '))
        found = [line.strip().split('|', 1) for line in output.splitlines() if '|' in line]
        return [(job, comment) for job, comment in found if comment.startswith(mark)]

    def look(self, job):
        """Return what Slurm says of a job; None if it has forgotten it."""
        command, number = self.of_cluster('scontrol', job)
        status, output = self.ask(command + ['--oneliner', 'show', 'job', number])
        facts = dict(re.findall(r'(\w+)=(\S*)', output)) if status == 0 else self.accounted(job)
        if not facts and not re.search('invalid job id', output, re.I):
            raise NoAnswer("scontrol: %s" % output.replace('\n', ' '))
        if not facts:
            return None
        word = facts['JobState']
        state = self.state_of(word) or FAILED
        reason = facts.get('Reason', 'None')
        about = []
        if state in (WAITING, FAILED) and reason not in (word.title(), 'NonZeroExitCode'):
            about.append(reason)
        if state != WAITING:
            about.append(facts.get('NodeList', ''))
        if int(facts.get('Restarts') or 0):
            about.append("requeued %s time(s)" % facts['Restarts'])
        return Look(state, word, ', '.join(part for part in about if part not in ('', 'None', '(null)')))

    def accounted(self, job):
        """Ask the accounting database, where there is one."""
        command, number = self.of_cluster('sacct', job)
        try:
            status, output = self.ask(command + ['--noheader', '--parsable2', '--allocations', '--format=State',
                                                 '--jobs=%s' % number])
        except NoAnswer:
            return {}
        return {'JobState': output.split()[0].rstrip('+')} if status == 0 and re.match('[A-Z_]+', output) else {}


class Pbs(BatchSystem):
    """PBS Pro's commands (also OpenPBS)."""

    kind, tool = 'pbs', 'qstat'
    # PBS brings the output at the end: the script writes the log, and PBS's own words go elsewhere
    opens_log = False
    job_variable = 'PBS_JOBID'
    job_id = re.compile(r'\d+[\w.\[\]-]*$')
    # of the variables in qsub(1B) and qstat(1B) only those that change what is submitted or shown
    cleared = re.compile('PBS_(DPREFIX|QSTAT_EXECONLY|O_)')
    # qstat may be NCAR's qstat-cache, which knows nothing of what is younger than a minute unless it is asked this
    # way; an older one, or another site's, may not listen
    added = {'QSCACHE_BYPASS': 'true'}
    forgets_after = 300
    # of jobs that have not ended; M: it was moved to another server, which is asked elsewhere
    states = {WAITING: 'Q H W T', RUNNING: 'R E S U B', UNKNOWN: 'M'}
    not_reached = re.compile(r'cannot connect to server|connection (refused|timed out)|no permission to connect|'
                             r'server.*not.*(up|running)|try again', re.I)
    uncertain = re.compile(r'premature end of message|end of file|protocol|connection reset|broken pipe', re.I)

    def command(self, request, name, mark, log, after):
        """Return qsub with everything but the script."""
        chunk = 'select=1:ncpus=%d' % request.cores
        if request.memory:
            chunk += ':mem=%dmb' % (request.memory / MIB)
        if request.gpus:
            chunk += ':ngpus=%d' % request.gpus
        command = ['qsub', '-r', 'y', '-S', '/bin/bash', '-N', name, '-j', 'oe', '-o', log, '-v',
                   'HPC_JOB_MARK=%s' % mark, '-l', chunk, '-l', 'walltime=%d:%02d:00' % divmod(request.minutes, 60)]
        if request.account:
            command += ['-A', request.account]
        # a reservation is a queue, too
        if request.partition:
            command += ['-q', request.partition]
        if request.exclusive:
            command += ['-l', 'place=excl']
        if after:
            command += ['-W', 'depend=afterok:%s' % ':'.join(after)]
        return command + list(request.options)

    def cancel(self, jobs):
        # the last first, so that none becomes ready in between
        self.end(['qdel'] + list(jobs)[::-1])

    def find(self, name, mark):
        status, output = self.ask(['qselect', '-N', name])
        if status:
            raise NoAnswer("qselect: %s" % output.replace('\n', ' '))
        found = []
        for job in output.split():
            facts = self.facts(job)
            carried = re.search(r'HPC_JOB_MARK=(%s\w*)' % mark, (facts or {}).get('Variable_List', ''))
            if carried and facts['job_state'] not in 'FX':
                found.append((job, carried.group(1)))
        return found

    def facts(self, job):
        """Return all that PBS says of a job; None if it does not know it."""
        for history in ([], ['-x']):
            status, output = self.ask(['qstat'] + history + ['-f', job])
            # long values go on in lines that begin with a tab
            facts = dict(re.findall(r'^    ([\w.]+) = (.*)$', output.replace('\n\t', ''), re.M))
            if 'job_state' in facts:
                return facts
        if re.search('unknown job', output, re.I):
            return None
        raise NoAnswer("qstat: %s" % output.replace('\n', ' '))

    def look(self, job):
        """Return what PBS says of a job, with its history; None if it has forgotten it."""
        facts = self.facts(job)
        if facts is None:
            return None
        word, exit_status = facts['job_state'], facts.get('Exit_status')
        about = facts.get('comment', '')
        if word == 'R':
            about = facts.get('exec_host', '').split('/')[0]
        if word == 'M':
            about = "moved to another server, and not known here"
        if self.state_of(word):
            return Look(self.state_of(word), word, about)
        # a running job that was deleted has one that says nothing (0 in OpenPBS 23.06)
        if exit_status is None or exit_status == '0' and 'terminated by' in about:
            return Look(CANCELLED, word, about)
        state = DONE if exit_status == '0' else FAILED
        return Look(state, 'exit status %s' % exit_status, about)


SCHEDULERS = {scheduler.kind: scheduler for scheduler in (Slurm(), Pbs())}


def own_job(environ=os.environ):
    """Return the job that this process is in, as kind:id; None outside jobs."""
    for scheduler in SCHEDULERS.values():
        if environ.get(scheduler.job_variable):
            return '%s:%s' % (scheduler.kind, environ[scheduler.job_variable])
    return None


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
