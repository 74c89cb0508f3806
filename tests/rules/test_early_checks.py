"""What is refused before it begins: builds on login nodes and on hosts with too little memory or room on disks."""
import subprocess

import pytest
from common import needs_root
from small_software import site

from memory_cgroup import MemoryCgroup

pytestmark = pytest.mark.slow

# a build from source as far as rules are concerned; no test lets it begin
SOURCE_BUILD = """easyblock = 'EB_PyTorchHPC'
name = 'PyTorch'
version = '1.13.1'
versionsuffix = '-ARCHER2'
homepage = 'https://example.org/'
description = 'never built'
toolchain = SYSTEM
dependencies = [('PrgEnv-gnu', EXTERNAL_MODULE), ('cray-python', EXTERNAL_MODULE)]
lock_files = ['empty.lock']
python_versions = ['3.11']
moduleclass = 'ai'
"""


@pytest.fixture
def source_build(tmp_path):
    """The easyconfig of a build from source."""
    (tmp_path / 'empty.lock').write_text('# nothing\n')
    path = tmp_path / 'PyTorch-1.13.1-ARCHER2.eb'
    path.write_text(SOURCE_BUILD)
    return path


def on_login_node(toys):
    """./eb on a host that is called like a login node of ARCHER2."""
    needs_root()
    toys.eb.command = ['unshare', '--uts', 'sh', '-c', 'hostname ln01 && exec "$@"', 'sh'] + toys.eb.command


def test_login_node(toys, source_build):
    """Refused, with the command that does it right; or warned, or neither, as the site chooses."""
    on_login_node(toys)
    output = toys.run(source_build, status=None)
    assert 'ln01 is a login node of ARCHER2' in output
    assert 'eb --system archer2 --rehearse PyTorch-1.13.1-ARCHER2.eb --robot --job' in output
    assert "rule 'no builds on login nodes'" in output and 'Installation of' not in output
    output = toys.run(source_build, '-x')
    assert 'ln01 is a login node of ARCHER2' in output[output.index('Installing would stop:'):]
    ready = '--stop=ready'
    output = toys.run(source_build, ready, env=site(toys.directory, '[policy]\nlogin_node = warn\n'))
    assert 'WARNING' in output and 'ln01 is a login node' in output
    output = toys.run(source_build, ready, env=site(toys.directory, '[policy]\nlogin_node = allow\n'))
    assert 'login node' not in output


def test_login_node_is_for_the_rest(toys, source_build):
    """What does not compile for hours is no matter there; nor is fetching, nor what a job does on such a host."""
    on_login_node(toys)
    assert 'module load toy' in toys.run(toys.write('toy'))
    assert 'login node' not in toys.run(source_build, '--fetch')
    job = {'SLURM_JOB_ID': '1'}
    assert 'login node' not in toys.run(source_build, '--stop=ready', env=dict(job, SLURMD_NODENAME='ln01'))
    # but salloc's own shell may be there
    assert 'ln01 is a login node of ARCHER2' in toys.run(source_build, '--stop=ready', env=job, status=None)
    # wheels are, unless something is compiled for long
    wheels = source_build.read_text().replace('EB_PyTorchHPC', 'LockedWheels')
    source_build.write_text(wheels)
    assert 'login node' not in toys.run(source_build, '--stop=ready')
    source_build.write_text(wheels + 'ramgate = True\n')
    assert 'ln01 is a login node of ARCHER2' in toys.run(source_build, '--stop=ready', status=None)
    wheel = toys.eb.sources / 'p/PyTorch/PyTorch-1.13.1-ARCHER2-built/0123/torch.whl'
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    assert 'login node' not in toys.run(source_build, '--stop=ready')


def test_too_little_memory(toys, source_build):
    """A host, or a cgroup, with less memory than the largest file needs: the build could not end well."""
    needs_root()
    cgroup = MemoryCgroup(1 << 30)
    try:
        enter = 'echo $$ > %s/cgroup.procs && exec "$@"' % cgroup.directory
        toys.eb.command = ['sh', '-c', enter, 'sh'] + toys.eb.command
        output = toys.run(source_build, status=None)
        assert '1.0 GB, and the largest file alone needs 2.0 GB' in output and '--robot --job' in output
    finally:
        cgroup.close()


def unfetched(toys):
    """An easyconfig whose source is nowhere."""
    path = toys.write('unfetched')
    path.write_text(path.read_text().replace('Toolchain', 'Tarball') + "sources = ['nowhere.tar.gz']\n")
    return path


def test_full_disk(toys):
    """Too little room in the build directory: said before anything is unpacked; the site may only warn."""
    needs_root()
    place = toys.directory / 'small'
    place.mkdir()
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=50M', 'none', str(place)], check=True)
    try:
        output = toys.run(toys.write('toy'), '--buildpath=%s' % (place / 'build'), status=None)
        assert 'The build directory %s has too little room: ' % place in output
        assert ' MB are free, and 100.0 MB are needed' in output
        assert '--buildpath' in output and not toys.module('toy').exists()
        # of a dry run in its last lines
        output = toys.run(toys.write('toy'), '--buildpath=%s' % (place / 'build'), '-x')
        assert 'The build directory %s has too little room: ' % place in output[output.index('Installing would stop:'):]
        # before anything is fetched
        output = toys.run(unfetched(toys), '--buildpath=%s' % (place / 'build'), status=None)
        assert 'too little room' in output and 'nowhere.tar.gz' not in output
        output = toys.run(toys.write('toy'), '--buildpath=%s' % (place / 'build'),
                          env=site(toys.directory, '[policy]\nfree_space = warn\n'))
        assert 'WARNING' in output and toys.module('toy').exists()
    finally:
        subprocess.run(['umount', str(place)], check=True)


def test_no_more_files(toys):
    """The bytes are there, and no file can be made."""
    needs_root()
    place = toys.directory / 'small'
    place.mkdir()
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=900M,nr_inodes=4', 'none', str(place)], check=True)
    try:
        output = toys.run(unfetched(toys), '--installpath-software=%s' % place, status=None)
        assert 'no more files can be made' in output and 'nowhere.tar.gz' not in output
    finally:
        subprocess.run(['umount', str(place)], check=True)


def test_quota(toys):
    """The file system has room, and the quota does not: a real one, of a subvolume."""
    needs_root()
    place, image = toys.directory / 'disk', toys.directory / 'image'
    place.mkdir()
    with open(image, 'wb') as handle:
        handle.truncate(2 ** 30)
    subprocess.run(['mkfs.btrfs', '--quiet', str(image)], check=True)
    subprocess.run(['mount', '-o', 'loop', str(image), str(place)], check=True)
    try:
        for command in (['quota', 'enable', place], ['subvolume', 'create', place / 'mine'],
                        ['qgroup', 'limit', '60M', place / 'mine']):
            subprocess.run(['btrfs'] + [str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
        output = toys.run(toys.write('toy'), '--buildpath=%s' % (place / 'mine'), status=None)
        assert 'too little room: your quota there does not allow it, and 100.0 MB are needed' in output
        toys.run(toys.write('toy'), '--buildpath=%s' % place)
    finally:
        subprocess.run(['umount', str(place)], check=True)
