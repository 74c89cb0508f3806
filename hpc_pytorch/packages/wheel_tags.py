"""Why a wheel does not fit a Python, in words: the tags in its name, taken apart."""
import json
import os
import re
import subprocess
from collections import namedtuple

from hpc_pytorch.packages.lock_files import normal_name

Wheel = namedtuple('Wheel', 'name version python abi platform')
# A Python that wheels are installed for.
Python = namedtuple('Python', 'path version implementation machine glibc headers')

ASK_PYTHON = """
import json, os, platform, sys, sysconfig
print(json.dumps(dict(
    path=sys.executable, version='%d.%d' % sys.version_info[:2], implementation=sys.implementation.name,
    machine=platform.machine(), glibc=platform.libc_ver()[1],
    headers=os.path.isfile(os.path.join(sysconfig.get_paths()['include'], 'Python.h')))))
"""


def ask_python(path):
    """What the Python at this path is; None if it does not run."""
    try:
        answer = subprocess.run([path, '-I', '-c', ASK_PYTHON], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                stdin=subprocess.DEVNULL, universal_newlines=True)
    except OSError:
        return None
    return Python(**json.loads(answer.stdout)) if answer.returncode == 0 and answer.stdout else None


def parse_wheel(path):
    """The parts of a wheel's file name; None if it is not a wheel's."""
    parts = os.path.basename(path)[:-len('.whl')].split('-')
    if not path.endswith('.whl') or len(parts) not in (5, 6):
        return None
    return Wheel(normal_name(parts[0]), parts[1], *parts[-3:])


def name_and_version(path):
    """(name, version) of a wheel or of a source archive, from its file name; None for something else."""
    wheel = parse_wheel(path)
    if wheel:
        return wheel.name, wheel.version
    source = re.match(r'(.+)-([^-]+)\.(?:tar\.gz|zip)$', os.path.basename(path))
    return (normal_name(source.group(1)), source.group(2)) if source else None


def words_for_python_tag(tag):
    """'cp311' -> 'CPython 3.11'."""
    match = re.match(r'(cp|py|pp)(\d)(\d*)$', tag)
    if not match:
        return tag
    kind = {'cp': 'CPython', 'py': 'any Python', 'pp': 'PyPy'}[match.group(1)]
    return '%s %s' % (kind, '.'.join(part for part in match.groups()[1:] if part))


def fits_python(wheel, python):
    """Whether the wheel's Python tag admits this Python; stable-ABI wheels admit every later one."""
    major, minor = python.version.split('.')
    for tag in wheel.python.split('.'):
        if tag in ('py3', 'py' + major + minor) or tag == 'cp' + major + minor and python.implementation == 'cpython':
            return True
        older = re.match(r'cp3(\d+)$', tag)
        if older and 'abi3' in wheel.abi.split('.') and int(older.group(1)) <= int(minor):
            return True
    return False


def why_not_platform(tag, python):
    """Why one platform tag does not admit this machine; None if it does."""
    if tag == 'any':
        return None
    match = re.match(r'(manylinux_(\d+)_(\d+)|manylinux[0-9a]+|linux)_(.+)$', tag)
    if not match:
        return "%s is another operating system, this is Linux" % tag
    if match.group(4) != python.machine:
        return "%s is for %s processors, this machine has %s" % (tag, match.group(4), python.machine)
    if match.group(2) and python.glibc:
        wanted = (int(match.group(2)), int(match.group(3)))
        if wanted > tuple(int(part) for part in python.glibc.split('.')[:2]):
            return "%s wants glibc %d.%d or newer, this machine has %s" % ((tag,) + wanted + (python.glibc,))
    return None


def why_not(path, python):
    """Why this wheel cannot be installed for this Python, its tags taken apart; an empty list if it can."""
    wheel = parse_wheel(path)
    if wheel is None:
        return ["%s is not named as a wheel is (name-version-python-abi-platform.whl)" % os.path.basename(path)]
    reasons = []
    if not fits_python(wheel, python):
        wanted = ' or '.join(words_for_python_tag(tag) for tag in wheel.python.split('.'))
        reasons.append("Python tag %s: it is for %s, and %s is %s %s"
                       % (wheel.python, wanted, python.path, python.implementation, python.version))
    platforms = [why_not_platform(tag, python) for tag in wheel.platform.split('.')]
    if None not in platforms:
        reasons.append("platform tag %s: %s" % (wheel.platform, '; '.join(platforms)))
    if not reasons and wheel.abi.startswith('cp') and wheel.abi != 'cp' + python.version.replace('.', ''):
        reasons.append("ABI tag %s: it was built for another variant of Python (a trailing t means free-threaded)"
                       % wheel.abi)
    return reasons
