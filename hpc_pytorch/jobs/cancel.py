"""``--job-cancel``: cancel the jobs that were submitted for a prefix, or for the easyconfigs that are named."""
from hpc_pytorch.jobs.status import jobs_of, state_of, with_prefix
from hpc_pytorch.machine.batch_systems import ALIVE, NoAnswer, Refused, SCHEDULERS, UNKNOWN


def cancel_jobs(easyconfigs):
    """Cancel what waits or runs, the last first; returns the exit status."""
    failed = found = False
    for record in reversed(jobs_of(easyconfigs)):
        look = state_of(record)
        result = None
        if look.state == UNKNOWN:
            result = "not cancelled: %s" % (look.about or look.word)
        elif look.state in ALIVE:
            found, result = True, "cancelled"
            try:
                SCHEDULERS[record['scheduler']].cancel([record['job']])
            except (NoAnswer, Refused) as problem:
                result = "not cancelled: %s" % problem
        if result:
            print("%s  job %s  %s" % (record['module'], record['job'] or '?', result))
            failed = failed or result != "cancelled"
    if not found and not failed:
        print("No job is waiting or running")
    return int(failed)


def main(arguments):
    return with_prefix(arguments, cancel_jobs)
