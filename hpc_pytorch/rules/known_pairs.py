"""
Warn about versions of NCCL, its plugin, libfabric or ROCm that are known to be incompatible, before installing.

Python 3.6.
"""
import os
import re

from hpc_pytorch.machine import versions
from hpc_pytorch.machine.collection_files import named_file
from hpc_pytorch.machine.systems import current
from hpc_pytorch.packages.lock_files import read_lock
from hpc_pytorch.rules import policy


def versions_of(ec):
    """Return {software: version} that an easyconfig combines: its own, its dependencies', its wheels' NCCL and ROCm."""
    found = {ec['name'].lower(): ec['version']}
    for dep in ec.dependencies():
        if dep['external_module']:
            name, _, version = dep['full_mod_name'].partition('/')
        else:
            name, version = dep['name'], dep['version']
        if version:
            found[name.lower()] = version
    for name in ec['lock_files'] or () if 'lock_files' in ec else ():
        lock = named_file(ec.path, name)
        # a missing one is reported by the easyblock
        for entry in read_lock(lock) if lock else []:
            nccl = re.match('nvidia-nccl-', entry.name)
            rocm = re.search(r'rocm([\d.]+)', entry.version)
            if nccl:
                found['nccl'] = entry.version
            if entry.name == 'torch' and rocm:
                found['rocm'] = rocm.group(1)
    return found


def check(ecs):
    if not policy.going_to_install():
        return
    for ec in [entry['ec'] for entry in ecs]:
        rows = versions.known(versions_of(ec), current(ec.path).words)
        problems = [versions.in_words(row) for row in rows if row['result'] != 'works']
        if problems:
            policy.decide('pairs', "%s combines versions that are known to be incompatible:\n  %s" % (
                os.path.basename(ec.path), '\n  '.join(problems)))
