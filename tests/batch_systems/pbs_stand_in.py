"""
A stand-in for PBS Pro, of which no free build exists in Debian or as a wheel: qsub, qstat, qdel, qhold, qrls and a
server that runs the jobs for real, each without a network and with another $HOME (compute_node.py) if the server is
root.

    with Pbs(directory, accounts=['NCAR0001']) as pbs:
        subprocess.run(['qsub', 'script'], env=dict(os.environ, **pbs.environment))

It follows the documentation of PBS Professional 2021 for what it has: job ids, the states Q H W R E F M, holds (the
user's, an operator's, the system's), `-W depend=afterok` and `afterany`, `-a`, `-l select`, walltime and mem (a job
that takes more is killed, with PBS's words and exit statuses), `-j oe -o`, history with `qstat -x`. Messages and exit
statuses of the commands are OpenPBS's (pbs_messages.c; the numbers in pbs_error.h modulo 256), and so is how qstat
folds lines (qstat.c). By hand it was compared with OpenPBS 23.06.06, built from its sources: that takes jobs that no
node fits, and those after one that has failed, and deletes these; a running job that is deleted has the exit status 0.
It does not have: arrays, reservations, routing queues, several chunks, staging. What a real PBS does not refuse and
this one does: options that it does not know.

    pbs.fail('qsub', 1)     the next qsub finds no server
    pbs.lose('qsub', 1)     the next qsub submits, and its answer gets lost
    pbs.slow('qsub', 60)    qsub takes a minute
    pbs.hang('qstat')       qstat does not answer any more
    pbs.node_down(name)     what runs there is started again elsewhere, or ends, as -r says
"""
import contextlib
import getpass
import json
import os
import re
import shlex
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from batch_systems.compute_node import other_home  # noqa: E402

COMMANDS = ('qsub', 'qstat', 'qselect', 'qdel', 'qhold', 'qrls')
WRAPPER = '#!/bin/sh\nexec %s -I %s %s %s "$@"\n'
# qsub's options: those with a value, those without
VALUED, PLAIN = 'aAeljmMoNpqrSvW', 'h'
UNITS = {'b': 1, 'kb': 2 ** 10, 'mb': 2 ** 20, 'gb': 2 ** 30}
# exit statuses of jobs that PBS has killed
KILLED = {'mem': -27, 'walltime': -29}
PAGE = os.sysconf('SC_PAGE_SIZE')
# seconds between qdel's SIGTERM and its SIGKILL; a real queue's kill_delay is 10 (pbs_queue_attributes(7B))
KILL_DELAY = 2


