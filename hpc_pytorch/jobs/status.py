"""``--job-status``: the state of the jobs that were submitted for a prefix, what went wrong, and what to do."""
import contextlib
import os
import re
import shlex
import sys
import time
from pathlib import Path

from easybuild.tools.config import install_path

from hpc_pytorch import HERE, parse
from hpc_pytorch.jobs.records import files_of, first_line, mark_of, read_records
from hpc_pytorch.machine.batch_systems import ALIVE, CANCELLED, DONE, FAILED, RUNNING, UNKNOWN, WAITING
from hpc_pytorch.machine.batch_systems import MIB, SCHEDULERS, Look, NoAnswer
from hpc_pytorch.packages import known_errors
from hpc_pytorch.packages.easybuild_errors import with_prefix
from hpc_pytorch.packages.module_names import module_directory
from hpc_pytorch.share.batch_scripts import first_that_fits

STATES = parse(os.path.join(HERE, 'jobs/states.cfg'))
WAITS = parse(os.path.join(HERE, 'share/waits.cfg'))
# seconds after which a job that was submitted without an answer does not come any more
LATE = 600
# how lines of a log begin that name an error
ERRORS = re.compile(r'ERROR|=>> PBS|slurmstepd: error|\w+ +FAILS: ')


def status_command():
    eb = os.environ.get('HPC_PYTORCH_COMMAND')
    command = eb + ' --job-status' if eb else '%s -m hpc_pytorch.jobs.status' % shlex.quote(sys.executable)
    decisive = ('--prefix', '--installpath', '--subdir-software', '--configfiles')
    if any(argument.startswith(decisive) for argument in sys.argv):
        top, name = os.path.split(install_path('software'))
        command += ' --installpath=%s' % shlex.quote(top)
        if name != 'software':
            command += ' --subdir-software=%s' % shlex.quote(name)
    return command


def state_of(record):
    """Return the state of a job, as Look; what matters is whether the module is there, whoever installed it."""
    look = look_at(record)
    if look.state in (FAILED, CANCELLED):
        path = os.path.join(module_directory(), record['module'])
        # written since the job was submitted, by another one or without a job
        if any(os.path.exists(one) and os.path.getmtime(one) >= record['time'] for one in (path, path + '.lua')):
            return Look(DONE, look.word, "but the module is installed by now")
    return look


def look_at(record):
    """Return what the batch system says of a job; what its own files say where that has forgotten it."""
    scheduler = SCHEDULERS[record['scheduler']]
    try:
        if record['job'] is None:
            mark = '%s_%s' % (mark_of(record['name']), record['token'])
            for number, _ in scheduler.find(record['name'], mark)[:1]:
                record['job'] = number
        look = scheduler.look(record['job']) if record['job'] else None
    except NoAnswer as problem:
        return Look(UNKNOWN, '', str(problem))
    if look:
        return look
    # empty where the disk was full
    ended = first_line(files_of(record) + '.ended')
    if ended:
        return Look(DONE if ended == '0' else FAILED, 'exit status %s' % ended, '')
    if record['job'] is None:
        # one whose answer was lost may still come
        recent = time.time() - record['time'] < LATE
        return Look(UNKNOWN if recent else FAILED, 'not submitted', "the submission was interrupted: submit again")
    if time.time() - record['time'] < scheduler.forgets_after:
        return Look(UNKNOWN, '', "the batch system does not know it, or not yet")
    if not any(map(os.path.exists, (record['log'], files_of(record) + '.out'))):
        return Look(CANCELLED, 'forgotten', "the batch system does not know it any more, and it never began")
    return Look(FAILED, 'forgotten', "the batch system does not know it any more, and it did not end by itself")


def log_tail(record, others=()):
    """Return the end of a job's log, what else the batch system said, and the end of other logs."""
    found = []
    for path in (record['log'], files_of(record) + '.out', *others):
        with contextlib.suppress(OSError):
            last = Path(path).read_text(errors='replace').splitlines()[-400:]
            found += [line.rstrip() for line in last if line.strip()]
    return found


