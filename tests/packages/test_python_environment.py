"""The module of an installed environment (hpc_pytorch/packages/python_environment.py), as users handle it."""
import re

import pytest
from common import CHECKOUT, EB, FOR_ROOT
from small_software import Toy, make_wheel, sha256

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
    """./eb after it installed two versions of a toy with a strict umask; the modules are there in Tcl, too."""
    folder = tmp_path_factory.mktemp('module')
    toy = Toy(folder)
    eb = EB(folder / 'prefix', ['bash', '-c', 'umask 077; exec "$@"', 'bash', CHECKOUT / 'eb'])
    eb.sources = folder / 'sources'
    newer = folder / 'toy-2.0.eb'
    newer.write_text(toy.easyconfig.read_text().replace("'1.0'", "'2.0'").replace('toy.lock', 'toy-2.0.lock'))
    wheels = make_wheel(toy.index, 'toy', '2.0'), toy.wheels[1]
    (folder / 'toy-2.0.lock').write_text(''.join(
        '%s==2.0 --hash=sha256:%s\n' % (path.name.split('-')[0], sha256(path)) for path in wheels))
    eb(toy.easyconfig, newer, env=toy.online)
    eb(toy.easyconfig, newer, '--module-only', '--module-syntax=Tcl', '--rebuild',
       '--installpath-modules=%s' % (folder / 'Tcl'))
    return eb


@pytest.fixture
def modules(installed, modules_tool):
    """The directory to use; pushenv in Tcl is not what Lmod 8.6 gives back."""
    return installed.modules if modules_tool.name == 'Lmod' else installed.prefix.parent / 'Tcl' / 'all'


@FOR_ROOT
def test_umask(installed):
    """Directories were open and the module was not, which Lmod then did not find."""
    paths = [path for path in installed.prefix.glob('**/*') if not path.is_symlink() and '.locks' not in str(path)]
    assert paths and not [path for path in paths if not path.stat().st_mode & 0o004]


USE = """
module use %s
export PYTHONPATH=/users/own
module load toy/1.0
"""


def test_reloaded(modules, modules_tool):
    """Reloading changes nothing, and the user's own $PYTHONPATH comes back afterwards, where pushenv can do that."""
    output = modules_tool.run(USE % modules + """
        echo "loaded $PYTHONPATH"; module reload; echo "reloaded $PYTHONPATH"
        python -c 'import toy, other'
        module unload toy; echo "unloaded $PYTHONPATH"
    """)
    loaded = [line.split()[1] for line in output.splitlines() if line.split()[:1] in (['loaded'], ['reloaded'])]
    assert len(loaded) == 2 and loaded[0] == loaded[1] and 'site-packages' in loaded[0], output
    assert 'unloaded /users/own\n' in output


def test_saved_and_restored(modules, modules_tool, tmp_path):
    """A collection of modules brings it back."""
    output = modules_tool.run(USE % modules + """
        module save mine; module purge; echo "purged $PYTHONPATH"
        module restore mine; python -c 'import toy, other'; module list
    """, env={'HOME': str(tmp_path)})
    assert 'purged /users/own\n' in output and 'toy/1.0' in output.partition('purged')[2], output


def test_one_version_at_a_time(modules, modules_tool):
    """Lmod swaps them, Environment Modules says what is in the way; of neither anything stays."""
    output = modules_tool.run(USE % modules + """
        module load toy/2.0 || { echo refused; module switch toy/1.0 toy/2.0; }
        echo "loaded $LOADEDMODULES $PYTHONPATH"; python -c 'import toy, other; print(toy.here)'
        module unload toy; echo "unloaded $LOADEDMODULES $PYTHONPATH"
    """)
    assert re.search('conflict.*refused' if modules_tool.name != 'Lmod' else 'reloaded with a version change', output,
                     re.S), output
    assert re.search(r'^loaded toy/2\.0 \S*/toy/2\.0/lib/[^:]*$', output, re.M) and '\nunloaded  /users/own\n' in output
    assert 'toy/2.0/lib' in output.partition('loaded toy')[2].partition('\n')[2], output


def test_categories(modules, modules_tool):
    """Who uses only a category's directory sees what belongs to it."""
    assert 'toy/1.0' in modules_tool.run('module use %s; module avail' % (modules.parent / 'ai'))


def test_described(modules, modules_tool):
    """Users find it, and read what it is."""
    assert 'a toy' in modules_tool.run(USE % modules + 'module whatis toy; module help toy')
    found = 'spider toy' if modules_tool.name == 'Lmod' else 'avail toy'
    assert 'toy/1.0' in modules_tool.run('module use %s; module %s' % (modules, found))
