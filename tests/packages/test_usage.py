"""What `module help` says to type (usage.cfg)."""
from common import CHECKOUT

from hpc_pytorch.machine.systems import parse


def test_commands_are_installed():
    """A line that names a program depends on that program: modules without a batch system have no pytorch-run."""
    programs = {path.name for path in (CHECKOUT / 'hpc_pytorch/scripts').iterdir()}
    table = parse(str(CHECKOUT / 'hpc_pytorch/packages/usage.cfg'))
    for what in table.sections():
        named = programs.intersection(table[what]['command'].split()) - {'torchrun'}
        assert named <= {table[what].get('with')}, what
