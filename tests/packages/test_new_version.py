"""./eb --new-version and --renew: easyconfig and locks for another version, with real uv, from a small index."""
import re
import tarfile
import zipfile
from urllib.parse import quote

import pytest
from common import CHECKOUT
from small_software import sha256

from hpc_pytorch import UsersProblem
from hpc_pytorch.packages import new_version

pytestmark = pytest.mark.slow

EASYCONFIG = """easyblock = 'LockedWheels'
name = 'toy'
version = '1.0'
homepage = 'https://example.org'
description = 'a toy'
toolchain = SYSTEM
lock_files = ['toy-%(version)s.lock']
python_versions = ['3.11']
moduleclass = 'ai'
"""
COMMAND = 'uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url '

SOURCE = """sources = ['toy-%(version)s.tar.gz']
patches = [
    'PyTorch-1.0_fix-crash.patch',
    'PyTorch-1.0_fix-speed.patch',
]
checksums = [
    'ab',
    {'PyTorch-1.0_fix-crash.patch':
     'cd'},
    {'PyTorch-1.0_fix-speed.patch':
     'ef'},
]
"""
# what upstream has: easyconfigs with their patches, and what each patch changes
UPSTREAM = {'PyTorch-1.0-a.eb': ['PyTorch-1.0_fix-crash.patch'],
            'PyTorch-1.9-a.eb': ['PyTorch-1.9_fix-crash.patch', 'PyTorch-1.9_skip-test.patch'],
            'PyTorch-1.9-b.eb': ['PyTorch-1.9_fix-crash.patch', 'PyTorch-1.9_fix-new.patch'],
            'PyTorch-1.9-b-whl.eb': [], 'PyTorch-3.0-a.eb': ['PyTorch-3.0_fix-crash.patch']}
CHANGES = {'skip-test': 'test/test_x.py', 'fix-crash': 'torch/x.py', 'fix-new': 'torch/y.py'}


def add(index, name, version, *requires, python='>=3.8'):
    """A wheel in the index."""
    path = index.parent / ('%s-%s-py3-none-any.whl' % (name, version))
    with zipfile.ZipFile(path, 'w') as archive:
        info = '%s-%s.dist-info/' % (name, version)
        archive.writestr(info + 'METADATA', 'Metadata-Version: 2.1\nName: %s\nVersion: %s\nRequires-Python: %s\n%s' % (
            name, version, python, ''.join('Requires-Dist: %s\n' % line for line in requires)))
        archive.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        archive.writestr(info + 'RECORD', '')
    # as indexes have it: a page for each package, with the hash of each file
    place = index / name.replace('_', '-')
    place.mkdir(parents=True, exist_ok=True)
    path.rename(place / path.name)
    links = ['<a href="%s#sha256=%s">%s</a>' % (quote(file.name), sha256(file), file.name)
             for file in sorted(place.glob('*.whl'))]
    (place / 'index.html').write_text(''.join(links))


@pytest.fixture
def toy(tmp_path):
    """An easyconfig for PyTorch 1.0 with a companion that says which PyTorch it is for; the index has 2.0, too."""
    index = tmp_path / 'index'
    for version in ('1.0', '2.0'):
        add(index, 'torch', version, 'numbers-of-toys')
        add(index, 'torchvision', '0.' + version, 'torch==' + version)
    add(index, 'numbers_of_toys', '5.1')
    (tmp_path / 'toy-1.0.eb').write_text(EASYCONFIG)
    (tmp_path / 'toy-1.0.in').write_text('# What the toy needs. toy-1.0.lock is made from this file:\n#   %s'
                                         'toy-1.0.in -o toy-1.0.lock\ntorch==1.0\ntorchvision==0.1.0\n' % COMMAND)
    return tmp_path


@pytest.fixture
def call(toy, eb):
    """./eb with these options for the toy, asking its index."""
    def run(*options, status=0, easyconfig='toy-1.0.eb', index=None):
        return eb(*options, toy / easyconfig, status=status,
                  env={'UV_DEFAULT_INDEX': index or 'file://%s' % (toy / 'index')}).stdout
    return run


