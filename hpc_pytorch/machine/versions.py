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
# as they are told: what fails first
RESULTS = ('fails', 'slow', 'untested', 'works')


def version_key(version):
    """What versions are compared by: their numbers, so that 2.0 is 2.0.0."""
    numbers = [int(part) for part in re.findall(r'\d+', version)]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


def holds(when, features, versions):
    """Whether all (name, relation, version) hold; a version that nobody knows satisfies none."""
    return all(name in features if relation is None else
               name in versions and RELATIONS[relation](version_key(versions[name]), version_key(version))
               for name, relation, version in when)


def known(versions, features):
    """The rows of pairs.cfg that fit these {software: version} and words for the machine, what fails first."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=('=',))
    parser.read(PATH, encoding='utf-8')
    rows = [parser[section] for section in parser.sections()
            if holds([CONDITION.match(word).groups() for word in parser[section]['when'].split()],
                     set(features) | set(versions), versions)]
    return sorted(rows, key=lambda row: RESULTS.index(row['result']))


def in_words(row):
    return "known: {result}: {why} ({source}, {date})".format(**row)
