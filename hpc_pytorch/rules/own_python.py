"""A Python for what none of this machine's fits: the collection's prebuilt one becomes a dependency."""
from easybuild.tools.build_log import print_msg

from hpc_pytorch.packages.locked_environment import OWN_PYTHON
from hpc_pytorch.packages.wheel_tags import find_python, pythons


def add(ec):
    """Add it to an easyconfig whose Python is not here, and that loads nothing which may have one."""
    versions = ec.get('python_versions')
    if not versions or '3.12' not in versions or ec['dependencies']:
        return
    python, found = find_python(pythons(versions), versions)
    if not python:
        print_msg("%s needs Python %s; found: %s. Installing our own: %s-%s%s.eb", ec.name,
                  ' or '.join(versions), found, *OWN_PYTHON)
        ec['dependencies'] = [OWN_PYTHON]
