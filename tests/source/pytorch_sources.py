"""
PyTorch's real sources, from Debian's source packages, which are fetched once from the mirror that apt uses: single
files, and the tree of 2.6.0 to be configured. Debian's has no submodules: Debian's libraries take their place, and what
has none is left out.

Nothing of them is in this repository.
"""
import hashlib
import re
import shutil
import subprocess
import tarfile
import urllib.request

from common import CACHE, CHECKOUT, EB, FETCHED, kept, unpack_package

PLACE = FETCHED / 'pytorch-sources'
# version -> SHA256 of Debian's tarball, which lacks only what Debian may not distribute
TARBALLS = {
    '1.13.1': 'd0355588b8528566d477e6ebf1b4d9d036a6fd75711339f66b27472ce5879dc7',
    '2.6.0': '099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff',
}
BACKEND = 'torch/csrc/distributed/c10d/ProcessGroupMPI.cpp'
# all that most tests look at
WANTED = (BACKEND, 'torch/csrc/distributed/c10d/ProcessGroupMPI.hpp')

# The tree that is configured, the easyconfig that says how, and what its CMake wants to find of submodules that
# Debian's libraries do not replace.
TREE = '2.6.0'
EASYCONFIG = 'PyTorch-2.9.1-workstation-source.eb'
SUBMODULES = {
    'fmt/CMakeLists.txt': 'add_library(fmt-header-only INTERFACE)\n'
                          'add_library(fmt::fmt-header-only ALIAS fmt-header-only)\n',
    'pocketfft/pocketfft_hdronly.h': '',
    'opentelemetry-cpp/api/include/none.h': '', 'cpp-httplib/none.h': '', 'nlohmann/include/none.h': '',
}
SYSTEM = ('GLOO', 'CPUINFO', 'SLEEF', 'FP16', 'FXDIV', 'PSIMD', 'PTHREADPOOL', 'ONNX', 'PYBIND11', 'EIGEN_INSTALL',
          'BENCHMARK')
WITHOUT = ('TENSORPIPE', 'NNPACK', 'PYTORCH_QNNPACK', 'XNNPACK', 'FBGEMM', 'KINETO', 'MKLDNN', 'ITT')
# setup.py looks for submodules unless this is in the environment, whatever it says
OPTIONS = (['USE_SYSTEM_LIBS=0', 'BUILD_CUSTOM_PROTOBUF=OFF', 'USE_NUMA=1']
           + ['USE_SYSTEM_%s=ON' % name for name in SYSTEM] + ['USE_%s=0' % name for name in WITHOUT])


def mirror():
    """The address of the Debian mirror that this machine uses."""
    found = subprocess.run(['apt-get', 'indextargets', '--format', '$(REPO_URI)', 'Created-By: Packages'],
                           stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return next(address for address in found if address.rstrip('/').endswith('/debian'))


def fetch_from_mirror(name, checksum, path):
    """A file of Debian's, its SHA256 verified."""
    address = mirror() + name
    with urllib.request.urlopen(address, timeout=300) as answer, open(path, 'wb') as handle:
        shutil.copyfileobj(answer, handle)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == checksum, address


def fetch(version, path):
    """Debian's tarball of this version."""
    fetch_from_mirror('pool/main/p/pytorch/pytorch_%s+dfsg.orig.tar.xz' % version, TARBALLS[version], path)


def tree(version, wanted=WANTED):
    """A directory with the wanted files of this version."""
    def make(partial):
        partial.mkdir(parents=True)
        tarball = partial / 'tarball'
        fetch(version, tarball)
        with tarfile.open(tarball) as packed:
            for member in packed:
                name = member.name.partition('/')[2]
                if name in wanted:
                    target = partial / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(packed.extractfile(member).read())
        tarball.unlink()
    kind = hashlib.sha256(repr(wanted).encode()).hexdigest()[:8]
    return kept(PLACE / ('%s-%s' % (version, kind)), make)


def tarball(version, additions):
    """The whole tree as one, with files (text by name) in place of submodules, which Debian leaves out."""
    def make(partial):
        # several of them are made at the same time
        place = partial.with_name(partial.name + '.tree')
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
    place = kept(CACHE / 'libtorch-dev', lambda partial: unpack_package('libtorch-dev', partial))
    return place / 'usr' / 'include'


def machine(without=()):
    """What to put in front of a command: this machine without a network, and without these files below /usr."""
    # where not even the loopback interface is up, Open MPI's compiler prints a warning, which CMake takes for a place
    prepare = 'ip link set lo up'
    if without:
        prepare += ('; mount -t tmpfs none /mnt; mkdir /mnt/upper /mnt/work; mount -t overlay '
                    '-o lowerdir=/usr,upperdir=/mnt/upper,workdir=/mnt/work none /usr; rm -r -- ' + ' '.join(without))
    return ['unshare', '--net', '--mount', 'sh', '-ec', prepare + '; exec "$@"', 'sh']


OFFLINE = machine()


def configurable():
    """The tree of 2.6.0, with what CMake wants of the submodules."""
    return tarball(TREE, SUBMODULES)


class Configured:
    """The tree of 2.6.0, configured on a machine() by ./eb as a workstation's own easyconfig says."""

    def __init__(self, directory, options, more='', on=OFFLINE, status=0):
        self.eb = EB(directory / 'prefix', on + [CHECKOUT / 'eb'])
        link = directory / 'sources' / 'p' / 'PyTorch' / configurable().name
        link.parent.mkdir(parents=True)
        link.symlink_to(configurable())
        self.eb.sources = '%s:%s' % (CACHE / 'sources', directory / 'sources')
        easyconfig = self.easyconfig(directory, options, more)
        online = EB(self.eb.prefix)
        online.sources = self.eb.sources
        online.fetch(easyconfig)
        self.output = self.eb(easyconfig, '--stop=configure', status=status).stdout

    def easyconfig(self, directory, options, more):
        """The easyconfig, for this tree and with these options besides."""
        text = (CHECKOUT / 'easyconfigs/p/PyTorch' / EASYCONFIG).read_text()
        version = "version = '2.9.1'"
        assert version in text
        path = directory / EASYCONFIG.replace('2.9.1', TREE)
        # its locks are those of the version that it was written for
        path.write_text(re.sub(r'PyTorch-%\(version\)s(-\S+lock)', r'PyTorch-2.9.1\1', text).replace(
            version, "version = '%s'" % TREE)
            + "sources = ['%s']\npatches = []\nchecksums = ['%s']\ncustom_opts += %r\n%s" % (
                configurable().name, hashlib.sha256(configurable().read_bytes()).hexdigest(), OPTIONS + options, more))
        return path

    @property
    def build(self):
        """Where CMake left its decisions."""
        return next((self.eb.prefix / 'build').rglob('CMakeCache.txt')).parent
