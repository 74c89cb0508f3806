"""The scripts in and around a container (container_scripts.cfg), and what `module help` says about them."""
from hpc_pytorch import HERE
from hpc_pytorch.machine.systems import parse

SCRIPTS_INSIDE = '/runscripts'
USER_SOFTWARE = 'user-software'
# For `module help`.
TRAINING = """
To start training, one rank for each GPU (pytorch-jobscript writes the whole job script):

    {launcher} ... pytorch-srun train.py

train.py is written as for torchrun: it finds RANK, WORLD_SIZE, LOCAL_RANK and a GPU of its own.
"""
USAGE = """To run something in the container: run-in-container COMMAND, or: singularity {verb} $SIF COMMAND
{training}
Commands:
{commands}
In the container, in {inside}, which is on the path there:
{scripts}

Environment variables:
 - $SIF and $SIF{variable}: the image. To free its space, type rm $SIF and load the module again; it then uses the
   site's copy.
 - $CONTAINERROOT: the installation prefix; replaced on re-installation.
 - $RUNSCRIPTS and $RUNSCRIPTS{variable}: the scripts for the container.
 - $SINGULARITY_BINDPATH: what the container sees of this host. Add your own directories in $SINGULARITY_BIND.
In the container, $WITH_CONDA (if the image has it) activates the Python of the image.
"""
USAGE_OF_VENV = """
Packages that pip installs go to $CONTAINERROOT/{venv}; those in ~/.local are not seen. make-squashfs packs
them into one file, which a parallel file system loads faster; unmake-squashfs unpacks it. Load the module again then.
"""


def scripts_for(import_name):
    """The scripts of a container with this Python package: {name: (where they are used, what for)}."""
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
    text = USAGE
    if venv:
        text += USAGE_OF_VENV.format(venv=venv.lstrip('/'))
    training = TRAINING.format(launcher=launcher) if 'torchrun' in scripts else ''
    return text.format(
        variable=variable,
        inside=SCRIPTS_INSIDE,
        verb=verb,
        training=training,
        commands='\n'.join(outside),
        scripts='\n'.join(inside),
    )
