"""
The patches that easyconfigs name: in the locked distribution, and applied to the real trees of 1.13.1 and 2.6.0 and to
the official wheels of the others.
"""
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
    """A directory with all patches, the distribution's and ours, and its easyconfigs."""
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
                if '/p/PyTorch/' in member.name and name.endswith(('.patch', '.eb')):
                    (partial / name).write_bytes(packed.extractfile(member).read())
        for path in EASYCONFIGS.glob('*.patch'):
            shutil.copy(path, partial)
        archive.unlink()
    kind = hashlib.sha256(b''.join(path.read_bytes() for path in [LOCK, *EASYCONFIGS.glob('*.patch')])).hexdigest()[:8]
    return kept(FETCHED / ('upstream-' + kind), make)


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


def test_same_tarball(patches):
    """Those of 2.9.1 are what upstream with Python 3.13 applies, in this order, to the tarball with the same SHA256."""
    for easyconfig in EASYCONFIGS.glob('PyTorch-2.9.1-*.eb'):
        ours, = re.findall(r"^checksums = \[\n    '(\w{64})'", easyconfig.read_text(), re.M)
        theirs = [path.read_text() for path in patches.glob('PyTorch-2.9.1-foss-2025*.eb') if ours in path.read_text()]
        assert len(theirs) == 4
        for text in theirs:
            order = re.findall(r"^    '(PyTorch-.*\.patch)',$", text, re.M)
            assert [name for name in order if name in named(easyconfig)] == list(named(easyconfig)), easyconfig


@pytest.mark.nightly
@pytest.mark.parametrize('name, whole', [
    ('PyTorch-2.3.1-Derecho.eb', 2), ('PyTorch-2.4.0-Derecho.eb', 3), ('PyTorch-2.4.0a0-Bede.eb', 3),
    ('PyTorch-2.9.1-workstation-source.eb', 4)])
def test_applied_to_wheel(tmp_path, name, whole):
    """The Python files and headers of the official wheel take them; one that does not fit is told."""
    command = [sys.executable, CHECKOUT / 'tests/benchmarks/source_build/apply-patches']
    done = subprocess.run(command + [EASYCONFIGS / name], stdout=subprocess.PIPE, text=True)
    applied = [line for line in done.stdout.splitlines() if 'torch/' in line and 'no copy of torch/' not in line]
    assert done.returncode == 0 and len(applied) == whole, done.stdout
    if 'Bede' in name:
        shutil.copytree(EASYCONFIGS, tmp_path / 'PyTorch')
        patch = tmp_path / 'PyTorch/PyTorch-1.13.1_CVE-2025-32434.patch'
        patch.write_text(patch.read_text().replace("tar.extract('storages'", "tar.unpack('storages'"))
        done = subprocess.run(command + [tmp_path / 'PyTorch' / name], stdout=subprocess.PIPE, text=True)
        assert done.returncode == 1 and 'torch/serialization.py DOES NOT APPLY' in done.stdout
