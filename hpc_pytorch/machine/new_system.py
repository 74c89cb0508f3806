"""
Drafts for a machine that nobody has described: systems/NAME/ with its stand-in, and its first easyconfig.

Every value has the command that it comes from beside it; what could not be asked is in a comment. Drafts are for
reading, and what exists is never overwritten.
"""
import os
import re
import shutil
import socket

from hpc_pytorch import UsersProblem, collection_path
from hpc_pytorch.machine import survey, systems
from hpc_pytorch.machine.survey import GIB, NotAsked

# Modules that a PyTorch may need, as machines call them: pattern; EasyBuild's name; part of stand-ins in its place.
SOFTWARE = (
    (r'cray-mpich', 'cray-mpich', 'cray-mpich'),
    (r'open-?mpi', 'OpenMPI', 'openmpi'),
    (r'gcc(-native)?|gnu\d*', 'GCC', 'gcc'),
    (r'cuda(toolkit)?', 'CUDA', 'cuda'),
    (r'rocm', 'ROCm', 'rocm'),
)
EASYCONFIG = 'PyTorch-2.13.0-workstation.eb'
EASYBUILD_CFG = """# EasyBuild's configuration for {name}; see systems/workstation/easybuild.cfg.
[DEFAULT]
COLLECTION = .

[override]
external-modules-metadata = %(COLLECTION)s/systems/{name}/external_modules.cfg
{backend}"""
BACKENDS = {'slurm': '\n[config]\njob-backend = HPCSlurm\n', 'pbs': '\n[config]\njob-backend = PbsPro\n'}


def asked(question, machine, reasons=None):
    """An answer, or None where this machine cannot be asked; why not is added to the reasons."""
    try:
        return question(machine)
    except (NotAsked, OSError, ValueError) as problem:
        if reasons is not None:
            reasons[question] = "could not be asked: %s" % problem


def chosen_modules(machine):
    """The newest of each kind of module that can be loaded, compilers first: [(module, software, part)]."""
    shell = asked(survey.modules_shell, machine)
    found = []
    for pattern, software, part in (sorted(SOFTWARE, key=lambda row: row[1] != 'GCC') if shell else ()):
        names = [one for one in shell.available() if re.match('(?:%s)/' % pattern, one, re.I)]
        if software in ('OpenMPI', 'cray-mpich') and any(one[2] in ('openmpi', 'cray-mpich') for one in found):
            continue
        for name in sorted(names, key=lambda one: survey.version_key(one.split('/', 1)[1]), reverse=True):
            before = dict(shell.environ)
            if shell.load([name]) is None:
                found.append((name, software, part))
                break
            shell.environ = before
    return found


