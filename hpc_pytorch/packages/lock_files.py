"""
Lock files in pip's format, and the checksums in them.

Standard library only, Python 3.6.
"""
import hashlib
import re
from collections import namedtuple

# One entry of a lock file; `text` is the entry as pip reads it.
Locked = namedtuple('Locked', 'name version hashes text')


def normal_name(name):
    """A package's name as indexes compare it."""
    return re.sub(r'[-_.]+', '-', name).lower()


def parse_lock(text):
    """The entries of a lock file in pip's format, as uv and pip-tools write it."""
    entries = []
    for entry in re.sub(r'\\\n', ' ', text).splitlines():
        entry = re.sub(r'(^|\s)#.*', '', entry).strip()
        match = re.match(r'([A-Za-z0-9._-]+)==([^\s;]+)', entry)
        if match:
            hashes = frozenset(re.findall(r'--hash=sha256:([0-9a-f]{64})', entry))
            entries.append(Locked(normal_name(match.group(1)), match.group(2), hashes, entry))
    return entries


def sha256_of(path):
    """The SHA256 of a file."""
    digest = hashlib.sha256()
    with open(path, 'rb') as handle:
        for block in iter(lambda: handle.read(1 << 20), b''):
            digest.update(block)
    return digest.hexdigest()