def describe_progress(record):
    """Return the step that a running job is in, and the last line of ramgate or of the log."""
    lines = log_tail(record) or ["nothing in its log yet"]
    shown = [line for line in lines if line.startswith('== ')][-1:]
    last = first_line(files_of(record) + '.progress') or lines[-1]
    return [re.sub('^== ', '', line).strip() for line in dict.fromkeys(shown + [last])]


def describe_failure(record, look):
    """Return causes and remedies, from the batch system and from the log; then the last errors in the log."""
    memory = '%d MiB' % (record['memory'] / MIB) if record.get('memory') else 'the whole node'
    walltime = '%d:%02d h' % divmod(record.get('minutes') or 0, 60)
    found = []
    end = first_that_fits(STATES, 'ended: ', '%s, %s' % (look.word, look.about))
    if end:
        found.append("cause: " + end['cause'].format(memory=memory, walltime=walltime))
        found.append("what to do: " + end['remedy'])
    logs = list(Path(files_of(record) + '.failed').glob('*/*/*'))
    lines = log_tail(record, logs)
    found += known_errors.explain('\n'.join(lines)).splitlines() + ["EasyBuild's log: %s" % path for path in logs]
    # EasyBuild's log repeats what the job's has
    errors = list(dict.fromkeys(filter(ERRORS.match, lines)))
    return found + (errors or [line for line in lines if ' ERROR ' in line] or lines)[-3:]


def describe_cancelled(record, states):
    for job in record['after']:
        module, look = states.get(job, (None, None))
        if look and look.state in (FAILED, CANCELLED):
            return ["because %s was not installed; submit again when it is" % module]
    if set(record['after']) - set(states):
        return ["somebody deleted it, or a job failed that it depended on; submit again"]
    return ["somebody deleted it"]


def describe(record, look, states):
    words = ', '.join(word for word in (look.word, look.about) if word)
    lines = ["%s  job %s  %s (%s)" % (record['module'], record['job'] or '?', look.state, words)]
    if look.state == RUNNING:
        lines += describe_progress(record)
    elif look.state == WAITING:
        options = dict(WAITS['options: --job-status'], cancel='cancel job %s' % record['job'])
        # OpenPBS's server, when it was killed, may no longer know who depends on whom
        before = {states[job][1].state for job in record['after'] if job in states}
        reason = 'all ended' if look.about == 'Dependency' and not before & {*ALIVE, UNKNOWN} else look.about
        advice = first_that_fits(WAITS, 'waits: ', reason)
        if advice:
            lines.append(advice['meaning'].format(job=record['job'], **options))
    elif look.state == FAILED:
        lines += describe_failure(record, look)
    elif look.state == CANCELLED:
        lines += describe_cancelled(record, states)
    if look.state == RUNNING or (look.state not in (WAITING, DONE) and os.path.exists(record['log'])):
        lines.append("log: %s" % record['log'])
    return '\n    '.join(lines)


def jobs_of(easyconfigs):
    """Return the records for these easyconfigs and the jobs before theirs, oldest first; all without easyconfigs."""
    names = {*easyconfigs, *map(os.path.basename, easyconfigs)}
    found, wanted = [], set()
    for record in reversed(read_records()):
        own = {os.path.basename(record['easyconfig']), record['name'], record['module']}
        if not names or names & own or record['job'] in wanted:
            found.insert(0, record)
            wanted.update(record['after'])
    return found


def show_jobs(easyconfigs):
    records = jobs_of(easyconfigs)
    looks, away = [], None
    for record in records:
        look = away or state_of(record)
        looks.append((record, look))
        if look.state == UNKNOWN and SCHEDULERS[record['scheduler']].away(look.about):
            # nor does it answer about the others, after 20 seconds each
            away = look
    states = {record['job']: (record['module'], look) for record, look in looks}
    for record, look in looks:
        print(describe(record, look, states))
    if not records:
        print("No jobs were submitted in %s" % ' for '.join([install_path('software')] + easyconfigs))


def main(arguments):
    return with_prefix(arguments, show_jobs)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