def test_new_version(toy, call, eb):
    """The newest, with the companion that goes with it; it names nothing of this machine, and can be renewed."""
    output = call('--new-version', 'latest')
    assert 'description, which are still those of 1.0' in output
    assert "+version = '2.0'" in output and 'To try it: ./eb --rehearse -x toy-2.0.eb' in output
    assert (toy / 'toy-2.0.eb').read_text() == EASYCONFIG.replace("'1.0'", "'2.0'")
    lock = (toy / 'toy-2.0.lock').read_text()
    for line in ('torch==2.0 \\', 'torchvision==0.2.0 \\', 'numbers-of-toys==5.1 \\', COMMAND + 'toy-2.0.in -o'):
        assert line in lock, lock
    assert lock.count('--hash=sha256:') == 3 and str(toy) not in lock
    # what was made can be fetched
    eb.sources = toy / 'sources'
    eb.fetch(toy / 'toy-2.0.eb', env={'PIP_INDEX_URL': 'file://%s' % (toy / 'index')})
    fetched = {path.name.split('-')[0] for path in eb.sources.rglob('*.whl')}
    assert fetched == {'torch', 'torchvision', 'numbers_of_toys'}
    add(toy / 'index', 'numbers_of_toys', '5.2')
    output = call('--renew', easyconfig='toy-2.0.eb')
    assert '-numbers-of-toys==5.1' in output and '+numbers-of-toys==5.2' in output
    assert 'numbers-of-toys==5.2' in (toy / 'toy-2.0.lock').read_text()


@pytest.mark.parametrize('version, options, words', [
    ('3.0', {}, 'the indexes have no torch 3.0'),
    ('2.0', {'index': 'https://localhost:9/simple'}, 'could not be reached'),
])
def test_impossible(toy, call, version, options, words):
    """One line, and nothing is written."""
    before = sorted(toy.iterdir())
    output = call('--new-version=' + version, status=1, **options)
    assert words in output and 'nothing was written' in output
    assert sorted(path for path in toy.iterdir() if path.name != 'prefix') == before


def for_system(toy, suffix, *lines, index='index'):
    """The toy for a system; its .in file asks an index of its own, as PyTorch's are, for what these lines say."""
    (toy / ('toy-1.0-%s.eb' % suffix)).write_text(EASYCONFIG.replace("'1.0'", "'1.0'\nversionsuffix = '-%s'" % suffix))
    command = COMMAND + '--extra-index-url file://%s ' % (toy / 'more' / index)
    (toy / 'toy-1.0.in').write_text('#   %stoy-1.0.in -o toy-1.0.lock\n%s\n' % (command, '\n'.join(lines)))
    (toy / 'more' / index).mkdir(parents=True)
    return 'toy-1.0-%s.eb' % suffix, toy / 'more' / index


def test_newest_that_fits(toy, call):
    """What the index of the wheels has, for the CUDA that the system's driver takes, and what PyTorch itself brings."""
    name, index = for_system(toy, 'Bede', 'torch==1.0+cu126', 'triton-rocm==1')
    for version, cuda in (('1.0', 'cu126'), ('1.5', 'cu126'), ('3.0', 'cu130')):
        add(index, 'torch', '%s+%s' % (version, cuda), 'triton-rocm==3.%s' % version)
        add(index, 'triton_rocm', '3.' + version)
    call('--new-version', 'latest', easyconfig=name)
    made = (toy / 'toy-1.5.lock').read_text()
    assert 'torch==1.5+cu126' in made and 'triton-rocm==3.1.5' in (toy / 'toy-1.5.in').read_text()
    again = call('--new-version', 'latest', easyconfig=name, status=1)
    assert 'toy-1.5-Bede.eb exists already' in again and '--renew toy-1.5-Bede.eb' in again


def test_driver_is_too_old(toy, call):
    """As PyPI's wheels say it, through what they ask for."""
    name, index = for_system(toy, 'Bede', 'torch==1.0')
    add(toy / 'index', 'torch', '2.5', 'nvidia-cuda-runtime-cu13')
    add(toy / 'index', 'nvidia_cuda_runtime_cu13', '13.0.48')
    output = call('--new-version', '2.5', easyconfig=name, status=1)
    assert 'its wheels bring CUDA 13, and the driver of bede takes 12' in output


