"""
Systems as data: what is known about a system lies in ``systems/<name>/system.cfg``; this loads, checks and chooses.

``SCHEMA`` is the documentation of those files: every section and key, its type, and what it means. A key that is not
in it is an error, so a misspelt one is never silently without effect. A new system needs a new directory, no Python.

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
import os
import re
import socket

from hpc_pytorch import UsersProblem, collection_path
from hpc_pytorch.machine.versions import CONDITION, holds

DEFAULT = 'workstation'
# the options of the commands that start ranks
LAUNCHERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'launchers.cfg')
# The format of system.cfg. 1: files that do not name theirs; 2: [system] has `format`, everything else is as in 1.
FORMAT = 2


# -- types: each turns the text of a value into what Python code wants, or raises ValueError with what was expected

def text(value):
    """one line of text"""
    if not value or '\n' in value:
        raise ValueError("expected one line of text")
    return value


def words(value):
    """words separated by blanks"""
    return value.split()


def number(value):
    """a whole number, 0 or more"""
    if not value.isdigit():
        raise ValueError("expected a whole number, such as 64")
    return int(value)


def yes_or_no(value):
    """yes or no"""
    if value not in ('yes', 'no'):
        raise ValueError("expected yes or no")
    return value == 'yes'


def size(value):
    """an amount of memory in bytes, written as 256 GiB"""
    found = re.match(r'(\d+) ?([KMGT])iB$', value)
    if not found:
        raise ValueError("expected an amount of memory with its unit, such as 256 GiB")
    return int(found.group(1)) << 10 * (1 + 'KMGT'.index(found.group(2)))


def duration(value):
    """a time as hours:minutes:seconds"""
    if not re.match(r'\d+:[0-5]\d:[0-5]\d$', value):
        raise ValueError("expected hours:minutes:seconds, such as 01:00:00")
    return value


def core_lists(value):
    """one list of cores for each GPU, such as 49-55 57-63: a list of lists of numbers"""
    return [core_list(word) for word in value.split()]


def core_list(word):
    """'1-3,7' -> [1, 2, 3, 7]"""
    cores = []
    for part in word.split(','):
        found = re.match(r'(\d+)(?:-(\d+))?$', part)
        if not found or int(found.group(2) or found.group(1)) < int(found.group(1)):
            raise ValueError("expected one list of cores for each GPU, such as 49-55 57-63, and found %r" % part)
        cores.extend(range(int(found.group(1)), int(found.group(2) or found.group(1)) + 1))
    return cores


def one_of(*known):
    """A type with these values only."""
    def kind(value):
        if value not in known:
            raise ValueError("expected " + kind.__doc__)
        return value
    kind.__doc__ = '%s or %s' % (', '.join(known[:-1]), known[-1])
    return kind


scheduler_kind, decision = one_of('slurm', 'pbs', 'none'), one_of('refuse', 'warn', 'allow')


def conditions(value):
    """features (see FEATURES) or versions of software (aws-ofi-nccl>=1.13), separated by blanks; all must hold"""
    found = [CONDITION.match(word) for word in value.split()]
    for word, match in zip(value.split(), found):
        if not match or (not match.group('relation') and word not in FEATURES):
            raise ValueError("%r is neither a feature (%s) nor a version such as aws-ofi-nccl>=1.13%s" % (
                word, ', '.join(sorted(FEATURES)), nearest(word, FEATURES)))
    return [(match.group('name'), match.group('relation'), match.group('version')) for match in found]


LISTS = (words, core_lists, conditions)

# What a module or a job can be, for `when` of a setting.
FEATURES = {
    'gpu': "uses the GPUs",
    'nccl': "communicates through NCCL or RCCL",
    'mpi': "communicates through MPI",
    'container': "runs in a container",
    'proxy': "reaches the internet from compute nodes through the site's proxy, because the user asked for it",
    'caches': "keeps data sets and models away from $HOME, because the user asked for it",
}

# -- the schema: section -> key -> (type, what it means); keys in REQUIRED must be there

SCHEMA = collections.OrderedDict([
    ('system', collections.OrderedDict([
        ('format', (number, "version of the format of this file, now %d; without it: 1" % FORMAT)),
        ('title', (text, "name for people: ARCHER2 (HPE Cray EX, AMD Zen 2)")),
        ('easyconfig_suffix', (words, "a word between dashes that marks this system's easyconfigs: ARCHER2")),
        ('host_names', (words, "patterns of the names of all hosts, as `hostname` prints them: frontier*")),
        ('login_hosts', (words, "patterns of the names of the hosts where nobody should compile for hours")),
        ('architecture', (text, "of the compute nodes, as `uname -m` prints it: x86_64")),
        ('python_module', (words, "modules to load, in order, for a newer python3 than the system's: cray-python")),
    ])),
    ('installation', collections.OrderedDict([
        ('prefix', (text, "where installations belong, for users to fill in: /work/PROJECT/PROJECT/$USER/easybuild")),
        ('unfit', (words, "directories below which they do not belong: $HOME")),
        ('reason', (text, "why not")),
        ('policy', (decision, "what to do about such a place; a site's own [policy] wins")),
    ])),
    ('compilers', collections.OrderedDict([
        ('c', (text, "command that compiles C: cc")),
        ('cxx', (text, "command that compiles C++: CC")),
        ('fortran', (text, "command that compiles Fortran: ftn")),
        ('mpi_c', (text, "command that compiles C with MPI")),
        ('mpi_cxx', (text, "command that compiles C++ with MPI")),
    ])),
    ('launcher', collections.OrderedDict([
        ('command', (text, "command that starts ranks: srun")),
        ('two_processes', (words, "complete command that starts two ranks on one node in a job, without the program")),
        ('gpu_options', (words, "what to add to `command` where each rank has a GPU: what binds cores")),
    ])),
    ('scheduler', collections.OrderedDict([
        ('kind', (scheduler_kind, "of the batch system")),
        ('account_variable', (text, "environment variable in which users keep their project: SBATCH_ACCOUNT")),
        ('partition', (text, "partition or queue for runs")),
        ('qos', (text, "quality of service for runs")),
        ('build_partition', (text, "partition or queue for builds, where it is another one")),
        ('walltime', (duration, "default for a build")),
        ('nodes_exclusive', (yes_or_no, "whether a job always has whole nodes")),
        ('gpus_option', (text, "option that asks for GPUs on each node, to be followed by their number: --gres=gpu:")),
        ('options', (words, "more options for every job script: --export=NONE")),
    ])),
    ('node', collections.OrderedDict([
        ('cores', (number, "physical cores of a compute node")),
        ('threads_per_core', (number, "hardware threads of a core")),
        ('memory', (size, "of a compute node, as much as a job can have")),
        ('gpus', (number, "of a compute node, counted as devices")),
        ('gpu_architecture', (text, "as compilers name it: gfx90a, 8.0")),
        ('cuda', (number, "newest CUDA that the driver takes, its first number: 12")),
        ('gpu_cores', (core_lists, "for each GPU, in their order, the cores nearest to it")),
        ('gpu_variable', (text, "environment variable that says which GPUs a process may see: ROCR_VISIBLE_DEVICES")),
        ('local_storage', (text, "directory on the compute node's own disk; may be there only in jobs that ask")),
        ('local_storage_option', (words, "what a job asks for to get it")),
        ('temporary_directory', (text, "directory for temporary files on compute nodes")),
        ('not_mounted', (words, "directories of login nodes that compute nodes do not have: /home")),
    ])),
    ('network', collections.OrderedDict([
        ('interfaces', (words, "high-speed interfaces, best first: hsn0")),
        ('master_port', (number, "port that the site recommends for the first rank")),
        ('nccl_net', (text, "what pytorch-srun sets NCCL_NET to on several nodes; one node has no network: OFI")),
    ])),
    ('container', collections.OrderedDict([
        ('runtime_modules', (words, "modules to load for `singularity` to be there")),
        ('image_search_path', (words, "directories in which the site keeps images, best first, and below them")),
        ('conflicts', (words, "the site's own modules that bind directories for containers")),
        ('bind_paths', (words, "what of the system a container must see")),
    ])),
])
# `[setting NAME]` is set by modules, `[advice NAME]` is only told in `module help`. One variable with several values,
# each for other versions, has a section for each: [setting NCCL_NET], [setting NCCL_NET (plugin before 1.13)].
VARIABLE_SCHEMA = collections.OrderedDict([
    ('value', (text, "of the environment variable")),
    ('reason', (str, "why; `module help` shows it")),
    ('when', (conditions, "set only when all of these hold; without it: always")),
    ('job_option', (str, "the option of sbatch without which it does harm; pytorch-srun warns where a job lacks it")),
])
VARIABLE_SECTION = re.compile(r'(?P<kind>setting|advice) (?P<name>[A-Za-z_]\w*)(?: \((?P<variant>[^()]+)\))?$')
REQUIRED = {
    'system': ('title', 'easyconfig_suffix'),
    'compilers': ('c', 'cxx'),
    'launcher': ('command', 'two_processes'),
    'scheduler': ('kind',),
}

# One environment variable: `name`, `value`, `reason` and `when`, a list of (feature or software, relation, version).
Variable = collections.namedtuple('Variable', 'name value reason when job_option')


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
        """What it is, for pairs.cfg."""
        slingshot = any(name.startswith('hsn') for name in self.network['interfaces'])
        return {self.system['architecture'], self.node['gpu_architecture']} | ({'slingshot'} if slingshot else set())

    @property
    def for_scripts(self):
        """Files that modules have in share/: what scripts have to know where the collection is not."""
        return [os.path.join(self.directory, 'system.cfg'), LAUNCHERS]

    @property
    def usable_cores(self):
        """Of a node; cores that are named beside no GPU are the operating system's."""
        return sum(map(len, self.node['gpu_cores'])) or self.node['cores']

    def settings_for(self, features, versions=None, variables=None):
        """
        The settings for something with these features, given the versions of software that matter to some of them; or
        what of other variables, such as `advice`, is for it.

            settings_for(['gpu', 'nccl'], {'aws-ofi-nccl': '1.6.0', 'rocm': '7.1.1'})
        """
        variables = self.settings if variables is None else variables
        return [one for one in variables if holds(one.when, features, versions or {})]


