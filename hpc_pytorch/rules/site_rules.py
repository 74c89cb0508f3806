"""
What sites decide and add, as data: ``hooks/site.cfg``, and after it the site's own file, named by $HPC_SITE_CONFIG.

    [policy]
    login_node = warn

    [rule profiler]
    software = PyTorch
    version = >=2.0 <2.5
    system = bede
    modules = nsight-systems/2023.4.1
    reason = many ask for it
"""
import collections
import fnmatch
import os
import re
import shlex
import sys

from easybuild.base import fancylogger

from hpc_pytorch import HERE, UsersProblem, collection_path
from hpc_pytorch.machine.systems import current, decision, nearest, parse, read_section, words, yes_or_no
from hpc_pytorch.machine.versions import RELATIONS, version_key
from hpc_pytorch.packages.lock_files import sha256_of

_log = fancylogger.getLogger('site_rules', fname=False)

OWN_FILE = 'HPC_SITE_CONFIG'
# what marks a module of the system in an easyconfig
EXTERNAL = 'EXTERNAL_MODULE'


# -- types, as in system.cfg

def ranges(value):
    """bounds of versions, all of which hold: >=1.13 <2.1"""
    found = [re.match(r'(>=|<)(\d[\w.]*)$', word) for word in value.split()]
    if not found or not all(found):
        raise ValueError("expected bounds such as >=1.13 <2.1")
    return [match.groups() for match in found]


def additions(value):
    """PARAMETER: VALUE ..., of a list in the easyconfig"""
    name, colon, values = value.partition(':')
    if not colon or not values.split() or not name.strip().isidentifier():
        raise ValueError("expected the name of a parameter, a colon and what to add, such as custom_opts: USE_MKL=1")
    return name.strip(), values.split()


POLICY = collections.OrderedDict([
    ('login_node', (decision, "what to do about a build of hours on a login node, or with too little memory")),
    ('free_space', (decision, "what to do when a file system, or a quota, has less room than is needed")),
    ('install_path', (decision, "what to do about a prefix that system.cfg calls unfit")),
    ('vulnerable', (decision, "what to do about packages with known vulnerabilities (hooks/advisories.cfg)")),
    ('pairs', (decision, "what to do about versions that are known to fail together (hpc_pytorch/machine/pairs.cfg)")),
])
RULE = collections.OrderedDict([
    ('software', (words, "patterns of names of software")),
    ('version', (ranges, "bounds of the version; without it: all")),
    ('system', (words, "patterns of names of systems; without it: all")),
    ('features', (words, "sets the system's settings for these features (see systems.py) when the module is loaded")),
    ('modules', (words, "modules of the system to load with the software")),
    ('patches', (words, "patches beside the file with the rule, or beside the easyconfig")),
    ('options', (additions, "what to add to a list in the easyconfig")),
    ('contract', (yes_or_no, "yes: upstream's build of PyTorch stops when CMake leaves out what was asked for")),
    ('ramgate', (yes_or_no, "whether what is compiled is kept within the memory, as PyTorch's own build always is")),
    ('reason', (str, "why; the log shows it")),
])
REQUIRED = ('software', 'reason')
RULE_SECTION = re.compile(r'rule (?P<name>.+)$')
Rule = collections.namedtuple('Rule', ['name', 'path'] + list(RULE))


def files():
    """The files with policies and rules, the site's own last."""
    own = os.environ.get(OWN_FILE)
    return [os.path.join(collection_path('hooks'), 'site.cfg')] + ([own] if own else [])


