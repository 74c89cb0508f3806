"""
Packages of the operating system that the first call needs: installs all at once, or says so before anything is fetched.

make-environment runs this file with the name of a lock file and the arguments of ./eb. Prints the path of a wheel of
pip, with which an environment is made in half of the time that ensurepip takes; nothing where there is none.
"""
import glob
import importlib.util
import os
import shutil
import sys
import sysconfig
import zipfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
from hpc_pytorch import UsersProblem, collection_path, say  # noqa: E402
from hpc_pytorch.machine import own_lmod  # noqa: E402
from hpc_pytorch.machine.collection_files import plain_values  # noqa: E402
from hpc_pytorch.machine.distribution_packages import NotAllowed, WouldRemove, install  # noqa: E402
from hpc_pytorch.machine.modules import COLLECTION, modules_tool  # noqa: E402

OWN_PIP = os.path.join(COLLECTION, '.local', 'pip')
# where distributions keep the wheels that ensurepip installs
PYTHONS_WHEELS = '/usr/share/python-wheels'
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


def wheels_of_pip(*places):
    """List the wheels of pip in these directories; those of Debian 11 lack libraries that pip brings elsewhere."""
    found = []
    for place in places:
        for path in glob.glob(os.path.join(glob.escape(place), 'pip-*.whl')):
            if any('_vendor/urllib3/' in name for name in zipfile.ZipFile(path).namelist()):
                found.append(path)
    return found


def pip_wheels():
    """List the wheels of pip that Python has or, where it has none, that is unpacked beside the checkout."""
    ensurepip = importlib.util.find_spec('ensurepip')
    if ensurepip:
        return wheels_of_pip(PYTHONS_WHEELS, os.path.join(os.path.dirname(ensurepip.origin), '_bundled'))
    unpacked = OWN_PIP + PYTHONS_WHEELS
    if not wheels_of_pip(unpacked):
        say("unpacking pip to %s" % OWN_PIP)
        own = own_lmod.codename()
        own_lmod.unpack({own_lmod.NEXT_RELEASES.get(own, own): ['python3-pip-whl']}, OWN_PIP)
    return wheels_of_pip(unpacked)


def main(lock, *arguments):
    try:
        install_all(needed(lock, arguments))
        importlib.invalidate_caches()
        print(*pip_wheels()[:1])
    except UsersProblem as problem:
        print("ERROR: %s" % problem, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
