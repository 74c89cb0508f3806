"""
Drafts for a machine that nobody has described: systems/NAME/, tests/stand_ins/NAME/ and its first easyconfig.

Every value has the command that it comes from beside it; what could not be asked is in a comment. Drafts are for
reading, and what exists is never overwritten.
"""
import os
import re
import shutil
import socket

from hpc_pytorch import UsersProblem, collection_path
from hpc_pytorch.machine import survey
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


def asked(question, *arguments):
    """An answer, or None where this machine cannot be asked."""
    try:
        return question(*arguments)
    except (NotAsked, OSError, ValueError):
        return None


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


def system_text(name, machine):
    host = socket.gethostname().split('.')[0]
    kind = asked(survey.scheduler_kind, machine)
    machine.system.scheduler['kind'] = kind
    queues = asked(survey.partitions, machine) or {}
    queue = next(iter(sorted(queues, key=lambda one: -(queues[one].get('gpus') or 0))), None)
    facts = queues.get(queue, {})
    threads = asked(survey.topology, machine) or []
    of_core = len(threads) // len(set(threads)) if threads else 1
    near = asked(survey.cores_near_gpus, machine)
    interfaces = [one for one in machine.names('/sys/class/net/*') if re.match('hsn|ib', one)]
    mpi = ['mpicc', 'mpicxx'] if kind != 'slurm' or shutil.which('mpicc') else ['cc', 'CC']
    launcher = 'srun' if kind == 'slurm' else 'mpiexec'
    rows = [
        ('system', [('format', '2', ''), ('title', name, 'to be filled in'), ('easyconfig_suffix', name, ''),
                    ('host_names', ' '.join(sorted({re.sub(r'\d', '[0-9]', host), host})), 'hostname'),
                    ('login_hosts', None, 'the names of login nodes, where a build of hours is refused'),
                    ('architecture', os.uname().machine, 'uname -m')]),
        ('compilers', [('c', 'gcc', 'which'), ('cxx', 'g++', 'which'), ('mpi_c', mpi[0], 'which'),
                       ('mpi_cxx', mpi[1], 'which')]),
        ('launcher', [('command', launcher, 'the batch system'),
                      ('two_processes', launcher + (' --nodes=1 --ntasks=2' if kind == 'slurm' else ' -n 2'), '')]),
        ('scheduler', [('kind', kind, 'sinfo; qstat -Q'),
                       ('account_variable', {'slurm': 'SBATCH_ACCOUNT', 'pbs': 'PBS_ACCOUNT'}.get(kind), ''),
                       ('partition', queue, 'sinfo; qstat -Q'),
                       ('nodes_exclusive', 'yes' if facts.get('exclusive') else None, 'sinfo')]),
        ('node', [('cores', facts['cores'] // of_core if facts.get('cores') else len(set(threads)) or None,
                   'sinfo, /sys/devices/system/cpu (of this host)'),
                  ('threads_per_core', of_core, '/sys/devices/system/cpu (of this host)'),
                  ('memory', '%d GiB' % ((facts.get('memory') or asked(survey.memory, machine) or GIB) // GIB),
                   'sinfo, /proc/meminfo'),
                  ('gpus', facts.get('gpus') or len(near or []), 'sinfo, nvidia-smi topo -m, rocm-smi'),
                  ('temporary_directory', '/tmp', '')]),
        ('installation', [('prefix', None, 'a place that users can write to and compute nodes see')]),
        ('network', [('interfaces', ' '.join(interfaces) or None, '/sys/class/net')]),
    ]
    lines = ["# Draft of ./eb --survey --new-system %s: read it, and correct it. In brackets: where a value comes from."
             % name]
    for section, values in rows:
        lines += ['', '[%s]' % section]
        for key, value, how in values:
            if value is not None:
                lines += (['# (%s)' % how] if how else []) + ['%s = %s' % (key, value)]
            else:
                lines.append('# %s: could not be asked (%s)' % (key, how))
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
    easyconfig = easyconfig.replace("versionsuffix = '-workstation'", "versionsuffix = '-%s'" % name)
    if modules:
        listed = ''.join("    ('%s', EXTERNAL_MODULE),\n" % module for module, _, _ in modules)
        easyconfig = easyconfig.replace("toolchain = SYSTEM\n",
                                        "toolchain = SYSTEM\n\ndependencies = [\n%s]\n" % listed, 1)
    kind = asked(survey.scheduler_kind, machine)
    if kind in BACKENDS:
        easyconfig = easyconfig.replace("'pytorch-srun', ", "'pytorch-jobscript', 'pytorch-run', 'pytorch-srun', ", 1)
    readme = "Stand-in of %s\n%s\n\nA draft: the modules have the machine's names, and are made of parts of this one.\n"
    return {
        'systems/%s/system.cfg' % name: system_text(name, machine),
        'systems/%s/external_modules.cfg' % name: '\n'.join(metadata) + '\n',
        'systems/%s/easybuild.cfg' % name: EASYBUILD_CFG.format(name=name, backend=BACKENDS.get(kind, '')),
        'tests/stand_ins/%s/stand_in.cfg' % name: '\n'.join(stand_in) + '\n',
        'tests/stand_ins/%s/README.rst' % name: readme % (name, '=' * (12 + len(name))),
        'easyconfigs/p/PyTorch/%s' % EASYCONFIG.replace('workstation', name): easyconfig,
        'easystacks/%s.yaml' % name: 'easyconfigs:\n  - %s\n' % EASYCONFIG.replace('workstation', name),
    }


def write_drafts(name, machine):
    """Write what is not there yet; returns the paths."""
    if not re.match(r'[a-z][a-z0-9_]*$', name):
        raise UsersProblem("--new-system wants a name of small letters and digits, such as cirrus; found: %r" % name)
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
