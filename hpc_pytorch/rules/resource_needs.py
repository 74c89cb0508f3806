"""
What installing something needs: cores, memory, time, GPUs, room on disks. For jobs, and for refusing what cannot end
well.

First what is known about the easyblock, then what an earlier build was measured to need (ramgate's profile), then what
the easyconfig itself says.
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
# cpu_hours: of all cores together, None if nobody knows; build, install, temporary: room on disks, in
# multiples of the sources (what is fetched in wheels is unpacked as LockedWheels does it); 0: not looked at
Needs = namedtuple('Needs', 'compiles cores memory largest cpu_hours gpus build install temporary')

# PyTorch 1.13.1's largest file takes 1.65 GB and all 1,191 take 4.5 CPU hours (ramgate/benchmarks); later versions
# with GPU code take several times that. A release is 0.3 GB, and about 20 GB are needed to build one.
NEEDS = {
    'EB_PyTorchHPC': Needs(True, None, None, 2 * GIB, None, 0, 60, 10, 1),
    'EB_PyTorch': Needs(True, None, None, 2 * GIB, None, 0, 60, 10, 1),
    'LockedWheels': Needs(False, 4, 8 * GIB, 0, 2.0, 0, 1, 4, 1),
    # with `ramgate`: flash-attn's kernels take minutes and 3 GB each, and are 40 times as large as their source
    'LockedWheels, ramgate': Needs(True, None, None, 4 * GIB, 12.0, 0, 60, 60, 1),
    # it looks for room itself, as it knows whether the image is copied at all
    'SingularityContainer': Needs(False, 2, 4 * GIB, 0, 1.0, 0, 0, 0, 0),
}
# everything else: NCCL, plugins, libraries
OTHERS = Needs(False, 8, 16 * GIB, 0, 8.0, 0, 10, 10, 1)

# no installation is so small that it needs less room
LEAST_ROOM = 100 * 2 ** 20
# no job asks for less time; what is measured may take so many times as long on another day
LEAST_HOURS, CAUTION = 0.5, 2.0
# what configuring, linking Python packages and EasyBuild itself take beside the compilers
BESIDE = 2 * GIB


def needs_of(ec):
    watched = ', ramgate' if 'ramgate' in ec and ec['ramgate'] else ''
    needs = NEEDS.get((ec['easyblock'] or 'EB_%s' % ec['name']) + watched, OTHERS)
    profile = read_profile(profile_path(ec))
    if profile:
        needs = measured(needs, profile, needs.cores or ec['max_parallel'])
    if ec['max_parallel']:
        needs = needs._replace(cores=min(ec['max_parallel'], needs.cores or ec['max_parallel']))
    return needs


def profile_path(ec):
    """Where ramgate's profile of this software is kept: it outlives build directories and prefixes."""
    name = '%s-%s%s-ramgate.json' % (ec['name'], ec['version'], ec['versionsuffix'])
    return os.path.join(source_paths()[0], ec['name'][0].lower(), ec['name'], name)


def profile_to_keep(ec):
    """The same where a build can write it, or None."""
    path = profile_path(ec)
    directory = os.path.dirname(path)
    return path if os.access(path if os.path.exists(path) else directory, os.W_OK) else None


def read_profile(path):
    """(seconds, peak in bytes) of each file of an earlier build, or an empty list."""
    try:
        with open(path) as handle:
            # int: takes no Infinity
            files = json.load(handle, parse_constant=int)['files'].values()
        return [(float(entry['seconds']), float(max(entry['curve'])) * MB) for entry in files]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def measured(needs, profile, cores):
    """The needs of a build that was measured; with how many cores it is going to run may not be known yet."""
    peaks = sorted((peak for _, peak in profile), reverse=True)
    hours = sum(seconds for seconds, _ in profile) / 3600
    together = sum(peaks[:cores]) if cores else None
    return needs._replace(memory=int(together) + BESIDE if together else None, largest=int(peaks[0]), cpu_hours=hours)


def fitted(needs, node):
    """The needs on a node with so many cores and so much memory (None where nobody knows): (cores, memory, minutes)."""
    cores = min(needs.cores or node['cores'] or 1, node['cores'] or needs.cores or 1)
    memory = needs.memory
    if memory is None and node['memory']:
        memory = node['memory'] * cores // (node['cores'] or cores)
    if memory and node['memory']:
        # ramgate keeps the build within the memory
        memory = min(memory, node['memory'])
    minutes = needs.cpu_hours and int(math.ceil(60 * max(LEAST_HOURS, CAUTION * needs.cpu_hours / cores)))
    return cores, memory, minutes
