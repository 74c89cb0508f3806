"""The patches that easyconfigs name: in the locked distribution, and applied to the real trees of 1.13.1 and 2.6.0."""
import ast
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile

import pytest
from common import CHECKOUT, FETCHED, kept
from source.pytorch_sources import tree

pytestmark = pytest.mark.slow

EASYCONFIGS = CHECKOUT / 'easyconfigs/p/PyTorch'
LOCK = EASYCONFIGS / 'locks/easybuild-easyconfigs.lock'


def named(easyconfig):
    """The patches that an easyconfig names, in order: {name: SHA256}."""
    found = {node.targets[0].id: node.value for node in ast.parse(easyconfig.read_text()).body}
    if 'patches' not in found:
        return {}
    named = {}
    for entry in ast.literal_eval(found['checksums'])[1:]:
        named.update(entry)
    assert list(named) == ast.literal_eval(found['patches']), easyconfig
    return named


@pytest.fixture(scope='module')
def patches():
    """A directory with all patches: the distribution's, and ours."""
    def make(partial):
        partial.mkdir(parents=True)
        done = subprocess.run([sys.executable, '-m', 'pip', 'download', '--no-deps', '--no-binary', ':all:',
                               '--require-hashes', '-r', LOCK, '-d', partial], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        archive, = partial.glob('*.tar.gz')
        with tarfile.open(archive) as packed:
            for member in packed:
                name = member.name.rpartition('/')[2]
                if '/p/PyTorch/' in member.name and name.endswith('.patch'):
                    (partial / name).write_bytes(packed.extractfile(member).read())
        for path in EASYCONFIGS.glob('*.patch'):
            shutil.copy(path, partial)
        archive.unlink()
    kind = hashlib.sha256(b''.join(path.read_bytes() for path in [LOCK, *EASYCONFIGS.glob('*.patch')])).hexdigest()[:8]
    return kept(FETCHED / ('patches-' + kind), make)


def test_each_is_there(patches):
    """Each that an easyconfig names is in the distribution or beside it, with that SHA256."""
    count = 0
    for easyconfig in EASYCONFIGS.glob('*.eb'):
        for name, digest in named(easyconfig).items():
            assert hashlib.sha256((patches / name).read_bytes()).hexdigest() == digest, name
            count += 1
    assert count > 40


@pytest.mark.parametrize('version, easyconfig, count', [
    ('1.13.1', EASYCONFIGS / 'PyTorch-1.13.1-ARCHER2.eb', 5),
    ('2.6.0', CHECKOUT / 'tests/benchmarks/source_build/PyTorch-2.6.0-workstation-source.eb', 3)])
def test_applied(patches, tmp_path, version, easyconfig, count):
    """They apply in their order; Debian's tree has no submodules, for which the others are."""
    files = {}
    for name in named(easyconfig):
        changed = re.findall(r'^\+\+\+ [^/\s]+/(\S+)', (patches / name).read_text(), re.M)
        if not any(path.startswith('third_party/') for path in changed):
            files[name] = changed
    assert len(files) == count
    wanted = tuple(sorted({path for changed in files.values() for path in changed}))
    shutil.copytree(tree(version, wanted), tmp_path / 'tree')
    for name in files:
        done = subprocess.run(['patch', '-p1', '--fuzz=0', '-i', patches / name], cwd=tmp_path / 'tree',
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, '%s: %s' % (name, done.stdout)
