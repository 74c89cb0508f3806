"""Drafts for a machine without a description: systems/NAME/ and its first easyconfig; each value names its source."""
import contextlib
import os
import re
from itertools import takewhile
from pathlib import Path

from hpc_pytorch import HERE, UsersProblem, collection_path, parse, write_atomically
from hpc_pytorch.machine import systems
from hpc_pytorch.machine.inspection import NotAsked
from hpc_pytorch.machine.python_module import PROBE
from hpc_pytorch.machine.versions import release

DATA = parse(HERE + '/machine/new_system.cfg')
EASYCONFIG = 'PyTorch-2.13.0-ARCHER2-whl.eb'
# {EasyBuild's name of the software: what it is}; of each kind, one module is loaded
KINDS = dict(words.split()[::2] for words in DATA['software'].values())


def matches_module(pattern):
    # Red Hat's are called mpi/openmpi-x86_64, others mpi/openmpi-4.1.7-gcc-12.4.0, some have no version
    words = DATA['categories']['pattern'], pattern
    return re.compile(r'(?:%s)?(?:%s)(?:/|$|-x86_64|-aarch64|-(?=v?\d[^/]*$))' % words, re.I).match


# MPIs that are not compiled once for each compiler
FOR_ANY_COMPILER = matches_module('|'.join(
    pattern for pattern, words in DATA['software'].items() if words.startswith(('impi', 'HPCX'))))
MPIS = [pattern for pattern, words in DATA['software'].items() if words.endswith('MPI')]
MPI_OF_NO_CRAY = matches_module('|'.join(pattern for pattern in MPIS if pattern != 'cray-mpich'))
LOADED = "loaded here; add those without which others are not found"
UNKNOWN = "no module of it was recognised; if your users use it, put its module here, in place of another MPI"
OTHER_COMPILERS, OTHER_MPIS = DATA['left out']
# which loaded modules may make room for one of these kinds
REPLACES = {'environment': bool, 'compiler': matches_module(OTHER_COMPILERS), 'MPI': matches_module(OTHER_MPIS)}


def comment(name):
    return ''.join('# %s\n' % line for line in DATA['comments'][name].strip().splitlines())


def pattern_of(host):
    """Match this host and others that differ in digits."""
    host = host.split('.')[0]
    return ' '.join(sorted({re.sub(r'\d', '[0-9]', host), host}))


def gibibytes(size):
    return '%d GiB' % (size >> 30)


# how answers are written that are not written as they are
WRITTEN = {
    'system host_names': pattern_of,
    'node memory': gibibytes,
    'node cuda': lambda version: version.split('.')[0],
    'network interfaces': lambda names: ' '.join(sorted(filter(re.compile('hsn|ib').match, names))) or None,
}


def describe(name, machine, modules):
    """Ask what system.cfg can have: {'section key': (value or None, where it comes from or why there is none)}."""
    kind = machine.system.scheduler['kind'] = machine.batch_system()
    values = {}
    software = {one for _, one, _ in modules}
    cray = 'PrgEnv-gnu' in software and ('cray-mpich' in software or not has_mpi(modules))
    # dashes separate the words in names of easyconfigs
    suffix = name.replace('-', '')
    mpi = ' '.join(software)
    if not has_mpi(modules):
        with contextlib.suppress(NotAsked):
            mpi = machine.output('mpirun', '--version')
    launcher = next((DATA['launchers'][one] for one in DATA['launchers'] if re.search(one, mpi)), 'mpiexec')
    for section in ('every system', kind, 'cc' if cray else 'mpicc'):
        for key, value in DATA[section].items():
            values[key] = value.format(name=name, suffix=suffix, kind=kind, launcher=launcher), 'to be checked'
    for key, words in DATA['answers'].items():
        question, source = words.split(': ', 1)
        try:
            values[key] = WRITTEN.get(key, str)(getattr(machine, question)()), source
        except (NotAsked, OSError, ValueError) as problem:
            values[key] = None, "could not be asked: %s" % problem
    partition = values['scheduler partition'][0]
    facts = machine.partitions()[partition] if partition else {}
    if 'cores' in facts:
        values['scheduler nodes_exclusive'] = 'yes' if facts['exclusive'] else 'no', 'sinfo'
        # Slurm has 1 MiB where nobody told it
        if facts['memory'] >> 30:
            values['node memory'] = gibibytes(facts['memory']), 'sinfo'
        if not machine.job:
            values['node cores'] = facts['cores'], 'sinfo'
            values['node threads_per_core'] = facts['threads'], 'sinfo'
        if facts['threads'] > 1:
            values['scheduler options'] = '--hint=nomultithread', "jobs ask for cores, and Slurm counts threads"
        # many sites whose jobs have whole nodes do not count GPUs
        if facts['gpus']:
            # without their kind, jobs get those of any node in the partition
            values['scheduler gpus_option'] = '--gpus-per-node=' + facts['gpu_kind'], 'sinfo'
        if facts['gpus'] or not values['node gpus'][0]:
            values['node gpus'] = facts['gpus'], 'sinfo'
    values['node gpu_cores'] = gpu_cores(machine, values['node gpus'][0], values['node cores'][0])
    values['system python_module'] = python_module(machine)
    return values


