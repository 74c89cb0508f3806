"""The SBOM of an installation: its Python packages as an SPDX 2.3 document."""
import datetime
import email.parser
import glob
import os
import uuid

from hpc_pytorch.packages.lock_files import normal_name, read_lock, sha256_of
from hpc_pytorch.packages.wheel_tags import name_and_version

UNKNOWN = {'downloadLocation': 'NOASSERTION', 'filesAnalyzed': False, 'copyrightText': 'NOASSERTION',
           'licenseConcluded': 'NOASSERTION', 'licenseDeclared': 'NOASSERTION'}


def of_installation(easyblock, locks):
    """Return the document; None where no Python packages are installed."""
    top = easyblock.installdir
    places = glob.glob(glob.escape(top) + '/lib/python3.*/site-packages')
    if not places:
        return None
    # the store of wheels may have files of other installations
    allowed = set()
    for path in locks:
        for entry in read_lock(path):
            allowed.update(entry.hashes)
    digests = {}
    for name, digest in archives(getattr(easyblock, 'wheels', None)):
        if digest in allowed:
            digests.setdefault(name_and_version(name), digest)
    for name, digest in archives(os.path.join(top, 'wheels')):
        digests[name_and_version(name)] = digest
    version = easyblock.cfg['version'] + easyblock.cfg['versionsuffix']
    return document(easyblock.cfg['name'], version, places[0], digests)


def archives(directory):
    """Yield the wheels and archives in a directory, with their SHA256."""
    if not directory or not os.path.isdir(directory):
        return
    for name in sorted(os.listdir(directory)):
        if name.endswith(('.whl', '.tar.gz', '.zip')):
            yield name, sha256_of(os.path.join(directory, name))


def installed_packages(site_packages):
    """Return the metadata of every package: {name: metadata}."""
    packages = {}
    for path in glob.glob(glob.escape(site_packages) + '/*.dist-info/METADATA'):
        with open(path, encoding='utf-8', errors='replace') as handle:
            metadata = email.parser.HeaderParser().parse(handle)
        if metadata['Name'] and metadata['Version']:
            packages[normal_name(metadata['Name'])] = metadata
    return packages


def package(name, metadata, digest):
    licence = metadata['License-Expression']
    purl = 'pkg:pypi/%s@%s' % (name, metadata['Version'].replace('+', '%2B'))
    entry = dict(UNKNOWN, name=metadata['Name'], versionInfo=metadata['Version'])
    entry['SPDXID'] = 'SPDXRef-Package-%s' % name.replace('_', '-')
    entry['externalRefs'] = [{
        'referenceCategory': 'PACKAGE-MANAGER',
        'referenceType': 'purl',
        'referenceLocator': purl,
    }]
    if licence:
        entry['licenseDeclared'] = licence
    elif metadata['License']:
        entry['licenseComments'] = metadata['License'].split('\n')[0]
    if digest:
        entry['checksums'] = [{'algorithm': 'SHA256', 'checksumValue': digest}]
    return entry


def relation(one, kind, other):
    return {'spdxElementId': one, 'relationshipType': kind, 'relatedSpdxElement': other}


def document(name, version, site_packages, digests):
    """Return the document; `digests` has the SHA256 of what packages were installed from, by name and version."""
    module = dict(UNKNOWN, SPDXID='SPDXRef-Module', name=name, versionInfo=version)
    packages = [module]
    relations = [relation('SPDXRef-DOCUMENT', 'DESCRIBES', 'SPDXRef-Module')]
    for key, metadata in sorted(installed_packages(site_packages).items()):
        digest = digests.get((key, metadata['Version']))
        entry = package(key, metadata, digest)
        packages.append(entry)
        relations.append(relation('SPDXRef-Module', 'CONTAINS', entry['SPDXID']))
    now = datetime.datetime.utcnow()
    title = '%s-%s' % (name, version)
    return {
        'spdxVersion': 'SPDX-2.3',
        'dataLicense': 'CC0-1.0',
        'SPDXID': 'SPDXRef-DOCUMENT',
        'name': title,
        'documentNamespace': 'https://spdx.org/spdxdocs/%s-%s' % (title.replace('+', '-'), uuid.uuid4()),
        'creationInfo': {
            'created': now.strftime('%Y-%m-%dT%H:%M:%SZ'),
            'creators': ['Tool: hpc-pytorch'],
        },
        'packages': packages,
        'relationships': relations,
    }
