"""The SBOM of an installation: its Python packages as an SPDX 2.3 document."""
import email.parser
import glob
import os
import time
import uuid

from hpc_pytorch.packages.lock_files import normal_name, read_lock, sha256_of
from hpc_pytorch.packages.wheel_tags import name_and_version


def of_installation(easyblock, locks):
    """Return the document; None where no Python packages are installed."""
    places = glob.glob(glob.escape(easyblock.installdir) + '/lib/python3.*/site-packages')
    if not places:
        return None
    version = easyblock.cfg['version'] + easyblock.cfg['versionsuffix']
    return document(easyblock.cfg['name'], version, places[0], archives(easyblock, locks))


def archives(easyblock, locks):
    """Return the SHA256 of what the packages were installed from: {(name, version): digest}."""
    allowed = set()
    for path in locks:
        for entry in read_lock(path):
            allowed.update(entry.hashes)
    built = os.path.join(easyblock.installdir, 'wheels')
    digests = {}
    for directory in filter(None, [built, getattr(easyblock, 'wheels', None)]):
        for path in sorted(glob.glob(glob.escape(directory) + '/*')):
            if path.endswith(('.whl', '.tar.gz', '.zip')):
                digest = sha256_of(path)
                # the store of wheels may have files of other installations
                if directory == built or digest in allowed:
                    digests.setdefault(name_and_version(os.path.basename(path)), digest)
    return digests


def package(metadata, digest):
    name, version = normal_name(metadata['Name']), metadata['Version']
    entry = {
        'SPDXID': 'SPDXRef-Package-%s' % name.replace('_', '-'),
        'name': metadata['Name'],
        'versionInfo': version,
        'downloadLocation': 'NOASSERTION',
        'filesAnalyzed': False,
        'licenseDeclared': metadata['License-Expression'] or 'NOASSERTION',
        'externalRefs': [{
            'referenceCategory': 'PACKAGE-MANAGER',
            'referenceType': 'purl',
            'referenceLocator': 'pkg:pypi/%s@%s' % (name, version.replace('+', '%2B')),
        }],
    }
    if digest:
        entry['checksums'] = [{'algorithm': 'SHA256', 'checksumValue': digest}]
    return entry


def document(name, version, site_packages, digests):
    """Return the document; `digests` has the SHA256 of what packages were installed from, by name and version."""
    title = '%s-%s' % (name, version)
    module = {'SPDXID': 'SPDXRef-Module', 'name': name, 'versionInfo': version, 'downloadLocation': 'NOASSERTION',
              'filesAnalyzed': False}
    packages = [module]
    relations = [('SPDXRef-DOCUMENT', 'DESCRIBES', 'SPDXRef-Module')]
    for path in sorted(glob.glob(glob.escape(site_packages) + '/*.dist-info/METADATA')):
        with open(path, encoding='utf-8', errors='replace') as handle:
            metadata = email.parser.HeaderParser().parse(handle)
        if metadata['Name'] and metadata['Version']:
            digest = digests.get((normal_name(metadata['Name']), metadata['Version']))
            packages.append(package(metadata, digest))
            relations.append(('SPDXRef-Module', 'CONTAINS', packages[-1]['SPDXID']))
    keys = ('spdxElementId', 'relationshipType', 'relatedSpdxElement')
    return {
        'spdxVersion': 'SPDX-2.3',
        'dataLicense': 'CC0-1.0',
        'SPDXID': 'SPDXRef-DOCUMENT',
        'name': title,
        'documentNamespace': 'https://spdx.org/spdxdocs/%s-%s' % (title.replace('+', '-'), uuid.uuid4()),
        'creationInfo': {
            'created': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime()),
            'creators': ['Tool: hpc-pytorch'],
        },
        'packages': packages,
        'relationships': [dict(zip(keys, words)) for words in relations],
    }