def patiently(true, what, seconds=60):
    """Poll until something is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "%s: not within %d seconds" % (what, seconds)
        time.sleep(0.05)


class Pbs:
    """Starts when entered, and has left nothing running when left."""

    def __init__(self, directory, accounts=(), nodes=2, ncpus=64, ngpus=4, queues=None, kill_delay=KILL_DELAY):
        """`queues`: {name: the longest walltime in seconds}; accounts: those that may be charged, none is all."""
        self.directory = Path(directory)
        self.settings = {'accounts': list(accounts), 'ncpus': ncpus, 'ngpus': ngpus,
                         'queues': queues or {'main': 43200}, 'kill_delay': kill_delay,
                         'nodes': ['deg%04d' % number for number in range(1, nodes + 1)]}
        self.server = None

    @property
    def environment(self):
        """What a login node has: the commands on the path."""
        return {'PATH': '%s:%s' % (self.directory / 'bin', os.environ['PATH'])}

    def __enter__(self):
        (self.directory / 'bin').mkdir(parents=True)
        self.directory.chmod(0o755)
        for name in COMMANDS:
            path = self.directory / 'bin' / name
            path.write_text(WRAPPER % (sys.executable, os.path.abspath(__file__), name, self.directory))
            path.chmod(0o755)
        (self.directory / 'settings').write_text(json.dumps(self.settings))
        self.server = subprocess.Popen([sys.executable, '-I', __file__, 'server', str(self.directory)],
                                       stdin=subprocess.DEVNULL)
        patiently((self.directory / 'socket').exists, "server of PBS")
        return self

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait(30)

    def fail(self, command, times):
        """The next calls of a command find no server."""
        (self.directory / ('fail-' + command)).write_text(str(times))

    def hang(self, command):
        """A command does not answer any more."""
        (self.directory / ('hang-' + command)).touch()

    def node_down(self, name, lives_on=False):
        """A node goes away with all that runs on it; or only its daemon does."""
        talk(self.directory, {'command': 'node_down', 'node': name, 'lives_on': lives_on})

    def node_up(self, name):
        """It is back."""
        talk(self.directory, {'command': 'node_up', 'node': name})

    def delete(self, number):
        """Somebody deletes a job."""
        talk(self.directory, {'command': 'delete', 'number': number})

    def reject(self, pattern, words):
        """The site's hook rejects jobs with such names, in these words."""
        (self.directory / 'hook').write_text(json.dumps({pattern: words}))

    def fail_after(self, command, calls):
        """A command finds the server so many times, and then no more."""
        (self.directory / ('last-' + command)).write_text(str(calls))

    def move(self, number, back=False):
        """A job goes to another server: here it is known as moved."""
        talk(self.directory, {'command': 'move', 'number': number, 'back': back})

    def lose(self, command, times):
        """The next calls of a command reach the server, and the answer is lost."""
        (self.directory / ('lose-' + command)).write_text(str(times))

    def slow(self, command, seconds):
        """A command takes its time."""
        (self.directory / ('slow-' + command)).write_text(str(seconds))

    def answer_late(self):
        """qsub submits, and does not answer any more."""
        (self.directory / 'late-qsub').touch()

    def forget(self):
        """The history of jobs is over."""
        talk(self.directory, {'command': 'forget'})

    def purge(self, number):
        """No destination of a routing queue takes a job; qsub waits for ever for its end (OpenPBS 23.06)."""
        talk(self.directory, {'command': 'purge', 'number': number})

    def keep_history(self, kept):
        """What the server's job_history_enable says."""
        (self.directory / 'no-history').unlink(missing_ok=True) if kept else (self.directory / 'no-history').touch()

    def hide(self):
        """qstat shows nothing, as of other users' jobs where the server's query_other_jobs is false (OpenPBS 23.06)."""
        (self.directory / 'hidden').touch()

    def start_none(self, reason):
        """The scheduler starts no more jobs."""
        (self.directory / 'not-running').write_text(reason)

    def job(self, number):
        """What the server knows of a job."""
        return talk(self.directory, {'command': 'job', 'number': number})

    def jobs(self):
        """All that the server knows, by id."""
        return talk(self.directory, {'command': 'jobs'})


# --- the commands ---------------------------------------------------------------------------------------------------

class Failed(Exception):
    """(message, exit status) of a command."""


def talk(directory, request):
    """Ask the server."""
    with socket.socket(socket.AF_UNIX) as connection:
        # the directory may have a longer name than a socket may have
        here = os.open(directory, os.O_RDONLY)
        try:
            connection.connect('/proc/self/fd/%d/socket' % here)
        finally:
            os.close(here)
        connection.sendall(json.dumps(request).encode() + b'\n')
        answer = json.loads(connection.makefile().readline())
    if 'failed' in answer:
        raise Failed(*answer['failed'])
    return answer['answer']


