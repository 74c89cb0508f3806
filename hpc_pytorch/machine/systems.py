"""Load, check and choose systems: ``systems/<name>/system.cfg``; system_schema.cfg defines their sections and keys.

    >>> load('archer2').node['cores']
    128

Keys that a file leaves out are None, or an empty list where the type is a list.
"""
import collections
import difflib
import fnmatch
import glob
import os
import re
import socket
import types
from pathlib import Path

from hpc_pytorch import HERE, UsersProblem, collection_path, parse
from hpc_pytorch.machine.versions import CONDITION, holds

DEFAULT = 'workstation'
# the options of the commands that start ranks
LAUNCHERS = HERE + '/machine/launchers.cfg'
# what programs that submit jobs read, beside a system's own file
FOR_JOBS = [LAUNCHERS, os.path.join(collection_path('ramgate'), 'ramgate/limits.py')]
FOR_JOBS += sorted(glob.glob(os.path.join(HERE, 'share/*.*')))
VARIABLE_SECTION = re.compile(r'(?P<kind>setting|advice) (?P<name>[A-Za-z_]\w*)(?: \((?P<variant>[^()]+)\))?$')


def size(value):
    number, unit = re.match(r'(\d+) ?(\w)', value).groups()
    return int(number) << 10 * 'BKMGT'.index(unit)


def core_list(word):
    """'1-3,7' -> [1, 2, 3, 7]"""
    cores = []
    for part in word.split(','):
        found = re.match(r'(\d+)(?:-(\d+))?$', part)
        more = range(int(found.group(1)), int(found.group(2) or found.group(1)) + 1) if found else ()
        if not more:
            raise ValueError("expected cores such as 49-55, and found %r" % part)
        cores.extend(more)
    return cores


def conditions(value):
    found = []
    for word in value.split():
        match = CONDITION.match(word)
        if not match or (not match.group('relation') and word not in FEATURES):
            raise ValueError("%r is neither a feature (%s) nor a version such as aws-ofi-nccl>=1.13%s" % (
                word, ', '.join(FEATURES), nearest(word, FEATURES)))
        found.append(match.groups())
    return found


# what is made of values that are not text
CONVERSIONS = {
    'number': int,
    'yes_or_no': lambda value: value == 'yes',
    'size': size,
    'dated': lambda value: tuple(value.split(' ', 1)),
    'core_lists': lambda value: [core_list(word) for word in value.split()],
    'conditions': conditions,
}
LISTS = ('words', 'hosts', 'suffixes', 'core_lists', 'conditions')
# of one key: its type, whether it must be there, and what it means
Key = collections.namedtuple('Key', 'kind required meaning')
Type = collections.namedtuple('Type', 'name pattern expected')


def nearest(word, known):
    """Return '; did you mean …?' when a known word is close to this one."""
    near = difflib.get_close_matches(word, sorted(known), n=1)
    return "; did you mean %s?" % near[0] if near else ""


def key_of(words):
    kind, required, meaning = re.match(r'(\w+)(, required)?: (.*)', words).groups()
    return Key(TYPES[kind], bool(required), meaning)


_parser = parse(HERE + '/machine/system_schema.cfg')
FEATURES = dict(_parser['features'])
TYPES = {name: Type(name, *words.split(': ', 1)) for name, words in _parser['types'].items()}
SCHEMA = {section: {key: key_of(words) for key, words in _parser[section].items()}
          for section in _parser.sections() if section not in ('features', 'types')}
VARIABLE_SCHEMA = SCHEMA.pop('setting NAME')


def read_section(path, section, given, schema):
    """Return the typed values of one section; what is not given has the type's empty value."""
    values = {}
    for key, (kind, required, _) in schema.items():
        if required and key not in given:
            raise UsersProblem("%s: %r is missing in [%s]" % (path, key, section))
        values[key] = [] if kind.name in LISTS else None
    for key, value in given.items():
        if key not in schema:
            owners = ["; it belongs to [%s]" % other for other, keys in SCHEMA.items() if key in keys]
            raise UsersProblem("%s: unknown key %r in [%s]; known keys: %s%s" % (
                path, key, section, ', '.join(schema), ' or '.join(owners) or nearest(key, schema)))
        try:
            values[key] = typed(schema[key].kind, value)
        except ValueError as error:
            raise UsersProblem("%s: %s = %s in [%s]: %s" % (path, key, ' '.join(value.split()), section, error))
    return values


def typed(kind, value):
    """Turn the text of a value into what Python code needs; ValueError says what was expected."""
    if kind.name != 'text':
        value = ' '.join(value.split())
    if not re.fullmatch(kind.pattern, value):
        raise ValueError("expected " + kind.expected)
    convert = CONVERSIONS.get(kind.name, str.split if kind.name in LISTS else str)
    return convert(value)


# One environment variable: `name`, `value`, `reason` and `when`, a list of (feature or software, relation, version).
# `source` is a key of System.sources.
Variable = collections.namedtuple('Variable', 'name value reason source when job_option')


