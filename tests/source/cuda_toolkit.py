"""
A real toolkit of CUDA 12.4, with cuDNN 9.1 and NCCL 2.21.5: what PyTorch 2.6.0's own wheel was built with.

The compiler is from Debian's package nvidia-cuda-toolkit (trixie, non-free), all else is from the wheels of the package
index; together they are one directory with the layout of NVIDIA's installer. Nothing of them is in this repository.
"""
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from common import FETCHED, clean_environment, kept

from source.pytorch_sources import fetch_from_mirror

HERE = Path(__file__).parent
PACKAGE = 'pool/non-free/n/nvidia-cuda-toolkit/nvidia-cuda-toolkit_12.4.131~12.4.1-2_amd64.deb'
SHA256 = 'cd5fe85aee38d108b315f408a688641478f2402622a10c677478eb7a6c4e5319'
# two gigabytes of cuDNN's kernels and of other tools that no build looks at
LEFT_OUT = ('_engines_', 'libcudnn_adv', 'libcudnn_heuristic', 'libcudnn_ops', 'libnvvm.so', 'libnvperf', 'libcufftw',
            'libcusolverMg', 'libcheckpoint', 'libpcsampling', '/bin/ptxas', 'libcudadevrt', '__init__.py')
# where nvcc finds the rest: beside itself
PROFILE = """\
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"
"""


def place():
    """The directory of the toolkit, which has gigabytes."""
    kind = hashlib.sha256(b''.join(path.read_bytes() for path in (Path(__file__), *lock_files()))).hexdigest()[:8]
    return kept(FETCHED / 'cuda' / ('12.4-' + kind), make)


def lock_files():
    """What names the wheels."""
    return HERE / 'cuda-12.4.txt', HERE / 'cuda-static.txt'


def make(directory):
    """All of it; the test is skipped for another processor, for which the wheels are not locked."""
    if os.uname().machine != 'x86_64':
        pytest.skip('not to be had: CUDA 12.4 for %s' % os.uname().machine)
    directory.mkdir(parents=True)
    libraries = directory / 'lib64'
    with tempfile.TemporaryDirectory(dir=directory.parent) as temporary:
        compiler(Path(temporary), directory)
        for lock in lock_files():
            wheels(lock, Path(temporary), directory, '.a' if lock.name == 'cuda-static.txt' else '')
        # kernels that start kernels need the one that fits nvcc, which no wheel has; nvcc wants to see the file
        empty = Path(temporary) / 'empty.o'
        subprocess.run(['gcc', '-c', '-x', 'c', '/dev/null', '-o', empty], check=True)
        subprocess.run(['ar', 'rc', libraries / 'libcudadevrt.a', empty], check=True)
    # wheels lack the names that linkers look for
    for path in libraries.glob('lib*.so.*'):
        name = path.name.partition('.so')[0] + '.so'
        if not (libraries / name).exists():
            (libraries / name).symlink_to(path.name)
    (directory / 'lib').symlink_to('lib64')
    # the driver's library is on machines with a GPU; a toolkit has one to link with
    (libraries / 'stubs').mkdir()
    subprocess.run(['gcc', '-shared', '-Wl,-soname,libcuda.so.1', '-x', 'c', '/dev/null', '-o',
                    libraries / 'stubs' / 'libcuda.so'], check=True)


def compiler(temporary, directory):
    """nvcc and what goes with it, from Debian's package."""
    package = temporary / 'package.deb'
    fetch_from_mirror(PACKAGE, SHA256, package)
    subprocess.run(['dpkg', '-x', package, temporary / 'debian'], check=True)
    package.unlink()
    debian = temporary / 'debian' / 'usr'
    own = debian / 'lib' / 'nvidia-cuda-toolkit'
    shutil.copytree(debian / 'bin', directory / 'bin', symlinks=True,
                    ignore=shutil.ignore_patterns('nvcc', 'compute-sanitizer', 'nvdisasm'))
    shutil.copytree(own / 'bin' / 'crt', directory / 'bin' / 'crt')
    shutil.copy(own / 'bin' / 'nvcc', directory / 'bin' / 'nvcc')
    (directory / 'bin' / 'nvcc.profile').write_text(PROFILE)
    (directory / 'nvvm' / 'bin').mkdir(parents=True)
    shutil.copy(own / 'bin' / 'cicc', directory / 'nvvm' / 'bin' / 'cicc')


def wheels(lock, temporary, directory, suffix):
    """The files of the wheels with this suffix, each package's bin, include, lib and nvvm in one."""
    fetched = subprocess.run(
        [sys.executable, '-I', '-m', 'pip', '-q', 'download', '--require-hashes', '--no-deps', '--only-binary=:all:',
         '--disable-pip-version-check', '--no-cache-dir', '-d', temporary, '-r', lock], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(clean_environment(), TMPDIR=temporary))
    # the index that all tests need
    assert fetched.returncode == 0, fetched.stdout
    for path in temporary.glob('*.whl'):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                # nvidia/cublas/lib/libcublas.so.12
                parts = entry.filename.split('/')[2:]
                wanted = parts and parts[0] in ('bin', 'include', 'lib', 'nvvm') and entry.filename.endswith(suffix)
                if wanted and not any(word in entry.filename for word in LEFT_OUT):
                    target = directory / '/'.join(parts).replace('lib/', 'lib64/', 1)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(entry) as source, open(target, 'wb') as handle:
                        shutil.copyfileobj(source, handle, 1 << 20)
        path.unlink()
