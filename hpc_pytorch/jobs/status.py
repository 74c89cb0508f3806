"""``--job-status``: how the jobs are that were submitted for a prefix, what went wrong, and what to do."""
import contextlib
import os
import re
import shlex
import shutil
import sys
import time
from pathlib import Path

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import install_path

from hpc_pytorch.jobs.records import files_of, first_line, mark_of, read_records, remove_record
from hpc_pytorch.machine.batch_systems import (ALIVE, CANCELLED, DONE, FAILED, MIB, RUNNING, SCHEDULERS, UNKNOWN,
                                               WAITING, Look, NoAnswer)
from hpc_pytorch.packages import known_errors

# what ended longer ago is not shown any more, and forgotten
KEPT_DAYS = 30
# seconds between two looks with --follow
INTERVAL = 30
# The batch system's word for how a job ended -> (cause, what to do).
ENDS = tuple((re.compile(pattern), cause, remedy) for pattern, cause, remedy in (
    (r'OUT_OF_MEMORY|exit status (-27|137)\b', "it used more memory than the job had ({memory}), and was killed",
     "submit again with more: --job-target-resource=memory=SIZE, or build with fewer cores: --job-cores=N"),
    (r'TIMEOUT|DEADLINE|exit status -29\b', "it took longer than the job had time for ({walltime})",
     "submit again with more: --job-target-resource=walltime=HOURS:00:00"),
    (r'NODE_FAIL|BOOT_FAIL|exit status -3\b', "the node failed", "submit again"),
    (r'JobLaunchFailure|RaisedSignal:53|launch failed', "the job could not be started: most often its log, its working "
     "directory or the prefix is not there on the compute node",
     "choose --prefix and --job-output-dir below a directory that compute nodes have, and submit from there"),
    (r'PREEMPTED', "another job was more important", "submit again"),
    (r'exit status (271|143)\b', "it was ended from outside: its time was up ({walltime}), or somebody deleted it",
     "submit again, with more time if that was it: --job-target-resource=walltime=HOURS:00:00"),
))


# The batch system's word for why a job waits -> what it means, and what to do (squeue(1), "job reason codes"; PBS's
# comment).
REASONS = tuple((re.compile(pattern), text) for pattern, text in (
    (r'PartitionTimeLimit|PartitionNodeLimit|QOSMax\w*Wall|AssocMaxWall|\bTimeLimit',
     "it asks for more than the partition or QOS allows and never starts: cancel it (--job-cancel) and submit again "
     "with --job-target-resource=walltime=HOURS:00:00 or partition=NAME"),
    (r'AssocGrp|AssocMax|QOSGrp|QOSMax|QOSUsage', "the project has reached its limit of jobs, or used up its hours: it "
     "starts when that changes; another project: --job-target-resource=account=PROJECT"),
    (r'DependencyNeverSatisfied', "a job that it needs has failed: it never starts; submit again"),
    (r'Dependency', "it starts when the jobs before it have ended well"),
    (r'ReqNodeNotAvail|Reservation|DRAINED', "the nodes are reserved or down, most often for maintenance: it "
     "starts after that, or before with less time: --job-target-resource=walltime=HOURS:00:00"),
    (r'JobHeld', "it is held: scontrol release {job}"),
    (r'BadConstraints|PartitionConfig|Invalid|Can Never Run', "no node fits what it asks for, or it may not ask for "
     "that: cancel it (--job-cancel) and submit again with another --job-target-resource"),
    (r'launch failed|JobHoldMaxRequeue', "it could not be started several times, see its log"),
    (r'BeginTime', "it starts at the time that was asked for, or a while after its node failed"),
    (r'PartitionDown|PartitionInactive|NodeDown', "the partition is closed: it starts when it is open again"),
))


def program(word):
    """What to type to see the jobs, or cancel them, of this prefix; with what the user said that it depends on."""
    eb = os.environ.get('HPC_PYTORCH_COMMAND')
    command = '%s --job-%s' % (eb, word) if eb else 'python3 -m hpc_pytorch.jobs.%s' % word
    where = ('--prefix', '--installpath', '--subdir-software', '--configfiles')
    if any(argument.startswith(where) for argument in sys.argv):
        top, name = os.path.split(install_path('software'))
        command += ' --installpath=%s' % shlex.quote(top)
        command += ' --subdir-software=%s' % shlex.quote(name) if name != 'software' else ''
    return command


def state_of(record):
    """(state, the batch system's word, more) of a job; what its own files say where it has been forgotten."""
    scheduler = SCHEDULERS[record['scheduler']]
    ended = first_line(files_of(record) + '.ended')
    age = time.time() - record['time']
    try:
        if record['job'] is None:
            found = scheduler.find(record['name'], '%s_%s' % (mark_of(record['name']), record['token']))
            record['job'] = found[0][0] if found else None
        look = scheduler.look(record['job']) if record['job'] else None
    except NoAnswer as problem:
        return Look(UNKNOWN, '', str(problem))
    if look is None and ended is not None:
        return Look(DONE if ended == '0' else FAILED, 'exit status %s' % ended, '')
    if look is None and record['job'] is None:
        return Look(UNKNOWN, '', "the submission was interrupted: submit again")
    if look is None and age < scheduler.forgets_after:
        return Look(UNKNOWN, '', "the batch system does not know it, or not yet")
    return look or Look(FAILED, 'forgotten', "the batch system does not know it any more, and it did not end by "
                                             "itself: killed, or deleted")


