"""
Examples of a site's hooks, which run after the collection's: copy what you need into a file of your own, and name it
with --hooks, $EASYBUILD_HOOKS or, without ./eb, $HPC_SITE_HOOKS. EasyBuild's documentation explains hooks.
"""
from hpc_pytorch.machine.systems import current
from hpc_pytorch.rules import within_memory
from hpc_pytorch.source.upstream_build import compare_with_cmake


def parse_hook(ec):
    """Change an easyconfig that was just read."""
    system = current(ec.path)
    if ec['name'] == 'PyTorch' and system.name == 'bede':
        # load another of the system's modules with the software
        ec['dependencies'] += [('nsight-systems/2023.4.1', 'EXTERNAL_MODULE')]
    if ec['name'] == 'aws-ofi-rccl' and system.name == 'lumi':
        # set what system.cfg has for software that communicates this way
        settings = {setting.name: setting.value for setting in system.settings_for(['gpu', 'nccl'])}
        ec['modextravars'] = dict(settings, **ec['modextravars'])


def pre_configure_hook(easyblock):
    """Keep any easyblock's compilers within the memory; the kernel kills them on nodes with little for each core."""
    if easyblock.name in ('LightGBM', 'TensorFlow', 'PyTorch'):
        within_memory.watch(easyblock)


def post_configure_hook(easyblock):
    """EasyBuild's own easyblock builds PyTorch without what CMake does not find: stop instead."""
    if easyblock.name == 'PyTorch' and easyblock.cfg['easyblock'] is None:
        compare_with_cmake(easyblock)
