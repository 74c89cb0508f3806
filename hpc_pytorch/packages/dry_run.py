"""What would stop an installation, found in an extended dry run: it goes on, and names all of it in its last lines."""
from easybuild.tools.build_log import EasyBuildError, print_msg

FOUND = []


def stop(easyblock, message):
    """Stop an installation; note in a dry run that it would stop."""
    if not easyblock.dry_run:
        raise EasyBuildError("%s", message)
    easyblock.dry_run_msg("  * Installing would stop here: %s", message)
    FOUND.append("%s: %s" % (easyblock.full_mod_name, message))


def show():
    """For the end of EasyBuild: after its summary, which calls every dry run a success."""
    if FOUND:
        print_msg("\nInstalling would stop:\n\n    %s\n" % '\n    '.join(FOUND), prefix=False)
