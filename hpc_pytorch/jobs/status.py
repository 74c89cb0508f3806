"""
``--job-status``: how the jobs are that were submitted for a prefix, what went wrong, and what to do.

Python 3.6.
"""
import glob
import os
import re
import shutil
import sys

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import install_path

from hpc_pytorch.jobs.records import directory, first_line, read_record, record_path
from hpc_pytorch.machine.batch_systems import CANCELLED, DONE, FAILED, MIB, RUNNING, SCHEDULERS, WAITING, Look, NoAnswer
from hpc_pytorch.packages import known_errors

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


def status_command():
    """What to type to see the jobs."""
    eb = os.environ.get('HPC_PYTORCH_COMMAND')
    return '%s --job-status' % eb if eb else 'python3 -m hpc_pytorch.jobs.status'


def state_of(record):
    """(state, the batch system's word, more) of a job; what its own files say where it has been forgotten."""
    try:
        look = SCHEDULERS[record['scheduler']].look(record['job'])
    except NoAnswer as problem:
        return Look('unknown', '', str(problem))
    ended = first_line(record_path(record['name']) + '.ended')
    if look is None and ended is not None:
        state = DONE if ended == '0' else FAILED
        return Look(state, 'exit status %s' % ended, '')
    return look or Look(FAILED, 'forgotten', "the batch system does not know it any more, and it did not end by "
                                             "itself: killed, or deleted")


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
    asked = {'memory': '%d MiB' % (record['memory'] / MIB) if record.get('memory') else 'the whole node',
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
    if look.state == RUNNING:
        lines += step_of(record)
    elif look.state == FAILED:
        lines += why_failed(record, look).splitlines()
    elif look.state == CANCELLED:
        failed = [states[job][0] for job in record['after'] if job in states
                  and states[job][1].state in (FAILED, CANCELLED)]
        lines += ["because %s is not there; submit again when it is" % ', '.join(failed) if failed else
                  "somebody deleted it"]
    if look.state not in (WAITING, DONE):
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
    """``./eb --job-status``, or ``python3 -m hpc_pytorch.jobs.status``, with EasyBuild's options for the prefix."""
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
