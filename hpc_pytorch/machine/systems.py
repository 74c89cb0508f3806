"""
Systems as data: what is known about a system lies in ``systems/<name>/system.cfg``; this loads, checks and chooses.

``system_schema.cfg``, beside this file, documents those files: every section and key, its type, and what it means. A
new system needs a new directory, no Python.

    >>> archer2 = load('archer2')
    >>> archer2.compilers['c'], archer2.node['cores']
    ('cc', 128)
    >>> [(setting.name, setting.value) for setting in archer2.settings_for(['mpi'])]

Keys that a file leaves out are None, or an empty list where the type is a list.
"""
import collections
import configparser
import difflib
import fnmatch
import glob
import os
import re
import socket

from hpc_pytorch import UsersProblem, collection_path
from hpc_pytorch.machine.versions import CONDITION, holds

DEFAULT = 'workstation'
HERE = os.path.dirname(os.path.abspath(__file__))
# the options of the commands that start ranks
LAUNCHERS = os.path.join(HERE, 'launchers.cfg')
VARIABLE_SECTION = re.compile(r'(?P<kind>setting|advice) (?P<name>[A-Za-z_]\w*)(?: \((?P<variant>[^()]+)\))?$')


# -- types: each turns the text of a value into what Python code needs, or raises ValueError with what was expected

def matching(pattern, expected, convert=str):
    """Make a type of the values that match a pattern."""
    def kind(value):
        found = re.match(pattern + '$', value)
        if not found:
            raise ValueError("expected " + expected)
        return convert(*found.groups())
    kind.__doc__ = expected
    return kind


def bytes_of(number, unit):
    return int(number) << 10 * (1 + 'KMGT'.index(unit))


text = matching('(.+)', "one line of text")
number = matching(r'(\d+)', "a whole number, such as 64", int)
yes_or_no = matching('(yes|no)', "yes or no", lambda word: word == 'yes')
size = matching(r'(\d+) ?([KMGT])iB', "an amount of memory with its unit, such as 256 GiB", bytes_of)
duration = matching(r'(\d+:[0-5]\d:[0-5]\d)', "hours:minutes:seconds, such as 01:00:00")
scheduler_kind = matching('(slurm|pbs|none)', "slurm, pbs or none")
decision = matching('(refuse|warn|allow)', "refuse, warn or allow")
dated = matching(r'(\d{4}(?:-\d\d){0,2}) (\S.*)', "a date and a document, such as 2026-06 BriCS's guide to NCCL",
                 lambda date, document: (date, document))


def words(value):
    """words separated by blanks"""
    return value.split()


def core_lists(value):
    """one list of cores for each GPU, such as 49-55 57-63: a list of lists of numbers"""
    return [core_list(word) for word in value.split()]


def core_list(word):
    """'1-3,7' -> [1, 2, 3, 7]"""
    cores = []
    for part in word.split(','):
        found = re.match(r'(\d+)(-(\d+))?$', part)
        first, last = (int(found.group(1)), int(found.group(3) or found.group(1))) if found else (1, 0)
        if last < first:
            raise ValueError("expected one list of cores for each GPU, such as 49-55 57-63, and found %r" % part)
        cores.extend(range(first, last + 1))
    return cores


def conditions(value):
    """features or versions of software (aws-ofi-nccl>=1.13), separated by blanks; all must hold"""
    found = []
    for word in value.split():
        match = CONDITION.match(word)
        if not match or (not match.group('relation') and word not in FEATURES):
            raise ValueError("%r is neither a feature (%s) nor a version such as aws-ofi-nccl>=1.13%s" % (
                word, ', '.join(sorted(FEATURES)), nearest(word, FEATURES)))
        found.append((match.group('name'), match.group('relation'), match.group('version')))
    return found


LISTS = (words, core_lists, conditions)
TYPES = {'text': text, 'number': number, 'yes_or_no': yes_or_no, 'size': size, 'duration': duration, 'words': words,
         'scheduler_kind': scheduler_kind, 'decision': decision, 'dated': dated, 'core_lists': core_lists,
         'conditions': conditions, 'prose': str}
# of one key: its type, whether it must be there, and what it means
Key = collections.namedtuple('Key', 'kind required meaning')


# -- loading

def nearest(word, known):
    """Return '; did you mean …?' when a known word is close to this one."""
    near = difflib.get_close_matches(word, sorted(known), n=1)
    return "; did you mean %s?" % near[0] if near else ""


