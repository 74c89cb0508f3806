"""
``eb --job`` for systems that are described in ``systems/``. The two backends (job_backends/) are EasyBuild's; what they
share is here.
"""
import fcntl
import os
import re
import shlex
import sys
import time

from easybuild.framework.easyconfig.easyconfig import process_easyconfig
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import build_option, build_path, source_paths
from easybuild.tools.modules import modules_tool

from hpc_pytorch import HERE, UsersProblem
from hpc_pytorch.jobs.records import (directory, files_of, mark_of, new_record, read_record, record_path, remove_record,
                                      write_record, write_script)
from hpc_pytorch.jobs.requests import request_for
from hpc_pytorch.jobs.status import program, state_of
from hpc_pytorch.machine.batch_systems import ALIVE, DONE, NoAnswer, Refused, UNKNOWN, Uncertain, why_refused
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


def quoted(command):
    """
    EasyBuild's command for a job, as a shell has to read it: EasyBuild quotes neither its directory nor that of the
    easyconfig or the output, and puts values of options between apostrophes even if they have some (5.4.1,
    parallelbuild.py and generaloption.py).
    """
    here, eb = 'cd %s && ' % os.getcwd(), build_option('job_eb_cmd') + ' '
    before, here, after = command.partition(here)
    start, eb, rest = after.partition(eb)
    if not here or not eb:
        return command
    ends = [found.end() for found in re.finditer(r'\.eb(?= )', rest) if os.path.isfile(rest[:found.end()])]
    if ends:
        rest = shlex.quote(rest[:ends[0]]) + rest[ends[0]:]
    rest, option, output = rest.rpartition('--testoutput=')
    rest = re.sub(r"(?<= )(--[\w-]+=)'(.*?)'(?= +(?:--|$))",
                  lambda word: word.group(1) + shlex.quote(word.group(2)), rest)
    return ''.join([before, 'cd ', shlex.quote(os.getcwd()), ' && ', start, eb, rest, option, shlex.quote(output)])


