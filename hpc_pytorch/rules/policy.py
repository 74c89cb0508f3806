"""What a site decides about problems that are found before an installation: refuse, warn or allow.

$HPC_SITE_CONFIG names its file, which has lines such as ``login_node = warn`` below ``[policy]``.
"""
import os

from easybuild.tools.build_log import print_warning
from easybuild.tools.config import build_option

from hpc_pytorch import UsersProblem
from hpc_pytorch.machine.systems import key_of, nearest, parse, read_section
from hpc_pytorch.packages.easybuild_errors import refuse

POLICIES = {
    'login_node': key_of("decision: a long build on a login node, or with too little memory"),
    'free_space': key_of("decision: a file system, or a quota, has less room than is needed"),
    'install_path': key_of("decision: a prefix that system.cfg calls unfit"),
    'pairs': key_of("decision: versions that are known to be incompatible (hpc_pytorch/machine/pairs.cfg)"),
}
DEFAULTS = {'login_node': 'refuse', 'free_space': 'refuse', 'pairs': 'warn'}


def read():
    """Read the site's file: {policy: decision or None}."""
    path = os.environ.get('HPC_SITE_CONFIG')
    if not path:
        return {}
    parser = parse(path)
    for section in parser.sections():
        if section != 'policy':
            raise UsersProblem("%s: unknown section [%s]%s; the only one is [policy]. Rules are written as EasyBuild "
                               "hooks: see docs/site-example.py" % (path, section, nearest(section, ['policy'])))
    return read_section(path, 'policy', parser['policy'] if 'policy' in parser else {}, POLICIES)


def decide(name, problem, default=None):
    """Refuse, warn or do nothing, as the site has decided; `default` is the system's own decision."""
    decided = read().get(name) or default or DEFAULTS.get(name)
    if decided == 'refuse':
        refuse("%s\nYour site can change this: '%s = warn' or 'allow' below [policy] in a file that $HPC_SITE_CONFIG "
               "names." % (problem, name))
    if decided == 'warn':
        print_warning(problem)


def going_to_install():
    """True if something is installed, and not only fetched or checked; a dry run shows what would refuse it."""
    return not (build_option('module_only') or build_option('sanity_check_only') or build_option('stop') == 'fetch')
