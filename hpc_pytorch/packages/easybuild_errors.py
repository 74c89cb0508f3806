"""EasyBuild shows its own errors without a traceback."""
from contextlib import contextmanager

from easybuild.tools.build_log import EasyBuildError

from hpc_pytorch import UsersProblem


@contextmanager
def as_easybuild_error(before=''):
    """Raise what a user can mend as EasyBuild's error, with this in front of its message."""
    try:
        yield
    except UsersProblem as problem:
        raise EasyBuildError("%s%s", before, problem)
