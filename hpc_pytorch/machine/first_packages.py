"""
Packages of the operating system that the first call needs: installs all at once, or says so before anything is fetched.

make-environment runs this file with the name of a lock file and the arguments of ./eb. Prints the path of a wheel of
pip, where Python has none and nothing may be installed.
"""
import glob
import importlib.util
import os
import shutil
import sys
import sysconfig

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
from hpc_pytorch import UsersProblem, collection_path, say  # noqa: E402
from hpc_pytorch.machine import own_lmod  # noqa: E402
from hpc_pytorch.machine.collection_files import plain_values  # noqa: E402
from hpc_pytorch.machine.distribution_packages import NotAllowed, WouldRemove, install  # noqa: E402
from hpc_pytorch.machine.modules import COLLECTION, modules_tool  # noqa: E402

OWN_PIP = os.path.join(COLLECTION, '.local', 'pip')
# what can be had without root where there is apt
UNPACKED = ('python3-venv', 'lmod')


def needed(lock, arguments):
    """List the packages that are missing; old releases' Lmod is none that helps."""
    names = []
    if not importlib.util.find_spec('ensurepip'):
        names.append('python3-venv')
    if lock != 'eb.txt' or '--survey' in arguments:
        return names
    chosen = 'EASYBUILD_MODULES_TOOL' in os.environ or any(word.startswith('--modules-tool') for word in arguments)
    if not chosen and modules_tool() is None and own_lmod.codename() not in own_lmod.NEXT_RELEASES:
        names.append('lmod')
    return names + needed_to_build(arguments)


def needed_to_build(arguments):
    """List what compiling needs for the named easyconfigs that bring no compiler's module."""
    names = []
    for word in arguments:
        name = os.path.basename(word)
        places = [word] + glob.glob(os.path.join(glob.escape(collection_path('easyconfigs')), '?', '*', name))
        path = next(filter(os.path.isfile, places), None)
        if not name.endswith('.eb') or path is None:
            continue
        with open(path, encoding='utf-8') as handle:
            text = handle.read()
        values = plain_values(text)
        builds = {'build_from_source', 'collection_packages'} & set(values)
        if not builds or 'EXTERNAL_MODULE' in text:
            continue
        if not shutil.which('c++'):
            names.append('g++')
        version = '%d.%d' % sys.version_info[:2]
        headers = os.path.join(sysconfig.get_path('include'), 'Python.h')
        if version in values.get('python_versions', []) and not os.path.exists(headers):
            names.append('python%s-dev' % version)
    return sorted(set(names))


def install_all(names):
    """Install what may be installed; what else is needed and cannot be unpacked is one message."""
    try:
        install(names)
    except WouldRemove:
        install([name for name in names if name != 'lmod'])
    except NotAllowed:
        if not shutil.which('apt-get'):
            raise
        install([name for name in names if name not in UNPACKED])


def own_pip():
    """Return the path of a wheel of pip, unpacked beside the checkout."""
    wheels = os.path.join(glob.escape(OWN_PIP), 'usr/share/python-wheels/pip-*.whl')
    if not glob.glob(wheels):
        say("unpacking pip to %s" % OWN_PIP)
        own_lmod.unpack({own_lmod.codename(): ['python3-pip-whl']}, OWN_PIP)
    return glob.glob(wheels)[0]


def main(lock, *arguments):
    try:
        install_all(needed(lock, arguments))
        importlib.invalidate_caches()
        if not importlib.util.find_spec('ensurepip'):
            print(own_pip())
    except UsersProblem as problem:
        print("ERROR: %s" % problem, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
