"""PyTorch's own distributed test class: whatever passes on gloo passes here, on real MPI processes."""

import pytest
from programs import upstream_suite
from mpi_installation import environment, mpirun

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def on_gloo(python, tmp_path_factory):
    """The results of gloo on this machine."""
    return upstream_suite.launch(mpirun("mpich") + ["-n", "2"], "gloo", str(tmp_path_factory.mktemp("gloo")),
                                 ["test_*"], timeout=200, python=python, environment=environment())


def test_upstream_class(installed, on_gloo, tmp_path):
    summary = upstream_suite.launch(installed.mpirun + ["-n", "2"], "mpi", str(tmp_path), ["test_*"], timeout=200,
                                    python=installed.python, environment=installed.environment())
    assert not upstream_suite.lost(on_gloo, summary)
    passed = [name for name, one in summary.items() if one["status"] == upstream_suite.PASSED]
    assert len(passed) > 95, sorted(passed)
