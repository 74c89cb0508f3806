"""Files of the collection that easyconfigs name, lock files and scripts; and programs that it has locked for itself."""
import ast
import contextlib
import os
import shutil
import subprocess

from hpc_pytorch import UsersProblem, collection_path

# No name is in two of them.
ROOMS = ('locks', 'scripts', os.path.join('scripts', 'examples'))


def named_file(easyconfig, name):
    """The path of a file that an easyconfig names: beside it, else in the collection; None where neither has it."""
    places = [os.path.dirname(os.path.abspath(easyconfig))] + [collection_path(room) for room in ROOMS]
    return next(filter(os.path.isfile, [os.path.join(place, name) for place in places]), None)


def plain_values(text):
    """The parameters of an easyconfig that have no constants of EasyBuild's in them: {name: value}."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with contextlib.suppress(ValueError):
                found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def locked_program(name, lock):
    """A program in an environment that is made of environments/LOCK.txt when it is needed; else the user's."""
    here = collection_path('environments')
    make, environment = os.path.join(here, 'make-environment'), os.path.join(os.path.dirname(here), '.venv-' + lock)
    if os.path.exists(make):
        if subprocess.run([make, environment, os.path.join(here, lock + '.txt')]).returncode:
            raise UsersProblem("%s could not be installed; see above" % name)
        return os.path.join(environment, 'bin', name)
    if not shutil.which(name):
        raise UsersProblem("%s is not found; install it: pip install %s" % (name, name))
    return name