def load(paths=None):
    """The policies, and the rules in the order of the files: (dict, list of Rule)."""
    policy, rules = {}, collections.OrderedDict()
    for path in paths or files():
        parser = parse(path, "; $%s names it" % OWN_FILE if path == os.environ.get(OWN_FILE) else '')
        for section in parser.sections():
            rule = RULE_SECTION.match(section)
            if rule:
                values = read_section(path, section, parser[section], RULE, required=REQUIRED)
                rules[rule.group('name')] = Rule(rule.group('name'), path, **values)
            elif section == 'policy':
                given = read_section(path, section, parser[section], POLICY)
                policy.update((key, value) for key, value in given.items() if value)
            else:
                raise UsersProblem("%s: unknown section [%s]; known: [policy] and [rule NAME]%s" % (
                    path, section, nearest(section, ['policy', 'rule'])))
    return policy, list(rules.values())


def fits(rule, name, version, system):
    return (any(fnmatch.fnmatchcase(name, pattern) for pattern in rule.software)
            and any(fnmatch.fnmatchcase(system, pattern) for pattern in rule.system or ['*'])
            and all(RELATIONS[relation](version_key(version), version_key(bound))
                    for relation, bound in rule.version or []))


# -- what a rule does to an easyconfig that has just been read; one function for each key

def add_features(ec, rule, system):
    """The system's settings for what this communicates through."""
    own = dict(ec['modextravars'])
    for setting in system.settings_for(rule.features, {ec['name']: ec['version']}):
        own.setdefault(setting.name, setting.value)
    ec['modextravars'] = own


def add_modules(ec, rule, _):
    """Modules of the system; dependencies are still plain tuples at this time."""
    known = [dep[0] for dep in ec['dependencies'] if isinstance(dep, (tuple, list))]
    ec['dependencies'] = ec['dependencies'] + [(name, EXTERNAL) for name in rule.modules if name not in known]


def add_patches(ec, rule, _):
    """Patches, with the checksums that they have now: they come with the site's own files."""
    for name in rule.patches:
        if name in [patch[0] if isinstance(patch, (tuple, list)) else patch for patch in ec['patches']]:
            continue
        places = [os.path.join(os.path.dirname(path), name) for path in (rule.path, ec.path)]
        path = next((place for place in places if os.path.isfile(place)), None)
        if path is None:
            raise UsersProblem("[rule %s] in %s: found no patch %s" % (rule.name, rule.path, ' nor '.join(places)))
        if ec['checksums'] and len(ec['checksums']) >= len(ec['sources']) + len(ec['patches']):
            ec['checksums'] = ec['checksums'] + [sha256_of(path)]
        ec['patches'] = ec['patches'] + [path]


def add_options(ec, rule, _):
    name, values = rule.options
    if name not in ec or not isinstance(ec[name], list):
        raise UsersProblem("[rule %s] in %s: %s has no list called %s" % (
            rule.name, rule.path, os.path.basename(ec.path), name))
    ec[name] = ec[name] + [value for value in values if value not in ec[name]]


def add_contract(ec, rule, _):
    """A program in front of upstream's command, which begins with what it asks for; the collection's blocks compare."""
    if ec['easyblock'] in (None, 'EB_PyTorch'):
        program = [sys.executable, '-I', os.path.join(HERE, 'source', 'compared.py')]
        ec['preinstallopts'] = ec['preinstallopts'] + ' '.join(map(shlex.quote, program)) + ' '


ACTIONS = (('features', add_features), ('modules', add_modules), ('patches', add_patches), ('options', add_options),
           ('contract', add_contract))


def applying(ec, system):
    """The rules for an easyconfig."""
    return [rule for rule in load()[1] if fits(rule, ec['name'], ec['version'], system.name)]


def apply(ec):
    """Everything that the rules have for an easyconfig."""
    system = current(ec.path)
    for rule in applying(ec, system):
        _log.info("[rule %s] in %s: %s", rule.name, rule.path, rule.reason)
        for key, action in ACTIONS:
            if getattr(rule, key):
                action(ec, rule, system)


def has(ec, key):
    """Whether the last rule with this key has yes."""
    said = [getattr(rule, key) for rule in applying(ec, current(ec.path)) if getattr(rule, key) is not None]
    return bool(said and said[-1])


def policy(name):
    return load()[0].get(name)
