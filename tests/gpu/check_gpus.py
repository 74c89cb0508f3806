#!/usr/bin/env python3
"""torch_mpi on real GPUs, by anybody who has one: two ranks share it where there is only one.

    python tests/gpu/check_gpus.py [--mpi mpicxx mpirun] [--keep FOLDER]

Needs a PyTorch with CUDA or ROCm in this Python, setuptools and wheel beside it, and an MPI; no network. Compiles
torch_mpi for that MPI, and runs the programs of torch_mpi/tests on the GPU: every collective on tensors whose contents
are still to come, on two streams, copied through pinned memory and, where MPI says that it takes them, handed over as
they are; ``pytorch-bandwidth``; DistributedDataParallel against the CPU. Prints a table;
ends with 1 when something failed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent


def arguments():
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", nargs=2, default=["mpicxx", "mpirun"], metavar=("MPICXX", "MPIRUN"))
    parser.add_argument("--keep", type=Path, help="where torch_mpi is compiled; left there for the next time")
    return parser.parse_args()


def steps():
    """Name → (arguments of the program, what each rank prints when it is right, variables)."""
    programs = CHECKOUT / "torch_mpi" / "tests" / "programs"
    found = {}
    copied = "GPU tensors are right; copied through pinned memory: collectives True, messages True"
    found["every collective, through pinned memory"] = ([programs / "gpu_tensors.py"], copied,
                                                        {"TORCH_MPI_GPU_AWARE": "0"})
    found["every collective, as MPI says"] = ([programs / "gpu_tensors.py"], "GPU tensors are right", {})
    # not NCCL, which refuses two ranks on one GPU
    found["bandwidth"] = ([CHECKOUT / "hpc_pytorch" / "scripts" / "pytorch-bandwidth", "mpi", "gloo", "--to",
                           "4M", "--seconds", "0.1"], None, {})
    found["DDP as on the CPU"] = ([HERE / "ddp_on_gpu.py"], "as on the CPU", {})
    return found


def main():
    """Compile, run, report."""
    import torch
    if not torch.cuda.is_available():
        sys.exit("expected a GPU that this PyTorch (%s) can use, found none" % torch.__version__)
    given = arguments()
    for program in given.mpi:
        if not shutil.which(program):
            sys.exit("expected %s on PATH, found none; name your MPI's with --mpi MPICXX MPIRUN" % program)
    begin, failed = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        if not (folder / "prefix").exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copytree(CHECKOUT / "torch_mpi", folder / "source")
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-build-isolation",
                            "--no-deps", "--prefix", folder / "prefix", folder / "source"], check=True,
                           env=dict(os.environ, MPICXX=given.mpi[0]))
        site = next((folder / "prefix").glob("**/torch_mpi/__init__.py")).parent.parent
        for name, (program, right, variables) in steps().items():
            start = time.monotonic()
            done = subprocess.run([given.mpi[1], "-n", "2", sys.executable, *map(str, program)], text=True,
                                  env=dict(os.environ, PYTHONPATH=str(site), **variables), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240)
            good = done.returncode == 0 and (right is None or done.stdout.count(right) == 2)
            failed += not good
            print("%-50s %-6s %4.0f s" % (name, "right" if good else "FAILED", time.monotonic() - start), flush=True)
            shown = 40 if right is None or not good else 2
            print("\n".join("    " + line for line in done.stdout.splitlines()[-shown:]))
    print("%s, torch %s: %s in %.0f s" % (torch.cuda.get_device_name(), torch.__version__,
                                          "%d failed" % failed if failed else "all right", time.monotonic() - begin))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
