"""EasyBuild shows its own errors without a traceback; an extended dry run goes on, and names them in its last lines."""
import shutil
from contextlib import contextmanager

from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import build_option

from hpc_pytorch import UsersProblem

FOUND = []


def stop(easyblock, message, also_in_dry_run=False):
    """Stop an installation; a dry run notes it and resumes, unless it cannot: EasyBuild then skips the step's rest."""
    if easyblock and easyblock.dry_run:
        easyblock.dry_run_msg("  * Installing would stop here: %s", message)
        FOUND.append("%s: %s" % (easyblock.full_mod_name, message))
    if also_in_dry_run or not easyblock.dry_run:
        raise EasyBuildError("%s", message)


def refuse(message):
    """Stop EasyBuild, before it has an easyblock; a dry run notes it and resumes."""
    if not build_option('extended_dry_run'):
        raise EasyBuildError("%s", message)
    FOUND.append(message)


def show():
    """For the end of EasyBuild: after its summary, which calls every dry run a success."""
    if FOUND:
        print_msg("\nInstalling would stop:\n\n    %s\n" % '\n    '.join(dict.fromkeys(FOUND)), prefix=False)


@contextmanager
def as_easybuild_error(before='', easyblock=None):
    """Raise what a user can mend as EasyBuild's error, with this in front; a dry run of the easyblock notes it."""
    try:
        yield
    except UsersProblem as problem:
        stop(easyblock, before + str(problem), also_in_dry_run=True)


def with_prefix(arguments, action):
    """Call `action` with EasyBuild's arguments that are no options, with its options for the prefix in force."""
    from easybuild.tools.options import set_up_configuration
    temporary = ''
    try:
        found, settings = set_up_configuration(args=arguments, silent=True)
        temporary = settings[5]
        return action(found.args)
    except EasyBuildError as error:
        raise UsersProblem(error.msg)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
