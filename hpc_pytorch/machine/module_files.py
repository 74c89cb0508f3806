"""Pieces of modules that EasyBuild's module generators do not have, for both of their languages."""
import glob
import os
import re

from hpc_pytorch import HERE, parse, read_json

SYNTAX = parse(HERE + '/machine/module_syntax.cfg')


def snippet(generator, name, argument=''):
    """Return the entry of this name in module_syntax.cfg, in the language of the module file."""
    text = SYNTAX[generator.SYNTAX][name]
    return text % ((argument,) * text.count('%s'))


def explain(settings, advice):
    """List for `module help` what the module sets for this system, and what the site advises to try."""
    lines = []
    for title, variables in (("Set by this module, unless you have:", settings),
                             ("Worth trying on this system:", advice)):
        if variables:
            lines += ['', title] + ["  %s=%s: %s" % (one.name, one.value, one.reason) for one in variables]
    return '\n'.join(lines)


def set_for_system(generator, system, settings, own=()):
    """Set what applies of a system, and what pytorch-srun and cpu-mask must know, but for the easyconfig's `own`."""
    node = system.node
    options = ['%s=%s:%s' % (one.name, one.value, one.job_option) for one in system.settings if one.job_option]
    variables = {
        'HPC_NCCL_NET': system.network['nccl_net'],
        'HPC_JOB_OPTIONS': ' '.join(options),
        'HPC_NODE_CPUS': (node['cores'] or 0) * (node['threads_per_core'] or 1),
        'GPU_CORES': ' '.join(','.join(map(str, cores)) for cores in node['gpu_cores']),
    }
    text = ''
    for setting in settings:
        condition = SYNTAX[generator.SYNTAX]['not by the user'] % {'name': setting.name, 'value': setting.value}
        statement = generator.set_environment(setting.name, setting.value).rstrip()
        text += generator.comment(setting.reason) + generator.conditional_statement([condition], statement)
    return text + ''.join(generator.set_environment(name, str(value)) for name, value in variables.items()
                          if value and name not in own)


def override(generator, owner, name, value):
    """Set an environment variable, '' for none, while the module `owner` is loaded; then the user's comes back."""
    owner = ''.join(filter(str.isalnum, owner))
    return SYNTAX[generator.SYNTAX]['override'] % {'name': name, 'value': value, 'owner': owner} + '\n'


# where a module file of EasyBuild's names its installation
ROOT = re.compile(r'^(?:local root =|set root) "?(/[^"\n]+)', re.M)
# what is checked and measured
CHECKED = ('PyTorch', 'torch_mpi', 'vLLM')


def removed_by_hand(modules, software):
    """Describe installations in this directory that have no module file, and modules that have no installation."""
    for name in CHECKED:
        for note in glob.glob(os.path.join(glob.escape(software), name, '*/easybuild/provenance/module.json')):
            easyconfigs = glob.glob(os.path.join(glob.escape(os.path.dirname(note)), '*.eb'))
            for path in read_json(note, {}) or ():
                if easyconfigs and not os.path.exists(path):
                    yield "%s is gone. To write it again: ./eb %s --module-only --force --installpath=%s" % (
                        path, easyconfigs[0], os.path.dirname(software))
        for path in files_of(modules, name):
            root = root_of(path)
            if root and not os.path.isdir(root):
                yield "%s is gone, but not its module, %s: remove that, or install it again" % (root, path)


def files_of(directory, name):
    """List module files, also hidden ones: no directories, broken links (Lmod's `default`), backups and settings."""
    top = os.path.join(glob.escape(directory), name)
    paths = glob.glob(top + '/*') + glob.glob(top + '/.*')
    others = re.compile(r'.*\.bak_|\.modulerc|\.version$')
    return sorted(path for path in paths if os.path.isfile(path) and not others.match(os.path.basename(path)))


def root_of(path):
    """Return the installation that a module file of EasyBuild's names; None if it names none, or is private."""
    if not os.access(path, os.R_OK):
        return None
    with open(path, encoding='utf-8', errors='replace') as handle:
        found = ROOT.search(handle.read())
    return found and found.group(1)


def installed(modulepath):
    """Find what this collection has installed of PyTorch, its MPI backend and vLLM: {module: its installation}."""
    found = {}
    for directory in filter(None, modulepath.split(':')):
        for path in [path for software in CHECKED for path in files_of(directory, software)]:
            root = root_of(path)
            if root and os.path.exists(os.path.join(root, 'easybuild/provenance/provenance.json')):
                name = re.sub(r'\.lua$', '', os.path.relpath(path, directory))
                found.setdefault(name, root)
    return found
