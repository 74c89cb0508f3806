"""Packages of the operating system that the first call needs: installs all at once, or says so before it fetches.

make-environment runs this with a lock file's name and ./eb's arguments. Prints the path of a wheel of pip, if there is
one: an environment is made with it in half of the time that ensurepip takes.
"""
import glob
import importlib.util
import os
import shutil
import sys
import sysconfig

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
from hpc_pytorch import UsersProblem, say  # noqa: E402
from hpc_pytorch.machine import own_lmod  # noqa: E402
from hpc_pytorch.machine.collection_files import easyconfig_path, plain_values  # noqa: E402
from hpc_pytorch.machine.modules import COLLECTION, modules_tool  # noqa: E402

OWN_PIP = os.path.join(COLLECTION, '.local', 'pip')
PYTHON = '%d.%d' % sys.version_info[:2]
# where distributions keep the wheels that ensurepip installs
PYTHONS_WHEELS = '/usr/share/python-wheels'
# what can be had without root where there is apt
UNPACKED = ('python3-venv', 'lmod')


def needed(lock, arguments):
    """List the packages that are missing; the Lmod of old releases is too old to help."""
    names = []
    if not importlib.util.find_spec('ensurepip'):
        names.append('python3-venv')
    if lacks_modules_tool(lock, arguments) and own_lmod.codename() not in own_lmod.NEXT_RELEASES:
        names.append('lmod')
    for name in arguments if lock == 'eb.txt' else ():
        names += needed_to_build(name)
    return list(dict.fromkeys(names))


def lacks_modules_tool(lock, arguments):
    """True if ./eb needs a modules tool, and is going to find none."""
    if lock != 'eb.txt' or '--survey' in arguments or 'EASYBUILD_MODULES_TOOL' in os.environ:
        return False
    return modules_tool() is None and not any(word.startswith('--modules-tool') for word in arguments)


def needed_to_build(name):
    """List what compiling needs for an easyconfig, unless it loads the system's modules."""
    path = easyconfig_path(name)
    if not name.endswith('.eb') or not path:
        return []
    with open(path, encoding='utf-8') as handle:
        text = handle.read()
    values = plain_values(text)
    if 'EXTERNAL_MODULE' in text or not {'build_from_source', 'collection_packages'} & set(values):
        return []
    headers = os.path.join(sysconfig.get_path('include'), 'Python.h')
    names = [] if shutil.which('c++') else ['g++']
    if PYTHON in values.get('python_versions', []) and not os.path.exists(headers):
        names.append('python%s-dev' % PYTHON)
    return names


def pip_wheels():
    """List the wheels of pip that Python has or, where it has none, that is unpacked beside the checkout."""
    own = own_lmod.codename()
    ensurepip = importlib.util.find_spec('ensurepip')
    if ensurepip and own in own_lmod.NEXT_RELEASES:
        # they lack libraries that pip brings elsewhere
        return []
    places = [OWN_PIP + PYTHONS_WHEELS]
    if ensurepip:
        # the distribution's may be too old for another Python than its own
        places = [os.path.join(os.path.dirname(ensurepip.origin), '_bundled'), PYTHONS_WHEELS]
    elif not os.path.exists(OWN_PIP):
        say("unpacking pip to %s" % OWN_PIP)
        own_lmod.unpack({own_lmod.NEXT_RELEASES.get(own, own): ['python3-pip-whl']}, OWN_PIP)
    return [path for place in places for path in glob.glob(glob.escape(place) + '/pip-*.whl')]


def main(lock, *arguments):
    try:
        own_lmod.install_if_allowed(needed(lock, arguments), UNPACKED)
        importlib.invalidate_caches()
        if lacks_modules_tool(lock, arguments):
            own_lmod.installed_modules_tool()
        print(*pip_wheels()[:1])
    except UsersProblem as problem:
        sys.exit("ERROR: %s" % problem)


if __name__ == '__main__':
    main(*sys.argv[1:])