def command(name, directory, words):
    """One of the commands; returns its exit status."""
    while os.path.exists(os.path.join(directory, 'hang-' + name)):
        time.sleep(0.1)
    slow = Path(directory, 'slow-' + name)
    if slow.exists():
        time.sleep(float(slow.read_text()))
    last = Path(directory, 'last-' + name)
    if counted(Path(directory, 'fail-' + name)) or last.exists() and not counted(last):
        print("Connection refused\n%s: cannot connect to server pbs (errno=111)" % name, file=sys.stderr)
        return 111
    if counted(Path(directory, 'lose-' + name)):
        with contextlib.redirect_stdout(None):
            COMMAND[name](directory, words)
        print("%s: End of File" % name, file=sys.stderr)
        return 22
    try:
        return COMMAND[name](directory, words)
    except Failed as problem:
        print("%s: %s" % (name, problem.args[0]), file=sys.stderr)
        return problem.args[1]


def counted(path):
    """Whether this call is one of so many."""
    left = int(path.read_text()) if path.exists() else 0
    if left:
        path.write_text(str(left - 1))
    return bool(left)


def options_of(words):
    """qsub's options: ({letter: [values]}, what is left)."""
    options, words = {}, list(words)
    while words and words[0].startswith('-'):
        word = words.pop(0)
        letter = word[1:2]
        if letter in VALUED:
            options.setdefault(letter, []).append(word[2:] or words.pop(0))
        elif letter in PLAIN and len(word) == 2:
            options[letter] = [True]
        else:
            raise Failed("invalid option -- '%s'" % letter, 2)
    return options, words


def directives(script):
    """The options in a script's head, which ends with the first command (qsub.c)."""
    prefix, options = os.environ.get('PBS_DPREFIX', '#PBS'), {}
    for line in script.splitlines():
        if line.startswith(prefix):
            found, rest = options_of(shlex.split(line[len(prefix):]))
            if rest:
                raise Failed("directive error: %s" % line[len(prefix):].strip(), 1)
            for letter, values in found.items():
                options[letter] = options.get(letter, []) + values
        elif line.strip() and not line.lstrip().startswith('#'):
            break
    return options


def wait_for_end(directory, number):
    """What `-W block=true` does: as long as the job, and with its exit status; 3 as soon as somebody deletes it."""
    while True:
        try:
            job = talk(directory, {'command': 'job', 'number': number})
        except Failed:
            signal.pause()
        if re.search(' and terminated|Job deleted by user', job['comment'] or ''):
            print("qsub: %s Job to be deleted at request of %s" % (number, job['Job_Owner']), file=sys.stderr)
            return 3
        if job['job_state'] in 'FM':
            break
        time.sleep(0.1)
    status = int(talk(directory, {'command': 'job', 'number': number}).get('Exit_status') or 0)
    return status % 256 or int(status != 0)


def qsub(directory, words):
    """Submit a script."""
    options, words = options_of(words)
    if len(words) != 1 or not os.path.isfile(words[0]):
        raise Failed("script file: %s: No such file or directory" % ' '.join(words), 1)
    for letter, values in directives(Path(words[0]).read_text()).items():
        # the command line is read last, and wins
        options[letter] = values + options.get(letter, [])
    resources = dict(part.split('=', 1) for value in options.get('l', []) for part in [value])
    attributes = [value.split('=', 1) for value in options.get('W', [])]
    number = talk(directory, {
        'command': 'submit', 'script': Path(words[0]).read_text(), 'directory': os.getcwd(), 'user': getpass.getuser(),
        'home': os.environ.get('HOME', '/'), 'path': os.environ.get('PATH', ''), 'umask': 0o22,
        'name': options.get('N', [os.path.basename(words[0])])[-1], 'account': options.get('A', [None])[-1],
        'queue': options.get('q', [None])[-1], 'held': 'h' in options, 'resources': resources,
        'rerunnable': options.get('r', ['y'])[-1] == 'y', 'shell': options.get('S', ['/bin/bash'])[-1],
        'output': options.get('o', [None])[-1], 'join': options.get('j', ['n'])[-1] == 'oe',
        'variables': {name: value if equals else os.environ[name] for name, equals, value in (
            part.partition('=') for part in filter(None, ','.join(options.get('v', [])).split(',')))},
        'priority': options.get('p', ['0'])[-1], 'mail': options.get('M', [None])[-1],
        'after_time': options.get('a', [None])[-1], 'depend': dict(attributes).get('depend', '')})
    while os.path.exists(os.path.join(directory, 'late-qsub')):
        time.sleep(0.1)
    print(number, flush=True)
    return wait_for_end(directory, number) if dict(attributes).get('block') == 'true' else 0


