"""The scripts in and around a container, and what `module help` says about them."""
# Where each script is used, and what for. All lie in the prefix and, in the container, in SCRIPTS_INSIDE.
# 'outside': on the path there; 'passed on': what is on the path runs it in the container; 'inside': only there.
SCRIPTS = {
    'conda-python-distributed': ('inside', "one rank of a run of srun: singularity {verb} $SIF {name} X.py"),
    'conda-python-simple': ('inside', "Python as one process with all GPUs"),
    'cpu-mask': ('outside', "masks for srun --cpu-bind=mask_cpu:... that put each rank near its GPU"),
    'get-master': ('outside', "the first host of a node list"),
    'init-conda-venv': ('inside', "to be sourced: activates the image's Python and the virtual environment"),
    'list-packages': ('outside', "the Python packages in the container, with versions"),
    'make-container-venv': ('inside', "a virtual environment that sees the image's packages"),
    'make-squashfs': ('outside', "packs what pip has installed into one file, which loads faster"),
    'run-in-container': ('outside', "any command in the container: run-in-container COMMAND ARGUMENT ..."),
    'start-shell': ('outside', "a shell in the container"),
    'unmake-squashfs': ('outside', "unpacks that file, so that pip can install again"),
    'with-environment': ('inside', "any command with the image's Python activated"),
}
# ... and where the image has PyTorch
PYTORCH_SCRIPTS = {
    'extend-venv-activate': ('outside', "makes a virtual environment of your own, before the module's: {name} mine"),
    'pytorch-check': ('passed on', "whether PyTorch works here: two processes add up a tensor"),
    'pytorch-jobscript': ('outside', "writes a job script for this system: pytorch-jobscript --nodes 2 train.py"),
    'pytorch-run': ('outside', "the same, submits it and shows its output: pytorch-run --nodes 2 train.py"),
    'pytorch-srun': ('passed on', "one rank of a distributed run, of any script written for torchrun"),
    'torchrun': ('inside', "PyTorch's own, with a warning where srun has started several of it"),
}
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
    return dict(SCRIPTS, **(PYTORCH_SCRIPTS if import_name == 'torch' else {}))


def usage(variable, verb, launcher, scripts, wrappers, venv):
    """For `module help`: how to train, each command in a line, the variables."""
    def table(names):
        return '\n'.join(' - %s: %s' % (name, scripts[name][1].format(name=name, verb=verb)) for name in sorted(names))

    inside = [name for name in scripts if scripts[name][0] == 'inside']
    commands = table(set(scripts).difference(inside))
    if wrappers:
        commands += "\n - %s: those of the container" % ', '.join(wrappers)
    training = TRAINING.format(launcher=launcher) if 'pytorch-srun' in scripts else ''
    return (USAGE + (USAGE_OF_VENV if venv else '')).format(
        variable=variable, inside=SCRIPTS_INSIDE, venv=(venv or '').lstrip('/'), verb=verb, training=training,
        commands=commands, scripts=table(inside))
