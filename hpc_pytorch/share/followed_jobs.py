"""A job of a user that is submitted, shown and explained while and after it runs."""
import contextlib
import ctypes
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from batch_scripts import Problem, first_that_fits, read_share, say
from endings import read_tail, why

ENDED = re.compile(rb'pytorch-run: the program ended with status (\d+)\n')
# what the job script says where it has put another job into the queue
GOES_ON = re.compile(rb'pytorch-run: the program continues in job (\S+)\n')
# what the job script says at its start, if Slurm has started it before
AGAIN = 'pytorch-run: started again ('
NO_MODULE = re.compile(r'pytorch-run: the module or the virtual environment cannot be loaded$', re.M)
PR_SET_PDEATHSIG = 1
# seconds that the last lines of the output may take to arrive on a shared file system, and a batch system to answer
LATE = 10


def start(command):
    """Start what submits a job, or waits for it; Ctrl-C is for us alone."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, universal_newlines=True,
                            start_new_session=True, preexec_fn=end_with_parent)


def end_with_parent():
    """Have the kernel kill a child if this program is killed: at other signals, qsub that waits deletes its job."""
    # as when a session is closed, or the login node is shut down
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def stop_printing():
    """What is left of the output is not tried again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


class Job:
    """The job that a script becomes, and its output."""
    said = "job {number} ({path}); output: {output}"

    def __init__(self, script):
        self.script = script
        self.words = script.words
        self.number = self.status = self.reason = None
        # bytes of the output that were shown, and how often the batch system did not know the job
        self.position = self.unknown = 0

    @property
    def output(self):
        return '%s-%s.out' % (self.script.name, self.number.split('.')[0])

    def submit(self):
        """Submit the script; what waits for the job's end goes on in the background."""
        self.path = self.script.write()
        command = self.words['submit'].split() + [self.path]
        if self.script.kind == 'slurm':
            # typed: sbatch heeds a user's SBATCH_ACCOUNT rather than the script
            command[-1:-1] = ' '.join(self.script.head(followed=True)).split()
        try:
            self.waiting = start(command)
        except FileNotFoundError:
            raise Problem("%s was not found here: submit %s on a host that has it" % (command[0], self.path))
        self.number = self.waiting.stdout.readline().strip().split(';')[0]
        if not self.number:
            self.waiting.wait()
            raise Problem("the batch system refused %s; see above" % self.path)
        with contextlib.suppress(OSError):
            # a batch system may have begun to count anew
            if time.time() - os.path.getmtime(self.output) > 3600:
                self.position = os.path.getsize(self.output)
        say(self.said.format(number=self.number, path=self.path, output=self.output))

    def show(self):
        try:
            with open(self.output, 'rb') as handle:
                handle.seek(self.position)
                text = handle.read()
        except FileNotFoundError:
            return
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        self.position += len(text)
        self.notice(text)

    def notice(self, text):
        for status in ENDED.findall(text):
            self.status = int(status)
        # srun says 0 of ranks that were lost with their node, and Slurm starts the job again
        if self.status == 0 and 'JobState=PENDING' in self.ask():
            self.status = None
        for number in GOES_ON.findall(text):
            self.follow_next(number.decode())

    def follow_next(self, number):
        """Turn to the job that this one has submitted to continue; it has an output of its own."""
        self.waiting.kill()
        self.number, self.position, self.reason, self.unknown = number, 0, None, 0
        self.waiting = start(shlex.split(self.words['wait']) + [number])
        say(self.said.format(number=number, path=self.path, output=self.output))

    def follow(self):
        """Show the output until the job has ended; returns its exit status, or 130 if the user lets it go on alone."""
        patience = LATE
        for turn in itertools.count():
            try:
                # one that came while there was no number to cancel counts now
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                status = self.waiting.poll()
                self.show()
                if self.status is not None:
                    # what waits for the job looks only now and then
                    self.waiting.kill()
                    return self.status
                if status:
                    return status
                if status is None and turn % 64 == 6:
                    self.explain_waiting()
                if self.unknown > 1:
                    # qsub would go on to wait
                    self.waiting.kill()
                    return 1
                if status == 0:
                    if patience < 0:
                        return 1
                    patience -= 0.5
                time.sleep(0.5)
            except (KeyboardInterrupt, OSError) as problem:
                if isinstance(problem, OSError):
                    say("the output cannot be shown any more: %s" % problem.strerror)
                    stop_printing()
                # a second one must not stop what cancels the job
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                if not self.cancel():
                    say("job %s continues; its output: tail -F %s; to cancel it: %s %s" % (
                        self.number, self.output, self.words['cancel'], self.number))
                    # it only waits for the job, and would keep our output open
                    self.waiting.kill()
                    return 130

    def cancel(self):
        """Return whether the job is cancelled: a user's goes on without us."""
        return False

    def ask(self, words='ask'):
        """Return what the batch system says of the job; nothing if it does not answer."""
        command = self.words[words].split() + [self.number]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
                                  env=dict(os.environ, QSCACHE_BYPASS='true'), timeout=LATE).stdout.replace('\n\t', '')
        return ''

    def explain_waiting(self):
        """Print why the job waits, where that has changed, and what to do: asked about as often as by sbatch itself."""
        asked = self.ask('ask while it waits')
        self.unknown += self.words['unknown'] in asked
        found = re.search(self.words['waits'], asked)
        reason = found and found.group(found.lastindex)
        if reason and reason != self.reason:
            rows = read_share('waits.cfg')
            meaning = first_that_fits(rows, 'waits: ', reason).get('meaning', "no advice is known")
            cancel = 'cancel it (%s %s)' % (self.words['cancel'], self.number)
            say("job %s waits (%s): %s" % (self.number, reason, meaning.format(
                job=self.number, cancel=cancel, **rows['options: pytorch-run'])))
        self.reason = reason

    def how_it_ended(self, status):
        """Return what the batch system, or the status of what waited, says of a job that ended early."""
        for _ in range(LATE):
            time.sleep(1)
            asked = self.ask()
            # Slurm is still ending something of it
            if 'COMPLETING' not in asked:
                break
        # what waited has a part of the job's status, which may be the job's own if it has begun
        ended = "%s: %d%s" % (self.words['submit'].split()[0], status, '' if self.position else ', no output')
        words = asked if 'Exit_status' in asked else '%s\n%s' % (asked, ended)
        if self.unknown > 1:
            return self.words['cause of unknown']
        otherwise = "for the reason, type: %s %s" % (self.words['ask'], self.number)
        try:
            with tempfile.TemporaryFile(dir='.') as probe:
                probe.write(bytes(LATE << 10))
        except OSError as problem:
            otherwise = "its output could not be written to this directory: %s" % problem.strerror
        return first_that_fits(self.script.batch_systems, self.script.kind + ' ended: ', words).get('cause', otherwise)

    def explain(self, status):
        """Yield lines on how the job ended, which rank was the first, and the reason, as far as the outputs tell."""
        # a job that was cancelled before it began has printed nothing
        texts = [read_tail(self.output).rpartition(AGAIN)[2]] if os.path.exists(self.output) else []
        if self.status is not None:
            # 143: its ranks were told to end, as they are a while before a job is preempted
            cause = ': ' + self.how_it_ended(status) if status == 143 else ''
            yield "job %s ended with status %d%s" % (self.number, status, cause)
        elif texts and NO_MODULE.search(texts[0]):
            yield ("job %s ended before its program was started: its module or environment could not be loaded; see "
                   "above" % self.number)
        else:
            yield "job %s ended before its program did: %s" % (self.number, self.how_it_ended(status))
        if status == 85:
            yield "the program saved its state and stopped: run the same command again to resume"
        yield from why(self.output, texts)


def submit_and_follow(script, kind=Job):
    """Submit a job script, and show the job's output until its end; returns its exit status."""
    if sys.stdout is None:
        # closed, as by >&-
        sys.stdout = open(os.devnull, 'w')
    for line in script.not_as_here():
        say(line)
    if script.options.dry_run:
        try:
            print(script.text(), end='', flush=True)
        except OSError as problem:
            stop_printing()
            raise Problem("the job script cannot be written: %s" % problem.strerror)
        return 0
    job = kind(script)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    job.submit()
    status = job.follow()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if status not in (0, 130):
        for line in job.explain(status):
            say(line)
    return status
