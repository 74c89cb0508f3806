"""What pip says when it fails, in words that help: which file, which server, why, and what to do."""
import glob
import os
import re

from hpc_pytorch.packages.lock_files import normal_name
from hpc_pytorch.packages.wheel_tags import name_and_version, why_not

# pip's last word about a requirement that no file fits
NO_MATCH = re.compile(r'No matching distribution found for ([A-Za-z0-9._-]+)==([^\s;]+)')
# what it says about an index that it goes on without, when it is asked to say much
NOT_FETCHED = re.compile(r'Could not fetch URL (\S+): (.*?)(?: - skipping)?$', re.M)
# (name) from (file) ... Expected sha256 (hash) [or (hash)] ... Got (hash)
OTHER_FILE = re.compile(r'^\s+(\S+) from (\S+).*:\n((?:\s+Expected\s+(?:sha256|or)\s+\w+\n)+)\s+Got\s+(\w+)', re.M)

# What went wrong on the way to a server, what the user reads, and what to do. The first that fits counts: a proxy's
# troubles have the others' words in them.
WAYS = tuple((re.compile(pattern, re.I), reason, remedy) for pattern, reason, remedy in (
    (r'proxy|\b407\b', "the proxy cannot be reached, or refuses you",
     "look at $https_proxy, $http_proxy and the proxy in 'pip config list'"),
    (r'certificate|\bSSL', "this machine does not trust its certificate",
     "if your site's proxy signs with a certificate authority of its own: pip config set global.cert FILE"),
    (r'Temporary failure in name', "no name server answers", "try again later, or fetch elsewhere (eb --fetch)"),
    (r'resolv|resolution|Name or service|nodename', "this machine does not know a host of that name",
     "check its name and the network, or fetch on a machine with a network (eb --fetch)"),
    (r'refused', "it refuses connections", "check the address: pip config list"),
    (r'unreachable|No route', "this machine has no way to it", "fetch on a machine with a network (eb --fetch)"),
    (r"timed out|didn't respond", "it does not answer in time", "try again later, or fetch elsewhere (eb --fetch)"),
    (r'\b(401|403)\b', "authentication required or rejected", "look at index-url in 'pip config list'"),
    (r'', "the connection failed", "try again later"),
))
FULL = re.compile(r'No space left on device|Disk quota exceeded', re.I)


def last_words(output):
    """pip's reason, without its advice: of a traceback the exception, which comes last."""
    _, traceback, after = output.rpartition('Traceback (most recent')
    raised = re.findall(r'^[\w.]+(?:Error|Exception|Warning)\b.*', after, re.M) if traceback else []
    lines = [line for line in output.splitlines() if line.strip() and not re.match(r'warning|hint', line, re.I)]
    errors = [line for line in lines if line.startswith('ERROR')]
    return (raised or errors or lines or ['pip failed without any output'])[-1]


def unreached(output):
    """The servers that pip could not reach, each with the reason and what to do; '' if it reached all."""
    lines = []
    for url, said in NOT_FETCHED.findall(output):
        # one that has no such package was reached
        if '404 ' not in said:
            reason, remedy = next(row[1:] for row in WAYS if row[0].search(said))
            server = url.partition('://')[2].split('/')[0].rpartition('@')[2]
            lines.append("  %s: %s (%s)\n    %s" % (server, reason, said.strip(), remedy))
    return '\n'.join(sorted(set(lines)))


def other_files(output):
    """Files that are not the locked ones, with both hashes; '' if pip complains of something else."""
    lines = []
    for package, source, expected, got in OTHER_FILE.findall(output):
        hashes = re.findall(r'\b[0-9a-f]{64}\b', expected)
        lines.append("  %s, %s: its SHA256 is %s, and the lock file says %s" % (
            package, source.rpartition('/')[2].partition('#')[0], got, ' or '.join(hashes)))
    if not lines:
        return ''
    return ("This is another file than the one that was locked:\n%s\nDo not use it until you know which of the two is "
            "wrong: the lock file may be, if it was written by hand or for another version." % '\n'.join(lines))


def explain(output, store, python):
    """Add to what pip says about a package that does not fit: what its wheels are for."""
    match = NO_MATCH.search(output)
    if not match:
        return ''
    name, version = normal_name(match.group(1)), match.group(2)
    lines = []
    for path in sorted(glob.glob(os.path.join(glob.escape(store), '*.whl'))):
        if name_and_version(path) == (name, version):
            lines.append("\n  %s" % (why_not(path, python) or path))
    if lines:
        return "\nA wheel exists, but does not fit:" + ''.join(lines)
    servers = unreached(output)
    if servers:
        return "\nNo index with %s %s could be reached:\n%s" % (name, version, servers)
    return "\nNo index has %s %s for Python %s on %s." % (name, version, python.version, python.machine)
