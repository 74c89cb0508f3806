"""Two people with one prefix on real Slurm: both submit, one builds, both have the module."""
import os
import pwd
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from batch_systems.real_slurm import Slurm, wait_for
from common import CHECKOUT, EB, FETCHED, clean_environment, locked, needs_root
from small_software import WAIT, Toys

pytestmark = pytest.mark.slow
GROUP = 'hpc-tests'
PATH = '/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin'
SHARED = ('--umask=002', '--set-gid-bit')


class EBOf(EB):
    """./eb as somebody calls it."""

    def __init__(self, prefix, command, user):
        super().__init__(prefix, [command])
        self.user, self.sources = user, prefix / 'sources'

    def call(self, arguments, env, cwd, **more):
        # a group of one's own, as on most systems: only the prefix has that of both
        more.update(user=self.user.pw_uid, group=self.user.pw_uid, extra_groups=[self.user.pw_gid], umask=0o022)
        environment = dict(env, USER=self.user.pw_name, HOME=str(cwd), PATH=PATH, HPC_SYSTEM='archer2')
        # nobody but its owner makes a checkout's stand-ins, and these toys need none
        return super().call([word for word in arguments if word != '--rehearse'], environment, cwd, **more)


def for_everybody(checkout):
    """A checkout that everybody can read, with a Python that everybody may run."""
    shutil.copytree(CHECKOUT, checkout, ignore=shutil.ignore_patterns('.git', '.venv*', '.local', '__pycache__'))
    subprocess.run(['/usr/bin/python3', '-m', 'venv', '--without-pip', str(checkout / '.venv')], check=True)
    there, = (checkout / '.venv').glob('lib/python3*/site-packages')
    same, = (CHECKOUT / '.venv').glob('lib/python3*/site-packages')
    (there / 'same.pth').write_text('%s\n' % same)
    shutil.copy(same / 'collection.pth', there)
    shutil.copy(CHECKOUT / '.venv/bin/eb', checkout / '.venv/bin/eb')
    (checkout / '.venv/easybuild').symlink_to(CHECKOUT / '.venv/easybuild')
    shutil.copytree(CHECKOUT / '.venv/collection', checkout / '.venv/collection', symlinks=True)
    (checkout / '.venv/.complete').touch()
    # its first call, by its owner
    subprocess.run([str(checkout / 'eb'), '--version'], env=clean_environment(), check=True, stdin=subprocess.DEVNULL)
    return checkout / 'eb'


def account(name):
    """Somebody in the group; made once, and left."""
    with locked(FETCHED / 'users'):
        subprocess.run(['groupadd', '--system', '--force', GROUP], check=True)
        try:
            return pwd.getpwnam(name)
        except KeyError:
            subprocess.run(['useradd', '--system', '--no-create-home', '--home-dir', '/nonexistent', '--gid', GROUP,
                            '--shell', '/bin/bash', name], check=True)
            return pwd.getpwnam(name)


@pytest.fixture
def both():
    """Ann and Ben, with a home each, a prefix of their group, and nobody else's directories in the way."""
    needs_root()
    place = Path(tempfile.mkdtemp(prefix='hpc-tests-'))
    place.chmod(0o755)
    users = [account('hpc-tests-%s' % name) for name in ('ann', 'ben')]
    prefix, found = place / 'prefix', []
    prefix.mkdir()
    shutil.chown(prefix, group=GROUP)
    prefix.chmod(0o2775)
    command = for_everybody(place / 'checkout')
    try:
        with Slurm(place / 'slurm', nodes=2, cpus=128, memory=524288, partitions=('standard',)) as slurm:
            for user in users:
                home = place / user.pw_name
                home.mkdir()
                os.chown(home, user.pw_uid, user.pw_gid)
                found.append(Toys(EBOf(prefix, command, user), home, 'ARCHER2',
                                  dict(slurm.environment, SBATCH_ACCOUNT='x01')))
            yield found
    finally:
        shutil.rmtree(place)


def chain(toys, commands=()):
    """Two modules, the first of which says who built it and waits for what it is told."""
    toys.write('base', commands=['id -un >> %s' % (toys.eb.prefix / 'builders'), *commands])
    return toys.write('top', after=['base'])


def test_two_users(both, lmod):
    """At the same time, with one chain; then each sees how it is, and loads it."""
    ann, ben = both
    go = ann.directory / 'go'
    with ThreadPoolExecutor() as together:
        first, second = [one.result() for one in [
            together.submit(toys.submit, chain(toys, [WAIT.format(file=go)]), *SHARED) for toys in both]]
    assert first == second and len(first) == 2, "submitted by both"
    go.touch()
    for toys in both:
        ended = toys.wait_for_end()
        assert [text.split()[2] for text in ended.values()] == first
        assert all('  done (COMPLETED' in text for text in ended.values()), ended
        user = toys.eb.user
        assert lmod.run('module use %s; module load top/1.0-ARCHER2 && echo $EBROOTBASE' % toys.eb.modules,
                        user=user.pw_uid, group=user.pw_gid, extra_groups=[], cwd=toys.directory).strip()
        assert not toys.submit(toys.directory / 'top-1.0-ARCHER2.eb', *SHARED), "it is installed by now"
    assert len((ann.eb.prefix / 'builders').read_text().split()) == 1


