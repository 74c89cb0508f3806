"""The bill of materials of packages that state their licences in different ways, read by SPDX's own library."""
import json

from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from hpc_pytorch.rules import sbom


def test_licences_and_checksums(tmp_path):
    """An expression is declared; other words are a comment; a local version goes into the address escaped."""
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
    assert found['Typing_Extensions'].license_comment == 'PSF' and not found['plain'].checksums


def test_archives(tmp_path):
    """Only what was allowed counts: a store may have files of other installations."""
    for name in ('torch-2.13.0-cp311-cp311-linux_x86_64.whl', 'mpi4py-4.1.0.tar.gz', 'notes.txt'):
        (tmp_path / name).write_text(name)
    found = sbom.archives([str(tmp_path)])
    assert set(found) == {('torch', '2.13.0'), ('mpi4py', '4.1.0')}
    one = found['mpi4py', '4.1.0']
    assert sbom.archives([str(tmp_path)], {one}) == {('mpi4py', '4.1.0'): one}
