"""``--job-cancel``: cancel the jobs that were submitted for a prefix, or for the easyconfigs that are named."""
from hpc_pytorch.jobs.status import jobs_of, run, state_of
from hpc_pytorch.machine.batch_systems import ALIVE, NoAnswer, Refused, SCHEDULERS, UNKNOWN


def cancel_jobs(easyconfigs):
    """Cancel what waits or runs, the last first; what cannot be asked is left alone."""
    status, found = 0, False
    for record in reversed(jobs_of(easyconfigs)):
        look = state_of(record)
        name = "%s  job %s" % (record['module'], record['job'] or '?')
        if look.state == UNKNOWN:
            print("%s  not cancelled: %s" % (name, look.about or look.word))
            status = 1
        elif look.state in ALIVE:
            found = True
            try:
                SCHEDULERS[record['scheduler']].cancel([record['job']])
                print("%s  cancelled" % name)
            except (NoAnswer, Refused) as problem:
                print("%s  not cancelled: %s" % (name, problem))
                status = 1
    if not found and not status:
        print("No job waits or runs")
    return status


def main(arguments):
    return run(arguments, cancel_jobs)
