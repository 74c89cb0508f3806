"""python -m torch_mpi.check, what a user types to see what works."""

import pytest

pytestmark = pytest.mark.slow


def test_everything_is_right(installed):
    # the variable must not matter where torchcomms is not installed
    output = installed.run(2, "-m", "torch_mpi.check", TORCH_DISTRIBUTED_USE_TORCHCOMMS="1")
    lines = [line.split() for line in output.splitlines() if line.startswith("cpu ")]
    assert len(lines) == 6 and all(line[2] == "yes" for line in lines), output
    assert all(float(time) > 0 for line in lines for time in line[3:]), output


def test_a_wrong_result_is_told(installed, tmp_path):
    program = tmp_path / "wrong.py"
    program.write_text("import sys, torch, torch.distributed as dist\nfrom torch_mpi import check\n"
                       "check.SECONDS = 0.01\ndist.broadcast = lambda tensor, root: None\nsys.exit(check.main())\n")
    output = installed.run(2, program, status=1)
    assert "NO: float32 float64" in output and output.count("yes") == 5, output
