"""What `module help` says first about a PyTorch in a virtual environment: what to type."""
import os

from easybuild.tools.filetools import convert_name

# (script or example that an easyconfig installs, what for, command)
COMMANDS = (
    ('pytorch-check', "See whether it works here:", "pytorch-check"),
    ('train.py', "Train on this machine:", "torchrun --nproc-per-node 2 $EBROOT{name}/examples/train.py"),
    ('train.py', "Copy the examples:", "cp $EBROOT{name}/examples/*.py ."),
    ('pytorch-run', "Train on two nodes:", "pytorch-run --nodes 2 --time 10 train.py"),
    ('train_fsdp.py', "Resume after the limit:", "pytorch-run --nodes 2 --time 10 --requeue 5 train_fsdp.py"),
    ('pytorch-jobscript', "Write the job script alone:", "pytorch-jobscript --nodes 2 --time 10 train.py > job"),
    ('pytorch-srun', "Train within a job:", "{launcher} ... pytorch-srun train.py"),
    ('extend-venv-activate', "Add packages of your own:", "python -m venv mine; extend-venv-activate mine; "
                                                          "source mine/bin/activate; pip install ..."),
)
HOW_INSTALLED = ("How it was installed:", "ls $EBROOT{name}/easybuild")


def of_environment(cfg, system):
    """The easyconfig's own words, then a line for each command that it installs."""
    installed = [os.path.basename(name) for name in cfg['scripts'] + cfg['example_files']]
    lines = [cfg['usage'] or '']
    if installed:
        rows = [row[1:] for row in COMMANDS if row[0] in installed] + [HOW_INSTALLED]
        name = convert_name(cfg.name, upper=True)
        for what, command in rows:
            lines.append('%-27s %s' % (what, command.format(name=name, launcher=system.launcher['command'])))
    return '\n'.join(filter(None, lines))
