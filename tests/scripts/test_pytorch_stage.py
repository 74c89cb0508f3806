"""pytorch-stage on one machine, with a small environment in place of PyTorch's; and what goes wrong."""
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from common import CHECKOUT, needs_root
from containers import images as containers

STAGE = CHECKOUT / 'hpc_pytorch/scripts/pytorch-stage'


class Place:
    """An installed environment with one package and one script, and a node's own disk."""

    def __init__(self, directory, python='/usr/bin/python3'):
        self.root = directory / 'software' / 'PyTorch'
        self.local = directory / 'disk'
        self.local.mkdir()
        # another user may not read the checkout
        self.stage = shutil.copy(STAGE, directory)
        subprocess.run([python, '-m', 'venv', '--without-pip', self.root], check=True)
        self.site = next(self.root.glob('lib/python3*/site-packages'))
        (self.site / 'toy.py').write_text('here = __file__\n')
        self.command = self.root / 'bin' / 'toy'
        self.command.write_text('#!%s/bin/python\nimport sys, toy; print(toy.here, sys.executable)\n' % self.root)
        self.command.chmod(0o755)
        (self.root / 'share').mkdir()
        (self.root / 'share/system.cfg').write_text('[node]\nlocal_storage = %s/$USER\n' % self.local)
        (self.local / 'me').mkdir()

    def run(self, script, status=0, prefix=(), user=None, **variables):
        """Run a script after staging."""
        environment = {'EBROOTPYTORCH': str(self.root), 'PATH': '%s/bin:/usr/bin:/bin' % self.root, 'USER': 'me',
                       'PYTHONPATH': str(self.site), 'HOME': str(self.root.parent)}
        environment.update(variables)
        script = 'staged=$(%s) || exit 3\neval "$staged"\n%s' % (self.stage, script)
        done = subprocess.run([*prefix, 'bash', '-c', script], env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, user=user)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout, done.stderr

    @property
    def archives(self):
        """The packed files."""
        return sorted((self.root / 'stage').glob('*.tar'))

    def staged(self):
        """What is on the node's disk."""
        return sorted(path for path in (self.local / 'me').glob('*/[!.]*'))


@pytest.fixture
def place(tmp_path):
    """See Place."""
    return Place(tmp_path)


def test_use(place):
    """Programs and packages come from the node's disk, also those that name their interpreter."""
    output, error = place.run('toy; python -c "import toy; print(toy.here)"; echo $EBROOTPYTORCH')
    assert 'packing' in error
    for line in output.splitlines():
        assert all(word.startswith(str(place.local)) for word in line.split()), output
    directory = next((place.local / 'me').iterdir())
    assert directory.stat().st_mode & 0o777 == 0o700
    # the copied archive is gone; the environment is all there is
    assert len(place.staged()) == 1


def test_packed_once(place):
    """The file is used again as long as the environment is the same."""
    place.run('true')
    before = [(path, path.stat().st_mtime_ns) for path in place.archives]
    assert 'packing' not in place.run('true')[1]
    assert [(path, path.stat().st_mtime_ns) for path in place.archives] == before
    # something that is installed within the same second once went unseen
    last = place.site.stat().st_mtime_ns
    (place.site / 'more.py').write_text('')
    os.utime(place.site, ns=(last + 1, last + 1))
    assert 'packing' in place.run('python -c "import more"')[1]
    # written to in place, as an editor does it
    with place.command.open('a') as handle:
        handle.write('# changed\n')
    assert 'packing' in place.run('true')[1]


def test_already_staged_shell(place):
    """In a shell that uses the staged copy, it stages from where that came from."""
    output, _ = place.run('%s > /dev/null; toy' % STAGE)
    assert str(place.local) in output
    assert len(place.archives) == 1


@pytest.mark.slow
def test_python_comes_along(tmp_path):
    """A Python that is not the operating system's is staged with its library."""
    place = Place(tmp_path, sys.executable)
    output, _ = place.run('python -c "import sys, os; print(os.path.realpath(sys.executable), os.__file__)"')
    if Path(sys.base_prefix) == Path('/usr'):
        assert all(word.startswith('/usr') for word in output.split())
    else:
        assert all(word.startswith(str(place.local)) for word in output.split()), output


def test_system_without_disk(place):
    """The site's directory is not there in this job: temporary files' instead, and it is said."""
    shutil.rmtree(place.local / 'me')
    (place.root / 'share/system.cfg').write_text(
        '[node]\nlocal_storage = %s/$USER\nlocal_storage_option = -C nvme\ntemporary_directory = %s\n' % (
            place.local, place.local))
    output, error = place.run('toy')
    assert '-C nvme' in error and str(place.local) in output


def test_no_room(place, tmp_path):
    """No space on the node: said, and nothing is left; the shell keeps what it had."""
    needs_root()
    small = tmp_path / 'small'
    small.mkdir()
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', small], check=True)
    try:
        output, error = place.run('', status=3, PYTORCH_LOCAL_DIR=str(small))
        assert 'no room' in error and 'MiB are needed' in error and output == ''
        assert not list(small.glob('*/[!.]*'))
    finally:
        subprocess.run(['umount', small], check=True)


def test_somebody_elses_directory(place):
    """A directory that another user made first is not trusted."""
    needs_root()
    other = place.local / 'me' / ('pytorch-stage-%d' % os.getuid())
    other.mkdir()
    os.chown(other, containers.user().pw_uid, -1)
    assert 'belongs to somebody else' in place.run('', status=3)[1]


