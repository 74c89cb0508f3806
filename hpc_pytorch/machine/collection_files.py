"""
Files of the collection that easyconfigs name: lock files and scripts.

Standard library only, Python 3.6.
"""
import os

from hpc_pytorch import collection_path

# No name is in two of them.
ROOMS = ('locks', 'scripts', os.path.join('scripts', 'examples'))


def named_file(easyconfig, name):
    """The path of a file that an easyconfig names: beside it, else in the collection; None where neither has it."""
    places = [os.path.dirname(os.path.abspath(easyconfig))] + [collection_path(room) for room in ROOMS]
    return next(filter(os.path.isfile, [os.path.join(place, name) for place in places]), None)