def launcher_options(command):
    """What launchers.cfg has for a command that starts ranks, as a dict."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=('=',))
    parser.read(LAUNCHERS, encoding='utf-8')
    return dict(parser[command])


# -- where the systems are

def systems_directory():
    place = collection_path('systems')
    if not os.path.isdir(place):
        raise UsersProblem("%s is missing: this installation is incomplete; clone or install it again"
                           % place)
    return place


def names():
    top = systems_directory()
    return sorted(name for name in os.listdir(top) if os.path.isfile(os.path.join(top, name, 'system.cfg')))


def nearest(word, known):
    """'; did you mean …?' when a known word is close to this one."""
    near = difflib.get_close_matches(word, sorted(known), n=1)
    return "; did you mean %s?" % near[0] if near else ""


def check_name(name, where):
    if name not in names():
        raise UsersProblem("unknown system %r (from %s); known systems: %s%s" % (
            name, where, ', '.join(names()), nearest(name, names())))


# -- loading

def load(name):
    check_name(name, "the caller")
    return load_file(os.path.join(systems_directory(), name, 'system.cfg'))


def parse(path, about=''):
    """A file of sections; `about` is what else a user should know of one that cannot be read."""
    parser = configparser.ConfigParser(delimiters=('=',), comment_prefixes=('#',), interpolation=None,
                                       default_section='', empty_lines_in_values=False)
    parser.optionxform = str
    try:
        with open(path, encoding='utf-8') as handle:
            parser.read_file(handle)
    except (configparser.Error, UnicodeDecodeError) as error:
        raise UsersProblem("%s cannot be read: %s" % (path, str(error).replace('\n', ' ')))
    except OSError as error:
        raise UsersProblem("%s cannot be read: %s%s" % (path, error.strerror, about))
    return parser


def load_file(path):
    """The system that this file describes; its name is that of the directory."""
    parser = parse(path)
    variables = {'setting': [], 'advice': []}
    for section in parser.sections():
        variable = VARIABLE_SECTION.match(section)
        if variable:
            values = read_section(path, section, parser[section], VARIABLE_SCHEMA, required=('value', 'reason'))
            variables[variable.group('kind')].append(Variable(name=variable.group('name'), **values))
        elif section not in SCHEMA:
            known = list(SCHEMA) + ['setting NAME', 'advice NAME']
            raise UsersProblem("%s: unknown section [%s]; known sections: %s%s" % (
                path, section, ', '.join(known), nearest(section, known)))
    # those that are missing last: what is wrong in the others may be why
    sections = {section: read_section(path, section, parser[section] if section in parser else {}, SCHEMA[section],
                                      REQUIRED.get(section, ()))
                for section in sorted(SCHEMA, key=lambda section: section not in parser)}
    # older ones are read as long as all of their keys are known
    if (sections['system']['format'] or 1) > FORMAT:
        raise UsersProblem("%s has format %d, and this version of the collection reads formats up to %d: update the "
                           "collection" % (path, sections['system']['format'], FORMAT))
    check_sense(path, sections)
    directory = os.path.dirname(path)
    return System(os.path.basename(directory), directory, sections, variables['setting'], variables['advice'])


def read_section(path, section, given, schema, required=()):
    """The typed values of one section; what is not given has the type's empty value."""
    for key in required:
        if key not in given:
            raise UsersProblem("%s: %r is missing in [%s]" % (path, key, section))
    values = {key: [] if kind in LISTS else None for key, (kind, _) in schema.items()}
    for key, value in given.items():
        if key not in schema:
            raise UsersProblem("%s: unknown key %r in [%s]; known keys: %s%s" % (
                path, key, section, ', '.join(schema), nearest(key, schema)))
        kind = schema[key][0]
        try:
            values[key] = kind(value if kind is text else ' '.join(value.split()))
        except ValueError as error:
            raise UsersProblem("%s: %s = %s in [%s]: %s" % (path, key, value, section, error))
    return values