def gpu_cores(machine, gpus, cores):
    """Find the cores next to each GPU, where each has its own; hardware threads, with higher numbers, are left out."""
    lists = []
    with contextlib.suppress(NotAsked, OSError, ValueError):
        # where the threads of a core have numbers side by side, as in some virtual machines, too few are left
        below = len(set(machine.hardware_threads()[:int(cores or 0)]))
        lists = [[core for core in near if core < below] for near in machine.cores_next_to_GPUs()]
    together = sum(lists, [])
    # jobs get no other cores: those of the operating system may be missing, no more
    few = 8 * len(together) < 7 * int(cores or 0)
    if not lists or [] in lists or len(lists) != int(gpus or 0) or len(set(together)) != len(together) or few:
        return None, ("no driver answers here, or this is not a node with GPUs, or the batch system counts others, "
                      "or several have the same cores, or many cores are next to none, or threads of a core follow "
                      "each other")
    return ' '.join(map(core_word, lists)), '/sys/bus/pci; rocm-smi (of this host)'


def core_word(cores):
    """Write cores as systems.core_list reads them: 0-71,144-144."""
    starts = [core for core in cores if core - 1 not in cores]
    ends = [core for core in cores if core + 1 not in cores]
    return ','.join(map('{}-{}'.format, starts, ends))


def python_module(machine):
    """Name the loaded module whose Python runs ./eb, where python3 is too old for that."""
    try:
        if machine.output(machine.path('/usr/bin/python3'), '-I', '-c', PROBE).strip():
            return None, 'python3 is new enough'
    except NotAsked as problem:
        return None, str(problem)
    loaded = machine.environ.get('LOADEDMODULES', '').split(':')
    name = next(filter(re.compile(DATA['python']['pattern'], re.I).match, loaded), None)
    return name, 'loaded here' if name else 'none with a usual name was loaded here'


def system_text(name, values):
    text = ("# Draft of ./eb --survey --new-system %s: read it, and correct it.\n"
            "# In brackets: where a value comes from, or what a key is for.\n" % name)
    for section, keys in systems.SCHEMA.items():
        text += '\n[%s]\n' % section
        for key, (_, _, meaning) in keys.items():
            value, how = values.get(section + ' ' + key, (None, 'not asked'))
            if value is None:
                text += '# %s = (%s; %s)\n' % (key, meaning, how)
            else:
                text += '# (%s)\n%s = %s\n' % (how, key, value)
    return text + '\n' + comment('settings')


def newest_first(shell, pattern, loaded=()):
    """List the modules that can be loaded now and whose names fit a pattern: loaded ones first, hpcx before hpcx-mt."""
    names = filter(matches_module(pattern), shell.available())
    others = [software_version(one) for one in shell.loaded if '/' in one]

    def order(name):
        # openmpi/5.0.5-gcc-13.2.0 where gcc/13.2.0 is loaded
        return name in loaded, release(software_version(name)), any(one in name for one in others), -len(name)
    return sorted(names, key=order, reverse=True)


def add(shell, name, kind):
    """Load a module of some kind; returns why that cannot be done, or should not be, as wheels are built with GCC."""
    version = name.partition('/')[2] or name
    other = re.search(r'(?<![a-z\d])(?:%s)' % OTHER_COMPILERS, version, re.I)
    if kind == 'MPI' and other and not FOR_ANY_COMPILER(name) and not re.search('gcc|gnu', version, re.I):
        return "it is made for another compiler than GCC, which was not tried"
    mpis = list(filter(MPI_OF_NO_CRAY, shell.loaded))
    if kind == 'environment' and mpis and name not in shell.loaded:
        return "%s is loaded, an MPI of another kind" % mpis[0]
    return shell.add(name, REPLACES.get(kind))


