"""Which vulnerabilities a version is known to have, and docs/make-advisories, which reads public records."""
import json
import shutil
import subprocess
import sys
import zipfile

import pytest
from common import CHECKOUT

from hpc_pytorch.packages import advisories


@pytest.mark.parametrize('versions, inside, outside', [
    ('<2.6.0', ('0.1', '2.5.1', '2.4.0a0'), ('2.6', '2.6.0', '2.10.0')),
    ('<=2.10.0', ('2.9.1', '2.10.0'), ('2.10.1', '2.11.0')),
    ('>=1.0 <1.2, >=2.0 <2.1', ('1.0', '1.1.9', '2.0.5'), ('0.9', '1.2', '1.9', '2.1')),
    ('>=0', ('1', '99.0'), ()),
])
def test_versions(versions, inside, outside):
    """Bounds as in the file."""
    assert all(advisories.has(versions, version) for version in inside)
    assert not any(advisories.has(versions, version) for version in outside)


@pytest.mark.parametrize('version, words', [
    # four, as a public report of pip-audit on 2026-10-01 has them for this version
    ('2.9.1', ['torch 2.9.1: 4, mended in 2.13.0: CVE-2026-24747, CVE-2026-4538, CVE-2025-3001, ...']),
    ('2.13.0', []),
])
def test_torch(version, words):
    """What the collection's own file says."""
    found = advisories.known(advisories.load(), [('torch', version), ('no-such-package', '1.0')])
    assert [advisories.in_words(*package, ones) for package, ones in found.items()] == words


def test_in_words():
    """Of several ranges the one that counts; and what nobody has mended."""
    assert advisories.in_words('x', '5.1', {'CVE-1-1': '<5.2, >=6.0 <6.3'}) == 'x 5.1: 1, mended in 5.2: CVE-1-1'
    assert 'not all of them mended' in advisories.in_words('x', '5.1', {'CVE-1-1': '<5.2', 'CVE-1-2': '>=1.0'})


def record(identity, name, events, **more):
    """A record in OSV's format."""
    return json.dumps(dict({
        'id': identity, 'modified': '2026-11-01T00:00:00Z', 'affected': [{
            'package': {'ecosystem': 'PyPI', 'name': name},
            'ranges': [{'type': 'ECOSYSTEM', 'events': events}]}]}, **more))


def test_make_advisories(tmp_path):
    """What the records say is added to what is there; packages that no lock names, and withdrawn records, are not."""
    for name in ('docs/make-advisories', 'hooks/advisories.cfg', 'hpc_pytorch/__init__.py',
                 'hpc_pytorch/machine/__init__.py', 'hpc_pytorch/machine/versions.py',
                 'hpc_pytorch/packages/__init__.py', 'hpc_pytorch/packages/advisories.py',
                 'hpc_pytorch/packages/lock_files.py', 'easyconfigs/p/PyTorch/locks/torch-2.13.0-cpu.lock',
                 'easyconfigs/p/PyTorch/locks/mpich.lock'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, tmp_path / name)
    with zipfile.ZipFile(tmp_path / 'all.zip', 'w') as archive:
        archive.writestr('1.json', record('PYSEC-2026-1', 'Torch', [{'introduced': '0'}, {'fixed': '2.16.0rc1'}],
                                          aliases=['GHSA-x', 'CVE-2026-99999']))
        archive.writestr('2.json', record('GHSA-y', 'mpich', [
            {'introduced': '0'}, {'fixed': '4.0'}, {'introduced': '5.0'}, {'last_affected': '5.1'}]))
        archive.writestr('3.json', record('GHSA-z', 'no-such-package', [{'introduced': '0'}]))
        archive.writestr('4.json', record('GHSA-w', 'torch', [{'introduced': '0'}], withdrawn='2026-11-02T00:00:00Z'))
    make = [sys.executable, tmp_path / 'docs/make-advisories', tmp_path / 'all.zip']
    subprocess.run(make, check=True)
    data = advisories.load(tmp_path / 'hooks/advisories.cfg')
    assert data['advisories']['date'] == '2026-11-01'
    assert data['torch']['CVE-2026-99999'] == '<2.16.0' and data['torch']['CVE-2025-32434'] == '<2.6.0'
    assert dict(data['mpich']) == {'GHSA-y': '<4.0, >=5.0 <=5.1'}
    assert 'no-such-package' not in data and 'GHSA-w' not in data['torch']
    first = (tmp_path / 'hooks/advisories.cfg').read_text()
    assert first.startswith('# Known vulnerabilities')
    subprocess.run(make, check=True)
    assert (tmp_path / 'hooks/advisories.cfg').read_text() == first
