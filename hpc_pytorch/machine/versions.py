"""Compare versions, evaluate conditions on them, and find those that are known to fail together: pairs.cfg."""
import operator
import re

from hpc_pytorch import HERE, parse

PAIRS = HERE + '/machine/pairs.cfg'
CONDITION = re.compile(r'(?P<name>[A-Za-z][\w.+-]*?)(?:(?P<relation>>=|<)(?P<version>\d[\w.]*))?$')
RELATIONS = {'>=': operator.ge, '<': operator.lt, '<=': operator.le, '~=': operator.ge}
# the order in which results are shown
RESULTS = ('fails', 'slow', 'untested', 'works')


def release(version):
    """Return the numbers of a version's release, to sort versions: [2, 10] of 2.10.0rc1; [] without any."""
    found = re.match(r'v?(\d+(\.\d+)*)', version)
    if not found:
        return []
    numbers = [int(part) for part in found.group(1).split('.')]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def satisfies(version, relation, bound):
    """Compare the releases of two versions: what is said of 2.10 is said of 2.10.0rc1, too."""
    return RELATIONS[relation](release(version), release(bound))


def holds(when, features, versions):
    """True if all (name, relation, version) hold; an unknown version satisfies none."""
    def one_holds(name, relation, bound):
        if relation is None:
            return name in features
        return name in versions and satisfies(versions[name], relation, bound)

    return all(one_holds(*condition) for condition in when)


def of_dependencies(ec):
    """Return the versions of an easyconfig's dependencies, by the name of the software, and of the system's module."""
    found = {}
    for dep in ec.dependencies():
        name, _, version = dep['full_mod_name'].partition('/')
        if not dep['external_module']:
            name, version = dep['name'], dep['version']
        if version:
            found[name] = version
        # devel/cuda/12.8 is CUDA 12.8: external_modules.cfg
        metadata = dep.get('external_module_metadata', {})
        names = [software.lower() for software in metadata.get('name', ())]
        found.update(zip(names, metadata.get('version', ())))
    return found


def known(versions, features):
    """Return the rows of pairs.cfg that fit {software: version} and words for the machine; failures first."""
    parser = parse(PAIRS)
    features = set(features) | set(versions)

    def fits(row):
        return holds([CONDITION.match(word).groups() for word in row['when'].split()], features, versions)

    rows = filter(fits, map(parser.__getitem__, parser.sections()))
    return sorted(rows, key=lambda row: RESULTS.index(row['result']))