def why_no_mpi(shell, name, kind):
    """Say why no MPI can be loaded after this module; None if one can be."""
    before = shell.environ
    said = add(shell, name, kind)
    mpis = newest_first(shell, '|'.join(MPIS))
    own = [mpi for mpi in mpis if not FOR_ANY_COMPILER(mpi)]
    if not said and all(add(shell, mpi, 'MPI') for mpi in own or mpis):
        said = "no MPI can be loaded with it"
    shell.environ = before
    return said


def modules_of(machine):
    """Choose the newest module of each kind that loads, one MPI: [(module, software, part)], and why not others."""
    chosen, left_out = [], []
    try:
        shell = machine.modules_shell()
    except NotAsked as problem:
        return chosen, [str(problem)]
    before = shell.loaded
    amd = bool(machine.which('rocm-smi')) and not machine.has_nvidia()

    def order(one):
        loaded = any(map(matches_module(one[0]), before))
        return list(KINDS.values()).index(one[1].split()[2]), not loaded, amd and one[1].startswith('CUDA')

    for pattern, words in sorted(DATA['software'].items(), key=order):
        software, part, kind = words.split()
        names = newest_first(shell, pattern, before)
        if kind in ('environment', 'compiler'):
            # not those behind the first with an MPI: at sites with many compilers, that would take minutes
            tried = ((name, why_no_mpi(shell, name, kind)) for name in names)
            without = list(takewhile(lambda one: one[1], tried))
            if len(without) < len(names):
                left_out += without
                names = names[len(without):]
        others = [other for _, other, _ in chosen if KINDS[other] == kind]
        if others:
            left_out += [(name, others[0] + " is there") for name in names]
            continue
        for name in names:
            said = add(shell, name, kind)
            if said is None:
                chosen.append((name, software, part))
                break
            left_out.append((name, said))
    for pattern, why in DATA['left out'].items():
        names = newest_first(shell, pattern)
        if names:
            left_out.append((' '.join(names), why))
    if all(name in before for name, _, _ in chosen):
        # CUDA may open an MPI
        chosen.sort(key=lambda one: before.index(one[0]))
    named = ' '.join(one[0] for one in chosen + left_out).split()
    more = [name for name in shell.loaded if name in before and name not in named]
    if more:
        left_out.append((' '.join(more), LOADED))
    if not has_mpi(chosen):
        left_out.append(("an MPI", "no module that is called like one can be loaded"))
    mpicc = machine.which('mpicc')
    known = has_mpi(chosen) and mpicc == '/usr/bin/mpicc' or has_mpi(one for one in chosen if one[0] in before)
    left_out += [(mpicc, UNKNOWN)] if mpicc and not known else []
    return chosen, ["%s: %s" % (name, ' '.join(said.split())[:200]) for name, said in left_out]


def has_mpi(modules):
    return 'MPI' in [KINDS[software] for _, software, _ in modules]


def software_version(module):
    """Return the version that counts: CUDA's of the HPC SDK's 25.1_12.8, 4.1.6 of 4.1.6-GCC-13.2.0 or 4.1.6_ucx1.14."""
    # a compiler or a hash may follow: openmpi/4.1.6/gcc-13.2.0
    word = (re.findall(r'/(v?\d+\.[^/]*)', module) or module.split('/'))[-1]
    found = re.search(r'(?:^|-)v?(?:[\d.]+_(?=\d+\.))?(\d[\da-z]*(?:\.[\da-z]+)*)', word)
    return found.group(1) if found else word


def wheels_for(modules, values):
    """Name the wheels for the GPUs, in [wheels] of new_system.cfg; None without. Login nodes have no driver."""
    cuda, gpus, architecture = (values.get('node ' + key, [None])[0] for key in ('cuda', 'gpus', 'gpu_architecture'))
    if cuda and release(architecture or '8.0') < [7, 5]:
        return 'older GPU'
    if cuda and int(cuda) < 13 and release(architecture or '8.0') >= [10]:
        return 'newer GPU'
    if cuda:
        return 'CUDA 13' if int(cuda) >= 13 else 'older driver'
    if gpus and str(architecture).startswith('gfx'):
        return 'ROCm'
    return next((one for _, one, _ in modules if one in DATA['wheels']), 'unknown GPU' if gpus else None)


