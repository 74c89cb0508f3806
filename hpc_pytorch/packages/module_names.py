"""Where EasyBuild puts the modules of this prefix, and by which names they are loaded, in a hierarchy, too."""
import os

from easybuild.framework.easyconfig.easyconfig import ActiveMNS
from easybuild.tools.config import build_option, install_path


def beginning_of_hierarchy():
    """Return the directory, below that of all modules, in which a hierarchy begins; '' for another naming scheme."""
    first = ActiveMNS().mns.det_init_modulepaths({})
    return first[0] if len(first) == 1 else ''


def module_directory():
    top = os.path.join(install_path('modules'), build_option('suffix_modules_path'))
    return os.path.normpath(os.path.join(top, beginning_of_hierarchy()))


def name_to_load(full_name):
    return os.path.relpath(full_name, beginning_of_hierarchy() or os.curdir)
