"""PyTorch's MPI backend decides at run time whether MPI takes GPU memory: the change to its source that makes it so.

PyTorch itself believes Open MPI alone. Its decision is one function, which is replaced as a whole, whatever it has come
to say in the version at hand, by a call of gpu_aware.h, the same file that torch_mpi is compiled with. A tree in which
one of the places is not found is left as it was.
"""
import hashlib
import os
import re
import shutil
from collections import namedtuple
from pathlib import Path

from hpc_pytorch import HERE, UsersProblem, collection_path, write_atomically

BACKEND = os.path.join('torch', 'csrc', 'distributed', 'c10d', 'ProcessGroupMPI.cpp')
DECISION = 'gpu_aware.h'
DECISION_PATH = os.path.join(collection_path('torch_mpi'), 'src', DECISION)

# One place in the source: what it is called for people, what it looks like, what stands there afterwards.
Place = namedtuple('Place', 'name pattern replacement')
PLACES = (
    Place("the line '#ifdef USE_C10D_MPI' after the first include",
          re.compile(r'^#ifdef USE_C10D_MPI\n', re.M),
          '#ifdef USE_C10D_MPI\n\n#include "%s" // whether MPI takes GPU memory, decided at run time\n' % DECISION),
    Place("the function 'bool cudaAwareMpiCheck() {' up to the first line that is '}'",
          re.compile(r'^(?:static |inline )*bool cudaAwareMpiCheck\(\) \{\n.*?^\}\n', re.M | re.S),
          Path(HERE, 'source', 'gpu_aware_mpi.txt').read_text()),
)
# The function and the one call of it, for a GPU tensor: only there is an error the right thing to answer with.
USES = re.compile(r'\bcudaAwareMpiCheck\b')
CALL = re.compile(r'tensor\.is_cuda\(\) && !cudaAwareMpiCheck\(\)')


def patched(text):
    for place in PLACES:
        found = len(place.pattern.findall(text))
        if found != 1:
            raise UsersProblem("expected %s once, found it %d times" % (place.name, found))
    if len(USES.findall(text)) != 2 or len(CALL.findall(text)) != 1:
        raise UsersProblem("expected the call 'tensor.is_cuda() && !cudaAwareMpiCheck()' once, and no other")
    for place in PLACES:
        text = place.pattern.sub(lambda _: place.replacement, text)
    return text


def identity():
    """Return what of this goes into a wheel, for the wheel's identity."""
    replacements = ''.join(place.replacement for place in PLACES).encode()
    return hashlib.sha256(replacements + Path(DECISION_PATH).read_bytes()).hexdigest()


def apply(tree):
    """Change a source tree; a tree that was changed already stays as it is."""
    path = os.path.join(tree, BACKEND)
    if not os.path.isfile(path):
        raise UsersProblem("there is no file %s" % BACKEND)
    text = Path(path).read_text(encoding='utf-8')
    done = all(place.replacement in text for place in PLACES)
    new = text if done else patched(text)
    # the file that is included comes first: a tree whose backend was changed compiles
    shutil.copyfile(DECISION_PATH, os.path.join(os.path.dirname(path), DECISION))
    write_atomically(path, new)
