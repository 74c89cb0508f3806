"""
Drafts for a machine that has no description: systems/NAME/ and its first easyconfig.

Every value has the command that it comes from beside it; what could not be asked is in a comment. Drafts are for
reading, and what exists is never overwritten.
"""
import os
import re

from hpc_pytorch import UsersProblem, collection_path
from hpc_pytorch.machine import systems
from hpc_pytorch.machine.inspection import Machine, NotAsked
from hpc_pytorch.machine.versions import version_key

# Modules that a PyTorch may need, compilers first: pattern; EasyBuild's name; the part that replaces it in stand-ins.
SOFTWARE = (
    (r'gcc(-native)?|gnu\d*', 'GCC', 'gcc'),
    (r'cray-mpich', 'cray-mpich', 'cray-mpich'),
    (r'open-?mpi', 'OpenMPI', 'openmpi'),
    (r'cuda(toolkit)?', 'CUDA', 'cuda'),
    (r'rocm', 'ROCm', 'rocm'),
)
EASYCONFIG = 'PyTorch-2.13.0-workstation.eb'
EASYBUILD_CFG = """# EasyBuild's configuration for {name}; see systems/workstation/easybuild.cfg.
[DEFAULT]
COLLECTION = .

[override]
external-modules-metadata = %(COLLECTION)s/systems/{name}/external_modules.cfg
"""
BACKENDS = {'slurm': 'HPCSlurm', 'pbs': 'PbsPro'}
README = "Stand-in of {name}\n{line}\n\nA draft: the modules have the machine's names, and are parts of this one.\n"


def suffix_of(name):
    """Return the system's word in names of easyconfigs, in which dashes separate words."""
    return name.replace('-', '')


# -- system.cfg

def pattern_of(host):
    """Match this host and others that differ in digits."""
    host = host.split('.')[0]
    return ' '.join(sorted({re.sub(r'\d', '[0-9]', host), host}))


def largest_partition(partitions):
    """Choose the partition with the most GPUs."""
    return max(partitions, key=lambda name: partitions[name].get('gpus') or 0)


def gibibytes(size):
    return '%d GiB' % (size >> 30)


def fast_interfaces(names):
    found = [name for name in names if name.startswith(('hsn', 'ib'))]
    return ' '.join(found) or None


def major(version):
    return version.split('.')[0]


# 'section key'; the question; what is written of the answer; how it is asked
ANSWERS = (
    ('system host_names', Machine.host_name, pattern_of, 'hostname'),
    ('system architecture', Machine.architecture, str, 'uname -m'),
    ('scheduler kind', Machine.batch_system, str, 'sinfo; qstat -Q'),
    ('scheduler partition', Machine.partitions, largest_partition, 'sinfo; qstat -Q'),
    ('node cores', Machine.cores, str, '/sys/devices/system/cpu (of this host)'),
    ('node threads_per_core', Machine.threads_of_a_core, str, '/sys/devices/system/cpu (of this host)'),
    ('node memory', Machine.memory, gibibytes, '/proc/meminfo (of this host)'),
    ('node gpus', Machine.GPUs, str, 'nvidia-smi topo -m; rocm-smi (of this host)'),
    ('node cuda', Machine.CUDA_of_the_driver, major, 'nvidia-smi (of this host)'),
    ('network interfaces', Machine.interfaces, fast_interfaces, '/sys/class/net'),
)
# what goes with a batch system
SLURM = {'launcher command': 'srun', 'launcher two_processes': 'srun --nodes=1 --ntasks=2',
         'scheduler account_variable': 'SBATCH_ACCOUNT'}
OTHERS = {'launcher command': 'mpiexec', 'launcher two_processes': 'mpiexec -n 2'}
PBS = dict(OTHERS, **{'scheduler account_variable': 'PBS_ACCOUNT'})


def describe(name, machine):
    """Ask what system.cfg can have: {'section key': (value or None, where it comes from or why there is none)}."""
    values = {'system title': (name, 'to be filled in'), 'system easyconfig_suffix': (suffix_of(name), ''),
              'node temporary_directory': ('/tmp', '')}
    for key, question, convert, how in ANSWERS:
        try:
            values[key] = convert(question(machine)), how
        except (NotAsked, OSError, ValueError) as problem:
            values[key] = None, "could not be asked: %s" % problem
        if key == 'scheduler kind':
            machine.system.scheduler['kind'] = values[key][0]
    kind = values['scheduler kind'][0]
    for key, value in {'slurm': SLURM, 'pbs': PBS}.get(kind, OTHERS).items():
        values[key] = value, 'as of %s' % kind
    cray = kind == 'slurm' and not machine.which('mpicc')
    compilers = {'c': 'gcc', 'cxx': 'g++', 'mpi_c': 'cc' if cray else 'mpicc', 'mpi_cxx': 'CC' if cray else 'mpicxx'}
    for key, command in compilers.items():
        values['compilers ' + key] = command, 'to be checked'
    partition = values['scheduler partition'][0]
    facts = machine.partitions()[partition] if partition else {}
    if 'cores' in facts:
        values['scheduler nodes_exclusive'] = 'yes' if facts['exclusive'] else 'no', 'sinfo'
        values['node cores'] = facts['cores'] // int(values['node threads_per_core'][0] or 1), 'sinfo'
        values['node memory'] = gibibytes(facts['memory']), 'sinfo'
        values['node gpus'] = facts['gpus'], 'sinfo'
    return values