def log_tail(record, lines=400):
    """The end of a job's log, and what the batch system said besides."""
    found = []
    for path in (record['log'], files_of(record) + '.out'):
        with contextlib.suppress(OSError):
            text = Path(path).read_text(errors='replace')
            found += [line.rstrip() for line in text.splitlines()[-lines:] if line.strip()]
    return found


def step_of(record):
    """The step that a running job is in, and the last that was heard."""
    lines = log_tail(record)
    steps = [line for line in lines if line.startswith('== ')]
    last = first_line(files_of(record) + '.progress') or (lines[-1] if lines else None)
    if not steps:
        return [last or "nothing in its log yet"]
    return [steps[-1][3:]] + ([last.strip()] if last != steps[-1] else [])


def why_failed(record, look):
    asked = {'memory': '%d MiB' % (record['memory'] / MIB) if record.get('memory') else 'the whole node',
             'walltime': '%d:%02d h' % divmod(record.get('minutes') or 0, 60)}
    found = ["cause: %s\nwhat to do: %s" % (cause.format(**asked), remedy)
             for pattern, cause, remedy in ENDS if pattern.search('%s, %s' % (look.word, look.about))]
    lines = log_tail(record)
    errors = [line for line in lines if line.startswith(('ERROR', '=>> PBS', 'slurmstepd: error'))]
    explained = known_errors.explain('\n'.join(lines))
    return '\n'.join(found + [explained] * bool(explained) + (errors or lines)[-3:])


def describe(record, look, states):
    lines = ["%s  job %s  %s%s" % (record['module'], record['job'] or '?', look.state,
                                   ' (%s)' % ', '.join(filter(None, (look.word, look.about))))]
    if look.state == RUNNING:
        lines += step_of(record)
    elif look.state == WAITING:
        lines += [text.format(job=record['job']) for pattern, text in REASONS if pattern.search(look.about)][:1]
    elif look.state == FAILED:
        lines += why_failed(record, look).splitlines()
    elif look.state == CANCELLED:
        failed = [states[job][0] for job in record['after'] if job in states
                  and states[job][1].state in (FAILED, CANCELLED)]
        lines += ["because %s was not installed; submit again when it is" % ', '.join(failed) if failed else
                  "somebody deleted it"]
    if look.state not in (WAITING, DONE):
        lines.append("log: %s" % record['log'])
    return '\n    '.join(lines)


def jobs_of(easyconfigs):
    """The records for these easyconfigs and for the jobs before theirs, the oldest first; all if none is named."""
    records = read_records()
    names = {os.path.basename(path) for path in easyconfigs}
    wanted = {record['job'] for record in records if not names or os.path.basename(record['easyconfig']) in names}
    for record in reversed(records):
        if record['job'] in wanted:
            wanted.update(record['after'])
    return [record for record in records if record['job'] in wanted]


def show_jobs(easyconfigs):
    """All jobs for this prefix, the oldest first; whether any of them waits or runs."""
    records = jobs_of(easyconfigs)
    looks = [(record, state_of(record)) for record in records]
    states = {record['job']: (record['module'], look) for record, look in looks}
    for record, look in looks:
        if look.state not in ALIVE + (UNKNOWN,) and time.time() - record['time'] > KEPT_DAYS * 86400:
            remove_record(record)
        else:
            print(describe(record, look, states))
    if not records:
        print("No jobs were submitted for %s" % ' '.join(
            list(easyconfigs) + ["in " * bool(easyconfigs) + install_path('software')]))
    sys.stdout.flush()
    return any(look.state in ALIVE for _, look in looks)


def run(arguments, action):
    """Do something with the jobs of the easyconfigs among EasyBuild's arguments, with its options for the prefix."""
    from easybuild.tools.options import set_up_configuration
    easyconfigs = [word for word in arguments if word.endswith('.eb') and not word.startswith('-')]
    temporary = None
    try:
        temporary = set_up_configuration(args=[word for word in arguments if word not in easyconfigs],
                                         silent=True)[1][5]
        return action(easyconfigs)
    except EasyBuildError as error:
        print("ERROR: %s" % error.msg, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)


def main(arguments):
    follow = '--follow' in arguments

    def show(easyconfigs):
        while show_jobs(easyconfigs) and follow:
            time.sleep(INTERVAL)
            print(time.strftime('--- %H:%M:%S'))
        return 0
    return run([word for word in arguments if word != '--follow'], show)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
