"""A Python for what none of this machine's fits: the collection's prebuilt one becomes a dependency."""
import shutil
import sys

from easybuild.tools.build_log import print_msg

from hpc_pytorch.packages.wheel_tags import ask_python

OWN_PYTHON = ('Python', '3.12.14', '-standalone')


def pythons(versions):
    """The programs that may be a Python of one of these versions, the user's own first."""
    names = ['python3'] + ['python' + version for version in versions] + [sys.executable]
    paths = []
    for path in filter(None, map(shutil.which, names)):
        if path not in paths:
            paths.append(path)
    return paths


def add(ec):
    """Add it to an easyconfig whose Python is not here, and that loads nothing which may have one."""
    versions = ec.get('python_versions')
    if not versions or '3.12' not in versions or ec['dependencies']:
        return
    found = []
    for path in pythons(versions):
        python = ask_python(path)
        if python and python.version in versions:
            return
        if python:
            found.append('%s (%s)' % (python.version, path))
    print_msg("%s needs Python %s; found: %s. Installing our own: %s-%s%s.eb", ec.name, ' or '.join(versions),
              ', '.join(found) or 'none', *OWN_PYTHON)
    ec['dependencies'] = [OWN_PYTHON]