def test_companion_that_ended(toy, call):
    """It is left out with a word; the others follow."""
    add(toy / 'index', 'torchaudio', '0.1', 'torch==1.0')
    (toy / 'toy-1.0.in').write_text((toy / 'toy-1.0.in').read_text() + 'torchaudio==0.1\n')
    assert 'the indexes have no torchaudio that goes with torch==2.0: left out\n' in call('--new-version', 'latest')
    made = (toy / 'toy-2.0.lock').read_text()
    assert 'torchvision==0.2.0' in made and 'torchaudio' not in made


def test_other_rocm(toy, call):
    """A version that has no wheels for this ROCm; then for another ROCm, from the index of that one."""
    name, index = for_system(toy, 'Frontier', 'torch==1.0+rocm7.1', 'triton-rocm==3.6', index='rocm7.1')
    output = call('--new-version', '2.9.1', easyconfig=name, status=1)
    assert 'the indexes have no torch 2.9.1+rocm7.1; nothing was written' in output
    other = index.with_name('rocm6.4')
    other.mkdir()
    add(other, 'torch', '2.9.1+rocm6.4', 'pytorch-triton-rocm==3.5.1')
    add(other, 'pytorch_triton_rocm', '3.5.1')
    call('--new-version', '2.9.1+rocm6.4', easyconfig=name)
    assert re.findall('^(?:torch|py).*==.*', (toy / 'toy-2.9.1.in').read_text(), re.M) == [
        'torch==2.9.1+rocm6.4', 'pytorch-triton-rocm==3.5.1']
    assert str(other) in (toy / 'toy-2.9.1.in').read_text() and (toy / name.replace('1.0', '2.9.1')).exists()
    (toy / 'toy-1.0.in').write_text('#   %stoy-1.0.in -o toy-1.0.lock\ntorch==1.0\n' % COMMAND)
    assert 'PyPI, which has none of +rocm6.4' in call('--new-version', '2.0+rocm6.4', easyconfig=name, status=1)


def test_one_version_for_all_pythons(toy, call):
    """The newest that the oldest Python has, too."""
    add(toy / 'index', 'torch', '4.0', python='>=3.12')
    call('--new-version', 'latest')
    assert (toy / 'toy-2.0.eb').exists()


@pytest.fixture
def upstream(toy, monkeypatch):
    """A small distribution of upstream's easyconfigs, locked beside the toy."""
    tree = toy / 'easybuild_easyconfigs-0.1'
    place = tree / 'easybuild/easyconfigs/p/PyTorch'
    place.mkdir(parents=True)
    (tree / 'setup.py').write_text("from setuptools import setup\nsetup(name='easybuild-easyconfigs', version='0.1')\n")
    (tree / 'PKG-INFO').write_text('Metadata-Version: 2.1\nName: easybuild-easyconfigs\nVersion: 0.1\n')
    for name, patches in UPSTREAM.items():
        (place / name).write_text('name = %r\npatches = %r\n' % (name, patches))
        for patch in patches:
            file = CHANGES[patch.partition('_')[2][:-len('.patch')]]
            (place / patch).write_text('Why it is.\n\n--- a/%s\n+++ b/%s\n@@ -1 +1 @@\n-a\n+b\n' % (file, file))
    archive = toy / 'found' / (tree.name + '.tar.gz')
    archive.parent.mkdir()
    with tarfile.open(archive, 'w:gz') as packed:
        packed.add(tree, tree.name)
    (toy / 'easybuild-easyconfigs.lock').write_text('easybuild-easyconfigs==0.1 --hash=sha256:%s\n' % sha256(archive))
    monkeypatch.setenv('PIP_FIND_LINKS', str(archive.parent))
    return archive


