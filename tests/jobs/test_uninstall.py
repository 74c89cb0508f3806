"""./eb --uninstall: what was installed goes, unless somebody needs it."""
import os
import subprocess
from pathlib import Path

import pytest
from common import needs_root

pytestmark = pytest.mark.slow


def left(eb):
    """What is in the prefix besides EasyBuild's archive of easyconfigs."""
    return sorted(str(path.relative_to(eb.prefix)) for path in eb.prefix.rglob('*')
                  if not path.is_dir() and 'ebfiles_repo' not in path.parts)


def test_uninstall(toys):
    """The module on top first; then nothing of both is left, and neither is there any more."""
    top = toys.write('top', after=['base'])
    toys.write('base')
    toys.run(top, '--robot=%s' % toys.directory)
    (toys.eb.prefix / 'build/base/1.0/system-system-ARCHER2').mkdir(parents=True, exist_ok=True)
    words = ('--system=archer2', '--uninstall')
    before = left(toys.eb)
    said = toys.run(*words, 'base/1.0-ARCHER2', status=1)
    assert 'base/1.0-ARCHER2 is needed by top/1.0-ARCHER2' in said
    said = toys.run(*words, 'base', status=1)
    assert 'base/1.0-ARCHER2 top/1.0-ARCHER2' in said
    assert left(toys.eb) == before
    for dry_run in ('-x', '-D', '--dry-run-short'):
        said = toys.run(*words, 'top/1.0-ARCHER2', 'base/1.0-ARCHER2', dry_run)
        assert 'Would remove top/1.0-ARCHER2' in said and 'Would remove base/1.0-ARCHER2' in said
        assert left(toys.eb) == before
    said = toys.run(*words, 'top/1.0-ARCHER2', 'base/1.0-ARCHER2')
    assert 'Removed top/1.0-ARCHER2' in said and 'Removed base/1.0-ARCHER2' in said
    assert not left(toys.eb) and not list(toys.eb.prefix.glob('software/*/1.0-ARCHER2'))
    assert not list(toys.eb.prefix.glob('build/*/*/*'))
    assert not (toys.eb.prefix / 'software/base').exists() and not (toys.eb.modules / 'base').exists()


def test_module_of_others(toys):
    """A module file that names software elsewhere is not EasyBuild's, whatever its encoding: nothing is removed."""
    elsewhere = toys.directory / 'elsewhere'
    elsewhere.mkdir()
    module = toys.eb.modules / 'mine/1.0.lua'
    module.parent.mkdir(parents=True)
    module.write_bytes(b'-- by J\xf6rg\nlocal root = "%s"\n' % str(elsewhere).encode())
    assert 'nothing was removed' in toys.run('--system=archer2', '--uninstall', 'mine/1.0', status=1)
    assert elsewhere.exists() and module.exists()


def test_prefix_that_is_a_link(toys):
    """As homes and projects are on many systems: it is the same prefix."""
    toys.run(toys.write('toy'))
    link = toys.directory / 'link'
    link.symlink_to(toys.eb.prefix)
    toys.eb.prefix = link
    said = toys.run('--system=archer2', '--uninstall', 'toy/1.0-ARCHER2')
    assert 'Removed toy/1.0-ARCHER2' in said and not toys.module('toy').exists()
    assert not (toys.eb.prefix / 'software/toy').exists()


def test_interrupted(toys):
    """It is continued by the next call, although the module is gone."""
    needs_root()
    toys.run(toys.write('toy'))
    software = toys.eb.prefix / 'software/toy'
    busy = software / '1.0-ARCHER2/busy'
    busy.mkdir()
    subprocess.run(['mount', '-t', 'tmpfs', 'none', str(busy)], check=True)
    words = ('--system=archer2', '--uninstall', 'toy/1.0-ARCHER2')
    try:
        assert 'Failed to remove' in toys.run(*words, status=1)
    finally:
        subprocess.run(['umount', *map(str, software.glob('*/busy'))], check=True)
    assert not toys.module('toy').exists() and software.exists()
    assert 'Removed toy/1.0-ARCHER2' in toys.run(*words) and not software.exists()
    assert 'toy/1.0-ARCHER2 is not installed' in toys.run(*words, status=1)


def test_what_is_beside_modules(toys):
    """Lmod's default, directories and EasyBuild's backups: neither modules nor in the way."""
    toys.run(toys.write('toy'))
    toys.run(toys.write('top', after=['toy']))
    toys.run(toys.write('top', after=['toy']), '--module-only', '--force')
    default = toys.module('toy').with_name('default')
    default.symlink_to(toys.module('toy').name)
    (toys.eb.modules / 'toy/more').mkdir()
    words = ('--system=archer2', '--uninstall')
    said = toys.run(*words, 'toy/default', status=1)
    assert 'toy/default is not installed' in said and 'found: top/1.0-ARCHER2 toy/1.0-ARCHER2\n' in said
    toys.run(*words, 'top/1.0-ARCHER2')
    assert not (toys.eb.modules / 'top').exists()
    default.unlink()
    default.symlink_to('0.9.lua')
    assert 'Removed toy/1.0-ARCHER2' in toys.run(*words, 'toy/1.0-ARCHER2')