def parse(path):
    """Parse a file of sections."""
    parser = configparser.ConfigParser(delimiters=('=',), comment_prefixes=('#',), interpolation=None,
                                       default_section='', empty_lines_in_values=False)
    parser.optionxform = str
    try:
        with open(path, encoding='utf-8') as handle:
            parser.read_file(handle)
    except OSError as error:
        raise UsersProblem("%s cannot be read: %s" % (path, error.strerror))
    except (configparser.Error, UnicodeDecodeError) as error:
        raise UsersProblem("%s cannot be read: %s" % (path, str(error).replace('\n', ' ')))
    return parser


def load_schema():
    """Load system_schema.cfg: ({section: {key: Key}}, the same of [setting NAME], {feature: meaning})."""
    parser = parse(os.path.join(HERE, 'system_schema.cfg'))
    features = dict(parser['features'])
    schema = {}
    for section in parser.sections()[:-1]:
        schema[section] = {}
        for key, value in parser[section].items():
            kind, required, meaning = re.match(r'(\w+)(, required)?: (.*)', value).groups()
            schema[section][key] = Key(TYPES[kind], bool(required), meaning)
    return schema, schema.pop('setting NAME'), features


SCHEMA, VARIABLE_SCHEMA, FEATURES = load_schema()


def read_section(path, section, given, schema):
    """Return the typed values of one section; what is not given has the type's empty value."""
    values = {}
    for key, (kind, required, _) in schema.items():
        if required and key not in given:
            raise UsersProblem("%s: %r is missing in [%s]" % (path, key, section))
        values[key] = [] if kind in LISTS else None
    for key, value in given.items():
        if key not in schema:
            raise UsersProblem("%s: unknown key %r in [%s]; known keys: %s%s" % (
                path, key, section, ', '.join(schema), nearest(key, schema)))
        kind = schema[key].kind
        try:
            values[key] = kind(value if kind is text else ' '.join(value.split()))
        except ValueError as error:
            raise UsersProblem("%s: %s = %s in [%s]: %s" % (path, key, value, section, error))
    return values


# One environment variable: `name`, `value`, `reason` and `when`, a list of (feature or software, relation, version).
# `source` is a key of System.sources.
Variable = collections.namedtuple('Variable', 'name value reason source when job_option')


class System(object):
    """One system; its sections are attributes, each a dict with every key of SCHEMA."""

    def __init__(self, name, directory, sections, settings, advice):
        self.name = name
        self.directory = directory
        for section, values in sections.items():
            setattr(self, section, values)
        # lists of Variable, in the order of the file
        self.settings = settings
        self.advice = advice

    @property
    def words(self):
        """What the system is, in the words of pairs.cfg."""
        found = {self.system['architecture'], self.node['gpu_architecture']}
        if any(name.startswith('hsn') for name in self.network['interfaces']):
            found.add('slingshot')
        return found

    @property
    def for_scripts(self):
        """Files that scripts need where the collection is not: modules have them in share/."""
        return [os.path.join(self.directory, 'system.cfg'), LAUNCHERS]

    @property
    def usable_cores(self):
        """Cores of a node that jobs use; those that gpu_cores leaves out are the operating system's."""
        return sum(map(len, self.node['gpu_cores'])) or self.node['cores']

    def settings_for(self, features, versions=None, variables=None):
        """
        Select the settings, or those of other variables such as `advice`, that hold for these features and versions of
        software:

            settings_for(['gpu', 'nccl'], {'aws-ofi-nccl': '1.6.0', 'rocm': '7.1.1'})
        """
        variables = self.settings if variables is None else variables
        return [one for one in variables if holds(one.when, features, versions or {})]


