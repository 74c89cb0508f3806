"""Files of the collection that easyconfigs name, lock files and scripts; and programs that it has locked for itself."""
import ast
import contextlib
import glob
import os
import re
import shutil
import subprocess
import sys

from hpc_pytorch import UsersProblem, collection_path


def directories():
    """Return the directories of files that easyconfigs name; no name is in two of them."""
    scripts = collection_path('scripts')
    locks = glob.glob(glob.escape(collection_path('easyconfigs')) + '/?/*/locks')
    return locks + [scripts, os.path.join(scripts, 'examples')]


def named_file(easyconfig, name):
    """Find a file that an easyconfig names, beside it or in the collection; None where neither has it."""
    beside = os.path.dirname(os.path.abspath(easyconfig))
    places = [beside, os.path.join(beside, 'locks')] + directories()
    return next(filter(os.path.isfile, [os.path.join(place, name) for place in places]), None)


def easyconfig_path(name):
    """Find an easyconfig by its path, or by its name in the collection; None if there is none."""
    pattern = os.path.join('?', '*', glob.escape(os.path.basename(name)))
    places = glob.glob(os.path.join(glob.escape(collection_path('easyconfigs')), pattern))
    return next(filter(os.path.isfile, [name] + places), None)


def external_modules(path):
    """List the system's modules that an easyconfig loads, in EasyBuild's order: builddependencies first."""
    with open(path, encoding='utf-8', errors='replace') as handle:
        text = re.sub(r'(?m)^ *#.*', '', handle.read())
    build = re.search(r'^builddependencies = \[.*?\]$', text, re.M | re.S)
    if build:
        text = build.group() + text.replace(build.group(), '')
    return re.findall(r"""\(['"]([^'"]+)['"],\s*EXTERNAL_MODULE\)""", text)


def plain_values(text):
    """Return the parameters of an easyconfig that have no constants of EasyBuild's in them: {name: value}."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with contextlib.suppress(ValueError):
                found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def own_uv():
    """Return the uv that was installed with EasyBuild, else the user's; None if there is none."""
    places = [os.path.dirname(sys.executable), os.environ.get('PATH', os.defpath)]
    return shutil.which('uv', path=os.pathsep.join(places))


def locked_program(name, lock):
    """Return a program in an environment that is made of LOCK.txt when it is first needed; else the user's own."""
    here = collection_path('environments')
    make = os.path.join(here, 'make-environment')
    top = os.path.dirname(os.path.dirname(here))
    place = top if os.access(top, os.W_OK) else os.path.expanduser('~/.cache/hpc-pytorch')
    environment = os.path.join(place, '.venv-' + lock)
    # an installed collection makes no environments
    if os.path.exists(os.path.join(top, 'eb')):
        if subprocess.run([make, environment, os.path.join(here, lock + '.txt')]).returncode:
            raise UsersProblem("%s could not be installed; see above" % name)
        return os.path.join(environment, 'bin', name)
    if not shutil.which(name):
        raise UsersProblem("%s is not found; install it: pip install %s" % (name, name))
    return name
