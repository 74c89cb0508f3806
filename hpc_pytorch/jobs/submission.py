"""
``eb --job`` for systems that are described in ``systems/``. The two backends (job_backends/) are EasyBuild's; what they
share is here.

Python 3.6.
"""
import atexit
import fcntl
import os
import shlex
import sys
import time

from easybuild.framework.easyconfig.easyconfig import process_easyconfig
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import build_option
from easybuild.tools.modules import modules_tool

from hpc_pytorch import UsersProblem
from hpc_pytorch.jobs.records import directory, read_record, record_path, write_record, write_script
from hpc_pytorch.jobs.requests import request_for
from hpc_pytorch.jobs.status import status_command
from hpc_pytorch.machine.batch_systems import ALIVE, DONE, NoAnswer, Refused, why_refused
from hpc_pytorch.machine.systems import current
from hpc_pytorch.rules.resource_needs import OTHERS, needs_of


class Job(object):
    """One job, as EasyBuild's parallelbuild wants it; it sets `module` afterwards."""

    def __init__(self, name, command, hours):
        self.name, self.command, self.hours = name, command, hours
        self.module = self.jobid = self.after = None
        self.already = False

    def ids_before(self):
        """The jobs that have to end well first."""
        return [job.jobid for job in self.after if job.jobid]

    def easyconfig(self):
        """The easyconfig that the command names; parsed already."""
        path = next(word for word in shlex.split(self.command) if word.endswith('.eb'))
        return process_easyconfig(path)[0]['ec']


class SystemJobs(object):
    """
    A JobBackend's methods for a system that is described in systems/. Nothing is submitted before all sources are
    there, and all jobs or none are.
    """

    scheduler = None

    def init(self):
        """Refuse what cannot be submitted, before hours of fetching."""
        self.jobs, self.submitted = [], []
        try:
            self.system = current(next((word for word in sys.argv if word.endswith('.eb')), ''))
            os.makedirs(directory(), exist_ok=True)
            self.lock = open(os.path.join(directory(), '.lock'), 'w')
        except (UsersProblem, OSError) as problem:
            raise EasyBuildError(str(problem))
        kind = self.system.scheduler['kind']
        if kind != self.scheduler.kind:
            raise EasyBuildError("--job-backend=%s is for %s, and %s has: %s. Its own is in its easybuild.cfg",
                                 type(self).__name__, self.scheduler.kind, self.system.system['title'], kind)
        # what is wrong with the command line is said now
        request_for(self.system, self.scheduler, OTHERS)
        try:
            # one submission at a time, so that none submits what the other is just submitting
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        except OSError as error:
            self.log.warning("%s cannot be locked: %s", self.lock.name, error)

    def make_job(self, script, name, env_vars=None, hours=None, cores=None):
        """A job that is not submitted yet."""
        return Job(name, script, hours)

    def queue(self, job, dependencies=frozenset()):
        """Remember it; all sources are fetched before the first is submitted."""
        job.after = list(dependencies)
        self.jobs.append(job)

    def complete(self):
        """Submit all that are not submitted yet, and let them start."""
        atexit.register(self.take_back)
        for job in self.jobs:
            job.already = self.submitted_before(job)
        try:
            for job in self.jobs:
                if not job.already:
                    self.submit(job)
            # Slurm looks at what held jobs ask for only now
            if self.submitted:
                self.scheduler.release([job.jobid for job in self.submitted])
        except (Refused, NoAnswer) as problem:
            raise EasyBuildError("%s was refused, so no job was submitted: %s\n%s", job.name, problem,
                                 why_refused(str(problem), self.system.scheduler['account_variable']))
        self.submitted = []
        self.lock.close()
        for job in self.jobs:
            if job.jobid:
                print_msg("%s is job %s%s%s", job.module, job.jobid, " already" if job.already else "",
                          ", after %s" % ', '.join(job.ids_before()) if job.ids_before() else "", log=self.log)
            else:
                print_msg("%s is there by now", job.module, log=self.log)
        print_msg("To see how they are: %s", status_command(), log=self.log)

    def submitted_before(self, job):
        """
        Whether a job for the same is waiting or running, whose id is this job's from now on; or has just ended well,
        after it was found out what is missing.
        """
        record = read_record(record_path(job.name) + '.json')
        if record is None:
            return False
        try:
            look = self.scheduler.look(record['job'])
        except NoAnswer as problem:
            raise EasyBuildError("%s was submitted before as job %s, and whether that is still there cannot be found "
                                 "out: %s. Nothing was submitted; try again.", job.name, record['job'], problem)
        if look is None or look.state not in ALIVE:
            wanted_again = build_option('force') or build_option('rebuild')
            return bool(look and look.state == DONE and not wanted_again
                        and modules_tool().exist([job.module])[0])
        job.jobid = record['job']
        return True

    def submit(self, job):
        """Submit one job, held."""
        ec = job.easyconfig()
        request = request_for(self.system, self.scheduler, needs_of(ec), job.hours)
        log = os.path.join(os.path.abspath(build_option('job_output_dir') or ''), job.name + '-{job}.out')
        opens_log = self.scheduler.opens_log
        script = write_script(job.name, job.command, '' if opens_log else log)
        after = job.ids_before()
        job.jobid = self.scheduler.submit(self.scheduler.command(
            request, job.name, log if opens_log else record_path(job.name) + '.out', after), script)
        self.submitted.append(job)
        for old in ('.ended', '.progress', '.out'):
            if os.path.exists(record_path(job.name) + old):
                os.remove(record_path(job.name) + old)
        write_record({'job': job.jobid, 'name': job.name, 'module': job.module, 'scheduler': self.scheduler.kind,
                      'easyconfig': ec.path, 'log': log.replace('{job}', job.jobid), 'after': after,
                      'submitted': time.strftime('%Y-%m-%d %H:%M:%S'), 'memory': request.memory,
                      'minutes': request.minutes, 'cores': request.cores})

    def take_back(self):
        """Nothing stays in the queue that nobody is going to release."""
        if self.submitted:
            try:
                self.scheduler.cancel([job.jobid for job in self.submitted])
            except NoAnswer as problem:
                print_msg("these jobs could not be taken back: %s (%s)",
                          ' '.join(job.jobid for job in self.submitted), problem)
            for job in self.submitted:
                if os.path.exists(record_path(job.name) + '.json'):
                    os.remove(record_path(job.name) + '.json')
