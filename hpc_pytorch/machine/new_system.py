"""
Drafts for a machine that has no description: systems/NAME/ and its first easyconfig.

Every value has the command that it comes from beside it; what could not be asked is in a comment. Drafts are for
reading, and what exists is never overwritten.
"""
import os
import re
from collections import namedtuple

from hpc_pytorch import UsersProblem, collection_path
from hpc_pytorch.machine import systems
from hpc_pytorch.machine.inspection import CPUS, Machine, NotAsked, QUEUES, TOPOLOGY
from hpc_pytorch.machine.versions import version_key

# Modules that a PyTorch may need, compilers first: pattern; EasyBuild's name; the part that replaces it in stand-ins.
SOFTWARE = (
    (r'gcc(-native)?|gnu\d*', 'GCC', 'gcc'),
    (r'cray-mpich', 'cray-mpich', 'cray-mpich'),
    (r'open-?mpi', 'OpenMPI', 'openmpi'),
    (r'cuda(toolkit)?', 'CUDA', 'cuda'),
    (r'rocm', 'ROCm', 'rocm'),
)
Module = namedtuple('Module', 'name software part')
EASYCONFIG = 'PyTorch-2.13.0-workstation.eb'
EASYBUILD_CFG = """# EasyBuild's configuration for {name}; see systems/workstation/easybuild.cfg.
[DEFAULT]
COLLECTION = .

[override]
external-modules-metadata = %(COLLECTION)s/systems/{name}/external_modules.cfg
{backend}"""
BACKENDS = {'slurm': '\n[config]\njob-backend = HPCSlurm\n', 'pbs': '\n[config]\njob-backend = PbsPro\n'}
ACCOUNTS = {'slurm': 'SBATCH_ACCOUNT', 'pbs': 'PBS_ACCOUNT'}
README = "Stand-in of {name}\n{line}\n\nA draft: the modules have the machine's names, and are parts of this one.\n"
SCRIPTS = "'pytorch-jobscript', 'pytorch-run', "


class Draft(object):
    """The values of a system.cfg: what the machine answers, where it comes from, or why there is none."""

    def __init__(self, machine):
        self.machine = machine
        self.values = {}

    def set(self, key, value, how=''):
        """Set 'section key'; a value of None, with the reason in `how`, becomes a comment."""
        self.values[tuple(key.split())] = value, how

    def ask(self, key, question, how, convert=str):
        """Set 'section key' to the answer to a question; returns the answer, None if there is none."""
        try:
            answer = question(self.machine)
        except (NotAsked, OSError, ValueError) as problem:
            self.set(key, None, "could not be asked: %s" % problem)
            return None
        self.set(key, convert(answer), how)
        return answer

    def text(self, name):
        """Write every key that there is, with what it is for where the machine does not know it."""
        text = ("# Draft of ./eb --survey --new-system %s: read it, and correct it.\n"
                "# In brackets: where a value comes from, or what a key is for.\n" % name)
        for section, keys in systems.SCHEMA.items():
            text += '\n[%s]\n' % section
            for key, (_, meaning) in keys.items():
                value, how = self.values.get((section, key), (None, ''))
                if value is None:
                    text += '# %s = (%s)%s\n' % (key, meaning, how and '; ' + how)
                else:
                    text += ('# (%s)\n' % how if how else '') + '%s = %s\n' % (key, value)
        return text


def modules_of(machine):
    """Choose the newest module of each kind that can be loaded, one MPI at most."""
    try:
        shell = machine.modules_shell()
    except NotAsked:
        return []
    found = []
    for pattern, software, part in SOFTWARE:
        names = [name for name in shell.available() if re.match('(?:%s)/' % pattern, name, re.I)]
        names.sort(key=lambda name: version_key(name.partition('/')[2]), reverse=True)
        if part == 'openmpi' and any(module.part == 'cray-mpich' for module in found):
            continue
        for name in names:
            before = dict(shell.environ)
            if shell.load([name]) is None:
                found.append(Module(name, software, part))
                break
            shell.environ = before
    return found


