"""What pip says when it fails, in words that help: which file, which server, why, and what to do."""
import re
from pathlib import Path

from hpc_pytorch.packages.known_errors import read_table
from hpc_pytorch.packages.lock_files import normal_name
from hpc_pytorch.packages.wheel_tags import name_and_version, why_not

# pip's last word about a requirement that no file fits
NO_MATCH = re.compile(r'No matching distribution found for ([A-Za-z0-9._-]+)==([^\s;]+)')
# what it says about an index that it goes on without, when it is asked to say much: (server), (reason)
NOT_FETCHED = re.compile(r'Could not fetch URL (?:\w+://)?(?:[^/\s]*@)?([^/\s]*)\S*: (.*?)(?: - skipping)?$', re.M)
# what it says about each page that it gets, and the links to files that an index has there
PAGE = 'Fetching project page'
FETCHED = re.compile(r'Fetched page (?:\w+://)?(?:[^/\s]*@)?([^/\s]*)\S* as text/html')
FILE = re.compile(r'\.(whl|tar\.gz|zip)\b')
# what it says of a source where it may take wheels only: (package, version)
SOURCE = re.compile(r'No sources permitted for ([\w.-]+): \S+-([^-/\s]+)\.(?:tar\.gz|zip)')
# a reason, and what it is of, behind a cross and an arrow
REASON = re.compile(r'^ *(?:\u00d7|\u2570\u2500>|x|\+->) (.*)', re.M)
RAISED = r'^[\w.]+(?:Error|Exception|Warning)\b.*'
# what it says of files that are not the locked ones: each with both hashes
OTHER_FILES = re.compile(r'^ERROR: THESE PACKAGES DO NOT MATCH THE HASHES.*\n((?:[ \t]+\S.*\n)+)', re.M)
# What goes wrong on the way to a server. The first that fits counts.
WAYS = read_table('pip_errors', re.I)
FULL = re.compile(r'No space left on device|Disk quota exceeded', re.I)


def last_words(output):
    """Return pip's reason, without its advice: of a traceback the exception, which comes last."""
    raised = re.findall(RAISED, output.rpartition('Traceback (most recent')[2], re.M)
    errors = re.findall(r'^ERROR.*', output, re.M)
    lines = re.findall(r'^(?!warning|hint|\s*$).*', output, re.M | re.I)
    if 'Traceback' in output and raised:
        return raised[-1]
    return ' '.join(REASON.findall(output)) or (errors or lines or ['pip failed without any output'])[-1]


def unreached(output):
    """Return the servers that pip could not reach, each with the reason and what to do; '' if it reached all."""
    failures = NOT_FETCHED.findall(output)
    for page in output.split(PAGE)[1:]:
        fetched = FETCHED.search(page)
        # an index without the package has no page for it
        if fetched and not FILE.search(page):
            failures.append((fetched.group(1), 'a web page, without files'))
    lines = []
    for server, said in failures:
        # one that has no such package was reached
        if '404 ' not in said:
            way = next(way for way in WAYS if way.pattern.search(said))
            lines.append("  %s: %s (%s)\n    %s" % (server, way.cause, said.strip(), way.remedy))
    return '\n'.join(sorted(set(lines)))


def other_files(output):
    """Return what pip says of files that are not the locked ones; '' if it complains of something else."""
    found = OTHER_FILES.search(output)
    if not found:
        return ''
    return ("The file differs from the locked one:\n%sDo not use it until you know which of the two is wrong: the lock "
            "file may be, if it was written by hand or for another version." % found.group(1))


def explain(output, store, python):
    """Add to what pip says about a package that does not fit: what its wheels are for."""
    match = NO_MATCH.search(output)
    if not match:
        return ''
    name, version = normal_name(match.group(1)), match.group(2)
    here = sorted(map(str, Path(store).glob('*.whl')))
    misfits = [path for path in here if name_and_version(path) == (name, version)]
    if misfits:
        reasons = [why_not(path, python) or path for path in misfits]
        return "\n  ".join(["\nA wheel exists, but does not fit:"] + reasons)
    servers = unreached(output)
    if servers:
        return "\nNo index with %s %s could be reached:\n%s" % (name, version, servers)
    if 'of %s since it has invalid metadata' % name in output:
        return "\npip 24.1 and newer refuse the metadata of this version: list a newer one in the .in file; --renew"
    if (name, version) in SOURCE.findall(output):
        return ("\nIts source exists, but no wheel for Python %s on %s. If it has wheels for other Pythons, leave this "
                "one out of python_versions. Else add to the easyconfig: build_from_source = [%r] and, for setuptools "
                "and wheel, build_lock_files = ['on-top-build.lock']" % (python.version, python.machine, name))
    return ("\nNo index has %s %s for Python %s on %s. An index that only its .in file names: put extra_index_urls = "
            "['https:...'] into the easyconfig" % (name, version, python.version, python.machine))
