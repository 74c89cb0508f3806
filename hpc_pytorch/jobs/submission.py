"""``eb --job`` for systems that are described in ``systems/``: what the two backends (job_backends/) share."""
import contextlib
import fcntl
import os
import shlex
import signal
import sys

from easybuild.framework.easyconfig.easyconfig import ActiveMNS, process_easyconfig, robot_find_easyconfig
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import build_option, build_path, install_path, source_paths
from easybuild.tools.module_naming_scheme.utilities import det_full_ec_version
from easybuild.tools.modules import modules_tool

from hpc_pytorch import HERE, UsersProblem
from hpc_pytorch.jobs.records import (directory, files_of, mark_of, new_record, read_record, read_records, record_path,
                                      remove_record, write_record, write_script)
from hpc_pytorch.jobs.requests import request_for
from hpc_pytorch.jobs.status import STATES, state_of, status_command
from hpc_pytorch.machine.batch_systems import ALIVE, DONE, NoAnswer, Refused, UNKNOWN, Uncertain
from hpc_pytorch.machine.systems import current
from hpc_pytorch.packages.easybuild_errors import as_easybuild_error
from hpc_pytorch.packages.module_names import name_to_load
from hpc_pytorch.rules.installation_locks import check_owner
from hpc_pytorch.rules.resource_needs import OTHERS, needs_of
from hpc_pytorch.rules.usage_hints import show
from hpc_pytorch.share.batch_scripts import first_that_fits, missing_on_nodes


class Job:
    """One job, as EasyBuild's parallelbuild wants it; it sets `module` afterwards."""

    def __init__(self, name, command, hours):
        self.name = name
        self.command = command
        self.hours = hours
        self.module = None
        self.jobid = None
        self.after = []
        self.below = set(modules_below(self.easyconfig()))

    def ids_before(self):
        found = [job.jobid for job in self.after if job.jobid]
        # those of an earlier call, such as another entry of an easystack, that build anew what is there
        needed = self.below.difference(*(job.below | {job.module} for job in self.after))
        return found + [record['job'] for record in read_records()
                        if record['module'] in map(name_to_load, needed) and state_of(record).state in ALIVE]

    def describe(self, already):
        if not self.jobid:
            return "is installed by now"
        before = self.ids_before()
        after = ", after %s" % ', '.join(before) if before else ""
        return "is job %s%s%s" % (self.jobid, " already" if already else "", after)

    def easyconfig(self):
        path = next(word for word in shlex.split(self.command) if word.endswith('.eb'))
        if shlex.quote(path) != path or not os.path.exists(path):
            raise EasyBuildError("Jobs need easyconfigs whose path has only ASCII letters, digits and @+=:,./-_, found "
                                 "%s. Nothing was submitted; rename its directory", path)
        return process_easyconfig(path)[0]['ec']


def modules_below(ec):
    """Yield the modules that an easyconfig depends on, itself or through others."""
    for dependency in ec.all_dependencies:
        if not dependency['external_module']:
            yield ActiveMNS().det_full_module_name(dependency)
            path = robot_find_easyconfig(dependency['name'], det_full_ec_version(dependency))
            yield from modules_below(process_easyconfig(path)[0]['ec']) if path else ()


