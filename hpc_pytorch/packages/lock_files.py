"""Lock files in pip's format, and the checksums in them."""
import hashlib
import re
from collections import namedtuple
from pathlib import Path

from hpc_pytorch import UsersProblem
from hpc_pytorch.machine.versions import release, satisfies

# Easyconfig parameters that name lock files.
LOCK_PARAMETERS = ('lock_files', 'lock_files_instead', 'build_lock_files', 'mpi_lock_files')
# One entry of a lock file; `text` is the entry as pip reads it.
Locked = namedtuple('Locked', 'name version hashes text')
# Stands for a SHA256 that somebody has to look up; nothing has it.
UNKNOWN = '0' * 64
# A line of an .in file: the package, its versions, and a marker if it is not for every machine.
LISTED = re.compile(r'(?m)^([A-Za-z][\w.-]*) *(?:\[.*\])? *([<>=!~][^;#\\\n]*)?(;.*?)?\\?(?:#.*)?$')
# One of these versions that can be compared: no *, ! or zero in front, as 2024.07 is 2024.7 in a lock
BOUND = re.compile(r'(<=?|[>=~]=) *(?!\S*\.0\d)([\w.]+)(?![\w.*!])')


def normal_name(name):
    return re.sub(r'[-_.]+', '-', name).lower()


def any_spelling(name):
    """Return an expression for a package's name, as PyYAML and scikit_learn are written, too."""
    return '(?i:%s)' % '[-_.]+'.join(map(re.escape, normal_name(name).split('-')))


def other_version(entries, software, version):
    """Return what a lock has of a software, such as 'toy 1.5', if not this version: 14 is 14.0.0, and 14.0+cpu."""
    package = 'torch' if software == 'PyTorch' else normal_name(software)
    found = [entry.version for entry in entries if entry.name == package]
    plain = [re.sub(r'(\.0)*(\+.*)?$', '', text) for text in found]
    if not found or re.sub(r'(\.0)*$', '', version) in plain:
        return None
    return '%s %s' % (package, ' and '.join(found))


def parse_lock(text):
    """Return the entries of a lock file in pip's format, as uv and pip-tools write it, without options for pip."""
    entries = []
    for entry in re.sub(r'\\\n', ' ', text).splitlines():
        entry = re.sub(r'(^|\s)#.*', '', entry).strip()
        if not entry or re.match(r'-(?!(r|c|e|-requirement|-constraint|-editable)\b)', entry):
            continue
        match = re.match(r'([A-Za-z0-9._-]+)==([^\s;]+)', entry)
        hashes = frozenset(re.findall(r'--hash=sha256:([0-9a-f]{64})(?!\S)', entry))
        if not match or not hashes:
            # what is passed over would not be installed, and nobody would know
            raise UsersProblem("expected NAME==VERSION --hash=sha256:..., found %r (a command without "
                               "--generate-hashes, or an index without checksums?)" % entry[:100])
        entries.append(Locked(normal_name(match.group(1)), match.group(2), hashes, entry))
    if not text.strip():
        raise UsersProblem("it is empty")
    return entries


def read_lock(path):
    try:
        return parse_lock(Path(path).read_text(encoding='utf-8'))
    except (PermissionError, UnicodeDecodeError, UsersProblem) as problem:
        raise UsersProblem("%s is not a complete lock file: %s" % (path, problem))


def older(before, entries):
    """Yield the packages that are older than before: name, version, and the version before."""
    had, have = ({entry.name: entry.version for entry in sorted(lock, key=lambda entry: release(entry.version))}
                 for lock in (before, entries))
    for name, version in have.items():
        if release(version) < release(had.get(name, '')):
            yield name, version, had[name]


def has(entries, name, versions):
    """True if a lock has a package as a line of an .in file asks for it, as far as the numbers of versions tell."""
    found = [entry.version for entry in entries if entry.name == normal_name(name)]
    for relation, bound in BOUND.findall(versions):
        if relation == '==' and other_version(entries, name, bound):
            return False
        if relation != '==' and not all(satisfies(version, relation, bound) for version in found):
            return False
    return bool(found)


def check_list(path, entries, pythons=(), alone=False):
    """Refuse a lock of newer Pythons, or of one, or that lacks what its .in file lists, or what no module below has."""
    source = Path(path).with_suffix('.in')
    text = source.read_text(encoding='utf-8', errors='replace') if source.is_file() else ''
    # uv wrote the command into the lock, too, unless the command says what to write
    made_for = re.findall(r'--python-version[ =](\S+)', text + Path(path).read_text(encoding='utf-8'))
    least = max(made_for, key=release, default='0')
    older = [python for python in pythons if release(python) < release(least)[:2]]
    if older:
        raise UsersProblem("%s is for Python %s and newer, and python_versions has %s, too. Leave that out, or write "
                           "--python-version %s into the command in %s, then: ./eb --renew EASYCONFIG"
                           % (path, least, ', '.join(older), min(older, key=release), source))
    if 'uv pip compile' in text and len(pythons) > 1 and not ('--universal' in text and '--python-version' in text):
        raise UsersProblem("%s: a lock for Python %s needs --universal and --python-version %s in its command: add "
                           "them, then: ./eb --renew EASYCONFIG"
                           % (source, ', '.join(pythons), min(pythons, key=release)))
    if alone and re.search(r'(printf|--no-emit-package) [^)]*\btorch[ )]', text):
        raise UsersProblem("%s leaves out PyTorch and its packages, such as NumPy, and no module in dependencies has "
                           "them: take --overrides or --no-emit-package out of its command, then: ./eb --renew "
                           "EASYCONFIG" % source)
    lacks = [(name, name + versions.replace(' ', '')) for name, versions, marker in LISTED.findall(text)
             if not marker and not has(entries, name, versions) and '--no-emit-package %s ' % name not in text]
    left_out = [line for name, line in lacks if re.search(r'--overrides <\([^)]*\s%s[\s)]' % any_spelling(name), text)]
    if left_out:
        raise UsersProblem("%s lists %s, which its lock file lacks: --overrides leaves out what the module below has. "
                           "Remove such lines or, for a version of your own, its name from --overrides, then: ./eb "
                           "--renew EASYCONFIG" % (source, ', '.join(left_out)))
    if lacks:
        raise UsersProblem("%s lists %s, which its lock file lacks: ./eb --renew EASYCONFIG"
                           % (source, ', '.join(line for name, line in lacks)))


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, 'rb') as stream:
        for block in iter(lambda: stream.read(1 << 20), b''):
            digest.update(block)
    return digest.hexdigest()
