"""
Hooks of the collection: tables of rules, and one line for each hook. What a rule does is in hpc_pytorch/rules/.

They work wherever EasyBuild comes from: ./eb, pip, or the site's own module (EASYBUILD_HOOKS names this file). A site's
own hooks still run, after ours: $HPC_SITE_HOOKS names their file, and ./eb sets it to what --hooks, $EASYBUILD_HOOKS or
a configuration file names.
"""
import os
import sys

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import install_path
from easybuild.tools.filetools import load_source
from easybuild.tools.hooks import HOOK_SUFF, KNOWN_HOOKS

try:
    import hpc_pytorch  # noqa: F401
except ImportError:
    # EasyBuild comes from elsewhere, and this file lies in a checkout
    sys.path.append(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
from hpc_pytorch import UsersProblem, settle  # noqa: E402
from hpc_pytorch.machine.systems import nearest  # noqa: E402
from hpc_pytorch.rules import early_checks, installation_locks, known_pairs, provenance, site_rules  # noqa: E402
from hpc_pytorch.rules import vulnerabilities, what_to_type, within_memory  # noqa: E402
from hpc_pytorch.rules.early_checks import existing  # noqa: E402

SITE_HOOKS = 'HPC_SITE_HOOKS'

# Hook -> its rules in their order: (name, what it does with the hook's arguments).
RULES = {
    # EasyBuild is configured, and has made no directory yet
    'start_hook': (
        ("the site's own hooks", lambda: check_site_hooks()),
        ('directories can be written to', early_checks.check_directories),
        ("the user's umask", early_checks.keep_umask),
    ),
    # an easyconfig was read
    'parse_hook': (
        ("the site's rules", site_rules.apply),
        ("the system's modules are there", early_checks.check_external_modules),
        ('what was asked for', what_to_type.note),
    ),
    # it is known what is going to be installed
    'pre_build_and_install_loop_hook': (
        ('no builds on login nodes', early_checks.check_host),
        ('known vulnerabilities', vulnerabilities.check),
        ('versions that fail together', known_pairs.check),
    ),
    # one installation is about to begin
    'pre_easyblock_hook': (
        ('locks of killed installations', installation_locks.take),
    ),
    # nothing was fetched yet: the least that everything needs, so that a quota that is used up costs no time
    'pre_fetch_hook': (
        ('some room on disks', early_checks.check_room),
    ),
    # everything is there that it is going to be made of
    'post_fetch_hook': (
        ('room on disks', early_checks.check_room),
    ),
    # all modules are loaded, and nothing is compiled yet
    'pre_configure_hook': (
        ('builds within the memory', within_memory.begin),
    ),
    # nothing is compiled any more
    'pre_postproc_hook': (
        ('builds within the memory', within_memory.end),
    ),
    # everything that is installed is there, and not yet write-protected
    'post_postproc_hook': (
        ('provenance', provenance.write),
    ),
    # what has a module is whole, also when the machine loses power
    'pre_module_hook': (
        ('what is installed is on its disk', lambda block: block.dry_run or settle(existing(block.installdir))),
    ),
    'post_module_hook': (
        ('its module is on its disk', lambda block: block.dry_run or settle(existing(install_path('modules')))),
    ),
    # one installation is over
    'post_easyblock_hook': (
        ('builds within the memory', within_memory.end),
        ('locks of killed installations', installation_locks.give_back),
    ),
    # everything that was asked for is there
    'end_hook': (
        ('what to type', what_to_type.say_what_to_type),
    ),
}


def run(hook, *arguments):
    """Run the rules of a hook; an error says which one it was."""
    for name, rule in RULES[hook]:
        try:
            rule(*arguments)
        except (EasyBuildError, UsersProblem) as error:
            raise EasyBuildError("%s\n(%s, rule '%s' of %s)", error, hook, name, os.path.basename(__file__))
        except Exception as error:
            raise EasyBuildError("%s, rule '%s' of %s, could not be followed: %s: %s", hook, name,
                                 os.path.basename(__file__), type(error).__name__, error)


def follow(hook):
    """What EasyBuild calls. It leaves a Bundle's copy of its easyconfig alone, which has no path."""
    return lambda *arguments: None if hook == 'parse_hook' and arguments[0].path is None else run(hook, *arguments)


globals().update({hook: follow(hook) for hook in RULES})


# --- the site's own hooks -------------------------------------------------------------------------------------------

def both(ours, theirs, name, path):
    """A hook that runs ours, if there is one, then the site's, whose answer counts."""
    def hook(*args, **kwargs):
        if ours:
            ours(*args, **kwargs)
        try:
            return theirs(*args, **kwargs)
        except EasyBuildError:
            raise
        except Exception as error:
            raise EasyBuildError("%s of the site's hooks in %s failed: %s: %s", name, path, type(error).__name__, error)
    hook.__name__ = name
    return hook


def add_site_hooks(path):
    """Take the site's hooks in; returns what is wrong with their file, for start_hook to say."""
    try:
        theirs = load_source('site_hooks', path)
    except Exception as error:
        return "The site's hooks in %s, which $%s names, cannot be read: %s: %s" % (
            path, SITE_HOOKS, type(error).__name__, error)
    names = [name for name in dir(theirs) if name.endswith(HOOK_SUFF) and callable(getattr(theirs, name))]
    for name in names:
        if name not in KNOWN_HOOKS:
            return "%s: EasyBuild has no hook called %s%s (eb --avail-hooks lists them)" % (
                path, name, nearest(name, KNOWN_HOOKS))
        globals()[name] = both(globals().get(name), getattr(theirs, name), name, path)
    return None


def check_site_hooks():
    """Stop when the site's hooks cannot be used."""
    if PROBLEM:
        raise EasyBuildError(PROBLEM)


PROBLEM = add_site_hooks(os.environ[SITE_HOOKS]) if os.environ.get(SITE_HOOKS) else None
