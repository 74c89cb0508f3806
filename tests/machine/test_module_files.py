"""Pieces of modules, evaluated by the modules tools themselves."""
import pytest

from hpc_pytorch.machine.module_files import NOT_THE_USERS

TEXT = {'Lua': 'if %s then\n    setenv("COLOUR", "a b")\nend\n',
        'Tcl': '#%%Module\nif { [ %s ] } {\n    setenv COLOUR {a b}\n}\n'}


@pytest.mark.parametrize('users, loaded, unloaded', [(None, 'a b', ''), ('own', 'own', 'own')])
def test_only_where_the_user_has_not(modules_tool, tmp_path, users, loaded, unloaded):
    """Set unless the user has; unloading takes back what loading has set, and nothing else."""
    syntax = 'Lua' if modules_tool.name == 'Lmod' else 'Tcl'
    condition = NOT_THE_USERS[syntax] % {'name': 'COLOUR', 'value': 'a b'}
    (tmp_path / ('toy.lua' if syntax == 'Lua' else 'toy')).write_text(TEXT[syntax] % condition)
    output = modules_tool.run("""
        module use %s
        module load toy; echo "<$COLOUR>"
        module unload toy; echo "<$COLOUR>"
    """ % tmp_path, env={'COLOUR': users} if users else {})
    assert output.split('\n')[:2] == ['<%s>' % loaded, '<%s>' % unloaded]