def describe(name, machine):
    """Ask the machine for everything that system.cfg can have."""
    draft = Draft(machine)
    draft.set('system title', name, 'to be filled in')
    draft.set('system easyconfig_suffix', name)
    draft.ask('system host_names', Machine.host_name, 'hostname', pattern_of)
    draft.ask('system architecture', Machine.architecture, 'uname -m')
    kind = draft.ask('scheduler kind', Machine.batch_system, QUEUES)
    machine.system.scheduler['kind'] = kind
    cray = kind == 'slurm' and not machine.which('mpicc')
    for key, command in (('c', 'gcc'), ('cxx', 'g++'), ('mpi_c', 'cc' if cray else 'mpicc'),
                         ('mpi_cxx', 'CC' if cray else 'mpicxx')):
        draft.set('compilers ' + key, command, 'to be checked')
    draft.set('launcher command', 'srun' if kind == 'slurm' else 'mpiexec', 'the batch system')
    draft.set('launcher two_processes', 'srun --nodes=1 --ntasks=2' if kind == 'slurm' else 'mpiexec -n 2')
    draft.set('scheduler account_variable', ACCOUNTS.get(kind))
    draft.ask('node cores', Machine.cores, CPUS + ' (of this host)')
    threads = draft.ask('node threads_per_core', Machine.threads_of_a_core, CPUS + ' (of this host)')
    draft.ask('node memory', Machine.memory, '/proc/meminfo (of this host)', gibibytes)
    draft.ask('node gpus', Machine.GPUs, TOPOLOGY + ' (of this host)')
    draft.ask('node cuda', Machine.CUDA_of_the_driver, 'nvidia-smi (of this host)', lambda cuda: cuda.split('.')[0])
    draft.set('node temporary_directory', '/tmp')
    draft.ask('network interfaces', fast_interfaces, '/sys/class/net', ' '.join)
    queues = draft.ask('scheduler partition', Machine.partitions, QUEUES, partition_of)
    facts = queues[partition_of(queues)] if queues else {}
    if 'cores' in facts:
        draft.set('scheduler nodes_exclusive', 'yes' if facts['exclusive'] else 'no', 'sinfo')
        draft.set('node cores', facts['cores'] // (threads or 1), 'sinfo')
        draft.set('node memory', gibibytes(facts['memory']), 'sinfo')
        draft.set('node gpus', facts['gpus'], 'sinfo')
    return draft


def pattern_of(host):
    """Match this host and others that differ in digits."""
    host = host.split('.')[0]
    return ' '.join(sorted({re.sub(r'\d', '[0-9]', host), host}))


def partition_of(queues):
    """Choose the partition with the most GPUs."""
    return max(queues, key=lambda name: queues[name].get('gpus') or 0)


def gibibytes(size):
    return '%d GiB' % (size >> 30)


def fast_interfaces(machine):
    found = [name for name in machine.interfaces() if name.startswith(('hsn', 'ib'))]
    if not found:
        raise NotAsked("no interface is called hsn* or ib*")
    return found


def easyconfig_text(name, modules, kind):
    """Make the easyconfig of the workstation one of this system."""
    path = os.path.join(collection_path('easyconfigs'), 'p', 'PyTorch', EASYCONFIG)
    with open(path, encoding='utf-8') as handle:
        text = handle.read()
    text = text.replace("versionsuffix = '-workstation'", "versionsuffix = '-%s'" % name)
    text = re.sub(r'this machine\'s MPI\..*?"""', 'the MPI of %s."""' % name, text, flags=re.S)
    if modules:
        lines = ''.join("    ('%s', EXTERNAL_MODULE),\n" % module.name for module in modules)
        text = text.replace("toolchain = SYSTEM\n", "toolchain = SYSTEM\n\ndependencies = [\n%s]\n" % lines, 1)
    if kind in BACKENDS:
        text = text.replace("'pytorch-srun', ", SCRIPTS + "'pytorch-srun', ", 1)
    return text


def drafts(name, machine):
    """Return all drafts: {path in the collection: text}."""
    system = describe(name, machine)
    modules = modules_of(machine)
    kind = machine.system.scheduler['kind']
    metadata = "# (module avail) Which software each module stands for; `prefix` is to be added.\n"
    stand_in = "# Draft: the modules that the easyconfig loads.\n\n[login]\npython3 = yes\n"
    for module in modules:
        version = module.name.partition('/')[2]
        metadata += '\n[%s]\nname = %s\nversion = %s\n' % (module.name, module.software, version)
        stand_in += '\n[module %s]\npart = %s\n' % (module.name, module.part)
    easyconfig = EASYCONFIG.replace('workstation', name)
    top = 'systems/%s/' % name
    return {
        top + 'system.cfg': system.text(name),
        top + 'external_modules.cfg': metadata,
        top + 'easybuild.cfg': EASYBUILD_CFG.format(name=name, backend=BACKENDS.get(kind, '')),
        top + 'stand_in.cfg': stand_in,
        top + 'stand_in.rst': README.format(name=name, line='=' * len('Stand-in of ' + name)),
        top + 'easystack.yaml': 'easyconfigs:\n  - %s\n' % easyconfig,
        'easyconfigs/p/PyTorch/' + easyconfig: easyconfig_text(name, modules, kind),
    }


def write_drafts(name, machine):
    """Write what is not there yet; returns the paths."""
    if not re.match(r'[a-z][a-z0-9_]*$', name):
        raise UsersProblem("--new-system requires a name of lower-case letters and digits, such as cirrus; found: %r"
                           % name)
    top = os.path.dirname(collection_path('systems'))
    texts = {os.path.join(top, path): text for path, text in drafts(name, machine).items()}
    for path in texts:
        if os.path.exists(path):
            raise UsersProblem("%s already exists; not overwritten" % path)
    for path, text in texts.items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as handle:
            handle.write(text)
    return sorted(os.path.relpath(path, top) for path in texts)
