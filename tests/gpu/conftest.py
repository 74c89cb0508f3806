"""The Python with PyTorch of the tests of torch_mpi."""

import pytest

from torch_mpi.tests.mpi_installation import kept_venv


@pytest.fixture(scope="session")
def python():
    return kept_venv()
