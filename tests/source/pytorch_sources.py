"""
Files of PyTorch's real sources, from Debian's source packages, which are fetched once from the mirror that apt uses.

Nothing of them is in this repository.
"""
import hashlib
import shutil
import subprocess
import tarfile
import urllib.request

from common import CACHE, kept, unpack_package

PLACE = CACHE / 'pytorch-sources'
# version -> SHA256 of Debian's tarball, which lacks only what Debian may not distribute
TARBALLS = {
    '1.13.1': 'd0355588b8528566d477e6ebf1b4d9d036a6fd75711339f66b27472ce5879dc7',
    '2.6.0': '099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff',
}
BACKEND = 'torch/csrc/distributed/c10d/ProcessGroupMPI.cpp'
# all that tests look at
WANTED = (BACKEND, 'torch/csrc/distributed/c10d/ProcessGroupMPI.hpp')


def mirror():
    """The address of the Debian mirror that this machine uses."""
    found = subprocess.run(['apt-get', 'indextargets', '--format', '$(REPO_URI)', 'Created-By: Packages'],
                           stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return next(address for address in found if address.rstrip('/').endswith('/debian'))


def fetch(version, path):
    """Debian's tarball of this version, its checksum verified."""
    address = '%spool/main/p/pytorch/pytorch_%s+dfsg.orig.tar.xz' % (mirror(), version)
    with urllib.request.urlopen(address, timeout=300) as answer, open(path, 'wb') as handle:
        shutil.copyfileobj(answer, handle)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == TARBALLS[version], address


def tree(version):
    """A directory with the wanted files of this version."""
    def make(partial):
        partial.mkdir(parents=True)
        tarball = partial / 'tarball'
        fetch(version, tarball)
        with tarfile.open(tarball) as packed:
            for member in packed:
                name = member.name.partition('/')[2]
                if name in WANTED:
                    target = partial / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(packed.extractfile(member).read())
        tarball.unlink()
    return kept(PLACE / version, make)


def tarball(version, additions):
    """The whole tree as one, with files (text by name) in place of submodules, which Debian leaves out."""
    def make(partial):
        place = partial.with_name('tree')
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        fetch(version, place / 'archive')
        with tarfile.open(place / 'archive') as packed:
            packed.extractall(place)
        top, = (path for path in place.iterdir() if path.is_dir())
        for name, text in additions.items():
            (top / 'third_party' / name).parent.mkdir(parents=True, exist_ok=True)
            (top / 'third_party' / name).write_text(text)
        with tarfile.open(partial, 'w') as packed:
            packed.add(top, 'pytorch-' + version)
        shutil.rmtree(place)
    # other files, another tarball
    kind = hashlib.sha256(repr(additions).encode()).hexdigest()[:8]
    return kept(PLACE / ('pytorch-v%s-%s.tar' % (version, kind)), make)


def headers():
    """The directory with the headers of PyTorch 1.13.1, from Debian's package libtorch-dev."""
    place = kept(PLACE / 'libtorch-dev', lambda partial: unpack_package('libtorch-dev', partial))
    return place / 'usr' / 'include'
