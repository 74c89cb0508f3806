"""Warn about versions and options of PyTorch, NCCL, its plugin or ROCm that are known to fail, before installing."""
import os
import re
import shutil

from easybuild.tools.filetools import read_file

from hpc_pytorch.machine import versions
from hpc_pytorch.machine.collection_files import named_file
from hpc_pytorch.machine.commands import run
from hpc_pytorch.machine.systems import current
from hpc_pytorch.packages.gpu_code import cuda_of
from hpc_pytorch.packages.lock_files import read_lock
from hpc_pytorch.rules import policy

DRIVER = '/sys/module/nvidia/version'


def versions_of(ec):
    """Return {software: version} of an easyconfig, its dependencies and wheels, and this machine, if it is for this."""
    found = {ec['name'].lower(): ec['version']}
    rehearsal = 'HPC_PYTORCH_REHEARSAL' in os.environ
    if os.path.exists(DRIVER) and not rehearsal:
        found['driver'] = read_file(DRIVER).strip()
    if shutil.which('fi_info') and not rehearsal:
        found.update(re.findall(r'^(libfabric): (\S+)', run(['fi_info', '--version']).stdout, re.M))
    found.update((name.lower(), version) for name, version in versions.of_dependencies(ec).items())
    packages = {}
    # the easyblock reports missing lock files
    for path in filter(None, [named_file(ec.path, name) for name in ec.get('lock_files') or ()]):
        for entry in read_lock(path):
            packages[entry.name] = entry.version
            found[re.sub('^nvidia-nccl-.*', 'nccl', entry.name)] = entry.version
            rocm = re.search(r'rocm([\d.]+)', entry.version)
            if entry.name == 'torch' and rocm:
                found['rocm'] = rocm.group(1)
    cuda = cuda_of(packages)
    if cuda:
        # that of the wheels, not of a module
        found['cuda'] = str(cuda)
    return found


def check(ecs):
    if not policy.going_to_install():
        return
    for ec in [entry['ec'] for entry in ecs]:
        options = {option.replace('=', '-') for option in ec.get('custom_opts') or ()}
        rows = versions.known(versions_of(ec), current(ec.path).words | options)
        problems = ["known: {result}: {why} ({source}, {date})".format(**row)
                    for row in rows if row['result'] != 'works']
        if problems:
            title = "%s combines versions that are known to be incompatible:" % os.path.basename(ec.path)
            policy.decide('pairs', '\n  '.join([title] + problems))