def check_sense(path, sections):
    """What no single key can tell."""
    node = sections['node']
    if node['gpu_cores'] and len(node['gpu_cores']) != node['gpus']:
        raise UsersProblem("%s: gpu_cores in [node] has %d lists of cores for %s GPUs" % (
            path, len(node['gpu_cores']), node['gpus']))
    cores = [core for cores in node['gpu_cores'] for core in cores]
    if cores and (len(set(cores)) < len(cores) or max(cores) >= (node['cores'] or 0)):
        raise UsersProblem("%s: gpu_cores in [node] names a core twice, or one beyond the node's %s cores" % (
            path, node['cores']))


# -- choosing

def choose(option, environ, host_name, easyconfigs):
    """
    The system to install for: its name, and the reason as a phrase.

    The user's word decides (`option`, then $HPC_SYSTEM in `environ`), then what this machine is called, then what the
    easyconfigs on the command line are called, and without all of these it is a workstation.
    """
    if option is not None:
        check_name(option, "--system")
        return option, "chosen by --system"
    if environ.get('HPC_SYSTEM'):
        check_name(environ['HPC_SYSTEM'], "$HPC_SYSTEM")
        return environ['HPC_SYSTEM'], "chosen by $HPC_SYSTEM"
    systems = [load(name) for name in names()]
    # several systems call their nodes nid001234: a name that fits two of them tells nothing
    here = [system for system in systems if host_matches(host_name, system.system['host_names'])]
    if len(here) == 1:
        return here[0].name, "this host is called %s" % host_name
    of_names = collections.OrderedDict()
    for easyconfig in easyconfigs:
        for system in systems:
            if is_for(easyconfig, system):
                of_names.setdefault(system.name, easyconfig)
    if len(of_names) > 1:
        pairs = ', '.join('%s (%s)' % (os.path.basename(easyconfig), name) for name, easyconfig in of_names.items())
        raise UsersProblem("these easyconfigs are for different systems: %s. Install those of one system at a time, or "
                           "say --system NAME" % pairs)
    if of_names:
        name, easyconfig = of_names.popitem()
        return name, "chosen by the name of %s" % os.path.basename(easyconfig)
    return DEFAULT, "the default: neither --system, $HPC_SYSTEM, the host name nor the easyconfig names a system"


def host_matches(host_name, patterns):
    """Whether a host has a name like one of these, with or without its domain."""
    host_name = host_name.lower()
    return any(fnmatch.fnmatchcase(name, pattern) for name in (host_name, host_name.split('.')[0])
               for pattern in patterns)


def is_for(easyconfig, system):
    """Whether the name of an easyconfig has one of the system's words between its dashes."""
    stem = os.path.basename(easyconfig)
    stem = stem[:-len('.eb')] if stem.endswith('.eb') else stem
    return bool(set(stem.split('-')[1:]) & set(system.system['easyconfig_suffix']))


def current(easyconfig=''):
    """The system that this process works for: what ./eb chose for this easyconfig, or would have chosen."""
    name, _ = choose(None, os.environ, socket.gethostname(), [easyconfig])
    return load(name)
