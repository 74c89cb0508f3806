"""
Real containers for tests: Apptainer, images, and a user who is not root.

`./test` installs what tests/debian-packages.txt lists; Apptainer, which not every Debian has, is installed here.
"""
import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from common import FETCHED, kept, locked

HERE = Path(__file__).resolve().parent
# Root in a virtual machine or container may lack this capability, and then Apptainer does not start.
FOR_ROOT = {'APPTAINER_DROP_CAPS': 'CAP_SYS_RESOURCE'}
USER, OTHER_USER = 'hpc-tests', 'hpc-tests-2'
# What a container has at least in which the run scripts have to work.
COREUTILS = ('bash', 'cat', 'cksum', 'dirname', 'env', 'ls', 'mktemp', 'printf', 'readlink', 'rm', 'sleep', 'sort',
             'touch', 'true')


def install_apptainer():
    """Apptainer on this machine, usable by everybody."""
    with locked(FETCHED / 'apptainer'):
        subprocess.run([HERE / 'install-apptainer'], check=True)
    # as every distribution has it; without udev it stays root's
    fuse = Path('/dev/fuse')
    if fuse.exists() and stat.S_IMODE(fuse.stat().st_mode) & 0o666 != 0o666:
        fuse.chmod(0o666)


def kept_image(name, makers, make):
    """The path of an image that is made once for all checkouts in which these files are the same."""
    state = hashlib.sha256(b''.join(path.read_bytes() for path in makers)).hexdigest()[:16]
    return kept(FETCHED / 'images' / ('%s-%s.sif' % (name, state)), make)


def copy_program(program, root, target):
    """A program, with the libraries that it needs."""
    (root / target).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(program, root / target)
    copy_libraries(program, root)


def copy_libraries(program, root):
    """The libraries that a program or a shared object needs."""
    for word in subprocess.run(['ldd', program], stdout=subprocess.PIPE, text=True).stdout.split():
        if word.startswith('/'):
            library = root / word[1:]
            library.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, library)


def small_root(root):
    """A directory tree with bash and some of coreutils."""
    for directory in ('bin', 'etc', 'proc', 'sys', 'dev', 'tmp', 'var/tmp', 'root', 'home'):
        (root / directory).mkdir(parents=True)
    for name in ('passwd', 'group', 'hosts', 'resolv.conf', 'localtime'):
        (root / 'etc' / name).touch()
    for name in COREUTILS:
        copy_program(Path(shutil.which(name)).resolve(), root, 'bin/' + name)
    (root / 'bin' / 'sh').symlink_to('bash')
    (root / 'usr').mkdir()
    (root / 'usr' / 'bin').symlink_to('../bin')


def small_image(path):
    """A squashfs image with bash and some of coreutils, made in no time."""
    root = path.parent / (path.name + '.root')
    small_root(root)
    subprocess.run(['mksquashfs', root, path, '-comp', 'gzip', '-noappend', '-no-progress', '-quiet'], check=True)
    shutil.rmtree(root)
    return path


def image_of_this_machine(path, venv, variables):
    """An image whose system is this machine's, when /usr is bound to it, and whose Python is that of an environment."""
    root = path.parent / (path.name + '.root')
    environment = root / '.singularity.d/env/10-docker2singularity.sh'
    environment.parent.mkdir(parents=True)
    for directory in ('usr', 'etc', 'proc', 'sys', 'dev', 'tmp', 'var/tmp', 'root', 'home', 'opt'):
        (root / directory).mkdir(parents=True)
    for name in ('bin', 'lib', 'lib64', 'sbin'):
        (root / name).symlink_to('usr/' + name)
    for name in ('passwd', 'group', 'hosts', 'resolv.conf', 'localtime'):
        (root / 'etc' / name).touch()
    (root / 'opt/venv').symlink_to(venv)
    words = ['PATH=/opt/venv/bin:$PATH'] + ['%s=%s' % pair for pair in variables.items()]
    environment.write_text('export %s\n' % ' '.join(words))
    environment.chmod(0o755)
    subprocess.run(['apptainer', '-s', 'build', path, root], env=dict(os.environ, **FOR_ROOT), check=True)
    shutil.rmtree(root)


# How an image makes its Python known: the environment that it sets, and what it does only in `singularity run`.
KINDS = {
    'conda': "export WITH_CONDA='source /opt/miniconda3/bin/activate pytorch'",
    'path': "export PATH=/opt/miniconda3/envs/pytorch/bin:$PATH",
    'venv': "export PATH=/opt/venv/bin:$PATH",
    'run': "",
}
RUNSCRIPT = """#!/bin/sh
export INITIALISED=yes PATH="/opt/venv/bin:$PATH"
exec "$@"
"""
# Stands for PyTorch where only matters which Python finds it: starts ranks as torchrun does.
SMALL_TORCH = {
    '__init__.py': "__version__ = '9.9.0'",
    'distributed/__init__.py': "",
    'distributed/run.py': """import os, subprocess, sys
ranks = int(sys.argv[1].split('=')[1])
started = [subprocess.Popen([sys.executable] + sys.argv[2:], env=dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank)))
           for rank in range(ranks)]
sys.exit(max(process.wait() for process in started))
""",
}
PACKAGES = ('pip', 'numpy', 'torch==2.13.0')
# Byte code stays: no Python in the container could keep what it compiles, and each would compile all that it imports.
NOT_NEEDED = ('test', 'idlelib', 'lib2to3', 'tkinter', 'turtledemo', 'pydoc_data', 'config-*', 'dist-packages',
              'EXTERNALLY-MANAGED')


