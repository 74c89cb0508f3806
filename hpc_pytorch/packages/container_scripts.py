"""The scripts in and around a container (container_scripts.cfg), and what `module help` says about them."""
from pathlib import Path

from hpc_pytorch import HERE
from hpc_pytorch.machine.systems import parse

SCRIPTS_INSIDE = '/runscripts'
USER_SOFTWARE = 'user-software'


def scripts_for(import_name):
    """Return the scripts of a container with this Python package: {name: (where they are used, what for)}."""
    table = parse(HERE + '/packages/container_scripts.cfg')
    scripts = {}
    for section in table.sections():
        package, _, where = section.rpartition(': ')
        if package in ('', import_name):
            for name, what in table[section].items():
                scripts[name] = (where, what)
    return scripts


def usage(variable, verb, launcher, scripts, wrappers, venv):
    """For `module help`: how to train, each command in a line, the variables."""
    inside, outside = [], []
    for name, (where, what) in sorted(scripts.items()):
        lines = inside if where == 'inside' else outside
        lines.append(' - %s: %s' % (name, what.format(name=name, verb=verb)))
    if wrappers:
        outside.append(" - %s: those of the container" % ', '.join(wrappers))
    text, training, of_venv = Path(HERE, 'packages', 'container_usage.txt').read_text().split('---\n')
    if venv:
        text += of_venv.format(venv=venv.lstrip('/'))
    if 'torchrun' not in scripts:
        training = ''
    return text.format(
        variable=variable,
        inside=SCRIPTS_INSIDE,
        verb=verb,
        training=training.format(launcher=launcher, variable=variable),
        commands='\n'.join(outside),
        scripts='\n'.join(inside),
    )