class SystemJobs(object):
    """
    A JobBackend's methods for a system that is described in systems/. Nothing is submitted before all sources are
    there, and all jobs or none are. No job is held in the meantime: a submission that is killed leaves the first jobs
    of a chain, which run, and the next call submits the rest.
    """

    scheduler = None

    def init(self):
        """Refuse what cannot be submitted, before hours of fetching."""
        self.jobs, self.submitted = [], []
        try:
            self.system = current(next((word for word in sys.argv if word.endswith('.eb')), ''))
        except UsersProblem as problem:
            raise EasyBuildError(str(problem))
        kind = self.system.scheduler['kind']
        if kind != self.scheduler.kind:
            raise EasyBuildError("--job-backend=%s is for %s, and %s has %s. Leave it out: easybuild.cfg has it",
                                 type(self).__name__, self.scheduler.kind, self.system.system['title'], kind)
        # what is wrong with the command line is said now
        request_for(self.system, self.scheduler, OTHERS)
        self.check_directories()
        self.take_turn()

    def take_turn(self):
        """Allow one submission at a time: two would submit the same."""
        path = os.path.join(directory(), '.lock')
        try:
            os.makedirs(directory(), exist_ok=True)
            self.lock = open(path, 'a')
        except OSError as error:
            raise EasyBuildError("%s cannot be written to (%s). To share a prefix, everybody adds: --umask=002 "
                                 "--set-gid-bit; or choose your own with --prefix", error.filename, error.strerror)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        except OSError as error:
            self.log.warning("%s cannot be locked: %s", path, error)

    def log_directory(self):
        return os.path.abspath(build_option('job_output_dir') or '')

    def check_directories(self):
        """Refuse what a job would not find on its node."""
        needed = [('working directory', os.getcwd(), 'cd'), ('prefix', directory(), '--prefix='),
                  ('log directory', self.log_directory(), '--job-output-dir='),
                  ('build directory', build_path(), '--buildpath='),
                  ('source directory', source_paths()[0], '--sourcepath='), ('collection', HERE, 'git clone')]
        if os.environ.get('HPC_PYTORCH_REHEARSAL'):
            # here the nodes are this machine
            needed = [entry for entry in needed if not os.path.exists(entry[1])]
        for what, path, remedy in needed:
            for top in self.system.node['not_mounted']:
                if (os.path.realpath(path) + '/').startswith(top.rstrip('/') + '/'):
                    raise EasyBuildError(
                        "Compute nodes of %s do not have %s, and the %s lies in it: %s. Nothing was submitted; choose "
                        "a directory that they have (%s ...).", self.system.system['title'], top, what, path, remedy)

    def make_job(self, script, name, env_vars=None, hours=None, cores=None):
        """A job that is not submitted yet."""
        return Job(name, quoted(script), hours)

    def queue(self, job, dependencies=frozenset()):
        """Remember it; all sources are fetched before the first is submitted."""
        job.after = list(dependencies)
        self.jobs.append(job)

    def complete(self):
        job = None
        try:
            for job in self.jobs:
                job.already = self.submitted_before(job)
            self.say_cost([job for job in self.jobs if not job.already])
            for job in self.jobs:
                if not job.already:
                    self.submit(job)
        except Refused as problem:
            self.take_back()
            raise EasyBuildError("%s was refused, so no job was submitted: %s\n%s", job.name, problem,
                                 why_refused(str(problem), self.system.scheduler['account_variable']))
        except Uncertain as problem:
            raise EasyBuildError("Nobody knows whether %s is in the queue: %s\nNothing more was submitted, and nothing "
                                 "was taken back%s. Type the same again: it finds what is in the queue.",
                                 job.name, problem, ''.join(
                                     ', %s is job %s' % (other.name, other.jobid) for other in self.submitted))
        except NoAnswer as problem:
            raise EasyBuildError("The batch system does not answer about %s: %s. Nothing was submitted for it; try "
                                 "again.", job.name, problem)
        except OSError as problem:
            self.take_back()
            raise EasyBuildError("%s cannot be written (%s), so no job was submitted. Make room, and type the same "
                                 "again", problem.filename or directory(), problem.strerror)
        except BaseException:
            self.take_back()
            raise
        self.lock.close()
        for job in self.jobs:
            if job.jobid:
                print_msg("%s is job %s%s%s", job.module, job.jobid, " already" if job.already else "",
                          ", after %s" % ', '.join(job.ids_before()) if job.ids_before() else "", log=self.log)
            else:
                print_msg("%s is installed by now", job.module, log=self.log)
        print_msg("To see their state: %s", program('status'), log=self.log)

    def request(self, job):
        return request_for(self.system, self.scheduler, needs_of(job.easyconfig()), job.hours)

    def say_cost(self, jobs):
        cores = float(self.system.node['cores'] or 1)
        hours = sum(request.minutes * (1 if request.exclusive else request.cores / cores)
                    for request in map(self.request, jobs)) / 60.0
        if jobs:
            print_msg("%d job(s), which cost at most %.1f node hours", len(jobs), hours, log=self.log)

    def submitted_before(self, job):
        """
        Whether a job for the same is waiting or running, whose id is this job's from now on; or has just ended well,
        after it was found out what is missing.
        """
        wanted_again = build_option('force') or build_option('rebuild')
        record = read_record(record_path(job.name))
        look = state_of(record) if record and record['job'] else None
        if look and look.state == UNKNOWN:
            raise EasyBuildError("%s was submitted before as job %s, and nobody knows whether that has ended: %s. "
                                 "Nothing was submitted; try again. If you know that it has ended, remove %s",
                                 job.name, record['job'], look.about or look.word, record_path(job.name))
        living = [(record['job'], record['token'])] if look and look.state in ALIVE else [
            (number, mark.rpartition('_')[2]) for number, mark in self.scheduler.find(job.name, mark_of(job.name))]
        if living and wanted_again:
            self.end(job, [number for number, _ in living])
        elif living:
            self.adopt(job, record, living)
            return True
        return bool(look and look.state == DONE and not wanted_again and modules_tool().exist([job.module])[0])

    def end(self, job, numbers):
        """Cancel jobs, and wait until nothing of them runs."""
        try:
            self.scheduler.cancel(numbers)
        except Refused as problem:
            raise EasyBuildError("%s is not built again, and nothing was submitted: job %s is somebody else's (%s). "
                                 "They can cancel it: --job-cancel", job.name, ' '.join(numbers), problem)
        print_msg("%s is built again, as --force or --rebuild say: job %s is cancelled", job.module,
                  ' '.join(numbers), log=self.log)
        for number in numbers:
            self.scheduler.wait_for_end(number)

    def adopt(self, job, record, living):
        """
        A living job becomes this job's: the one that its record says, or the latest that somebody submitted without
        living long enough to note it. Others do nothing, as the record is not theirs.
        """
        noted = [entry for entry in living if record and entry[1] == record['token']]
        job.jobid, token = noted[-1] if noted else living[-1]
        if noted and record['job'] == job.jobid:
            return
        if not noted:
            record = dict(new_record(job.name, **self.facts(job, [])), token=token)
        record.update(job=job.jobid, log=record['log'].replace('{job}', job.jobid))
        write_record(record)

    def facts(self, job, after):
        """What is noted of a job, and what its script is made from."""
        request = self.request(job)
        return {'module': job.module, 'scheduler': self.scheduler.kind, 'after': after,
                'easyconfig': job.easyconfig().path,
                'log': os.path.join(self.log_directory(), job.name + '-{job}.out'),
                'memory': request.memory, 'minutes': request.minutes, 'cores': request.cores,
                'submitted': time.strftime('%Y-%m-%d %H:%M:%S')}

    def submit(self, job):
        """Submit one job. Its record is written before, so that a killed submission leaves what to look for."""
        after = job.ids_before()
        request = self.request(job)
        old = read_record(record_path(job.name))
        if old:
            remove_record(old)
        record = new_record(job.name, **self.facts(job, after))
        opens_log = self.scheduler.opens_log
        mark = '%s_%s' % (mark_of(job.name), record['token'])
        command = self.scheduler.command(request, job.name, mark, record['log'] if opens_log
                                         else files_of(record) + '.out', after)
        try:
            script = write_script(record, job.command, '' if opens_log else record['log'])
            start = None if after else self.scheduler.expected_start(command, script)
            if start:
                print_msg("%s would start at %s", job.module, start, log=self.log)
            write_record(record)
            job.jobid = self.scheduler.submit(command, script)
        except (Refused, OSError):
            remove_record(record)
            raise
        except Uncertain as problem:
            job.jobid = self.found(job.name, mark)
            if job.jobid is None:
                raise problem
        self.submitted.append(job)
        write_record(dict(record, job=job.jobid, log=record['log'].replace('{job}', job.jobid)))

    def found(self, name, mark):
        """The id of a job that was submitted without an answer, None if it is not in the queue, or nobody knows."""
        try:
            living = self.scheduler.find(name, mark)
        except NoAnswer:
            living = []
        return living[0][0] if living else None

    def take_back(self):
        """All jobs or none."""
        if self.submitted:
            try:
                self.scheduler.cancel([job.jobid for job in self.submitted])
            except NoAnswer as problem:
                print_msg("these jobs could not be taken back: %s (%s)",
                          ' '.join(job.jobid for job in self.submitted), problem)
                return
            for job in self.submitted:
                remove_record(read_record(record_path(job.name)))
