"""
What installing something needs: cores, memory, time, room on disks. For jobs, and for refusing what cannot succeed.

First what is known about the easyblock, then what ramgate measured in an earlier build, then what the easyconfig says.
"""
import json
import math
import os
from collections import namedtuple

from easybuild.tools.config import source_paths

GIB = 2 ** 30
MB = 2 ** 20

# compiles: for so long that it does not belong on a login node; cores: None is all that a node has; memory: None is
# a share of the node that goes with the cores; largest: of one compiler, below which no build can succeed;
# cpu_hours: of all cores together, None if unknown; build, install, temporary: room on disks, in multiples of the
# sources (wheels are unpacked as LockedWheels does it); 0: not checked
Needs = namedtuple('Needs', 'compiles cores memory largest cpu_hours build install temporary')

# NCCL, plugins, libraries
OTHERS = Needs(compiles=False, cores=8, memory=16 * GIB, largest=0, cpu_hours=8.0, build=10, install=10, temporary=1)
# PyTorch 1.13.1's largest file takes 1.65 GB and all 1,191 take 4.5 CPU hours (ramgate/benchmarks); later versions
# with GPU code take several times that. A release is 0.3 GB, and about 20 GB are needed to build one.
PYTORCH = OTHERS._replace(compiles=True, cores=None, memory=None, largest=2 * GIB, cpu_hours=None, build=60)
WHEELS = OTHERS._replace(cores=4, memory=8 * GIB, cpu_hours=2.0, build=1, install=4)
# flash-attn's kernels take minutes and 3 GB each, and are 40 times as large as their source
KERNELS = PYTORCH._replace(largest=4 * GIB, cpu_hours=12.0, install=60)
# it checks the room itself, as it knows whether the image is copied at all
CONTAINER = OTHERS._replace(cores=2, memory=4 * GIB, cpu_hours=1.0, build=0, install=0, temporary=0)
NEEDS = {'EB_PyTorchHPC': PYTORCH, 'EB_PyTorch': PYTORCH, 'LockedWheels': WHEELS, 'SingularityContainer': CONTAINER}

# no installation is so small that it needs less room
LEAST_ROOM = 100 * MB
# no job asks for less time; what was measured may take so many times as long on another day
LEAST_HOURS, CAUTION = 0.5, 2.0
# what configuring, linking Python packages and EasyBuild itself take beside the compilers
BESIDE = 2 * GIB


def needs_of(ec):
    needs = NEEDS.get(ec['easyblock'] or 'EB_%s' % ec['name'], OTHERS)
    if needs is WHEELS and ec['ramgate']:
        needs = KERNELS
    most = ec['max_parallel']
    profile = read_profile(profile_path(ec))
    if profile:
        needs = measured(needs, profile, needs.cores or most)
    if most:
        needs = needs._replace(cores=min(most, needs.cores or most))
    return needs


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
        with open(path) as handle:
            # int: takes no Infinity
            files = json.load(handle, parse_constant=int)['files'].values()
        return [(float(entry['seconds']), float(max(entry['curve'])) * MB) for entry in files]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def measured(needs, profile, cores):
    """Return the needs of a build that was measured; on how many cores it is going to run may be unknown (None)."""
    peaks = sorted((peak for _, peak in profile), reverse=True)
    hours = sum(seconds for seconds, _ in profile) / 3600
    memory = int(sum(peaks[:cores])) + BESIDE if cores else None
    return needs._replace(memory=memory, largest=int(peaks[0]), cpu_hours=hours)


def fitted(needs, node):
    """Fit the needs to a node whose cores and memory may be unknown (None): (cores, memory, minutes)."""
    cores = needs.cores or node['cores'] or 1
    cores = min(cores, node['cores'] or cores)
    memory = needs.memory
    if node['memory']:
        share = node['memory'] * cores // (node['cores'] or cores)
        # ramgate keeps the build within the memory
        memory = share if memory is None else min(memory, node['memory'])
    if needs.cpu_hours is None:
        return cores, memory, None
    hours = max(LEAST_HOURS, CAUTION * needs.cpu_hours / cores)
    return cores, memory, int(math.ceil(60 * hours))