def easyconfig_text(name, modules, kind, values, left_out=()):
    text = Path(collection_path('easyconfigs'), 'p', 'PyTorch', EASYCONFIG).read_text(encoding='utf-8')
    text = re.sub(r'(?m)^#.*\n', '', text, count=1)
    wheels = wheels_for(modules, values)
    if wheels == 'CUDA 13':
        for key, value in DATA['CUDA 13'].items():
            text = re.sub(r'(?m)^%s = .*' % key, '%s = %s' % (key, value), text)
        text = text.replace('official CPU wheels', 'official wheels with CUDA 13')
    elif wheels:
        text = comment('wheels') + '# %s\n' % DATA['wheels'][wheels] + text
    if not has_mpi(modules):
        text = comment('no MPI') + text
    text = text.replace("versionsuffix = '-ARCHER2-whl'", "versionsuffix = '-%s'" % name.replace('-', ''))
    text = text.replace('for cray-mpich.', 'for the MPI of %s.' % name)
    dependencies = ''.join("    # %s\n" % line for line in left_out if line.endswith((LOADED, UNKNOWN)))
    dependencies += ''.join("    (%r, EXTERNAL_MODULE),\n" % module for module, _, _ in modules)
    text = re.sub(r'(?s)dependencies = \[\n.*?\]\n', lambda _: "dependencies = [\n%s]\n" % dependencies, text, count=1)
    if kind not in DATA['backends']:
        text = comment('no jobs') + text.replace("'pytorch-jobscript', 'pytorch-run', ", '')
    return text


def drafts(name, machine):
    """Return all drafts: {path in the collection: text}."""
    modules, left_out = modules_of(machine)
    values = describe(name, machine, modules)
    kind = machine.system.scheduler['kind']
    metadata = "# (module avail) Which software each module stands for; `prefix` is to be added.\n"
    metadata += ''.join("# Left out: %s\n" % why for why in left_out)
    stand_in = "# Draft: the modules that the easyconfig loads.\n"
    for module, software, part in modules:
        metadata += '\n[%s]\nname = %s\nversion = %s\n' % (module, software, software_version(module))
        stand_in += '\n[module %s]\npart = %s\n' % (module, part)
    configuration = Path(HERE, 'machine', 'new_easybuild.cfg').read_text(encoding='utf-8').format(name=name)
    if kind in DATA['backends']:
        configuration += '\n[config]\njob-backend = %s\n' % DATA['backends'][kind]
    text = easyconfig_text(name, modules, kind, values, left_out)
    easyconfig = 'PyTorch-%s%s.eb' % re.search(r"(?m)^version = '(.*)'\nversionsuffix = '(.*)'", text).groups()
    place = 'systems/%s/' % name
    title = 'Test environment of ' + name
    return {
        place + 'system.cfg': system_text(name, values),
        place + 'external_modules.cfg': metadata,
        place + 'easybuild.cfg': configuration,
        place + 'stand_in.cfg': stand_in,
        place + 'stand_in.rst': '%s\n%s\n\n%s\n' % (title, '=' * len(title), DATA['comments']['stand-in']),
        place + 'easystack.yaml': 'easyconfigs:\n  - %s\n' % easyconfig,
        'easyconfigs/p/PyTorch/' + easyconfig: text,
    }


def write_drafts(name, machine):
    """Write what is not there yet; returns the paths."""
    if len(name) > 100 or not re.fullmatch(r'[a-z][a-z0-9_]*(-[a-z0-9_]+)*', name):
        raise UsersProblem("--new-system requires a name of up to 100 lower-case letters, digits, - and _, such as "
                           "cirrus; found: %r" % name)
    texts = drafts(name, machine)
    paths = {path: os.path.join(os.path.dirname(collection_path('systems')), path) for path in sorted(texts)}
    for path, place in paths.items():
        # those of a call that was interrupted are continued
        if os.path.exists(place) and Path(place).read_text(encoding='utf-8') != texts[path]:
            raise UsersProblem("%s already exists; not overwritten" % path)
    for path, place in paths.items():
        write_atomically(place, texts[path])
    return list(paths)