class SystemJobs:
    """A JobBackend's methods: nothing is submitted before all sources are there, and all jobs or none are."""
    # none is held meanwhile: a submission that is killed leaves the first of a chain, and the next call adds the rest

    scheduler = None

    def init(self):
        """Refuse what cannot be submitted, or is wrong on the command line, before hours of fetching."""
        self.jobs = []
        self.submitted = []
        easyconfig = next((word for word in sys.argv if word.endswith('.eb')), '')
        with as_easybuild_error():
            self.system = current(easyconfig)
        kind = self.system.scheduler['kind']
        if kind != self.scheduler.kind:
            raise EasyBuildError("--job-backend=%s is for %s, and %s has %s. Remove it: easybuild.cfg sets it",
                                 type(self).__name__, self.scheduler.kind, self.system.system['title'], kind)
        if build_option('extended_dry_run'):
            raise EasyBuildError("With -x nothing is submitted. -D lists the modules; -x without --job shows the steps")
        if build_option('stop'):
            raise EasyBuildError("With --fetch or --stop nothing is installed, so nothing is submitted. Leave it out: "
                                 "--job fetches all files itself before it submits")
        request_for(self.system, OTHERS)
        try:
            self.scheduler.find('any', 'any')
        except NoAnswer as problem:
            raise EasyBuildError("%s: is this a host of the cluster?", problem)
        self.check_directories()
        self.take_lock()

    def take_lock(self):
        """Allow one submission at a time, where the file system has locks: two would submit the same."""
        try:
            os.makedirs(directory(), exist_ok=True)
            self.lock = open(os.path.join(directory(), '.lock'), 'a')
        except OSError as error:
            raise EasyBuildError("%s cannot be written to (%s). To share a prefix, everybody adds: --umask=002 "
                                 "--set-gid-bit; or choose your own with --prefix", error.filename, error.strerror)
        with contextlib.suppress(OSError):
            fcntl.flock(self.lock, fcntl.LOCK_EX)

    def log_directory(self):
        return os.path.abspath(build_option('job_output_dir') or '')

    def check_directories(self):
        """Refuse what a job would not find on its node, or cannot write to."""
        needed = (
            ('working directory', os.getcwd(), 'cd'),
            ('prefix', directory(), '--prefix='),
            ('log directory', self.log_directory(), '--job-output-dir='),
            ('build directory', build_path(), '--buildpath='),
            ('source directory', source_paths()[0], '--sourcepath='),
            ('collection', HERE, 'git clone'),
        )
        for what, path, remedy in needed:
            if shlex.quote(path) != path or '%' in path:
                # EasyBuild 5.4.1 quotes none of them in a job's command, which it formats
                raise EasyBuildError("Jobs need a %s whose name has only ASCII letters, digits and @+=:,./-_, found "
                                     "%s. Choose another (%s ...).", what, path, remedy)
            # in a rehearsal, the nodes are this machine
            if os.environ.get('HPC_PYTORCH_REHEARSAL') and os.path.exists(path):
                continue
            top = missing_on_nodes(path, self.system.node['not_mounted'])
            if top:
                raise EasyBuildError("Compute nodes of %s do not have %s, and the %s lies in it: %s. Nothing was "
                                     "submitted; choose a directory that they have (%s ...).",
                                     self.system.system['title'], top, what, path, remedy)
        # a job that cannot open its log ends at its start, after its time in the queue
        with contextlib.suppress(OSError):
            os.makedirs(self.log_directory(), exist_ok=True)
        if not os.access(self.log_directory(), os.W_OK):
            raise EasyBuildError("The logs of jobs cannot be written to %s, so nothing was submitted. Choose another "
                                 "directory: --job-output-dir=DIRECTORY", self.log_directory())

    def make_job(self, script, name, env_vars=None, hours=None, cores=None):
        if build_option('hidden'):
            # EasyBuild 5.4.1 hides all modules of a chain, and adds it once more for those that are to be hidden
            script = script.replace(' --hidden', '', 1)
        return Job(name, script, hours)

    def queue(self, job, dependencies=frozenset()):
        """Remember it; all sources are fetched before the first is submitted."""
        self.jobs.append(job)

    def complete(self):
        job, already = None, []
        # EasyBuild sorts them with --robot only
        self.jobs.sort(key=lambda job: len(job.below))
        for job in self.jobs:
            job.after = [other for other in self.jobs if other.module in job.below]
            job.after = [other for other in job.after if not any(other.module in third.below for third in job.after)]
        try:
            for job in self.jobs:
                if self.submitted_before(job):
                    already.append(job)
                else:
                    # the job would stop there, after its time in the queue
                    subdir = ActiveMNS().det_install_subdir(job.easyconfig())
                    check_owner(os.path.join(install_path('software'), subdir))
            for job in self.jobs:
                if job not in already:
                    self.submit(job)
        except Refused as problem:
            advice = first_that_fits(STATES, 'refused: ', str(problem))
            remedy = advice.get('remedy', "No advice is known for this message.")
            raise EasyBuildError("%s was refused: %s\n%s\n%s", job.name, problem, self.take_back(),
                                 remedy.format(partitions=self.scheduler.words['partitions']))
        except Uncertain as problem:
            others = [', %s is job %s' % (other.name, other.jobid) for other in self.submitted]
            raise EasyBuildError("Could not determine whether %s was queued: %s\nNo further jobs were submitted; none "
                                 "were cancelled%s. Type the same again: it finds what is in the queue.",
                                 job.name, problem, ''.join(others))
        except NoAnswer as problem:
            raise EasyBuildError("The batch system does not answer about %s: %s. Nothing was submitted for it; try "
                                 "again.", job.name, problem)
        except OSError as problem:
            raise EasyBuildError("%s cannot be written (%s); %s. Make room, and type the same again",
                                 problem.filename or directory(), problem.strerror, self.take_back())
        except BaseException:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            print_msg(self.take_back(), log=self.log)
            raise
        self.lock.close()
        if not self.jobs:
            show()
        for job in self.jobs:
            print_msg("%s %s", job.module, job.describe(job in already), log=self.log)
        # print_msg folds lines at 80 columns, and half of a command asks about another prefix
        print("== To see their status: %s" % status_command(), flush=True)

    def submitted_before(self, job):
        """True if a job for the same is alive, whose id this one takes over, or has just ended well."""
        # what is there for --robot alone is not built again, as EasyBuild does it
        for_others = job in [before for other in self.jobs for before in other.after]
        named = os.path.basename(job.easyconfig().path) in map(os.path.basename, sys.argv)
        again = (build_option('force') or build_option('rebuild')) and (named or not for_others)
        record = read_record(record_path(job.name))
        look = self.after_its_end(record['job'], state_of, record) if record and record['job'] else None
        if look and look.state == UNKNOWN:
            raise EasyBuildError("%s was submitted before as job %s, and its state could not be determined: %s. "
                                 "Nothing was submitted; try again. If you know that it has ended, remove %s",
                                 job.name, record['job'], look.about or look.word, record_path(job.name))
        living = [(record['job'], record['token'])] if look and look.state in ALIVE else []
        if not living:
            for number, mark in self.scheduler.find(job.name, mark_of(job.name)):
                found = self.after_its_end(number, self.scheduler.look, number)
                if not found or found.state in (*ALIVE, UNKNOWN):
                    living.append((number, mark.rpartition('_')[2]))
        if living and again:
            self.end(job, [number for number, _ in living])
        elif living:
            self.adopt(job, record, living)
            return True
        if not look or look.state != DONE or again or build_option('sanity_check_only'):
            return False
        return modules_tool().exist([job.module])[0]

    def after_its_end(self, number, ask, about):
        """Return how a job looks; of one that is ending, as after qdel, how it looks afterwards."""
        look = ask(about)
        if not look or look.word not in self.scheduler.words['ending'].split():
            return look
        print_msg("waiting for the end of job %s, which is ending", number, log=self.log)
        self.scheduler.wait_for_end(number)
        return ask(about)

    def end(self, job, numbers):
        cancelled = list(numbers)
        for record in read_records():
            if set(cancelled) & set(record['after']) and state_of(record).state in ALIVE:
                print_msg("%s, job %s, waits for it, and is to be cancelled, too", record['module'], record['job'],
                          log=self.log)
                cancelled.append(record['job'])
        try:
            self.scheduler.cancel(cancelled)
        except Refused as problem:
            raise EasyBuildError("%s is not built again, and nothing was submitted: job %s, or one that waits for it, "
                                 "is somebody else's (%s). They can cancel it", job.name, ' '.join(numbers), problem)
        print_msg("%s is built again, because of --force or --rebuild: cancelling job %s", job.module,
                  ' '.join(numbers), log=self.log)
        for number in cancelled:
            self.scheduler.wait_for_end(number)

    def adopt(self, job, record, living):
        """Take over a living job: its record's, or the latest of a submission that was killed before it noted it."""
        noted = [entry for entry in living if record and entry[1] == record['token']]
        job.jobid, token = noted[-1] if noted else living[-1]
        if noted and record['job'] == job.jobid:
            return
        if not noted:
            record = dict(self.make_record(job), token=token)
        self.note_submitted(record, job.jobid)

    def request(self, job):
        return request_for(self.system, needs_of(job.easyconfig()), job.hours)

    def make_record(self, job):
        request = self.request(job)
        return new_record(
            job.name,
            module=name_to_load(job.module),
            scheduler=self.scheduler.kind,
            after=job.ids_before(),
            easyconfig=job.easyconfig().path,
            log=os.path.join(self.log_directory(), job.name + '-{job}.out'),
            memory=request.memory,
            minutes=request.minutes,
        )

    def note_submitted(self, record, jobid):
        write_record(dict(record, job=jobid, log=record['log'].replace('{job}', jobid)))

    def submit(self, job):
        """Submit one job. Its record is written before, so that a killed submission leaves what to look for."""
        old = read_record(record_path(job.name))
        if old:
            remove_record(old)
        record = self.make_record(job)
        mark = '%s_%s' % (mark_of(job.name), record['token'])
        # where the batch system opens no log, the script writes it, and what the batch system has to say goes elsewhere
        log, own_log = record['log'], ''
        if not self.scheduler.opens_log:
            log, own_log = files_of(record) + '.out', log
        command = self.scheduler.command(self.request(job), job.name, mark, log, record['after'])
        try:
            script = write_script(record, job.command, own_log)
            write_record(record)
            job.jobid = self.scheduler.submit(command, script)
        except (Uncertain, KeyboardInterrupt) as problem:
            if isinstance(problem, KeyboardInterrupt):
                # a second one must not stop what cancels the jobs
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                living = self.scheduler.find(job.name, mark)
            except NoAnswer as unknown:
                raise Uncertain("%s; %s" % (problem, unknown))
            if not living:
                raise
            job.jobid = living[0][0]
            if isinstance(problem, KeyboardInterrupt):
                self.submitted.append(job)
                raise
        except (Refused, NoAnswer, OSError):
            remove_record(record)
            raise
        self.submitted.append(job)
        self.note_submitted(record, job.jobid)

    def take_back(self):
        """Cancel what was submitted, all jobs or none; returns what to say about it."""
        numbers = [job.jobid for job in self.submitted]
        try:
            if numbers:
                self.scheduler.cancel(numbers)
        except UsersProblem as problem:
            print_msg("could not cancel these jobs: %s (%s)", ' '.join(numbers), problem)
            return "these jobs stay in the queue: %s" % ' '.join(numbers)
        for job in self.submitted:
            remove_record(read_record(record_path(job.name)))
        return "no job was submitted"
