"""What the tests of containers share: easyconfigs of their own, and a place where a user who is not root works."""
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from common import EB, ModulesTool, needs_root
from containers import images as containers

EASYCONFIG = """easyblock = 'SingularityContainer'
name = {name!r}
version = '1.0'
homepage = 'https://example.org/'
description = "a container"
toolchain = SYSTEM
sources = [{image!r}]
checksums = [{checksum!r}]
{more}
moduleclass = 'tools'
"""
# for runs of ./eb that say which modules tool they want
LMOD = '/usr/share/lmod/lmod/libexec/lmod'


@pytest.fixture(scope='session')
def apptainer():
    """Apptainer, installed if need be."""
    needs_root()
    containers.install_apptainer()


@pytest.fixture(scope='session')
def small_image(apptainer, tmp_path_factory):
    """An image with bash and coreutils."""
    return containers.small_image(tmp_path_factory.mktemp('image') / 'small.sif')


class Place:
    """A store of images, a prefix, and easyconfigs; open to everybody, as pytest's own directories are not."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.directory.chmod(0o755)
        self.store = self.directory / 'store'
        self.store.mkdir()
        self.eb = EB(self.directory / 'prefix')
        self.user, self.home = self.with_home(containers.user())
        # for somebody else who loads the module
        self.other = self.with_home(containers.user(containers.OTHER_USER))

    def with_home(self, user):
        """A user and a home directory."""
        home = self.directory / ('home-' + user.pw_name)
        home.mkdir(0o700)
        os.chown(home, user.pw_uid, user.pw_gid)
        return user, home

    def easyconfig(self, more='', name='Tool', image='tool.sif', checksum=None):
        """Write an easyconfig; returns its path."""
        path = self.directory / ('%s-1.0.eb' % name)
        path.write_text(EASYCONFIG.format(name=name, image=image, checksum=checksum, more=more))
        return path

    def install(self, easyconfig, *options, env=(), **more):
        """Install it, the store being the only one there is; returns what ./eb printed."""
        environment = dict(containers.FOR_ROOT, HPC_SYSTEM='lumi', HPC_IMAGE_SEARCH_PATH=str(self.store), LMOD_CMD=LMOD)
        environment.update(env)
        return self.eb(easyconfig, *options, env=environment, **more).stdout

    def give_to_user(self):
        """What is installed belongs to the user from now on, as if they had installed it."""
        for directory, _, files in os.walk(self.eb.prefix):
            for path in [directory] + [os.path.join(directory, name) for name in files]:
                # an image may be a hard link to the store's
                if not path.endswith('.sif'):
                    os.lchown(path, self.user.pw_uid, self.user.pw_gid)

    def as_user(self, script, module='', tool='Lmod', env=(), modules=None, other=False, **options):
        """Run a script as the user, or as the other one, after loading a module; returns what it printed."""
        user, home = self.other if other else (self.user, self.home)
        environment = dict({'HOME': str(home), 'USER': user.pw_name, 'LOGNAME': user.pw_name, 'SHELL': '/bin/bash',
                            'TMPDIR': '/tmp'}, **dict(env))
        load = 'module load %s || exit' % module if module else ''
        return ModulesTool(tool).run('module use %s\n%s\n%s' % (modules or self.eb.modules, load, script), cwd=home,
                                     env=environment, user=user.pw_uid, group=user.pw_gid, extra_groups=[],
                                     timeout=1200, **options)

    def remove(self):
        """Remove it, whoever its files belong to now."""
        subprocess.run(['rm', '-rf', self.directory], check=True)


@contextmanager
def small_place(image):
    """A place with the small image in its store."""
    place = Place(tempfile.mkdtemp(prefix='hpc-tests-'))
    shutil.copy(image, place.store / 'tool.sif')
    try:
        yield place
    finally:
        place.remove()


@pytest.fixture
def place(small_image):
    """Such a place for one test."""
    with small_place(small_image) as place:
        yield place
