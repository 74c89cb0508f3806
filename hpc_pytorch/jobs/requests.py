"""What a job asks for: from the system's file, from what the software needs, from the command line."""
import argparse
import os

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import build_option

from hpc_pytorch.machine.batch_systems import Request
from hpc_pytorch.rules.resource_needs import fitted
from hpc_pytorch.share.batch_scripts import minutes
from ramgate.limits import Problem, size

# what --job-target-resource can name, and what reads its value
RESOURCES = {
    'account': str,
    'partition': str,
    'qos': str,
    'walltime': minutes,
    'memory': size,
    'gpus': int,
}


def parse_target_resource(text):
    found = {}
    for part in filter(None, (text or '').split(',')):
        name, _, value = part.partition('=')
        if name not in RESOURCES or not value:
            raise EasyBuildError("--job-target-resource: expected NAME=VALUE with names among %s, separated by commas, "
                                 "found %r", ', '.join(RESOURCES), part)
        try:
            found[name] = RESOURCES[name](value)
        except (argparse.ArgumentTypeError, Problem) as problem:
            raise EasyBuildError("--job-target-resource=%s: %s", name, problem)
        except ValueError:
            raise EasyBuildError("--job-target-resource=%s: expected a number, found %r", name, value)
    return found


def request_for(system, needs, hours=None):
    """Combine the command line, the software's needs (`hours`: of its easyconfig) and the system's defaults."""
    settings = system.scheduler
    asked = parse_target_resource(build_option('job_target_resource'))
    cores, memory, needed = fitted(needs, system.node)
    gpus = 0
    exclusive = settings['nodes_exclusive'] and not settings['build_partition']
    if exclusive:
        # nobody else gets what is left of the node
        cores = system.usable_cores or cores
        memory = None
        gpus = system.node['gpus'] or 0
    usual = minutes(settings['walltime'] or '04:00:00')
    needed = max(needed or usual, 60 * (hours or 0))
    # what somebody has written down is not cut
    most = max(60 * build_option('job_max_walltime'), usual)
    request = Request(
        account=account(system, asked),
        partition=asked.get('partition') or settings['build_partition'] or settings['partition'],
        qos=asked.get('qos') or (None if settings['build_partition'] else settings['qos']),
        cores=build_option('job_cores') or cores,
        memory=asked.get('memory', memory),
        minutes=asked.get('walltime', min(needed, most)),
        gpus=asked.get('gpus', gpus),
        gpus_option=settings['gpus_option'],
        exclusive=exclusive,
        options=settings['options'],
        refused=settings['refused_options'],
    )
    if 'partition' not in asked:
        check_node(system, request)
    return request


def check_node(system, request):
    """Refuse what no node has: Slurm takes such a job while others wait, and never starts it."""
    node = system.node
    memory_there = node['memory'] and node['memory'] >> 20
    for option, amount, most in (
            ('--job-cores', request.cores, node['cores'] and node['cores'] * (node['threads_per_core'] or 1)),
            ('--job-target-resource=memory (MiB)', (request.memory or 0) >> 20, memory_there),
            ('--job-target-resource=gpus', request.gpus, node['gpus'])):
        if most is not None and amount > most:
            raise EasyBuildError("%s: %d is more than the %d that a node of %s has. Nothing was submitted; ask for "
                                 "less, or name a partition with larger nodes", option, amount, most,
                                 system.system['title'])


def account(system, asked):
    """Return the user's project; stop before anything is submitted if there is none."""
    variable = system.scheduler['account_variable']
    found = asked.get('account') or os.environ.get(variable or '')
    if variable and not found:
        raise EasyBuildError("No project account is set; jobs on %s need one, so nothing was submitted. Type: "
                             "export %s=PROJECT   or add: --job-target-resource=account=PROJECT",
                             system.system['title'], variable)
    return found