def python_image(kind, torch=None):
    """The path of an image with a Python that makes itself known in this way, and a real torch or a small one."""
    torch = torch or small_torch

    def make(image):
        with tempfile.TemporaryDirectory(dir=image.parent) as directory:
            root = Path(directory) / 'root'
            torch(root, python_root(root, kind))
            subprocess.run(['apptainer', '-s', 'build', '--mksquashfs-args', '-comp zstd -Xcompression-level 1',
                            image, root], env=dict(os.environ, **FOR_ROOT), check=True)
    return kept_image('%s-%s' % (torch.__name__, kind), [Path(__file__), HERE / 'conda-activate'], make)


def torch_image():
    """The path of an image with a real torch, laid out as a supercomputer's PyTorch images are."""
    return python_image('conda', real_torch)


def small_torch(root, packages):
    """See SMALL_TORCH."""
    for name, text in SMALL_TORCH.items():
        (packages / 'torch' / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / 'torch' / name).write_text(text)
    metadata = packages / 'torch-9.9.0+small.dist-info' / 'METADATA'
    metadata.parent.mkdir()
    metadata.write_text('Metadata-Version: 2.1\nName: torch\nVersion: 9.9.0+small\n')


def real_torch(root, packages):
    """PyTorch's CPU wheels, fetched by this machine's pip, installed by the image's."""
    wheels = root / 'wheels'
    subprocess.run([sys.executable, '-m', 'pip', '-q', 'download', '--only-binary=:all:', '--dest', wheels,
                    '--python-version', packages.name[len('python'):], *PACKAGES], check=True)
    pip = '/wheels/%s/pip' % next(wheels.glob('pip-*.whl')).name
    environment = {'HOME': '/', 'PATH': os.environ['PATH'], 'DEB_PYTHON_INSTALL_LAYOUT': 'deb_system'}
    options = ['-q', '--no-index', '--no-cache-dir', '--root-user-action=ignore', '--find-links', '/wheels']
    subprocess.run(['chroot', root, '/opt/miniconda3/envs/pytorch/bin/python', pip, 'install', *options, *PACKAGES],
                   env=environment, check=True)
    shutil.rmtree(wheels)
    for library in [*root.rglob('torch/lib/*.so*'), *root.rglob('torch/_C.*')]:
        copy_libraries(library, root)


def python_root(root, kind):
    """Debian's Python, copied as conda's are, or a virtual environment of it; returns the directory of its packages."""
    small_root(root)
    version = Path('/usr/bin/python3').resolve().name
    prefix = root / 'opt/miniconda3/envs/pytorch'
    library = prefix / 'lib' / version
    shutil.copytree('/usr/lib/' + version, library, ignore=shutil.ignore_patterns(*NOT_NEEDED))
    copy_program('/usr/bin/' + version, root, prefix.relative_to(root) / 'bin' / version)
    for name in ('python', 'python3'):
        (prefix / 'bin' / name).symlink_to(version)
    for module in library.glob('lib-dynload/*.so'):
        copy_libraries(module, root)
    shutil.copytree('/usr/share/python-wheels', root / 'usr/share/python-wheels')
    activate = root / 'opt/miniconda3/bin/activate'
    activate.parent.mkdir()
    shutil.copy(HERE / 'conda-activate', activate)
    packages = library
    if kind in ('venv', 'run'):
        subprocess.run(['chroot', root, '/opt/miniconda3/envs/pytorch/bin/python', '-m', 'venv', '--without-pip',
                        '/opt/venv'], check=True)
        packages = root / 'opt/venv/lib' / version / 'site-packages'
    environment = root / '.singularity.d/env/10-docker2singularity.sh'
    environment.parent.mkdir(parents=True)
    environment.write_text(KINDS[kind] + '\n')
    environment.chmod(0o755)
    if kind == 'run':
        (root / '.sbom.json').write_text('{"bomFormat": "CycloneDX"}\n')
        runscript = root / '.singularity.d/runscript'
        runscript.write_text(RUNSCRIPT)
        runscript.chmod(0o755)
    return packages


def user(name=USER):
    """The password entry of a user who is not root and owns nothing."""
    with locked(FETCHED / 'users'):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            subprocess.run(['useradd', '--system', '--no-create-home', '--home-dir', '/nonexistent', '--shell',
                            '/bin/bash', name], check=True)
            return pwd.getpwnam(name)
