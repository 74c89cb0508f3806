"""The SBOM of packages that state their licences in different ways, read by SPDX's own library."""
import hashlib
import json
from types import SimpleNamespace

from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from hpc_pytorch.rules import sbom


def test_licences_and_checksums(tmp_path):
    """An expression is declared; a local version goes into the address escaped."""
    for name, version, licence in (('torch', '2.13.0+cpu', 'License-Expression: BSD-3-Clause'),
                                   ('Typing_Extensions', '4.1', 'License: PSF\n and more'), ('plain', '1', 'Name2: x')):
        info = tmp_path / ('%s-%s.dist-info' % (name, version))
        info.mkdir()
        (info / 'METADATA').write_text('Metadata-Version: 2.4\nName: %s\nVersion: %s\n%s\n' % (name, version, licence))
    made = sbom.document('PyTorch', '2.13.0', str(tmp_path), {('torch', '2.13.0+cpu'): 'a' * 64})
    path = tmp_path / 'made.spdx.json'
    path.write_text(json.dumps(made))
    document = parse_file(str(path))
    assert not validate_full_spdx_document(document)
    found = {package.name: package for package in document.packages}
    assert set(found) == {'PyTorch', 'torch', 'Typing_Extensions', 'plain'}
    assert str(found['torch'].license_declared) == 'BSD-3-Clause' and found['torch'].checksums[0].value == 'a' * 64
    assert found['torch'].external_references[0].locator == 'pkg:pypi/torch@2.13.0%2Bcpu'
    assert not found['plain'].checksums


def test_checksums_of_the_store(tmp_path):
    """Only what a lock allows counts: the store may have files of other installations."""
    store, wheels = tmp_path / 'store', tmp_path / 'installed' / 'wheels'
    for path in (store / 'torch-2.13.0-cp311-cp311-linux_x86_64.whl', store / 'mpi4py-4.1.0.tar.gz',
                 store / 'notes.txt', wheels / 'built-1.0-py3-none-any.whl'):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    for name in ('torch-2.13.0', 'mpi4py-4.1.0', 'built-1.0'):
        info = tmp_path / 'installed/lib/python3.11/site-packages' / (name + '.dist-info')
        info.mkdir(parents=True)
        (info / 'METADATA').write_text('Name: %s\nVersion: %s\n' % tuple(name.split('-')))
    digest = hashlib.sha256(b'mpi4py-4.1.0.tar.gz').hexdigest()
    (tmp_path / 'a.lock').write_text('mpi4py==4.1.0 --hash=sha256:%s\n' % digest)
    easyblock = SimpleNamespace(installdir=str(tmp_path / 'installed'), wheels=str(store),
                                cfg={'name': 'toy', 'version': '1.0', 'versionsuffix': ''})
    made = sbom.of_installation(easyblock, [str(tmp_path / 'a.lock')])
    found = {one['name']: one.get('checksums') for one in made['packages']}
    assert found['mpi4py'][0]['checksumValue'] == digest and found['built'] and not found['torch']