def system_text(name, values):
    """Write every key that there is, with what it is for where the machine does not know it."""
    text = ("# Draft of ./eb --survey --new-system %s: read it, and correct it.\n"
            "# In brackets: where a value comes from, or what a key is for.\n" % name)
    for section, keys in systems.SCHEMA.items():
        text += '\n[%s]\n' % section
        for key, (_, _, meaning) in keys.items():
            value, how = values.get('%s %s' % (section, key), (None, ''))
            if value is None:
                text += '# %s = (%s)%s\n' % (key, meaning, how and '; ' + how)
            else:
                text += ('# (%s)\n' % how if how else '') + '%s = %s\n' % (key, value)
    return text


# -- modules, and what names them

def modules_of(machine):
    """Choose the newest module of each kind that can be loaded, one MPI at most: [(module, software, part)]."""
    try:
        shell = machine.modules_shell()
    except NotAsked:
        return []
    found = []
    for pattern, software, part in SOFTWARE:
        names = [name for name in shell.available() if re.match('(?:%s)/' % pattern, name, re.I)]
        names.sort(key=lambda name: version_key(name.partition('/')[2]), reverse=True)
        if software == 'OpenMPI' and any(one[1] == 'cray-mpich' for one in found):
            continue
        for name in names:
            before = dict(shell.environ)
            if shell.load([name]) is None:
                found.append((name, software, part))
                break
            shell.environ = before
    return found


def easyconfig_text(name, modules, kind):
    """Make the easyconfig of the workstation one of this system."""
    path = os.path.join(collection_path('easyconfigs'), 'p', 'PyTorch', EASYCONFIG)
    with open(path, encoding='utf-8') as handle:
        text = handle.read()
    text = text.replace("versionsuffix = '-workstation'", "versionsuffix = '-%s'" % suffix_of(name))
    text = re.sub(r'this machine\'s MPI\..*?"""', 'the MPI of %s."""' % name, text, flags=re.S)
    if modules:
        lines = ''.join("    ('%s', EXTERNAL_MODULE),\n" % module for module, _, _ in modules)
        text = text.replace("toolchain = SYSTEM\n", "toolchain = SYSTEM\n\ndependencies = [\n%s]\n" % lines, 1)
    if kind in BACKENDS:
        text = text.replace("'pytorch-srun', ", "'pytorch-jobscript', 'pytorch-run', 'pytorch-srun', ", 1)
    return text


def drafts(name, machine):
    """Return all drafts: {path in the collection: text}."""
    values, modules = describe(name, machine), modules_of(machine)
    kind = values['scheduler kind'][0]
    metadata = "# (module avail) Which software each module stands for; `prefix` is to be added.\n"
    stand_in = "# Draft: the modules that the easyconfig loads.\n\n[login]\npython3 = yes\n"
    for module, software, part in modules:
        metadata += '\n[%s]\nname = %s\nversion = %s\n' % (module, software, module.partition('/')[2])
        stand_in += '\n[module %s]\npart = %s\n' % (module, part)
    configuration = EASYBUILD_CFG.format(name=name)
    if kind in BACKENDS:
        configuration += '\n[config]\njob-backend = %s\n' % BACKENDS[kind]
    easyconfig = EASYCONFIG.replace('workstation', suffix_of(name))
    place = 'systems/%s/' % name
    return {
        place + 'system.cfg': system_text(name, values),
        place + 'external_modules.cfg': metadata,
        place + 'easybuild.cfg': configuration,
        place + 'stand_in.cfg': stand_in,
        place + 'stand_in.rst': README.format(name=name, line='=' * len('Stand-in of ' + name)),
        place + 'easystack.yaml': 'easyconfigs:\n  - %s\n' % easyconfig,
        'easyconfigs/p/PyTorch/' + easyconfig: easyconfig_text(name, modules, kind),
    }


def write_drafts(name, machine):
    """Write what is not there yet; returns the paths."""
    if not re.match(r'[a-z][a-z0-9_]*(-[a-z0-9_]+)*$', name):
        raise UsersProblem("--new-system requires a name of lower-case letters, digits and dashes, such as cirrus; "
                           "found: %r" % name)
    top = os.path.dirname(collection_path('systems'))
    texts = drafts(name, machine)
    for path in texts:
        if os.path.exists(os.path.join(top, path)):
            raise UsersProblem("%s already exists; not overwritten" % path)
    for path, text in texts.items():
        path = os.path.join(top, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as handle:
            handle.write(text)
    return sorted(texts)
