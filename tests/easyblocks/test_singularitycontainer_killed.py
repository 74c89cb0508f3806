"""kill -9 at any moment: nothing half-made is used, calling again mends it, and nothing stays of the first call."""
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import zipfile

import pytest
from common import nightly
from containers import images as containers
from lumi.lumi_site import Place

pytestmark = pytest.mark.slow
FILES = 300
MORE = """import_name = 'torch'
package_version = '9.9.0'
venv = True
wrappers = ['python', 'pip']"""
# stops unless the virtual environment is made, on top of the image's PyTorch
NEW = 'pip --version && python -c "import torch" && echo whole'
# stops unless every module of the wheel is there, and of this version
WHOLE = 'python -c "import many; assert many.versions() == {%r}" && echo whole'


def wheel(directory, version):
    """A wheel with many modules; gives its path."""
    path = directory / ('many-%s-py3-none-any.whl' % version)
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('many/__init__.py', 'from importlib import import_module\n\n\ndef versions():\n    return '
                         '{import_module("many.m%%d" %% number).VERSION for number in range(%d)}\n' % FILES)
        for number in range(FILES):
            archive.writestr('many/m%d.py' % number, 'VERSION = %r\n' % version)
        for name, text in (('METADATA', 'Metadata-Version: 2.1\nName: many\nVersion: %s\n' % version),
                           ('WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n'), ('RECORD', '')):
            archive.writestr('many-%s.dist-info/%s' % (version, name), text)
    return path


@pytest.fixture(scope='module')
def installed(apptainer):
    """A module with a virtual environment, and what belongs to a shell in which it is loaded."""
    place = Place(tempfile.mkdtemp(prefix='hpc-tests-'))
    try:
        place.wheels = {version: wheel(place.directory, version) for version in ('1.0', '2.0')}
        shutil.copy(containers.python_image('venv'), place.store / 'tool.sif')
        place.config = place.easyconfig(MORE)
        place.root = place.eb.prefix / 'software/Tool/1.0'
        begin = time.monotonic()
        place.install(place.config)
        place.duration = time.monotonic() - begin
        place.give_to_user()
        place.as_user('pip install --quiet --no-index %s' % place.wheels['1.0'], 'Tool')
        yield place
    finally:
        place.remove()


@pytest.fixture
def chance():
    """Random moments; what fails says which."""
    seed = random.randrange(10 ** 6)
    print("seed", seed)
    return random.Random(seed)


def killed(process, after, everything=True):
    """Kill it after so many seconds: all of it, or the first process alone."""
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        (os.killpg if everything else os.kill)(process.pid, signal.SIGKILL)
    process.wait()