def test_hidden(toys):
    """A hidden module needs others, and has the name that its installation prints; released, it leaves the software."""
    top = toys.write('top', after=['base'])
    toys.write('base')
    assert 'module load top/.1.0-ARCHER2' in toys.run(top, '--robot=%s' % toys.directory, '--hidden')
    (toys.eb.modules / 'top/.modulerc.lua').write_text('-- the default\n')
    words = ('--system=archer2', '--uninstall')
    assert 'base/1.0-ARCHER2 is needed by top/.1.0-ARCHER2' in toys.run(*words, 'base/1.0-ARCHER2', status=1)
    assert 'found: base/1.0-ARCHER2 top/.1.0-ARCHER2\n' in toys.run(*words, 'other', status=1)
    toys.run(top, '--module-only', '--force')
    said = toys.run(*words, 'top/.1.0-ARCHER2')
    assert 'Removed top/.1.0-ARCHER2: its module. Its software stays, as top/1.0-ARCHER2 needs it' in said
    assert (toys.eb.prefix / 'software/top/1.0-ARCHER2/easybuild').exists() and toys.module('top').exists()
    toys.run(top, '--module-only', '--force', '--hidden')
    toys.run(*words, 'top/1.0-ARCHER2')
    toys.run(*words, 'top/.1.0-ARCHER2', 'base/1.0-ARCHER2')
    (toys.eb.modules / 'top/.modulerc.lua').unlink()
    assert not left(toys.eb) and not list(toys.eb.prefix.glob('software/*/*'))


@pytest.mark.parametrize('installed', ['toy', 'top'])
def test_job_that_needs_it(toys, installed):
    """A job that may be alive keeps what it installs, and what that depends on."""
    toys.run(toys.write('toy'))
    easyconfig = toys.write('top', after=['toy'])
    jobs = toys.eb.prefix / 'software/.jobs'
    jobs.mkdir(parents=True)
    (jobs / 'toy.json').write_text(
        '{"name": "toy", "module": "%s/1.0-ARCHER2", "token": "0", "scheduler": "slurm", "log": "", "easyconfig": "%s",'
        ' "time": 1, "after": [], "job": "7"}' % (installed, easyconfig))
    said = toys.run('--system=archer2', '--uninstall', 'toy/1.0-ARCHER2', status=1, env={'PATH': '/usr/bin:/bin'})
    assert 'toy/1.0-ARCHER2 is needed by job 7, which installs %s/1.0-ARCHER2' % installed in said
    assert toys.module('toy').exists()


def test_installation_that_runs(toys):
    """It is named, also where it is the first and has no module yet, or where a site waits for locks."""
    environ = {'EASYBUILD_WAIT_ON_LOCK_LIMIT': '-1'}
    toys.run(toys.write('toy'))
    started = Path('/proc/self/stat').read_text().rsplit(')', 1)[1].split()[19]
    for name in ('toy', 'first'):
        software = toys.eb.prefix / 'software' / name / '1.0-ARCHER2'
        lock = toys.eb.prefix / 'software' / '.locks' / (str(software).replace('/', '_') + '.lock')
        lock.mkdir(parents=True)
        Path('%s.owner=%s=%d=%s=' % (lock, os.uname().nodename, os.getpid(), started)).touch()
        said = toys.run('--system=archer2', '--uninstall', name + '/1.0-ARCHER2', status=1, env=environ)
        assert 'Another installation holds' in said and 'process %d on' % os.getpid() in said
    assert toys.module('toy').exists()


OWN_SCHEME = """from easybuild.tools.module_naming_scheme.easybuild_mns import EasyBuildMNS


class SitesMNS(EasyBuildMNS):
    '''As a site's EasyBuild module includes one.'''
"""


@pytest.mark.parametrize('variables, directory', [
    ({'EASYBUILD_MODULE_NAMING_SCHEME': 'HierarchicalMNS'}, 'modules/all/Core'),
    ({'EASYBUILD_MODULE_NAMING_SCHEME': 'SitesMNS', 'EASYBUILD_SUFFIX_MODULES_PATH': ''}, 'modules'),
])
def test_where_the_site_has_modules(toys, variables, directory):
    """A hierarchy, or directories and a naming scheme of the site: what ./eb says can be typed, and it finds them."""
    scheme = toys.directory / 'sites.py'
    scheme.write_text(OWN_SCHEME)
    variables = dict(variables, EASYBUILD_INCLUDE_MODULE_NAMING_SCHEMES=str(scheme), MODULESHOME='/usr/share/lmod/lmod')
    top = toys.write('top', after=['base'])
    toys.write('base')
    said = toys.run(top, '--robot=%s' % toys.directory, env=variables)
    assert ' module use %s/%s\n    module load top/1.0-ARCHER2\n' % (toys.eb.prefix, directory) in said
    words = ('--system=archer2', '--uninstall', 'base/1.0-ARCHER2')
    assert 'base/1.0-ARCHER2 is needed by top/1.0-ARCHER2' in toys.run(*words, status=1, env=variables)
    toys.run('--system=archer2', '--uninstall', 'top/1.0-ARCHER2', 'base/1.0-ARCHER2', env=variables)
    assert not left(toys.eb)
