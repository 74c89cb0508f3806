"""Hooks of the collection: a table of rules, each a function in hpc_pytorch/rules/.

They work wherever EasyBuild comes from: ./eb, pip, or the site's own module (EASYBUILD_HOOKS names this file). A site's
own hooks run after ours: $HPC_SITE_HOOKS names their file; ./eb takes it from --hooks and EasyBuild's configuration.
"""
import os
import sys

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import install_path
from easybuild.tools.hooks import load_hooks

try:
    import hpc_pytorch  # noqa: F401
except ImportError:
    # EasyBuild comes from elsewhere, and this file lies in a checkout
    sys.path.append(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
from hpc_pytorch import UsersProblem, existing, fsync  # noqa: E402
from hpc_pytorch.packages import easybuild_errors  # noqa: E402
from hpc_pytorch.rules import disk_space, early_checks, installation_locks, interrupts, known_pairs  # noqa: E402
from hpc_pytorch.rules import policy, provenance, usage_hints, within_memory  # noqa: E402


def fsync_all(easyblock):
    if not easyblock.dry_run:
        for path in (easyblock.installdir, install_path('modules')):
            fsync(existing(path))


# Hook -> its rules in their order: (name, what it does with the hook's arguments).
RULES = {
    # EasyBuild is configured, and has made no directory yet
    'start_hook': [
        ("the site's policies", policy.read),
        ('directories can be written to', early_checks.check_directories),
        ("the user's umask", early_checks.keep_umask),
        ('no passwords in reports', early_checks.leave_out_secrets),
        ('an end within seconds', interrupts.limit_waiting),
    ],
    # an easyconfig was read
    'parse_hook': [
        ("the system's modules are there", early_checks.check_external_modules),
        ('a Python that fits', early_checks.add_own_python),
        ('usage hints', usage_hints.remember),
    ],
    # it is known what is going to be installed
    'pre_build_and_install_loop_hook': [
        ('no builds on login nodes', early_checks.check_host),
        ('incompatible versions', known_pairs.check),
    ],
    # one installation is about to begin
    'pre_easyblock_hook': [('stale locks', installation_locks.take)],
    # nothing was fetched yet: the least that everything needs, so that a quota that is used up costs no time
    'pre_fetch_hook': [('some room on disks', disk_space.check_room)],
    # all sources are there
    'post_fetch_hook': [('room on disks', disk_space.check_room)],
    # all modules are loaded, and nothing is compiled yet
    'pre_configure_hook': [('builds within the memory', within_memory.begin)],
    # everything is compiled
    'pre_postproc_hook': [('builds within the memory', within_memory.end)],
    # everything is installed, and not yet write-protected
    'post_postproc_hook': [('provenance', provenance.write)],
    # what has a module must be complete, also after a loss of power
    'pre_module_hook': [('the software is on its disk', fsync_all)],
    'post_module_hook': [
        ('provenance of the module file', provenance.note_module),
        ('its module is on its disk', fsync_all),
    ],
    # one installation is over
    'post_easyblock_hook': [
        ('builds within the memory', within_memory.end),
        ('its module, if it has not become another', provenance.restore_module),
        ('stale locks', installation_locks.release),
    ],
    # everything that was asked for is there
    'end_hook': [('usage hints', usage_hints.show), ('what would stop it', easybuild_errors.show)],
}


def site_hooks():
    """Load the site's own hooks; an error in their file becomes one of start_hook, which EasyBuild shows in a line."""
    path = os.environ.get('HPC_SITE_HOOKS')
    try:
        return load_hooks(path)
    except Exception as error:
        message = "%s, the file with your site's hooks, cannot be used: %s: %s" % (path, type(error).__name__, error)

    def start_hook():
        raise EasyBuildError(message)
    return {'start_hook': start_hook}


def runner(hook):
    """Return the function that EasyBuild calls: it runs the rules of a hook, and returns what the last one returns."""
    def run(*args, **kwargs):
        answer = None
        for name, rule in RULES[hook]:
            try:
                answer = rule(*args, **kwargs)
            except (EasyBuildError, UsersProblem) as error:
                raise EasyBuildError("%s\n(%s, rule '%s')", error, hook, name)
            except Exception as error:
                raise EasyBuildError("%s, rule '%s', failed: %s: %s", hook, name, type(error).__name__, error)
        return answer
    run.__name__ = hook
    return run


for _hook, _function in site_hooks().items():
    RULES.setdefault(_hook, []).append(("of the site, in %s" % os.environ.get('HPC_SITE_HOOKS'), _function))
globals().update({hook: runner(hook) for hook in RULES})
