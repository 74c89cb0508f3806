"""What `module help` says first about a PyTorch in a virtual environment: what to type (usage.cfg)."""
import os

from easybuild.tools.filetools import convert_name

from hpc_pytorch import HERE
from hpc_pytorch.machine.systems import parse


def of_environment(cfg, system):
    """Return the easyconfig's own usage, then a line for each command that it installs."""
    text = cfg['usage'] or ''
    installed = [os.path.basename(name) for name in cfg['scripts'] + cfg['example_files']]
    if not installed:
        return text
    name = convert_name(cfg.name, upper=True)
    launcher = system.launcher['command']
    table = parse(HERE + '/packages/usage.cfg')
    for what in table.sections():
        row = table[what]
        if row.get('with', installed[0]) in installed:
            command = row['command'].format(name=name, launcher=launcher)
            text += '\n%-27s %s' % (what + ':', command)
    return text.lstrip('\n')
