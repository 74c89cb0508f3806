"""Pieces of modules, evaluated by the modules tools themselves."""
import pytest

from hpc_pytorch.machine.module_files import NOT_THE_USERS, put_aside

ROUNDS = '''
round() { module load "$1"; echo "loaded $VALUE"; module unload "$1"; echo "back ${VALUE-unset}"; }
%s
'''
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


def test_users_value_comes_back_each_time(tmp_path, modules_tool):
    """However often it is loaded, whatever the value was before, also when it was unset meanwhile."""
    syntax, suffix = {'Lmod': ('Lua', '.lua')}.get(modules_tool.name, ('Tcl', ''))
    for name in ('ours', 'other'):
        (tmp_path / name).mkdir()
        text = put_aside(type('Generator', (), {'SYNTAX': syntax}), name, 'VALUE', '/of/' + name)
        (tmp_path / name / ('1.0' + suffix)).write_text(('#%Module1.0\n' if syntax == 'Tcl' else '') + text)
    steps = [None, '/one', '/one', '/two:/with:/colons', None, '/three', '/one']
    script = ''.join('%s; round ours\n' % ('export VALUE=%s' % value if value else 'unset VALUE') for value in steps)
    out = modules_tool.run('module use %s\n' % tmp_path + ROUNDS % script)
    assert [line[5:] for line in out.splitlines() if line.startswith('back ')] == [v or 'unset' for v in steps], out
    assert out.count('loaded /of/ours\n') == len(steps)
    # another module of the kind around it
    out = modules_tool.run('module use %s\nexport VALUE=/mine; ' % tmp_path + ROUNDS % (
        'export VALUE=/mine; round ours; VALUE=/a:/b; module load other; round ours; module unload other; '
        'echo "end $VALUE"; env | grep HPC_BEFORE || echo clean'))
    assert 'back /of/other\n' in out and 'end /a:/b\n' in out and 'clean' in out
