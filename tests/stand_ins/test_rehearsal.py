"""--rehearse: a system's easyconfig on that system's stand-in, on a machine that is not the system."""
import pytest
from batch_systems.compute_node import other_home
from common import CHECKOUT, EB, needs_root

from hpc_pytorch.stand_ins import make

pytestmark = pytest.mark.slow

# what ARCHER2's page loads
EASYCONFIG = """easyblock = 'Toolchain'
name = 'toy'
version = '1.0'
versionsuffix = '-ARCHER2'
homepage = 'https://example.org'
description = 'uses modules of ARCHER2'
toolchain = SYSTEM
dependencies = [
    ('PrgEnv-gnu', EXTERNAL_MODULE),
    ('cray-python', EXTERNAL_MODULE),
    ('cray-fftw', EXTERNAL_MODULE),
    ('mkl/2023.0.0', EXTERNAL_MODULE),
]
builddependencies = [('cmake/3.21.3', EXTERNAL_MODULE)]
moduleclass = 'toolchain'
"""


@pytest.fixture
def easyconfig(tmp_path):
    """An easyconfig for ARCHER2."""
    path = tmp_path / 'toy-1.0-ARCHER2.eb'
    path.write_text(EASYCONFIG)
    return path


def test_refused_without_it(eb, easyconfig):
    """The modules are not on this machine: their names and the option."""
    output = eb(easyconfig, '--robot', status=None)
    assert output.returncode != 0
    assert 'cannot be loaded: cmake/3.21.3' in output.stdout and '--rehearse toy-1.0-ARCHER2.eb' in output.stdout


def test_dry_runs(eb, easyconfig):
    """-D and -x find the modules of the stand-in."""
    for option in ('-D', '-x'):
        output = eb('--rehearse', easyconfig, option, '--robot').stdout
        assert 'system archer2 (chosen by the name of toy-1.0-ARCHER2.eb)' in output
        assert 'rehearsing in the test environment of archer2' in output
    assert not list(eb.prefix.glob('software/.locks/*'))


def test_install(eb, easyconfig):
    """The whole way: what is installed depends on the stand-in's modules."""
    eb('--rehearse', easyconfig, '--robot')
    module = next((eb.modules / 'toy').iterdir()).read_text()
    for name in ('PrgEnv-gnu', 'cray-python', 'cray-fftw', 'mkl/2023.0.0'):
        assert name in module
    assert 'cmake' not in module


def test_install_with_a_full_home(tmp_path, easyconfig):
    """A quota that is used up, of bytes and of files: nothing is written below $HOME."""
    needs_root()
    (tmp_path / 'home').mkdir()
    fill = 'cd && cat /dev/zero > full 2>/dev/null; while : 2>/dev/null > $$.$((n += 1)); do :; done; cd - >/dev/null'
    eb = EB(tmp_path / 'prefix', ['unshare', '--mount', 'bash', '-c', '%s && { %s; exec "$@"; }' % (
        other_home(tmp_path / 'home'), fill), 'bash', CHECKOUT / 'eb'])
    eb('--rehearse', easyconfig, '--robot')
    assert (eb.modules / 'toy').is_dir()


# what Derecho's users load; the real tree shows each only after the one that opens it
HIERARCHY = EASYCONFIG.replace('ARCHER2', 'Derecho').replace("""    ('PrgEnv-gnu', EXTERNAL_MODULE),
    ('cray-python', EXTERNAL_MODULE),
    ('cray-fftw', EXTERNAL_MODULE),
    ('mkl/2023.0.0', EXTERNAL_MODULE),
]
builddependencies = [('cmake/3.21.3', EXTERNAL_MODULE)]
""", """    ('ncarenv/23.09', EXTERNAL_MODULE),
    ('gcc/12.2.0', EXTERNAL_MODULE),
    ('cray-mpich/8.1.27', EXTERNAL_MODULE),
    ('mkl/2024.0.0', EXTERNAL_MODULE),
]
""")


@pytest.mark.parametrize('login', ['', 'bare'])
def test_modules_in_their_order(eb, tmp_path, modules_tool, login):
    """They are loaded, not pretended, whatever was loaded at login."""
    path = tmp_path / 'toy-1.0-Derecho.eb'
    path.write_text(HIERARCHY)
    output = eb('--rehearse', path, '-x', env=dict(modules_tool.for_easybuild, HPC_LOGIN=login)).stdout
    assert 'module load mkl/2024.0.0' in output and 'SIMULATED' not in output


def test_first_missing_module(eb, tmp_path):
    """Its name, what was loaded before it, and which versions there are."""
    path = tmp_path / 'toy-1.0-Derecho.eb'
    path.write_text(HIERARCHY.replace('8.1.27', '8.1.99'))
    output = eb('--rehearse', path, '-D', status=None).stdout
    assert ('cannot be loaded: cray-mpich/8.1.99; loaded before it: ncarenv/23.09 gcc/12.2.0; '
            'versions of it here: cray-mpich/8.1.27' in output)
    # not the command that was just typed
    assert './eb --rehearse' not in output
    assert 'systems/derecho/stand_in.cfg: [module cray-mpich/8.1.99]' in ' '.join(output.split())


def test_users_modules_do_not_get_in(eb, easyconfig, tmp_path):
    """Modules of the machine are not seen while rehearsing."""
    other = tmp_path / 'own' / 'cray-python'
    other.mkdir(parents=True)
    (other / '99.lua').write_text('setenv("CRAY_PYTHON_LEVEL", "99")\n')
    output = eb('--rehearse', easyconfig, '-x', env={'MODULEPATH': str(other.parent)}).stdout
    assert str(other.parent) not in output


def test_state_by_what_it_depends_on(tmp_path):
    """An easyconfig that loads no module itself, on top of another one beside it."""
    (tmp_path / 'top-1.0.eb').write_text("dependencies = [('base', '1.0', '-x')]\n")
    (tmp_path / 'base-1.0-x.eb').write_text("dependencies = [('PyTorch', '1.13.1', '-ARCHER2')]\n")
    assert make.choose('archer2', [str(tmp_path / 'top-1.0.eb')]) == 'archer2-2023'


# systems that are imitated as they were and as they are
@pytest.mark.parametrize('name, stand_in', [
    ('PyTorch-2.3.1-Derecho.eb', 'derecho-2024'), ('PyTorch-2.7.1-Derecho-whl.eb', 'derecho'),
    ('PyTorch-2.9.1-Derecho.eb', 'derecho'),
    ('PyTorch-2.2.2-Frontier.eb', 'frontier-2024'), ('PyTorch-2.10.0-Frontier.eb', 'frontier'),
    ('PyTorch-1.13.1-ARCHER2.eb', 'archer2-2023'), ('PyTorch-2.9.1-ARCHER2.eb', 'archer2')])
def test_state_of_the_system(eb, name, stand_in):
    """The easyconfig's modules choose it; nothing that it loads is missing there."""
    output = eb('--rehearse', name, '-D', '--robot').stdout
    assert '/.local/stand_ins/%s/modules' % stand_in in output