def test_killed_while_unpacking(place):
    """Half a copy is never used: it appears under its name when it is whole."""
    place.run('true')
    whole = place.staged()
    for path in whole:
        path.rename(path.with_name('partial-killed'))
    (place.staged()[0] / 'env' / 'bin' / 'toy').unlink()
    output, _ = place.run('toy')
    assert str(place.local) in output and 'partial' not in output


def test_module_is_not_loaded(place):
    """Says what to do."""
    assert 'load the PyTorch module' in place.run('', status=3, EBROOTPYTORCH='')[1]


def test_leftovers(place):
    """What jobs that were killed have left goes after an hour; before that it may belong to a living one."""
    place.run('true')
    directory = next((place.local / 'me').iterdir())
    for name, age in (('partial-old', 7200), ('partial-new', 0)):
        (directory / name).mkdir()
        (directory / (name + '.tar')).touch()
        for path in (directory / name, directory / (name + '.tar')):
            os.utime(path, (path.stat().st_mtime - age,) * 2)
    (place.site / 'more.py').write_text('')
    place.run('true')
    assert sorted(path.name for path in directory.glob('partial-*')) == ['partial-new', 'partial-new.tar']


def test_two_at_once(place):
    """Two jobs start on a node: both find a whole copy, and there is one."""
    with ThreadPoolExecutor() as both:
        done = [both.submit(place.run, 'toy') for _ in range(2)]
    assert all(str(place.local) in one.result()[0] for one in done)
    assert len(place.staged()) == 1


def test_nodes_that_share_a_disk(place):
    """Two nodes of a job with one directory: neither waits for the other, and both find the copy there."""
    def node(action, *arguments):
        return subprocess.run([STAGE, '--node', action, place.local / 'me', 'key', *map(str, arguments)], text=True,
                              stdout=subprocess.PIPE, timeout=60, check=True).stdout

    assert [node('prepare', 1000) for _ in range(2)] == ['missing\n'] * 2
    place.run('true')
    with ThreadPoolExecutor() as both:
        for one in [both.submit(node, 'unpack', place.archives[0], place.root) for _ in range(2)]:
            one.result()
    assert (place.local / 'me/key/env/pyvenv.cfg').is_file() and not list((place.local / 'me').glob('partial-*'))


def test_site_that_prints(place, tmp_path):
    """What a site's TaskProlog prints on each node is no command for the shell, and nodes with a copy get no other."""
    (tmp_path / 'bin').mkdir()
    for name, does in (('srun', 'echo "It\'s a site: > ruled"; while [[ $1 == --* ]]; do shift; done; "$@"'),
                       ('sbcast', 'cp "$2" "$3"')):
        (tmp_path / 'bin' / name).write_text('#!/bin/bash\n%s\n' % does)
        (tmp_path / 'bin' / name).chmod(0o755)
    job = {'SLURM_JOB_ID': '7', 'SLURM_JOB_NUM_NODES': '1',
           'PATH': '%s/bin:%s/bin:/usr/bin:/bin' % (place.root, tmp_path)}
    for banners in (3, 1):
        output, error = place.run('toy', **job)
        assert output.startswith(str(place.local)) and 'command not found' not in error
        assert error.count("It's a site") == banners - 1


def test_edited_in_place(place):
    """A change deep in a package, even one that keeps size and times, is staged: no directory's time tells of it."""
    package = place.site / 'deep' / 'down'
    package.mkdir(parents=True)
    (package / '__init__.py').write_text('value = 1\n')
    (package.parent / '__init__.py').write_text('')
    show = 'python -c "import deep.down; print(deep.down.value)"'
    assert place.run(show)[0] == '1\n'
    stat = (package / '__init__.py').stat()
    with (package / '__init__.py').open('r+') as handle:
        handle.write('value = 2\n')
    os.utime(package / '__init__.py', ns=(stat.st_atime_ns, stat.st_mtime_ns))
    output, error = place.run(show)
    assert output == '2\n' and 'packing' in error
    # what Python itself writes is no change
    (package / '__pycache__').mkdir(exist_ok=True)
    (package / '__pycache__' / 'x.pyc').write_bytes(b'')
    assert 'packing' not in place.run('true')[1]


def test_installed_for_everybody(place, tmp_path):
    """An installation that its user cannot write to is known by its provenance, without a look at every file."""
    needs_root()
    identity = place.root / 'easybuild/provenance/provenance.json'
    identity.parent.mkdir(parents=True)
    identity.write_text('{"built": 1}\n')
    user = containers.user()
    os.chown(place.local / 'me', user.pw_uid, -1)
    for path in (tmp_path, *tmp_path.parents):
        # pytest's own directories, whose number depends on how it was called
        if not path.stat().st_mode & 0o005 == 0o005:
            path.chmod(0o755)
    home = tmp_path / 'home'
    home.mkdir()
    os.chown(home, user.pw_uid, -1)
    assert 'packing' in place.run('toy', user=user.pw_name, HOME=str(home))[1]
    assert 'packing' not in place.run('toy', user=user.pw_name, HOME=str(home))[1]
    identity.write_text('{"built": 2}\n')
    assert 'packing' in place.run('toy', user=user.pw_name, HOME=str(home))[1]
