"""The Python with PyTorch of the tests of torch_mpi."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "torch_mpi"))


@pytest.fixture(scope="session")
def python():
    from mpi_installation import kept_venv
    return kept_venv()