def test_source_and_patches(toy, call, upstream):
    """The checksums are left out; patches are proposed from upstream's last easyconfigs before this version."""
    path = toy / 'toy-1.0.eb'
    path.write_text(path.read_text() + SOURCE)
    output = call('--new-version', 'latest')
    assert 'Its source has no checksum yet' in output
    text = (toy / 'toy-2.0.eb').read_text()
    assert "patches = [\n    'PyTorch-1.9_fix-crash.patch',\n]\n" in text
    assert 'checksums' not in text and "sources = ['toy-%(version)s.tar.gz']" in text
    for line in ('[toy-2.0.eb]', 'upstream = PyTorch-1.9-a.eb, PyTorch-1.9-b.eb (3 patches)', '    1 change only tests',
                 'PyTorch-1.9_fix-new.patch = TO DECIDE: Why it is.',
                 'PyTorch-1.0_fix-speed.patch = TO DECIDE: upstream has none; does 2.0 need it?'):
        assert line + '\n' in output, output


def test_patches_that_cannot_be_fetched(toy, call, upstream):
    """Nothing is written, and the reason is pip's."""
    path = toy / 'toy-1.0.eb'
    path.write_text(path.read_text() + SOURCE)
    upstream.write_bytes(upstream.read_bytes() + b'x')
    output = call('--new-version', 'latest', status=1)
    assert "the patches of EasyBuild's easyconfigs could not be fetched" in output and 'nothing was written' in output
    assert not (toy / 'toy-2.0.eb').exists()


def test_newer_python(toy, call):
    """A version that is asked for by name leaves out the Pythons that are too old for it, and says so."""
    name, index = for_system(toy, 'ARCHER2', 'torchvision==0.1.0+cpu')
    (toy / name).write_text((toy / name).read_text().replace("['3.11']", "['3.12', '3.11']"))
    add(index, 'torch', '4.0+cpu', python='>=3.12')
    add(index, 'torchvision', '0.4.0+cpu', 'torch==4.0')
    output = call('--new-version', '4.0', easyconfig=name)
    assert 'torch==4.0+cpu requires Python >=3.12: Python 3.11 is left out' in output
    assert "python_versions = ['3.12']\n" in (toy / name.replace('1.0', '4.0')).read_text()
    assert '--python-version 3.12 ' in (toy / 'toy-4.0.in').read_text()


def test_locks_of_another_easyconfig(toy, call):
    """Those of this version that are there already stay as they are: somebody else's easyconfig has them, too."""
    (toy / 'toy-2.0.in').write_text('# mine\n')
    (toy / 'toy-2.0.lock').write_text('# mine, too\n')
    assert 'same: %s' % (toy / 'toy-2.0.lock') in call('--new-version', '2.0')
    assert (toy / 'toy-2.0.eb').exists() and (toy / 'toy-2.0.lock').read_text() == '# mine, too\n'


@pytest.mark.parametrize('name', ['PyTorch-2.2.2-Frontier.eb', 'PyTorch-2.4.0a0-Bede.eb', 'PyTorch-2.3.1-Derecho.eb',
                                  'PyTorch-2.10.0-rocm-7.0-python-3.12-singularity-20260807.eb'])
def test_by_hand(tmp_path, name):
    """Wheels, a git revision, addresses and images of the old version would be in a new one: it is refused."""
    with pytest.raises(UsersProblem, match='copy the easyconfig and edit it'):
        new_version.Change(new_version.find(name), '9.9.9', str(tmp_path))


def test_names_of_locks():
    """Two that differ by their version only are made alike, as a new version's are taken if they are there already."""
    kinds = {}
    for path in CHECKOUT.glob('easyconfigs/?/*/locks/*.in'):
        has = frozenset(re.findall('^(torch(?:vision|audio)?)==', path.read_text(), re.M))
        kinds.setdefault(re.sub(r'[\d.]+', '', path.stem), {}).setdefault(has, []).append(path.name)
    assert not [names for names in kinds.values() if len(names) > 1]


def test_every_lock_can_be_made_anew():
    """Every .in file says with which command, and the names in it are its own."""
    for path in CHECKOUT.glob('easyconfigs/?/*/locks/*.in'):
        words = new_version.command_of(str(path))
        assert words[-3:] == [path.name, '-o', path.with_suffix('.lock').name], path