class Command:
    """A command of the module, run as its user."""

    def __init__(self, place, line):
        self.place = place
        found = place.as_user('env -0', 'Tool')
        environment = dict(part.split('=', 1) for part in found.split('\0') if '=' in part)
        self.options = dict(args=line, shell=True, executable='/bin/bash', cwd=place.home, env=environment,
                            user=place.user.pw_uid, group=place.user.pw_gid, extra_groups=[], stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        begin = time.monotonic()
        assert subprocess.run(**self.options).returncode == 0
        self.duration = time.monotonic() - begin

    def killed(self, chance):
        """Run it until some moment."""
        process = subprocess.Popen(start_new_session=True, **self.options)
        killed(process, self.duration * chance.random(), chance.random() < 0.7)

    def again(self):
        """Run it to its end, as soon as what a killed one started has ended; it may have nothing to do."""
        deadline = time.monotonic() + 60
        while self.place.at_work() and time.monotonic() < deadline:
            time.sleep(0.1)
        subprocess.run(**self.options)

    def check(self, version='1.0'):
        """What a shell that loads the module now has."""
        output = self.place.as_user(WHOLE % version, 'Tool')
        assert output.endswith('whole\n'), output


def at_work(place):
    """Whether something packs or unpacks."""
    return subprocess.run(['flock', '-n', place.root, 'true']).returncode


@pytest.mark.parametrize('command, undo', [
    ('make-squashfs', 'user-software.squashfs'), nightly('unmake-squashfs', 'user-software')])
def test_packing(installed, chance, command, undo):
    """Both are whole whenever it is killed; a removal that is killed is noticed."""
    installed.at_work = lambda: at_work(installed)
    if command == 'unmake-squashfs':
        Command(installed, 'make-squashfs')
        shutil.rmtree(installed.root / 'user-software')
    run = Command(installed, command)
    for _ in range(2):
        # as it was before, and as users are told to do
        if (installed.root / undo).is_dir():
            shutil.rmtree(installed.root / undo)
        (installed.root / undo).unlink(missing_ok=True)
        (installed.root / 'user-software.unpacked').unlink(missing_ok=True)
        run.killed(chance)
        run.check()
        run.again()
        run.check()
        assert not list(installed.root.glob('.*make-squashfs.*'))
    assert ((installed.root / 'user-software.unpacked').exists()) == (command == 'unmake-squashfs')
    if command == 'unmake-squashfs':
        (installed.root / 'user-software.unpacked').unlink()
        next((installed.root / 'user-software/venv').rglob('many/m7.py')).unlink()
        refused = installed.as_user('unmake-squashfs 2>&1; echo "status $?"', 'Tool')
        assert 'parts of' in refused and 'status 1' in refused
        run.check()
        shutil.rmtree(installed.root / 'user-software')
        run.again()
        (installed.root / 'user-software.squashfs').unlink()
        (installed.root / 'user-software.unpacked').unlink()
        run.check()
    else:
        (installed.root / undo).unlink()


@pytest.mark.nightly
def test_pip(installed, chance):
    """The same command again installs all of it."""
    installed.at_work = lambda: False
    for line, version in (('pip install --force-reinstall many==2.0', '2.0'),
                          ('pip install --force-reinstall many==1.0', '1.0')):
        run = Command(installed, 'PIP_NO_INDEX=1 PIP_FIND_LINKS=%s %s' % (installed.directory, line))
        for _ in range(3):
            run.killed(chance)
            run.again()
            run.check(version)
    assert installed.as_user('pip check', 'Tool').endswith('No broken requirements found.\n')


@pytest.mark.nightly
def test_environment_of_ones_own(installed, chance):
    """Until it is whole it cannot be activated; where it can, it loads the module and has the image's packages."""
    installed.at_work = lambda: False
    mine = installed.home / 'mine'
    # with a pip of its own, which installs into it
    where = 'python -c "import torch, pip, sys; print(pip.__file__.startswith(sys.prefix), sys.prefix)"'
    use = '. mine/bin/activate && %s && echo "<$LOADEDMODULES>"' % where
    run = Command(installed, 'extend-venv-activate mine')
    for moment in ('activate', chance.random()):
        shutil.rmtree(mine)
        process = subprocess.Popen(start_new_session=True, **run.options)
        # what venv itself makes last, or some moment
        while process.poll() is None and moment == 'activate' and not list(mine.glob('bin/**/activate')):
            time.sleep(0.001)
        killed(process, 0 if moment == 'activate' else run.duration * moment)
        if (mine / 'bin/activate').exists():
            assert installed.as_user(use).endswith('True %s\n<Tool/1.0>\n' % mine)
        run.again()
        assert installed.as_user(use).endswith('True %s\n<Tool/1.0>\n' % mine)


@pytest.mark.nightly
def test_installation(installed, chance):
    """A module that can be loaded is whole; the next call installs all of it."""
    for _ in range(3):
        process = installed.eb.started(installed.config, '--rebuild', env=dict(
            containers.FOR_ROOT, HPC_SYSTEM='lumi', HPC_IMAGE_SEARCH_PATH=str(installed.store)))
        with process:
            killed(process, installed.duration * chance.uniform(0.3, 1))
        if list(installed.eb.modules.glob('Tool/1.0*')):
            assert installed.as_user(NEW, 'Tool').endswith('whole\n')
    installed.install(installed.config)
    assert installed.as_user(NEW, 'Tool').endswith('whole\n')
    assert not list(installed.eb.prefix.glob('software/.locks/*'))
    installed.give_to_user()