def launcher_options(command):
    """What launchers.cfg has for a command that starts ranks, as a dict."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=('=',))
    parser.read(LAUNCHERS, encoding='utf-8')
    return dict(parser[command])


def names():
    paths = glob.glob(os.path.join(glob.escape(collection_path('systems')), '*', 'system.cfg'))
    return sorted(os.path.basename(os.path.dirname(path)) for path in paths)


def check_name(name, where):
    if name not in names():
        raise UsersProblem("unknown system %r (from %s); known systems: %s%s" % (
            name, where, ', '.join(names()), nearest(name, names())))


def load(name):
    check_name(name, "the caller")
    return load_file(os.path.join(collection_path('systems'), name, 'system.cfg'))


def load_file(path):
    """Load the system that a file describes; its name is that of the directory."""
    parser = parse(path)
    sections, variables = {}, {'setting': [], 'advice': []}
    named = parser['sources'] if 'sources' in parser else ()
    schemas = dict(SCHEMA, sources=dict.fromkeys(named, SCHEMA['sources']['NAME']))
    for section in parser.sections():
        variable = VARIABLE_SECTION.match(section)
        if variable:
            values = read_section(path, section, parser[section], VARIABLE_SCHEMA)
            check_source(path, section, values['source'], named)
            variables[variable.group('kind')].append(Variable(name=variable.group('name'), **values))
        elif section in schemas:
            sections[section] = read_section(path, section, parser[section], schemas[section])
        else:
            known = list(SCHEMA) + ['setting NAME', 'advice NAME']
            raise UsersProblem("%s: unknown section [%s]; known sections: %s%s" % (
                path, section, ', '.join(known), nearest(section, known)))
    for section, schema in schemas.items():
        if section not in sections:
            sections[section] = read_section(path, section, {}, schema)
    check_gpu_cores(path, sections['node'])
    directory = os.path.dirname(path)
    return System(os.path.basename(directory), directory, sections, variables['setting'], variables['advice'])


def check_source(path, section, name, named):
    if name not in named:
        raise UsersProblem("%s: source = %s in [%s] is not in [sources], which has: %s%s" % (
            path, name, section, ', '.join(named) or 'none', nearest(name, named)))


def check_gpu_cores(path, node):
    lists = node['gpu_cores']
    if lists and len(lists) != node['gpus']:
        raise UsersProblem("%s: gpu_cores in [node] has %d lists of cores for %s GPUs" % (
            path, len(lists), node['gpus']))
    cores = sum(lists, [])
    if len(set(cores)) < len(cores) or max(cores, default=-1) >= (node['cores'] or 0):
        raise UsersProblem("%s: gpu_cores in [node] names a core twice, or one beyond the node's %s cores" % (
            path, node['cores']))


# -- choosing

def choose(option, environ, host_name, easyconfigs):
    """
    Choose the system to install for; returns its name, and the reason as a phrase.

    The user decides (`option`, then $HPC_SYSTEM in `environ`), then the name of this machine, then the names of the
    easyconfigs on the command line; otherwise it is a workstation.
    """
    if option is not None:
        check_name(option, "--system")
        return option, "chosen by --system"
    if environ.get('HPC_SYSTEM'):
        check_name(environ['HPC_SYSTEM'], "$HPC_SYSTEM")
        return environ['HPC_SYSTEM'], "chosen by $HPC_SYSTEM"
    systems = [load(name) for name in names()]
    here = [system for system in systems if host_matches(host_name, system.system['host_names'])]
    # several systems call their nodes nid001234: a name that fits two of them decides nothing
    if len(here) == 1:
        return here[0].name, "this host is called %s" % host_name
    named = {}
    for easyconfig in easyconfigs:
        for system in systems:
            if is_for(easyconfig, system):
                named.setdefault(system.name, os.path.basename(easyconfig))
    if len(named) > 1:
        pairs = ', '.join('%s (%s)' % (easyconfig, name) for name, easyconfig in named.items())
        raise UsersProblem("these easyconfigs are for different systems: %s. Install those of one system at a time, or "
                           "add --system NAME" % pairs)
    for name, easyconfig in named.items():
        return name, "chosen by the name of %s" % easyconfig
    return DEFAULT, "the default: neither --system, $HPC_SYSTEM, the host name nor the easyconfig names a system"


def host_matches(host_name, patterns):
    """True if a host's name matches one of these patterns, with or without its domain."""
    host_name = host_name.lower()
    names = (host_name, host_name.split('.')[0])
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def is_for(easyconfig, system):
    """True if the name of an easyconfig has one of the system's suffixes between its dashes."""
    stem = os.path.basename(easyconfig)
    stem = stem[:-len('.eb')] if stem.endswith('.eb') else stem
    return not set(stem.split('-')[1:]).isdisjoint(system.system['easyconfig_suffix'])


def current(easyconfig=''):
    """Load the system that this process works for: the one ./eb chose for this easyconfig, or would have chosen."""
    name, _ = choose(None, os.environ, socket.gethostname(), [easyconfig])
    return load(name)
