"""
How versions are compared, conditions on them, and which versions are known to go together or to fail:
pairs.cfg, beside this file.
"""
import configparser
import operator
import os
import re

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'pairs.cfg')
CONDITION = re.compile(r'(?P<name>[A-Za-z][\w.+-]*?)(?:(?P<relation>>=|<)(?P<version>\d[\w.]*))?$')
RELATIONS = {'>=': operator.ge, '<': operator.lt}
# PEP 440, with the spellings that it admits; modules' versions may go on in their own way
VERSION = re.compile(r'''
    v?(?P<release>\d+(?:\.\d+)*)
    (?:[-_.]?(?P<pre>alpha|a|beta|b|preview|pre|rc|c)[-_.]?(?P<pre_number>\d*)(?![a-z]))?
    (?:-(?P<revision>\d+)|[-_.]?post[-_.]?(?P<post>\d*))?
    (?:[-_.]?dev[-_.]?(?P<dev>\d*))?
    ''', re.VERBOSE | re.IGNORECASE)
PRE_RELEASES = {'a': 0, 'alpha': 0, 'b': 1, 'beta': 1, 'c': 2, 'rc': 2, 'pre': 2, 'preview': 2}
DEVELOPMENT, RELEASED = -1, 3
# the order in which results are shown
RESULTS = ('fails', 'slow', 'untested', 'works')


def release(version):
    """The numbers of a version's release: [2, 10] of 2.10.0rc1; [] of a module's version that has none."""
    found = VERSION.match(version)
    numbers = [int(part) for part in found.group('release').split('.')] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


def version_key(version):
    """Sort versions as PEP 440 does: 2.10.0.dev1, 2.10.0rc1, 2.10.0 and 2.10, 2.10.0+cpu, 2.10.0-1."""
    found = VERSION.match(version)
    if not found:
        return [], (RELEASED, 0), -1, False, 0, []
    pre, post, dev = found.group('pre'), found.group('revision') or found.group('post'), found.group('dev')
    stage = (RELEASED, 0)
    if pre:
        stage = (PRE_RELEASES[pre.lower()], int(found.group('pre_number') or 0))
    elif dev is not None and post is None:
        stage = (DEVELOPMENT, 0)
    local = [(bool(number), int(number or 0), word)
             for number, word in re.findall(r'(\d+)|([a-z]+)', version[found.end():].lower())]
    return release(version), stage, -1 if post is None else int(post or 0), dev is None, int(dev or 0), local


def satisfies(version, relation, bound):
    """Compare the releases of two versions: what is said of 2.10 is said of 2.10.0rc1, too."""
    return RELATIONS[relation](release(version), release(bound))


def within(version, since, before):
    """True if a version is in a range; either end may be None."""
    return (since is None or satisfies(version, '>=', since)) and (before is None or satisfies(version, '<', before))


def holds(when, features, versions):
    """True if all (name, relation, version) hold; an unknown version satisfies none."""
    for name, relation, bound in when:
        if relation is None:
            if name not in features:
                return False
        elif name not in versions or not satisfies(versions[name], relation, bound):
            return False
    return True


def known(versions, features):
    """The rows of pairs.cfg that fit these {software: version} and words for the machine; those that fail first."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=('=',))
    parser.read(PATH, encoding='utf-8')
    rows = []
    for section in parser.sections():
        when = [CONDITION.match(word).groups() for word in parser[section]['when'].split()]
        if holds(when, set(features) | set(versions), versions):
            rows.append(parser[section])
    return sorted(rows, key=lambda row: RESULTS.index(row['result']))


def in_words(row):
    return "known: {result}: {why} ({source}, {date})".format(**row)
