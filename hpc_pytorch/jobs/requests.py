"""What a job asks for: from the system's file, from what the software needs, from the command line."""
import os
import re

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import build_option

from hpc_pytorch.machine.batch_systems import Request
from hpc_pytorch.rules.resource_needs import fitted
from ramgate.limits import Problem, size

# where a system.cfg has no default
DEFAULT_WALLTIME = '04:00:00'
# what --job-target-resource can name
RESOURCES = ('account', 'partition', 'qos', 'walltime', 'memory', 'gpus')


def parse_target_resource(text):
    """Return --job-target-resource as a dict."""
    found = {}
    for part in filter(None, (text or '').split(',')):
        name, _, value = part.partition('=')
        if name not in RESOURCES or not value:
            raise EasyBuildError("--job-target-resource: expected NAME=VALUE with names among %s, separated by commas, "
                                 "found %r", ', '.join(RESOURCES), part)
        if name == 'gpus' and not value.isdigit():
            raise EasyBuildError("--job-target-resource=gpus: expected a number, found %r", value)
        found[name] = value
    return found


def minutes_of(text, where):
    """Return the minutes of HOURS:MINUTES:SECONDS."""
    found = re.match(r'(\d+):([0-5]\d)(?::([0-5]\d))?$', text)
    if not found:
        raise EasyBuildError("%s: expected hours:minutes:seconds, such as 4:00:00, found %r", where, text)
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours * 60 + minutes + (1 if seconds else 0)


def request_for(system, needs, hours=None):
    """Combine the command line, the software's needs (`hours`: of its easyconfig) and the system's defaults."""
    settings, node = system.scheduler, system.node
    asked = parse_target_resource(build_option('job_target_resource'))
    cores, memory, minutes = fitted(needs, node)
    gpus = 0
    exclusive = settings['nodes_exclusive'] and not settings['build_partition']
    if exclusive:
        # nobody else gets what is left of the node
        cores, memory, gpus = system.usable_cores or cores, None, node['gpus'] or 0
    cores = build_option('job_cores') or cores
    gpus = int(asked.get('gpus', gpus))
    if 'memory' in asked:
        try:
            memory = size(asked['memory'])
        except Problem as problem:
            raise EasyBuildError("--job-target-resource=memory: %s", problem)
    minutes = max(minutes or minutes_of(settings['walltime'] or DEFAULT_WALLTIME, 'walltime'), 60 * (hours or 0))
    if 'walltime' in asked:
        minutes = minutes_of(asked['walltime'], '--job-target-resource=walltime')
    # Slurm takes a job that no node fits while others wait, and never starts it; other partitions have other nodes
    for option, amount, most in (
            ('--job-cores', cores, (node['cores'] or 0) * (node['threads_per_core'] or 1)),
            ('--job-target-resource=memory (MiB)', (memory or 0) >> 20, (node['memory'] or 0) >> 20),
            ('--job-target-resource=gpus', gpus, node['gpus'])):
        if 'partition' not in asked and amount and most and amount > most:
            raise EasyBuildError("%s: %d is more than the %d that a node of %s has. Nothing was submitted; ask for "
                                 "less, or name a partition with larger nodes", option, amount, most,
                                 system.system['title'])
    return Request(
        account=account(system, asked),
        partition=asked.get('partition') or settings['build_partition'] or settings['partition'],
        qos=asked.get('qos') or (None if settings['build_partition'] else settings['qos']),
        cores=cores, memory=memory, minutes=min(minutes, 60 * build_option('job_max_walltime')),
        gpus=gpus, gpus_option=settings['gpus_option'], exclusive=exclusive,
        options=settings['options'], refused=settings['refused_options'])


def account(system, asked):
    """Return the user's project; stop before anything is submitted if there is none."""
    variable = system.scheduler['account_variable']
    found = asked.get('account') or os.environ.get(variable or '')
    if variable and not found:
        raise EasyBuildError("No project account is set; jobs on %s need one, so nothing was submitted. Type: "
                             "export %s=PROJECT   or add: --job-target-resource=account=PROJECT",
                             system.system['title'], variable)
    return found