def qstat(directory, words):
    """Show jobs: -f, with or without -x, -t and -F; the queues: -Q -f; the server for -Fjson, for qstat-cache."""
    flags, numbers, form, delimiter = '', [], None, '|'
    for word in words:
        if word.startswith('-F'):
            form = word[2:]
        elif word.startswith('-D'):
            delimiter = word[2:]
        elif word.startswith('-'):
            flags += word[1:]
        else:
            numbers.append(word)
    if sorted(flags) == ['Q', 'f']:
        for name, limit in json.loads(Path(directory, 'settings').read_text())['queues'].items():
            print('Queue: %s\n    queue_type = Execution' % name)
            print('    resources_max.walltime = %02d:%02d:%02d' % (limit // 3600, limit // 60 % 60, limit % 60))
            print('    enabled = True\n    started = True\n')
        return 0
    if not set(flags) <= set('fxt') or 'f' not in flags:
        raise Failed("this stand-in knows qstat -f with -x, -t, -Fdsv and -Fjson", 2)
    if form == 'json':
        print(json.dumps({'timestamp': int(time.time()), 'pbs_version': '2021', 'pbs_server': 'pbs'}, indent=4))
        return 0
    status = 0
    if Path(directory, 'hidden').exists():
        return status
    if not numbers:
        known = talk(directory, {'command': 'jobs'})
        numbers = [number for number, job in known.items() if 'x' in flags or job['job_state'] not in 'FM']
    without_history = Path(directory, 'no-history').exists()
    if without_history and 'x' in flags:
        print("qstat: PBS is not configured to maintain job history %s" % ' '.join(numbers))
        return 0
    for number in numbers:
        try:
            job = talk(directory, {'command': 'job', 'number': number})
            if job['job_state'] == 'F' and without_history:
                raise Failed("Unknown Job Id %s" % number, 153)
            if job['job_state'] in 'FM' and 'x' not in flags:
                raise Failed("%s Job has finished, use -x or -H to obtain historical job information" % job['id'], 35)
        except Failed as problem:
            print("qstat: %s" % problem.args[0], file=sys.stderr)
            status = problem.args[1]
            continue
        first, facts = "Job Id: %s" % job.pop('id'), [item for item in job.items() if item[1] is not None]
        if form == 'dsv':
            print(delimiter.join([first] + ['%s=%s' % item for item in facts]))
        else:
            print(first)
            print(''.join(wrapped('    %s = %s' % item) + '\n' for item in facts))
    return status


def wrapped(line):
    """No line is longer than 79 characters; a new one begins with a tab (prt_attr() in OpenPBS's qstat.c)."""
    lines = [line[:78]]
    line = line[78:]
    while line:
        lines.append('\t' + line[:70])
        line = line[70:]
    return '\n'.join(lines)


def qselect(directory, words):
    """The ids of jobs of one name that have not finished (qselect(1B): -N)."""
    if len(words) != 2 or words[0] != '-N':
        raise Failed("this stand-in knows qselect -N NAME", 2)
    for number, job in talk(directory, {'command': 'jobs'}).items():
        if job['Job_Name'] == words[1] and job['job_state'] not in 'FM':
            print(number)
    return 0


def qdel(directory, words):
    """Delete jobs; -W force first."""
    status, force = 0, words[:2] == ['-W', 'force']
    for number in words[2:] if force else words:
        try:
            talk(directory, {'command': 'delete', 'number': number, 'force': force})
        except Failed as problem:
            # the others are deleted all the same (qdel.c)
            print("qdel: %s" % problem.args[0], file=sys.stderr)
            status = problem.args[1]
    return status


def qhold(directory, words, command='hold'):
    """Hold jobs, or release them; -h first: u by their user, o by an operator."""
    types, numbers = (words[1], words[2:]) if words[0] == '-h' else ('u', words)
    for number in numbers:
        talk(directory, {'command': command, 'number': number, 'types': types})
    return 0


def qrls(directory, words):
    """Release jobs."""
    return qhold(directory, words, 'release')


COMMAND = {'qsub': qsub, 'qstat': qstat, 'qselect': qselect, 'qdel': qdel, 'qhold': qhold, 'qrls': qrls}


# --- the server -----------------------------------------------------------------------------------------------------

def seconds_of(text):
    """1:00:00 or a number."""
    total = 0
    for part in str(text).split(':'):
        total = total * 60 + int(part)
    return total


def bytes_of(text):
    """16gb."""
    number, unit = re.match(r'(\d+)([kmg]?b)$', text).groups()
    return int(number) * UNITS[unit]


def members(session):
    """The processes of a session, as PBS's daemon finds them."""
    found = []
    for entry in os.listdir('/proc'):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = Path('/proc', entry, 'stat').read_text().rsplit(')', 1)[1].split() if entry.isdigit() else []
            if fields and int(fields[3]) == session:
                found.append(int(entry))
    return found


def memory_of(session):
    """What the processes of a session occupy."""
    total = 0
    for process in members(session):
        with contextlib.suppress(OSError, IndexError):
            total += int(Path('/proc', str(process), 'statm').read_text().split()[1]) * PAGE
    return total


class Job:
    """One job."""

    def __init__(self, number, request, directory):
        self.number, self.request = number, request
        self.id = '%d.pbs' % number
        self.state, self.holds = 'H' if request['held'] else 'Q', set('u' if request['held'] else '')
        # [(kind of dependency, job)]
        self.after, self.exit_status, self.comment = [], None, None
        self.process = self.node = self.started = self.killed = None
        self.deleted, self.runs, self.moved = None, 0, False
        # when a deleted one is killed
        self.killed_at = None
        self.spool = Path(directory, '%d.OU' % number)
        chunk = dict(part.split('=', 1) for part in request['resources'].get('select', '1').split(':')[1:])
        self.ncpus, self.ngpus = int(chunk.get('ncpus', 1)), int(chunk.get('ngpus', 0))
        self.memory = bytes_of(chunk['mem']) if 'mem' in chunk else None
        self.walltime = seconds_of(request['resources'].get('walltime', 3600))

    def facts(self):
        """As qstat -f shows them."""
        return {
            'id': self.id, 'Job_Name': self.request['name'], 'Job_Owner': '%s@login1' % self.request['user'],
            'job_state': 'M' if self.moved else self.state, 'queue': self.request['queue'], 'server': 'pbs',
            'Account_Name': self.request['account'], 'Join_Path': 'oe' if self.request['join'] else 'n',
            'Hold_Types': self.hold_types(),
            'Output_Path': 'login1:%s' % self.output(), 'Rerunable': str(self.request['rerunnable']),
            'Resource_List.mem': '%dkb' % (self.memory / 1024) if self.memory else None,
            'Resource_List.ncpus': self.ncpus, 'Resource_List.ngpus': self.ngpus or None, 'Resource_List.nodect': 1,
            'Resource_List.select': self.request['resources'].get('select', '1'),
            'Resource_List.walltime': '%02d:%02d:%02d' % (self.walltime // 3600, self.walltime // 60 % 60,
                                                          self.walltime % 60),
            'depend': ','.join('%s:%s' % (kind, ':'.join('%s@pbs' % job.id for other, job in self.after
                                                         if other == kind)) for kind in dict(self.after)) or None,
            'Priority': self.request['priority'], 'Mail_Users': self.request['mail'],
            'Execution_Time': self.request['after_time'],
            'Variable_List': ','.join('%s=%s' % pair for pair in sorted(dict(self.request['variables'], **{
                'PBS_O_HOME': self.request['home'], 'PBS_O_HOST': 'login1',
                'PBS_O_PATH': self.request['path'], 'PBS_O_WORKDIR': self.request['directory']}).items())),
            'exec_host': '%s/0*%d' % (self.node, self.ncpus) if self.node else None, 'comment': self.comment,
            'Exit_status': self.exit_status, 'run_count': self.runs}

    def unmet(self):
        """Whether it waits for other jobs."""
        return any(before.state != 'F' for _, before in self.after)

    def hold_types(self):
        """In the order of OpenPBS 23.06; the system holds what waits for other jobs."""
        held = self.holds | set('s' if self.unmet() else '')
        return ''.join(letter for letter in 'sou' if letter in held) or 'n'

    def output(self):
        """Where its output is brought to."""
        output = self.request['output']
        # [host:]path (qsub(1B), -o)
        if not output:
            return os.path.join(self.request['directory'], '%s.o%d' % (self.request['name'], self.number))
        return os.path.join(self.request['directory'], output.partition(':')[2] or output)

    def start(self, node):
        """Run the script in a login shell, in a session of its own."""
        self.state, self.node, self.started, self.killed, self.runs = 'R', node, time.monotonic(), None, self.runs + 1
        self.comment = 'Job run at %s on (%s:ncpus=%d)' % (time.strftime('%a %b %d at %H:%M'), node, self.ncpus)
        script = self.spool.with_suffix('.SC')
        script.write_text(self.request['script'])
        request = self.request
        if not os.path.isdir(request['home']):
            self.spool.write_text('Could not chdir to home directory\n')
            self.finish(-2, self.comment + ' and failed')
            return
        environment = {
            'HOME': request['home'], 'LOGNAME': request['user'], 'USER': request['user'], 'SHELL': request['shell'],
            'PATH': '%s:/bin:/usr/bin' % (self.spool.parent / 'bin'), 'PBS_JOBID': self.id,
            'PBS_JOBNAME': request['name'], 'PBS_QUEUE': request['queue'], 'PBS_O_WORKDIR': request['directory'],
            'PBS_O_HOST': 'login1', 'PBS_O_PATH': request['path'], 'PBS_ENVIRONMENT': 'PBS_BATCH',
            **request['variables'], 'NCPUS': str(self.ncpus), 'OMP_NUM_THREADS': str(self.ncpus)}
        as_on_a_node = []
        if os.geteuid() == 0:
            home = self.spool.with_suffix('.HOME')
            home.mkdir(exist_ok=True)
            as_on_a_node = ['unshare', '--net', '--mount', 'sh', '-c',
                            'ip link set lo up; ' + other_home(home) + ' && cd "$HOME" && exec "$@"', 'sh']
        with open(self.spool, 'ab') as spool:
            self.process = subprocess.Popen(
                as_on_a_node + [request['shell'], '-l', str(script)], env=environment, cwd=request['home'],
                stdin=subprocess.DEVNULL, stdout=spool, stderr=spool, start_new_session=True, umask=0o077)

    def say(self, text):
        """PBS's own words in the output."""
        with open(self.spool, 'a') as spool:
            spool.write('=>> PBS: job killed: %s\n' % text)

    def kill(self, number=signal.SIGKILL):
        """End all processes of its session."""
        for process in members(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def watch(self):
        """Whether a running job has ended; one that takes more than it asked for is killed."""
        used, elapsed = memory_of(self.process.pid) if self.memory else 0, time.monotonic() - self.started
        if not self.killed and self.memory and used > self.memory:
            self.say('mem %dkb exceeded limit %dkb' % (used / 1024, self.memory / 1024))
            self.killed = 'mem'
            self.kill()
        elif not self.killed and elapsed > self.walltime:
            self.say('walltime %d exceeded limit %d' % (elapsed, self.walltime))
            self.killed = 'walltime'
            self.kill()
        elif self.killed_at and time.monotonic() > self.killed_at:
            self.kill()
        return self.process.poll() is not None

    def finish(self, exit_status=None, comment=None):
        """The end: history, and the output where it belongs."""
        self.state, self.exit_status = 'F', exit_status
        self.comment = comment or self.comment
        if self.spool.exists():
            with contextlib.suppress(OSError):
                shutil.copy(str(self.spool), self.output())


def unmet(kind, before):
    """Whether a dependency can never be satisfied."""
    return kind == 'afterok' and before.state == 'F' and before.exit_status != 0


class Server:
    """All jobs, and what happens to them."""

    def __init__(self, directory):
        self.directory = directory
        self.settings = json.loads(Path(directory, 'settings').read_text())
        self.nodes = list(self.settings['nodes'])
        self.count = 0
        self.jobs, self.lost, self.lock = {}, [], threading.RLock()

    def find(self, number):
        """A job by its id, with or without the server's name."""
        try:
            return self.jobs[int(str(number).split('.')[0])]
        except (KeyError, ValueError):
            raise Failed("Unknown Job Id %s" % number, 153)

    def answer(self, request):
        """What a command asks for."""
        with self.lock:
            return getattr(self, request.pop('command'))(**({'request': request} if 'script' in request else request))

    def submit(self, request):
        """Check what real ones check, and queue it."""
        queues, accounts = self.settings['queues'], self.settings['accounts']
        request['queue'] = request['queue'] or next(iter(queues))
        if request['queue'] not in queues:
            raise Failed("Unknown queue", 170)
        if accounts and request['account'] not in accounts:
            raise Failed("Invalid account for CPU usage, available accounts: %s" % ', '.join(accounts), 32)
        hook = Path(self.directory, 'hook')
        for pattern, words in (json.loads(hook.read_text()) if hook.exists() else {}).items():
            if re.search(pattern, request['name']):
                # event.reject() in a queuejob hook; PBSE_HOOKERROR is 15136
                raise Failed(words, 32)
        self.count += 1
        job = Job(self.count, request, self.directory)
        if job.walltime > queues[request['queue']]:
            raise Failed("Job violates queue and/or server resource limits", 188)
        for part in filter(None, request['depend'].split(',')):
            kind, *numbers = part.split(':')
            if kind not in ('afterok', 'afterany'):
                raise Failed("illegal -W value", 2)
            job.after += [(kind, self.find(number)) for number in numbers]
        self.jobs[job.number] = job
        return job.id

    def job(self, number):
        """What qstat shows."""
        return self.find(number).facts()

    def jobs_known(self):
        """All of them."""
        return {job.id: job.facts() for job in self.jobs.values()}

    def forget(self):
        """Finished jobs are not known any more."""
        self.jobs = {number: job for number, job in self.jobs.items() if job.state != 'F'}

    def purge(self, number):
        """A job is not known any more."""
        del self.jobs[self.find(number).number]

    def hold(self, number, types):
        """qhold."""
        self.find(number).holds |= set(types)

    def release(self, number, types):
        """qrls."""
        self.find(number).holds -= set(types)

    def move(self, number, back):
        """It shows as M, whatever it does elsewhere."""
        self.find(number).moved = not back

    def delete(self, number, force=False):
        """qdel: running ones get SIGTERM, and SIGKILL if that is not enough. Exit statuses are OpenPBS 23.06's."""
        job = self.find(number)
        if job.state == 'F':
            raise Failed("Job has finished %s" % job.id, 35)
        if job.state == 'E':
            raise Failed("Request invalid for state of job %s" % job.id, 168)
        job.deleted, by = 265 if force else 0, '' if force else ' by %s@login1' % job.request['user']
        job.comment = '%s and terminated%s' % (job.comment or '', by)
        if job.process:
            job.kill(signal.SIGTERM)
            job.killed_at = time.monotonic() + self.settings['kill_delay']
        else:
            job.finish(comment='Job deleted by user')

    def node_down(self, node, lives_on=False):
        """What runs there dies, or nobody knows of it any more; what may is queued again."""
        if node in self.nodes:
            self.nodes.remove(node)
        for job in self.jobs.values():
            if job.process and job.node == node:
                if lives_on:
                    self.lost.append(job.process)
                else:
                    job.kill()
                    job.process.wait()
                job.process, job.node = None, None
                if job.request['rerunnable']:
                    job.state, job.comment = 'Q', 'Job was requeued: node %s is down' % node
                else:
                    job.finish(-3, 'Job failed: node %s is down' % node)

    def node_up(self, node):
        """It can be used again."""
        if node not in self.nodes:
            self.nodes.append(node)

    def step(self):
        """One round of the scheduler."""
        with self.lock:
            for job in self.jobs.values():
                if job.process and job.watch():
                    status = job.process.returncode
                    job.kill()
                    job.process = None
                    # E while the node's daemon brings the output back; the status is shown already (qstat(1B)); killed
                    # by a signal: 256 and its number
                    status = status if job.deleted is None else job.deleted
                    job.state, job.exit_status = 'E', KILLED.get(job.killed, 256 - status if status < 0 else status)
                elif job.state == 'E':
                    job.finish(job.exit_status)
            for job in self.jobs.values():
                self.consider(job)

    def consider(self, job):
        """Hold, delete or start a job that is not running."""
        if job.state not in 'QHW':
            return
        bad = [before for kind, before in job.after if unmet(kind, before)]
        if bad:
            job.finish(comment='Job deleted as result of dependency on job %s' % bad[0].id)
            return
        waits = bool(job.holds) or job.unmet()
        job.state = 'H' if waits else 'Q'
        # -a [[CC]YY]MMDDhhmm: W until then (qsub(1B))
        if not waits and (job.request['after_time'] or '') > time.strftime('%Y%m%d%H%M'):
            job.state, waits = 'W', True
        if job.ncpus > self.settings['ncpus'] or job.ngpus > self.settings['ngpus']:
            job.comment, waits = 'Can Never Run: Insufficient amount of resource: ncpus', True
        reason = Path(self.directory, 'not-running')
        if not waits and reason.exists():
            job.comment, waits = 'Not Running: ' + reason.read_text(), True
        free = [node for node in self.nodes if not any(other.process and other.node == node
                                                       for other in self.jobs.values())]
        if not waits and free:
            job.start(free[0])

    def end(self):
        """Leave nothing running."""
        with self.lock:
            for job in self.jobs.values():
                if job.process:
                    job.kill()
                    job.process.wait()
            for process in self.lost:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def serve(directory):
    """The server, until it is told to end."""
    server, ended = Server(directory), threading.Event()
    # `jobs` is the dict itself; the request of that name shows it
    names = {'jobs': 'jobs_known'}

    class Handler(socketserver.StreamRequestHandler):
        """One command."""

        def handle(self):
            request = json.loads(self.rfile.readline())
            request['command'] = names.get(request['command'], request['command'])
            try:
                answer = {'answer': server.answer(request)}
            except Failed as problem:
                answer = {'failed': problem.args}
            self.wfile.write(json.dumps(answer).encode() + b'\n')

    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    os.chdir(directory)
    with socketserver.ThreadingUnixStreamServer('socket.new', Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        os.chmod('socket.new', 0o666)
        os.rename('socket.new', 'socket')
        while not ended.wait(0.1):
            server.step()
        listening.shutdown()
    server.end()


if __name__ == '__main__':
    if sys.argv[1] == 'server':
        serve(sys.argv[2])
    else:
        sys.exit(command(sys.argv[1], sys.argv[2], sys.argv[3:]))
