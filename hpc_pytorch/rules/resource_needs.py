"""What installing something needs: cores, memory, time, room on disks. For jobs, and to refuse what cannot succeed."""
import json
import math
from collections import namedtuple

from hpc_pytorch import HERE
from hpc_pytorch.machine.systems import parse

# explained in needs.cfg; memory and largest in bytes
Needs = namedtuple('Needs', 'compiles cores memory largest cpu_hours build install temporary')


def read_needs():
    table = parse(HERE + '/rules/needs.cfg')
    needs = {}
    for section in table.sections():
        values = {key: json.loads(value) for key, value in dict(table['others'], **table[section]).items()}
        for key in ('memory', 'largest'):
            if values[key]:
                values[key] *= 2 ** 30
        needs.update((easyblock, Needs(**values)) for easyblock in section.split())
    return needs


NEEDS = read_needs()
OTHERS = NEEDS['others']
# no installation is so small that it needs less room
LEAST_ROOM = 100 * 2 ** 20
# no job asks for less time; a build may take so many times as long on another day
LEAST_HOURS, CAUTION = 0.5, 2.0


def needs_of(ec):
    """Return the needs of an easyconfig: those of its easyblock, on at most max_parallel cores."""
    easyblock = ec['easyblock'] or 'EB_%s' % ec['name']
    if easyblock == 'LockedWheels' and ec['ramgate']:
        easyblock = 'LockedWheels-ramgate'
    needs = NEEDS.get(easyblock, OTHERS)
    most = ec['max_parallel']
    if most:
        needs = needs._replace(cores=min(most, needs.cores or most))
    return needs


def fitted(needs, node):
    """Fit the needs to a node whose cores and memory may be unknown (None): (cores, memory, minutes)."""
    wanted = needs.cores or node['cores'] or 1
    of_node = node['cores'] or wanted
    cores = min(wanted, of_node)
    memory = needs.memory
    if node['memory']:
        share = node['memory'] * cores // of_node
        # ramgate keeps the build within the memory
        memory = share if memory is None else min(memory, node['memory'])
    if needs.cpu_hours is None:
        return cores, memory, None
    hours = max(LEAST_HOURS, CAUTION * needs.cpu_hours / cores)
    return cores, memory, math.ceil(60 * hours)
