"""A software bill of materials: the Python packages of an installation as an SPDX 2.3 document."""
import datetime
import email.parser
import glob
import os
import uuid

from hpc_pytorch.packages.lock_files import normal_name, sha256_of
from hpc_pytorch.packages.wheel_tags import name_and_version

NOBODY_KNOWS = 'NOASSERTION'


def installed_packages(site_packages):
    """The metadata of every package, by name."""
    packages = {}
    for path in glob.glob(os.path.join(glob.escape(site_packages), '*.dist-info', 'METADATA')):
        with open(path, encoding='utf-8', errors='replace') as handle:
            metadata = email.parser.HeaderParser().parse(handle)
        if metadata['Name'] and metadata['Version']:
            packages[normal_name(metadata['Name'])] = metadata
    return packages


def archives(directories, allowed=None):
    """(name, version) -> SHA256 of the files that packages were installed from; of those allowed only, if any."""
    found = {}
    for path in [path for directory in directories for path in sorted(glob.glob(os.path.join(directory, '*.*')))]:
        if path.endswith(('.whl', '.tar.gz', '.zip')):
            digest = sha256_of(path)
            if allowed is None or digest in allowed:
                found.setdefault(name_and_version(path), digest)
    return found


def package(name, metadata, digest):
    version = metadata['Version']
    entry = {
        'SPDXID': 'SPDXRef-Package-%s' % name.replace('_', '-'), 'name': metadata['Name'], 'versionInfo': version,
        'downloadLocation': NOBODY_KNOWS, 'filesAnalyzed': False, 'copyrightText': NOBODY_KNOWS,
        'licenseConcluded': NOBODY_KNOWS, 'licenseDeclared': metadata['License-Expression'] or NOBODY_KNOWS,
        'externalRefs': [{'referenceCategory': 'PACKAGE-MANAGER', 'referenceType': 'purl',
                          'referenceLocator': 'pkg:pypi/%s@%s' % (name, version.replace('+', '%2B'))}],
    }
    if metadata['License'] and not metadata['License-Expression']:
        entry['licenseComments'] = metadata['License'].split('\n')[0]
    if digest:
        entry['checksums'] = [{'algorithm': 'SHA256', 'checksumValue': digest}]
    return entry


def document(name, version, site_packages, digests):
    module = {
        'SPDXID': 'SPDXRef-Module', 'name': name, 'versionInfo': version, 'downloadLocation': NOBODY_KNOWS,
        'filesAnalyzed': False, 'copyrightText': NOBODY_KNOWS, 'licenseConcluded': NOBODY_KNOWS,
        'licenseDeclared': NOBODY_KNOWS,
    }
    packages = [package(key, metadata, digests.get((key, metadata['Version'])))
                for key, metadata in sorted(installed_packages(site_packages).items())]
    relations = [('SPDXRef-DOCUMENT', 'DESCRIBES', 'SPDXRef-Module')]
    relations += [('SPDXRef-Module', 'CONTAINS', entry['SPDXID']) for entry in packages]
    return {
        'spdxVersion': 'SPDX-2.3', 'dataLicense': 'CC0-1.0', 'SPDXID': 'SPDXRef-DOCUMENT',
        'name': '%s-%s' % (name, version),
        'documentNamespace': 'https://spdx.org/spdxdocs/%s-%s-%s' % (name, version.replace('+', '-'), uuid.uuid4()),
        'creationInfo': {'created': datetime.datetime.utcnow().strftime('%Y-%m-%dT%H:%M:%SZ'),
                         'creators': ['Tool: hpc-pytorch']},
        'packages': [module] + packages,
        'relationships': [{'spdxElementId': one, 'relationshipType': kind, 'relatedSpdxElement': other}
                          for one, kind, other in relations],
    }
