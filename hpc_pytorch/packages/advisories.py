"""
Known vulnerabilities: which of them a version of a package has, by hooks/advisories.cfg.

Standard library only, Python 3.6.
"""
import configparser
import operator
import os
import re

from hpc_pytorch import collection_path
from hpc_pytorch.machine.versions import version_key

PATH = os.path.join(collection_path('hooks'), 'advisories.cfg')
RELATIONS = {'>=': operator.ge, '<': operator.lt, '<=': operator.le}


def load(path=PATH):
    """{package: {advisory: versions that have it}}, and beside the packages [advisories] with the date."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=('=',))
    parser.optionxform = str
    with open(path, encoding='utf-8') as handle:
        parser.read_file(handle)
    return parser


def has(versions, version):
    """Whether a version is among those of `>=1.0 <1.2, >=2.0 <=2.3`."""
    key = version_key(version)
    return any(all(RELATIONS[relation](key, version_key(bound)) for relation, bound in
                   re.findall(r'([<>]=?)\s*([\w.]+)', part)) for part in versions.split(','))


def known(data, packages):
    """{(name, version): {advisory: versions that have it}} of those (name, version) that have any."""
    found = {}
    for name, version in sorted(packages):
        if name in data:
            found[name, version] = {key: value for key, value in data[name].items() if has(value, version)}
    return {package: advisories for package, advisories in found.items() if advisories}


def in_words(name, version, advisories):
    """One line: how many, the newest of them, and in which version none of them is left."""
    newest = sorted(advisories, key=lambda name: [int(part) for part in re.findall(r'\d+', name)], reverse=True)
    ends = [re.findall(r'(<=?)([\w.]+)', next(part for part in value.split(',') if has(part, version)))
            for value in advisories.values()]
    if [] in ends:
        mended = "not all of them mended"
    else:
        relation, bound = max((end[0] for end in ends), key=lambda end: version_key(end[1]))
        mended = "mended %s %s" % ('in' if relation == '<' else 'after', bound)
    return "%s %s: %d, %s: %s%s" % (name, version, len(newest), mended, ', '.join(newest[:3]),
                                    ', ...' if len(newest) > 3 else '')