@pytest.mark.nightly
def test_the_others_job(both):
    """It can be seen and not replaced; when it has failed, the other one submits again and builds."""
    ann, ben = both
    go = ann.directory / 'go'
    _, job = ann.submit(chain(ann, [WAIT.format(file=go), 'false']), *SHARED)
    top = chain(ben)
    wait_for((ann.eb.prefix / 'builders').exists, "start of the job", 240)
    assert '  running' in ben.status()['base/1.0-ARCHER2']
    refused = ben.refused(top, '--force', *SHARED)
    assert "job %s, or one that waits for it, is somebody else's" % job in refused, refused
    assert '  running' in ann.status()['base/1.0-ARCHER2']
    go.touch()
    assert '  failed' in ann.wait_for_end()['base/1.0-ARCHER2']
    assert len(ben.submit(top, *SHARED)) == 2
    for toys in both:
        ended = toys.wait_for_end()
        assert all('  done (COMPLETED' in text for text in ended.values()), ended
    assert (ann.eb.prefix / 'builders').read_text().split() == ['hpc-tests-ann', 'hpc-tests-ben']


def test_job_that_the_others_waits_for(both):
    """Ann's own was cancelled, and said to be somebody else's, as one of Ben's waits for it: it goes on."""
    ann, ben = both
    go = ann.directory / 'go'
    chain(ann, [WAIT.format(file=go)])
    base = ann.directory / 'base-1.0-ARCHER2.eb'
    job, = ann.submit(base, *SHARED)
    assert ben.submit(chain(ben, [WAIT.format(file=go)]), *SHARED)[0] == job
    refused = ann.refused(base, '--force', *SHARED)
    assert "job %s, or one that waits for it, is somebody else's" % job in refused, refused
    assert not go.exists() and 'cancelled' not in ann.status()['base/1.0-ARCHER2']
    go.touch()
    assert '  done (COMPLETED' in ben.wait_for_end()['top/1.0-ARCHER2']


def test_not_for_the_group(both):
    """Ann submits without what everybody has to say: Ben is told what that is."""
    ann, ben = both
    for name in ('software', 'modules', 'build'):
        (ann.eb.prefix / name).mkdir()
        (ann.eb.prefix / name).chmod(0o2775)
    ann.submit(ann.write('toy'))
    assert 'everybody adds: --umask=002 --set-gid-bit' in ben.refused(ben.write('toy'), *SHARED)


def test_installation_of_the_other(both):
    """Ben can neither replace nor remove what Ann installed, and is told before it has lost its module."""
    ann, ben = both
    words = [ann.write('toy'), '--buildpath=%s' % ann.directory, *SHARED]
    ann.run(*words)
    words = [ben.write('toy'), '--buildpath=%s' % ben.directory, *SHARED]
    uninstall = ['--uninstall', 'toy/1.0-ARCHER2']
    for more in ([*words, '--rebuild'], [*words, '--rebuild', '--job'], [*uninstall, '-x'], uninstall):
        assert 'software/toy/1.0-ARCHER2 belongs to somebody else' in ben.run(*more, status=1)
        assert ann.module('toy').exists()
    assert 'belongs to somebody else' in ben.run(*words, '--rebuild', '-x').partition('Installing would stop:')[2]
    again = (words[0], *SHARED, '--rebuild', '--group-writable-installdir')
    ann.run(*again, '--buildpath=%s' % ann.directory)
    # a directory that pip made, or Python
    private = ann.eb.prefix / 'software/toy/1.0-ARCHER2/private'
    private.mkdir(mode=0o755)
    os.chown(private, ann.eb.user.pw_uid, -1)
    for more in ([*words, '--rebuild'], uninstall):
        assert '1.0-ARCHER2/private belongs to somebody else' in ben.run(*more, status=1)
        assert ann.module('toy').exists()
    private.rmdir()
    # one that the group cannot read
    hidden = ann.eb.modules / 'toy/hidden.lua'
    hidden.touch(0o600)
    assert 'toy/hidden.lua cannot be read: Permission denied. Ask its owner' in ben.run(*uninstall, status=1)
    hidden.unlink()
    ben.run(*words, '--rebuild')
    assert ann.module('toy').exists()
    ben.run(*uninstall)
    assert not ann.module('toy').exists() and not (ann.eb.prefix / 'software/toy').exists()
