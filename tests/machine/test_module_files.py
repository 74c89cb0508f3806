"""Pieces of modules, evaluated by the modules tools themselves."""
import json
import shutil

import pytest
from common import ModulesTool, slow

from hpc_pytorch.machine.module_files import SYNTAX, installed, override, removed_by_hand

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
    condition = SYNTAX[syntax]['not by the user'] % {'name': 'COLOUR', 'value': 'a b'}
    (tmp_path / ('toy.lua' if syntax == 'Lua' else 'toy')).write_text(TEXT[syntax] % condition)
    output = modules_tool.run("""
        module use %s
        module load toy; echo "<$COLOUR>"
        module unload toy; echo "<$COLOUR>"
    """ % tmp_path, env={'COLOUR': users} if users else {})
    assert output.split('\n')[:2] == ['<%s>' % loaded, '<%s>' % unloaded]


TOOLS = {'Lmod-Lua': (), 'Lmod-Tcl': pytest.mark.slow, 'Environment Modules-Tcl': ()}


@pytest.fixture(params=[pytest.param(name.split('-'), id=name, marks=marks) for name, marks in TOOLS.items()])
def aside(request, tmp_path):
    """A function that runs a script in a shell with modules of a family that put $VALUE aside for a value or, empty,
    for nothing, with each modules tool and syntax."""
    tool, syntax = request.param

    def run(script, **ours):
        for name, value in ours.items():
            text = override(type('Generator', (), {'SYNTAX': syntax}), name, 'VALUE', value)
            family = 'family("kind")\n' if syntax == 'Lua' else 'family kind\n'
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / ('1.0' + ('.lua' if syntax == 'Lua' else ''))).write_text(
                ('#%Module1.0\n' if syntax == 'Tcl' else '') + (family if 'kind' in name else '') + text)
        return ModulesTool(tool).run('module use %s\n' % tmp_path + ROUNDS % script)
    run.tool = tool
    return run


@pytest.mark.parametrize('ours', ['/of/ours', slow('')])
def test_users_value_comes_back_each_time(aside, ours):
    """However often it is loaded, whatever the value was before, also when it was unset meanwhile."""
    steps = [None, '/one', '/one', '/two:/with:/colons', None, '/three', '/one']
    script = ''.join('%s; round ours\n' % ('export VALUE=%s' % value if value else 'unset VALUE') for value in steps)
    out = aside(script, ours=ours)
    assert [line[5:] for line in out.splitlines() if line.startswith('back ')] == [v or 'unset' for v in steps], out
    assert out.count('loaded %s\n' % ours) == len(steps), out
    # another module of the kind around it
    out = aside('export VALUE=/mine; round ours; VALUE=/a:/b; module load other; round ours; module unload other; '
                'echo "end $VALUE"; env | grep HPC_BEFORE || echo clean', ours=ours, other='/of/other')
    assert 'back /of/other\n' in out and 'end /a:/b\n' in out and 'clean' in out, out


@pytest.mark.parametrize('ours', [slow('/of/ours'), ''])
@pytest.mark.parametrize('value', [slow(None), '/one'])
def test_users_value_comes_back_after_an_exchange(aside, ours, value):
    """Lmod puts a module in the place of another of its family; with another value of the user's the second time."""
    users = 'export VALUE=%s' % value if value else 'unset VALUE'
    exchange = ('module load kind1; module load kind2 2> /dev/null; echo "loaded $VALUE"; module %s kind1 2>&1;'
                'module purge; echo "back ${VALUE-unset}"\n' % ('load' if aside.tool == 'Lmod' else 'switch'))
    out = aside('export VALUE=/first; %s %s; %s' % (exchange, users, exchange), kind1=ours, kind2=ours)
    assert out.count('loaded %s\n' % ours) == 2 and 'back /first\n' in out, out
    assert out.endswith('back %s\n' % (value or 'unset')), out


def test_backups_are_no_modules(tmp_path):
    """Nor is a default that was removed, or a directory; EasyBuild keeps the old file of one that it writes again."""
    (tmp_path / 'root/easybuild/provenance').mkdir(parents=True)
    (tmp_path / 'root/easybuild/provenance/provenance.json').write_text('{}')
    (tmp_path / 'PyTorch').mkdir()
    for name in ('2.0.lua', '2.0.bak_20261124154327_20514', '.3.0.lua', '.3.0.bak_20261124154327_20514'):
        (tmp_path / 'PyTorch' / name).write_text('local root = "%s"\n' % (tmp_path / 'root'))
    (tmp_path / 'PyTorch/default').symlink_to('1.0.lua')
    (tmp_path / 'PyTorch/more').mkdir()
    assert installed(str(tmp_path)) == {name: str(tmp_path / 'root') for name in ('PyTorch/2.0', 'PyTorch/.3.0')}
    assert not list(removed_by_hand(str(tmp_path), str(tmp_path)))


def test_what_was_removed_by_hand(eb):
    """A module file and an installation, in a line each; what is whole, and a backup, are not named."""
    modules, software = eb.modules, eb.prefix / 'software'
    (modules / 'PyTorch').mkdir(parents=True)
    for version in ('1.0', '2.0', '3.0'):
        note = software / 'PyTorch' / version / 'easybuild/provenance'
        note.mkdir(parents=True)
        (note / ('PyTorch-%s-here.eb' % version)).write_text('')
        file = modules / 'PyTorch' / (version + '.lua')
        file.write_text('local root = "%s"\n' % (software / 'PyTorch' / version))
        (note / 'module.json').write_text(json.dumps({str(file): 'its checksum'}))
    assert list(removed_by_hand(str(modules), str(software))) == []
    (modules / 'PyTorch/1.0.lua').unlink()
    shutil.rmtree(software / 'PyTorch/2.0')
    shutil.copy(modules / 'PyTorch/2.0.lua', modules / 'PyTorch/2.0.bak_20261124154327_20514')
    first, second = removed_by_hand(str(modules), str(software))
    assert first.startswith('%s is gone. To write it again: ./eb ' % (modules / 'PyTorch/1.0.lua'))
    assert first.endswith('/PyTorch-1.0-here.eb --module-only --force --installpath=%s' % eb.prefix)
    assert second.startswith('%s is gone, but not its module, ' % (software / 'PyTorch/2.0'))
    said = eb('--check', 'PyTorch/1.0', status=1).stdout.splitlines()
    assert first in said and second in said
    # in a hierarchy, with the name that the installation has printed
    (modules / 'Core').mkdir()
    (modules / 'PyTorch').rename(modules / 'Core/PyTorch')
    (software / 'PyTorch/3.0/easybuild/provenance/provenance.json').write_text('{}')
    said = eb('--check', 'Core/PyTorch/3.0', status=1, env={'EASYBUILD_MODULE_NAMING_SCHEME': 'HierarchicalMNS'}).stdout
    assert 'Core/PyTorch/3.0 is not installed by this collection' in said and 'Found: PyTorch/3.0, in' in said
