"""pytorch-stage on one machine, with a small environment in place of PyTorch's; and what goes wrong."""
import os
import shutil
import socket
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


def leave(place, owner, claim=None):
    """What a job leaves that was killed while it staged."""
    left = place.local / 'me' / ('pytorch-stage-%d' % os.getuid()) / ('working-' + owner)
    left.mkdir(parents=True, mode=0o700)
    left.parent.chmod(0o700)
    (left / 'copy.tar').write_bytes(b'x' * 1000)
    if claim:
        (left / 'claim').write_text('%s\n' % claim)
    return left


@pytest.mark.parametrize('owner, answer, goes', [
    ('slurm-7-0-99', 'slurm_load_jobs error: Invalid job id specified\n', True),
    ('slurm-7-0-99', '', True),
    ('slurm-7-0-99', 'PENDING\n', True),
    ('slurm-7-0-99', 'RUNNING\n', False),
    ('slurm-7-0-99', 'slurm_load_jobs error: Unable to contact slurm controller\n', False),
    ('pbs-7.pbs-0-99', 'qstat: Unknown Job Id 7.pbs\n', True),
    ('pbs-7.pbs-0-99', '    job_state = R\n', False),
])
def test_leftovers(place, tmp_path, owner, answer, goes):
    """What dead jobs left goes at once; what belongs to a living one, or nobody knows, stays."""
    tools = tmp_path / 'tools'
    tools.mkdir()
    for name in ('squeue', 'qstat'):
        (tools / name).write_text('#!/bin/sh\nprintf "%%s" "%s"\n%s\n' % (
            answer, 'exit 1' if 'error' in answer or 'Unknown' in answer else ''))
        (tools / name).chmod(0o755)
    left = leave(place, owner)
    place.run('toy', PATH='%s:%s/bin:/usr/bin:/bin' % (tools, place.root))
    assert left.exists() != goes


def test_two_at_once(place, tmp_path):
    """Two jobs start on a node that has room for one: the second waits for the first, and uses its copy."""
    needs_root()
    (place.site / 'large').write_bytes(os.urandom(4 << 20))
    disk = tmp_path / 'small'
    disk.mkdir()
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=14m', 'tmpfs', disk], check=True)
    try:
        place.run('true')
        with ThreadPoolExecutor() as both:
            done = [both.submit(place.run, 'toy', PYTORCH_LOCAL_DIR=str(disk)) for _ in range(2)]
        assert all(str(disk) in one.result()[0] for one in done)
        assert len(list(disk.glob('*/[!.]*'))) == 1
        # and who has no room after all says so in one line, and leaves nothing
        (place.site / 'large').write_bytes(os.urandom(9 << 20))
        _, error = place.run('', status=3, PYTORCH_LOCAL_DIR=str(disk))
        assert 'no room' in error and 'tar:' not in error
        assert len(list(disk.glob('*/[!.]*'))) == 1
    finally:
        subprocess.run(['umount', disk], check=True)


def test_nodes_that_share_a_disk(place):
    """Two nodes of a job with one directory: neither waits for the other, and both find the copy there."""
    def node(action, *arguments):
        return subprocess.run([STAGE, '--node', action, place.local / 'me', 'key', *map(str, arguments)], text=True,
                              stdout=subprocess.PIPE, timeout=60, check=True).stdout

    owner = 'host-%s-0-%d' % (socket.gethostname(), os.getpid())
    assert [node('prepare', 1000, owner) for _ in range(2)] == ['missing\n'] * 2
    place.run('true')
    with ThreadPoolExecutor() as both:
        for one in [both.submit(node, 'unpack', place.archives[0], place.root, owner) for _ in range(2)]:
            one.result()
    assert (place.local / 'me/key/env/pyvenv.cfg').is_file() and not list((place.local / 'me').glob('working-*'))


def test_reserved_room(place):
    """Room that a living process has claimed is not there for another module."""
    free = shutil.disk_usage(place.local).free
    sleeper = subprocess.Popen(['sleep', '600'])
    try:
        left = leave(place, 'host-%s-0-%d' % (socket.gethostname(), sleeper.pid), '%d other' % (2 * free))
        call = subprocess.Popen([STAGE], env={'EBROOTPYTORCH': str(place.root), 'PATH': '/usr/bin:/bin', 'USER': 'me'},
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with pytest.raises(subprocess.TimeoutExpired):
            call.wait(3)
    finally:
        sleeper.kill()
        sleeper.wait()
    assert call.wait(120) == 0 and not left.exists()
    call.stdout.close()


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
