"""ReFrame's settings for a system, made from ``systems/NAME/system.cfg``."""
import fnmatch
import os
import pprint
import re

from hpc_pytorch.machine.systems import LAUNCHERS, parse
from hpc_pytorch.share.batch_scripts import read_share

# ReFrame's name of a batch system (squeue: Slurm without a record of jobs that have ended), and its options
SCHEDULERS = {
    'slurm': ('squeue', {'partition': '--partition=', 'account': '--account=', 'qos': '--qos='}),
    'pbs': ('pbs', {'partition': '-q ', 'account': '-A ', 'place': '-l place=', 'memory': 'mem='}),
    'none': ('local', {}),
}
MODULES_SYSTEMS = {'Lmod': 'lmod', 'EnvironmentModules': 'envmod'}
# what each job begins with, where the user's shell at login does not do it, and as those of pytorch-run
PREPARE = ['command -v module >/dev/null || . /usr/share/lmod/lmod/init/bash']
BATCH_SYSTEMS = read_share('batch_scripts.cfg')
PREPARE += BATCH_SYSTEMS['slurm']['begin'].splitlines()


def access(scheduler, node, options):
    account = os.environ.get(scheduler['account_variable'] or '')
    # PBS would give one node to all chunks that fit on it, and little memory; as jobs of pytorch-run
    values = dict(scheduler, account=account, place='scatter' + ':excl' * bool(scheduler['nodes_exclusive']))
    if node['memory'] and not scheduler['nodes_exclusive']:
        values['memory'] = '%dmb' % (float(BATCH_SYSTEMS['pbs']['memory']) * node['memory'] / 2 ** 20)
    found = [option + values[name] for name, option in options.items() if values.get(name)]
    # a line for each: -W group_list=NAME are two words
    return found + list(filter(None, re.split(' (?=-)', ' '.join(scheduler['options']))))


def binding(system):
    """Return options to add to the launcher's own; the check fills in {per_node} and {cores}."""
    words = dict(parse(LAUNCHERS)[system.launcher['command']])
    gpus = system.node['gpus'] or 0
    chosen = words.get('gpu_binding' if gpus and system.scheduler['gpus_option'] else 'binding', words['binding'])
    if gpus > 1 and system.launcher['gpu_options']:
        chosen = ' '.join(system.launcher['gpu_options'])
    return '%s %s' % (words.get('per_node', ''), chosen.replace('{gpus}', str(gpus)))


def partition(system):
    node = system.node
    scheduler, options = SCHEDULERS[system.scheduler['kind']]
    gpus, cores = node['gpus'] or 0, node['cores'] or os.cpu_count()
    paths = [path for path in os.environ.get('MODULEPATH', '').split(':') if path]
    found = {
        'name': 'compute',
        'environs': ['builtin'],
        'scheduler': scheduler,
        # ReFrame knows mpiexec.hydra by its other name
        'launcher': system.launcher['command'].split('.')[0],
        'max_jobs': 1 if scheduler == 'local' else 8,
        'access': access(system.scheduler, node, options),
        'prepare_cmds': PREPARE + ['module use ' + path for path in reversed(paths)],
        'features': ['hpc_pytorch'] + ['gpu'] * bool(gpus) + ['batch'] * (scheduler != 'local'),
        'extras': {'hpc_pytorch': {
            'cores': cores,
            'cores_per_rank': (system.usable_cores or cores) // (gpus or 1),
            'gpus': gpus,
            'gpu_cores': node['gpu_cores'],
            'binding': binding(system),
            'interfaces': system.network['interfaces'],
        }},
    }
    if gpus:
        option = system.scheduler['gpus_option'] or {'pbs': 'ngpus='}.get(system.scheduler['kind'], '')
        found['resources'] = [{'name': 'gpus', 'options': [option + '{number}'] * bool(option)}]
    return found


def settings(system):
    """Return a file of settings; the entry below `systems` can be pasted into a site's own."""
    content = {
        'systems': [{
            'name': system.name,
            'descr': system.system['title'],
            'modules_system': MODULES_SYSTEMS[os.environ['EASYBUILD_MODULES_TOOL']],
            'hostnames': [fnmatch.translate(name) for name in system.system['host_names'] or ['*']],
            'partitions': [partition(system)],
        }],
        'general': [{'use_login_shell': True, 'resolve_module_conflicts': False, 'remote_detect': False}],
        # not in a temporary directory that ./eb removes
        'logging': [{'handlers': [
            {'type': 'stream', 'name': 'stdout', 'level': 'info', 'format': '%(message)s'},
            {'type': 'file', 'name': 'reframe.log', 'level': 'debug2', 'append': False,
             'format': '[%(asctime)s] %(levelname)s: %(check_info)s: %(message)s'},
        ]}],
    }
    text = pprint.pformat(content, width=110)
    return "# made by ./eb --check from systems/%s\nsite_configuration = %s\n" % (system.name, text)
