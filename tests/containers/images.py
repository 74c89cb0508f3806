"""
Real containers for tests: Apptainer, images, and a user who is not root.

`./test` installs what tests/debian-packages.txt lists; Apptainer, which not every Debian has, is installed here.
"""
import os
import pwd
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from common import locked

HERE = Path(__file__).resolve().parent
# Root in a virtual machine or container may lack this capability, and then Apptainer does not start.
FOR_ROOT = {'APPTAINER_DROP_CAPS': 'CAP_SYS_RESOURCE'}
USER = 'hpc-tests'
# What a container has at least in which the run scripts have to work.
COREUTILS = ('bash', 'cat', 'cksum', 'dirname', 'env', 'ls', 'mktemp', 'printf', 'readlink', 'rm', 'sleep', 'sort',
             'touch', 'true')


def install_apptainer(cache):
    """Apptainer on this machine, usable by everybody."""
    with locked(cache / 'apptainer'):
        subprocess.run([HERE / 'install-apptainer'], check=True)
    # as every distribution has it; without udev it stays root's
    fuse = Path('/dev/fuse')
    if fuse.exists() and stat.S_IMODE(fuse.stat().st_mode) & 0o666 != 0o666:
        fuse.chmod(0o666)


def torch_image(cache):
    """The path of an image with a real torch, made once; two minutes the first time."""
    image = cache / 'images' / 'torch.sif'
    maker = HERE / 'make-image'
    with locked(image):
        if not image.exists() or image.stat().st_mtime < maker.stat().st_mtime:
            subprocess.run([maker, image], env=dict(os.environ, PYTHON=sys.executable, **FOR_ROOT), check=True)
    return image


def small_image(path):
    """A squashfs image with bash and some of coreutils, made in no time."""
    root = path.parent / (path.name + '.root')
    programs = [Path(shutil.which(name)).resolve() for name in COREUTILS]
    for directory in ('bin', 'etc', 'proc', 'sys', 'dev', 'tmp', 'var/tmp', 'root', 'home'):
        (root / directory).mkdir(parents=True)
    for name in ('passwd', 'group', 'hosts', 'resolv.conf', 'localtime'):
        (root / 'etc' / name).touch()
    for name, program in zip(COREUTILS, programs):
        shutil.copy(program, root / 'bin' / name)
        for word in subprocess.run(['ldd', program], stdout=subprocess.PIPE, text=True, check=True).stdout.split():
            if word.startswith('/'):
                library = root / word[1:]
                library.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, library)
    (root / 'bin' / 'sh').symlink_to('bash')
    (root / 'usr').mkdir()
    (root / 'usr' / 'bin').symlink_to('../bin')
    subprocess.run(['mksquashfs', root, path, '-comp', 'gzip', '-noappend', '-no-progress', '-quiet'], check=True)
    shutil.rmtree(root)
    return path


def user():
    """The password entry of a user who is not root and owns nothing."""
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        subprocess.run(['useradd', '--system', '--no-create-home', '--home-dir', '/nonexistent', '--shell', '/bin/bash',
                        USER], check=True)
        return pwd.getpwnam(USER)
