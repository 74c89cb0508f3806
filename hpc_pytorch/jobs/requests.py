"""What a job asks for: from the system's file, from what the software needs, from the command line."""
import os
import re

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import build_option

from hpc_pytorch.machine.batch_systems import EXTRAS, Request, seconds_of
from hpc_pytorch.rules.resource_needs import fitted

# where a system.cfg has no default
DEFAULT_WALLTIME = '04:00:00'
# What --job-target-resource can say.
ASKABLE = ('account', 'partition', 'qos', 'walltime', 'memory', 'gpus') + EXTRAS
# What they have to look like, where the batch system would misunderstand something else.
FORMS = {
    'gpus': (r'\d+$', "a number"),
    'begin': (r'\d{4}-\d\d-\d\dT\d\d:\d\d$', "a time such as 2026-12-24T18:00"),
    'nice': (r'\d+$', "a number: the higher, the later the jobs start"),
    'mail': (r'\S+@\S+$', "an address"),
    'after': (r'\d[\w.:\[\]-]*$', "the id of a job, or several with colons between them"),
}


def said(text):
    """The words of --job-target-resource as a dict."""
    words = {}
    for part in filter(None, (text or '').split(',')):
        name, equals, value = part.partition('=')
        if name not in ASKABLE or not equals or not value:
            raise EasyBuildError("--job-target-resource: expected NAME=VALUE with names among %s, separated by commas, "
                                 "found %r", ', '.join(ASKABLE), part)
        form, expected = FORMS.get(name, ('', ''))
        if not re.match(form, value):
            raise EasyBuildError("--job-target-resource=%s: expected %s, found %r", name, expected, value)
        words[name] = value
    return words


def minutes_of(text, where):
    """Minutes of HOURS:MINUTES:SECONDS."""
    found = re.match(r'(\d+):([0-5]\d)(?::([0-5]\d))?$', text)
    if not found:
        raise EasyBuildError("%s: expected hours:minutes:seconds, such as 4:00:00, found %r", where, text)
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours * 60 + minutes + (1 if seconds else 0)


def memory_of(text):
    from ramgate.limits import Problem as BadSize, size
    try:
        return size(text)
    except BadSize as problem:
        raise EasyBuildError("--job-target-resource=memory: %s", problem)


def request_for(system, scheduler, needs, hours=None):
    settings, node = system.scheduler, system.node
    words = said(build_option('job_target_resource'))
    shared = settings['build_partition'] or not settings['nodes_exclusive']
    cores, memory, minutes = fitted(needs, node)
    if not shared:
        # nobody else gets what is left of the node
        cores = system.usable_cores or cores
        memory, needs = None, needs._replace(gpus=node['gpus'] or 0)
    minutes = max(minutes or minutes_of(settings['walltime'] or DEFAULT_WALLTIME, 'walltime'), 60 * (hours or 0))
    if 'walltime' in words:
        minutes = minutes_of(words['walltime'], '--job-target-resource=walltime')
    environment = {name: None if name in words else os.environ.get(variable)
                   for name, variable in scheduler.variables.items()}
    if environment.get('walltime'):
        seconds = seconds_of(environment['walltime'])
        if seconds is None:
            raise EasyBuildError("$SBATCH_TIMELIMIT: expected a time as sbatch takes it, such as 4:00:00, found %r",
                                 environment['walltime'])
        minutes = -(-seconds // 60) or 1
    minutes = min(minutes, 60 * build_option('job_max_walltime'))
    cores = build_option('job_cores') or cores
    memory = memory_of(words['memory']) if 'memory' in words else memory
    gpus = int(words.get('gpus', needs.gpus))
    if not (words.get('partition') or environment.get('partition')):
        # Slurm takes a job that no node fits while others wait, and never starts it
        check_fits('--job-cores', cores, (node['cores'] or 0) * (node['threads_per_core'] or 1), system)
        check_fits('--job-target-resource=memory', memory, node['memory'], system)
        check_fits('--job-target-resource=gpus', gpus, node['gpus'], system)
    return Request(
        account=account(system, words),
        partition=words.get('partition') or environment.get('partition') or settings['build_partition']
        or settings['partition'],
        qos=words.get('qos') or environment.get('qos') or (None if settings['build_partition'] else settings['qos']),
        cores=cores, memory=memory, minutes=minutes, gpus=gpus, gpus_option=settings['gpus_option'],
        exclusive=not shared, extra={name: words[name] for name in EXTRAS if name in words},
        options=settings['options'])


def check_fits(option, asked, most, system):
    """Refuse what no node has; other partitions may have other nodes."""
    if asked and most and asked > most:
        raise EasyBuildError("%s: %d is more than the %d that a node of %s has. Nothing was submitted; ask for less, "
                             "or name a partition with larger nodes", option, asked, most,
                             system.system['title'])


def account(system, words):
    """The project that pays; asked for by name before anything is submitted."""
    variable = system.scheduler['account_variable']
    found = words.get('account') or (os.environ.get(variable) if variable else None)
    if variable and not found:
        raise EasyBuildError("Jobs on %s need a project that pays, and none is set, so nothing was submitted. Type: "
                             "export %s=PROJECT   or add: --job-target-resource=account=PROJECT",
                             system.system['title'], variable)
    return found