class System(types.SimpleNamespace):
    """One system; its sections are attributes, each a dict with every key of SCHEMA."""

    @property
    def words(self):
        found = {self.system['architecture'], self.node['gpu_architecture']}
        if 'hsn0' in self.network['interfaces']:
            found.add('slingshot')
        return found

    @property
    def for_scripts(self):
        """Files that scripts need where the collection is not: modules have them in share/."""
        return [os.path.join(self.directory, 'system.cfg')] + FOR_JOBS

    @property
    def usable_cores(self):
        """Count the cores of a node that jobs use; those that gpu_cores leaves out are the operating system's."""
        return sum(map(len, self.node['gpu_cores'])) or self.node['cores']

    def settings_for(self, features, versions=None, variables=None):
        """Select the settings, or other variables, that hold for features and {software: version}."""
        chosen = self.settings if variables is None else variables
        return [one for one in chosen if holds(one.when, features, versions or {})]


def names():
    return sorted(path.parent.name for path in Path(collection_path('systems')).glob('*/system.cfg'))


def load(name):
    return load_file(os.path.join(collection_path('systems'), name, 'system.cfg'))


def load_file(path):
    """Load the system that a file describes; its name is that of the directory."""
    parser = parse(path)
    # those that the file leaves out come last
    parser.read_dict(dict.fromkeys(SCHEMA, {}))
    sections = {}
    variables = {'setting': [], 'advice': []}
    schemas = dict(SCHEMA, sources=dict.fromkeys(parser['sources'], SCHEMA['sources']['NAME']))
    for section in parser.sections():
        variable = VARIABLE_SECTION.match(section)
        if variable:
            values = read_section(path, section, parser[section], VARIABLE_SCHEMA)
            variables[variable.group('kind')].append(Variable(name=variable.group('name'), **values))
        elif section in schemas:
            sections[section] = read_section(path, section, parser[section], schemas[section])
        else:
            known = [*SCHEMA, 'setting NAME', 'advice NAME']
            raise UsersProblem("%s: unknown section [%s]; known sections: %s%s" % (
                path, section, ', '.join(known), nearest(section, known)))
    check_gpu_cores(path, sections['node'])
    directory = os.path.dirname(path)
    return System(name=os.path.basename(directory), directory=directory, settings=variables['setting'],
                  advice=variables['advice'], **sections)


def check_gpu_cores(path, node):
    lists = node['gpu_cores']
    cores = sum(lists, [])
    if lists and (len(lists) != node['gpus'] or len(set(cores)) < len(cores) or max(cores) >= (node['cores'] or 0)):
        raise UsersProblem("%s: gpu_cores in [node] has %d lists of cores for %s GPUs, or names a core twice, or one "
                           "beyond the node's %s cores" % (path, len(lists), node['gpus'], node['cores']))


def choose(option, environ, host_name, easyconfigs):
    """Choose the system to install for: by the user, this machine's name or the easyconfigs'; (name, reason)."""
    for name, where in ((option, "--system"), (environ.get('HPC_SYSTEM') or None, "$HPC_SYSTEM")):
        if name is not None:
            if name not in names():
                raise UsersProblem("unknown system %r (from %s); known systems: %s%s" % (
                    name, where, ', '.join(names()), nearest(name, names())))
            return name, "chosen by " + where
    systems = [load(name) for name in names()]
    here = [system.name for system in systems if host_matches(host_name, system.system['host_names'])]
    # several systems call their nodes nid001234: a name that fits two of them decides nothing
    if len(here) == 1:
        return here[0], "this host is called %s" % host_name
    named = {}
    for easyconfig in easyconfigs:
        for system in systems:
            if is_for(easyconfig, system):
                named.setdefault(system.name, os.path.basename(easyconfig))
    if len(named) > 1:
        pairs = ['%s (%s)' % (easyconfig, name) for name, easyconfig in named.items()]
        raise UsersProblem("these easyconfigs are for different systems: %s. Install those of one system at a time, or "
                           "add --system NAME" % ', '.join(pairs))
    for name, easyconfig in named.items():
        return name, "chosen by the name of %s" % easyconfig
    host = "the host name (it fits %s)" % ' and '.join(here) if here else "the host name"
    return DEFAULT, "the default: neither --system, $HPC_SYSTEM, %s nor the easyconfig names a system" % host


def host_matches(host_name, patterns):
    """True if a host's name matches one of these patterns, with or without its domain."""
    host_name = host_name.lower()
    names = (host_name, host_name.split('.')[0])
    return any(fnmatch.fnmatchcase(name, pattern.lower()) for name in names for pattern in patterns)


def is_for(easyconfig, system):
    """True if the name of an easyconfig has one of the system's suffixes between its dashes."""
    words = re.split('-|[.]eb$', os.path.basename(easyconfig))
    return not set(words[1:]).isdisjoint(system.system['easyconfig_suffix'])


def is_retired(path, system):
    """True if an easyconfig is for an earlier state of the system: the easystack of today leaves it out."""
    easystack = Path(system.directory, 'easystack.yaml')
    return easystack.exists() and os.path.basename(path) not in easystack.read_text()


def current(easyconfig=''):
    """Load the system that this process works for: the one ./eb chose for this easyconfig, or would have chosen."""
    name, _ = choose(None, os.environ, socket.gethostname(), [easyconfig])
    return load(name)