def drafted(name, machine):
    """What the machine says of itself: {section: {key: (value or None, where it comes from or why there is none)}}."""
    host, why = socket.gethostname().split('.')[0], {}
    kind = asked(survey.scheduler_kind, machine)
    machine.system.scheduler['kind'] = kind
    queues = asked(survey.partitions, machine, why) or {}
    queue = next(iter(sorted(queues, key=lambda one: -(queues[one].get('gpus') or 0))), None)
    facts = queues.get(queue, {})
    threads = asked(survey.topology, machine) or []
    of_core = len(threads) // len(set(threads)) if threads else 1
    near = asked(survey.cores_near_gpus, machine)
    cuda = asked(survey.cuda_of_driver, machine, why)
    interfaces = [one for one in machine.names('/sys/class/net/*') if re.match('hsn|ib', one)]
    mpi = ['mpicc', 'mpicxx'] if kind != 'slurm' or shutil.which('mpicc') else ['cc', 'CC']
    launcher = 'srun' if kind == 'slurm' else 'mpiexec'
    said = why.get(survey.partitions, 'sinfo; qstat -Q')
    return {
        'system': {'format': ('2', ''), 'title': (name, 'to be filled in'), 'easyconfig_suffix': (suffix_of(name), ''),
                   'host_names': (' '.join(sorted({re.sub(r'\d', '[0-9]', host), host})), 'hostname'),
                   'architecture': (os.uname().machine, 'uname -m')},
        'compilers': {'c': ('gcc', 'which'), 'cxx': ('g++', 'which'), 'mpi_c': (mpi[0], 'which'),
                      'mpi_cxx': (mpi[1], 'which')},
        'launcher': {'command': (launcher, 'the batch system'), 'two_processes': (
            launcher + (' --nodes=1 --ntasks=2' if kind == 'slurm' else ' -n 2'), '')},
        'scheduler': {'kind': (kind, said), 'partition': (queue, said),
                      'account_variable': ({'slurm': 'SBATCH_ACCOUNT', 'pbs': 'PBS_ACCOUNT'}.get(kind), ''),
                      'nodes_exclusive': ('yes' if facts.get('exclusive') else None, said)},
        'node': {'cores': (facts['cores'] // of_core if facts.get('cores') else len(set(threads)) or None,
                           'sinfo, /sys/devices/system/cpu (of this host)'),
                 'threads_per_core': (of_core, '/sys/devices/system/cpu (of this host)'),
                 'memory': ('%d GiB' % ((facts.get('memory') or asked(survey.memory, machine) or GIB) // GIB),
                            'sinfo, /proc/meminfo'),
                 'gpus': (facts.get('gpus') or len(near or []), 'sinfo, nvidia-smi topo -m, rocm-smi'),
                 'cuda': (cuda and cuda.split('.')[0], why.get(survey.cuda_of_driver, 'nvidia-smi (of this host)')),
                 'temporary_directory': ('/tmp', '')},
        'network': {'interfaces': (' '.join(interfaces) or None, '/sys/class/net')},
    }


def suffix_of(name):
    """The system's word in names of easyconfigs, in which dashes separate words."""
    return name.replace('-', '')


def system_text(name, machine):
    """A system.cfg with every key that there is: those that the machine does not know are comments."""
    lines = ["# Draft of ./eb --survey --new-system %s: read it, and correct it." % name,
             "# In brackets: where a value comes from, or what a key is for."]
    values = drafted(name, machine)
    for section, keys in systems.SCHEMA.items():
        lines += ['', '[%s]' % section]
        for key, (_, meaning) in keys.items():
            value, how = values.get(section, {}).get(key, (None, ''))
            if value is None:
                lines.append('# %s = (%s)%s' % (key, meaning, how and '; ' + how))
            else:
                lines += (['# (%s)' % how] if how else []) + ['%s = %s' % (key, value)]
    return '\n'.join(lines) + '\n'


def texts(name, machine):
    """The drafts: {path in the collection: text}."""
    modules = chosen_modules(machine)
    metadata = ["# (module avail) Which software each module stands for; `prefix` is to be added."]
    stand_in = ["# Draft: the modules that the easyconfig loads.", "", "[login]", "python3 = yes"]
    for module, software, part in modules:
        metadata += ['', '[%s]' % module, 'name = %s' % software, 'version = %s' % module.split('/', 1)[1]]
        stand_in += ['', '[module %s]' % module, 'part = %s' % part]
    with open(os.path.join(collection_path('easyconfigs'), 'p', 'PyTorch', EASYCONFIG), encoding='utf-8') as handle:
        easyconfig = handle.read()
    easyconfig = easyconfig.replace("versionsuffix = '-workstation'", "versionsuffix = '-%s'" % suffix_of(name))
    easyconfig = re.sub(r'this machine\'s MPI\..*?"""', 'the MPI of %s."""' % name, easyconfig, flags=re.S)
    if modules:
        listed = ''.join("    ('%s', EXTERNAL_MODULE),\n" % module for module, _, _ in modules)
        easyconfig = easyconfig.replace("toolchain = SYSTEM\n",
                                        "toolchain = SYSTEM\n\ndependencies = [\n%s]\n" % listed, 1)
    kind = asked(survey.scheduler_kind, machine)
    if kind in BACKENDS:
        easyconfig = easyconfig.replace("'pytorch-srun', ", "'pytorch-jobscript', 'pytorch-run', 'pytorch-srun', ", 1)
    file_name = EASYCONFIG.replace('workstation', suffix_of(name))
    readme = "Stand-in of %s\n%s\n\nA draft: the modules have the machine's names, and are made of parts of this one.\n"
    return {
        'systems/%s/system.cfg' % name: system_text(name, machine),
        'systems/%s/external_modules.cfg' % name: '\n'.join(metadata) + '\n',
        'systems/%s/easybuild.cfg' % name: EASYBUILD_CFG.format(name=name, backend=BACKENDS.get(kind, '')),
        'systems/%s/stand_in.cfg' % name: '\n'.join(stand_in) + '\n',
        'systems/%s/stand_in.rst' % name: readme % (name, '=' * (12 + len(name))),
        'easyconfigs/p/PyTorch/%s' % file_name: easyconfig,
        'systems/%s/easystack.yaml' % name: 'easyconfigs:\n  - %s\n' % file_name,
    }


def write_drafts(name, machine):
    """Write what is not there yet; returns the paths."""
    if not re.match(r'[a-z][a-z0-9_]*(-[a-z0-9_]+)*$', name):
        raise UsersProblem("--new-system requires a name of lower-case letters, digits and dashes, such as cirrus; "
                           "found: %r" % name)
    top = os.path.dirname(collection_path('systems'))
    drafts = texts(name, machine)
    for path in drafts:
        if os.path.exists(os.path.join(top, path)):
            raise UsersProblem("%s is there already, and is not overwritten" % path)
    for path, text in drafts.items():
        os.makedirs(os.path.dirname(os.path.join(top, path)), exist_ok=True)
        with open(os.path.join(top, path), 'w', encoding='utf-8') as handle:
            handle.write(text)
    return sorted(drafts)
