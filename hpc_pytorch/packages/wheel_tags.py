"""Which Python a wheel is for, by the tags in its name."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections import namedtuple

from hpc_pytorch.machine.commands import run
from hpc_pytorch.machine.modules import ModulesShell, modules_tool
from hpc_pytorch.machine.versions import release
from hpc_pytorch.packages.lock_files import normal_name

Wheel = namedtuple('Wheel', 'name version python abi platform')
# A Python that wheels are installed for.
Python = namedtuple('Python', 'path version implementation machine glibc headers')

# what a modules tool sets for modules that are loaded
OF_LOADED_MODULES = re.compile(r'(LD_LIBRARY_PATH|LOADEDMODULES)$|_LMFILES|_ModuleTable|__')
ASK_PYTHON = """
import json, os, platform, sys, sysconfig
print(json.dumps(dict(
    path=sys.executable, version='%d.%d' % sys.version_info[:2], implementation=sys.implementation.name,
    machine=platform.machine(), glibc=platform.libc_ver()[1],
    headers=os.path.isfile(os.path.join(sysconfig.get_paths()['include'], 'Python.h')))))
"""


def ask_python(path, environ=None):
    """Ask the Python at this path about itself; None if it does not run."""
    try:
        answer = run([path, '-I', '-c', ASK_PYTHON], stderr=subprocess.DEVNULL, env=environ)
    except OSError:
        return None
    if answer.returncode or not answer.stdout:
        return None
    return Python(**json.loads(answer.stdout))


def pythons(versions):
    """List the programs that may be a Python of one of these versions, the user's own first: in a job the login's."""
    login, here = map(ask_python, (os.environ.get('HPC_JOB_PYTHON', ''), 'python3'))
    other = [login.path] if login and (not here or here.version != login.version) else []
    return other + ['python3'] + ['python' + version for version in versions] + [sys.executable]


def runs_in_a_new_shell(python, modules):
    """True unless a Python fails with these modules alone: EasyBuild's needs the $LD_LIBRARY_PATH of its module."""
    environ = {key: value for key, value in os.environ.items() if not OF_LOADED_MODULES.match(key)}
    if ask_python(python, environ):
        return True
    tool = modules_tool(any_version=True)
    if not modules or not tool:
        return False
    shell = ModulesShell(tool.program, environ)
    # those that cannot be loaded are reported elsewhere
    return shell.load(modules) is not None or bool(ask_python(python, shell.environ))


def find_python(programs, versions, modules=()):
    """Return the first of these programs that is a Python of one of these versions, or None; and what was found."""
    found = []
    for path in dict.fromkeys(filter(None, map(shutil.which, programs))):
        python = ask_python(path)
        fits = python and python.version in versions
        if fits and runs_in_a_new_shell(path, modules):
            return python, None
        if python:
            advice = ', which runs only with its module: add that to the dependencies' if fits else ''
            found.append('%s (%s%s)' % (python.version, path, advice))
    return None, ', '.join(found) or 'none'


def closed_to_others(python, place):
    """Return the directory of a Python that users of an installation in this place cannot enter; None without any."""
    above = [directory for directory in pathlib.Path(os.path.realpath(place)).parents if directory.exists()]
    if not all(directory.stat().st_mode & 0o011 for directory in above):
        # it is for its owner alone
        return None
    for directory in reversed(pathlib.Path(os.path.realpath(python)).parents):
        if directory not in above and not directory.stat().st_mode & 0o001:
            return str(directory)
    return None


def parse_wheel(path):
    """Return the parts of a wheel's file name; None if it is not a wheel's."""
    parts = os.path.basename(path)[:-len('.whl')].split('-')
    if not path.endswith('.whl') or len(parts) not in (5, 6):
        return None
    return Wheel(normal_name(parts[0]), parts[1], *parts[-3:])


def name_and_version(path):
    """Return (name, version) of a wheel or of a source archive, from its file name; None for something else."""
    wheel = parse_wheel(path)
    if wheel:
        return wheel.name, wheel.version
    source = re.match(r'(.+)-([^-]+)\.(?:tar\.gz|zip)$', os.path.basename(path))
    return (normal_name(source.group(1)), source.group(2)) if source else None


def fits_python(wheel, python):
    """True if a wheel's tags admit this Python; those with the stable ABI admit every later one."""
    minor = int(python.version.split('.')[1])
    own = 'cp3%d' % minor
    fitting = ['py3', 'py3%d' % minor] + [own] * (python.implementation == 'cpython')
    if 'abi3' in wheel.abi.split('.'):
        fitting += ['cp3%d' % older for older in range(minor)]
    # cp311t, for example, is for the free-threaded variant
    abi_fits = not wheel.abi.startswith('cp') or wheel.abi == own
    return abi_fits and not set(fitting).isdisjoint(wheel.python.split('.'))


def fits_platform(tag, python):
    if tag == 'any':
        return True
    match = re.match(r'(?:manylinux_(\d+)_(\d+)|manylinux[0-9a]+|linux)_(.+)$', tag)
    if not match or match.group(3) != python.machine:
        return False
    if not match.group(1) or not python.glibc:
        return True
    return release('.'.join(match.group(1, 2))) <= release(python.glibc)


def why_not(path, python):
    """Say why this wheel cannot be installed for this Python; None if it can."""
    name = os.path.basename(path)
    wheel = parse_wheel(path)
    if wheel is None:
        return "%s is not named as a wheel is (name-version-python-abi-platform.whl)" % name
    if fits_python(wheel, python) and any(fits_platform(tag, python) for tag in wheel.platform.split('.')):
        return None
    return "%s is for Python %s (%s) on %s; %s is %s %s on %s with glibc %s" % (
        name, wheel.python, wheel.abi, wheel.platform,
        python.path, python.implementation, python.version, python.machine, python.glibc or 'unknown')
