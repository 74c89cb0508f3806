"""
What installing something needs: cores, memory, time, room on disks. For jobs, and for refusing what cannot succeed.

First what is known about the easyblock, then what ramgate measured in an earlier build, then what the easyconfig says.
"""
import json
import math
import os
from collections import namedtuple
from pathlib import Path

from easybuild.tools.config import source_paths

from hpc_pytorch import HERE
from hpc_pytorch.machine.systems import parse

GIB = 2 ** 30
MB = 2 ** 20
# explained in needs.cfg; memory and largest in bytes
Needs = namedtuple('Needs', 'compiles cores memory largest cpu_hours build install temporary')


def read_needs():
    """Read the table: {easyblock: Needs}."""
    table = parse(HERE + '/rules/needs.cfg')
    needs = {}
    for section in table.sections():
        given = dict(table['others'], **table[section])
        values = {key: json.loads(value) for key, value in given.items()}
        for key in ('memory', 'largest'):
            if values[key]:
                values[key] *= GIB
        needs.update((easyblock, Needs(**values)) for easyblock in section.split())
    return needs


NEEDS = read_needs()
OTHERS = NEEDS['others']
# no installation is so small that it needs less room
LEAST_ROOM = 100 * MB
# no job asks for less time; what was measured may take so many times as long on another day
LEAST_HOURS, CAUTION = 0.5, 2.0
# what configuring, linking Python packages and EasyBuild itself take beside the compilers
BESIDE = 2 * GIB


def needs_of(ec):
    """Return the needs of an easyconfig: what was measured counts more than the table, max_parallel most."""
    easyblock = ec['easyblock'] or 'EB_%s' % ec['name']
    if easyblock == 'LockedWheels' and ec['ramgate']:
        easyblock = 'LockedWheels-ramgate'
    needs = NEEDS.get(easyblock, OTHERS)
    most = ec['max_parallel']
    if most:
        needs = needs._replace(cores=min(most, needs.cores or most))
    profile = read_profile(profile_path(ec))
    return measured(needs, profile) if profile else needs


def profile_path(ec):
    """Return where ramgate's profile of this software is kept: it outlives build directories and prefixes."""
    name = '%s-%s%s-ramgate.json' % (ec['name'], ec['version'], ec['versionsuffix'])
    return os.path.join(source_paths()[0], ec['name'][0].lower(), ec['name'], name)


def profile_to_keep(ec):
    """Return the same where a build can write it, else None."""
    path = profile_path(ec)
    place = path if os.path.exists(path) else os.path.dirname(path)
    return path if os.access(place, os.W_OK) else None


def read_profile(path):
    """Return (seconds, peak in bytes) of each file of an earlier build; an empty list if there is no good profile."""
    try:
        # int: takes no Infinity
        files = json.loads(Path(path).read_text(), parse_constant=int)['files']
        profile = []
        for entry in files.values():
            peak = float(max(entry['curve']))
            profile.append((float(entry['seconds']), peak * MB))
        return profile
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def measured(needs, profile):
    """Return the needs of a build that was measured; on how many cores it is going to run may be unknown (None)."""
    peaks = sorted((peak for _, peak in profile), reverse=True)
    hours = sum(seconds for seconds, _ in profile) / 3600
    memory = None
    if needs.cores:
        memory = BESIDE + int(sum(peaks[:needs.cores]))
    return needs._replace(memory=memory, largest=int(peaks[0]), cpu_hours=hours)


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
