"""
What is installed although its NCCL, plugin, libfabric or ROCm are known to fail together is told before it begins.

Python 3.6.
"""
import os
import re

from hpc_pytorch.machine import versions
from hpc_pytorch.machine.systems import current
from hpc_pytorch.rules.early_checks import by_policy, going_to_install
from hpc_pytorch.rules.vulnerabilities import locked


def versions_of(ec):
    """{software: version} that an easyconfig brings together: itself, what it depends on, its wheels' NCCL and ROCm."""
    deps = [dep['full_mod_name'].split('/') if dep['external_module'] else [dep['name'], dep['version']]
            for dep in ec.dependencies()]
    found = {dep[0].lower(): dep[1] for dep in [[ec['name'], ec['version']]] + deps if len(dep) > 1}
    for name, version in locked(ec):
        wheel = re.match(r'nvidia-(nccl)-|torch$', name)
        if wheel:
            found.update([(wheel.group(1), version)] if wheel.group(1) else re.findall(r'(rocm)([\d.]+)', version))
    return found


def check(ecs):
    if not going_to_install():
        return
    for ec in [entry['ec'] for entry in ecs]:
        rows = [row for row in versions.known(versions_of(ec), current(ec.path).words) if row['result'] != 'works']
        if rows:
            by_policy('pairs', "%s brings versions together that go wrong:\n  %s" % (
                os.path.basename(ec.path), '\n  '.join(map(versions.in_words, rows))), 'warn')
