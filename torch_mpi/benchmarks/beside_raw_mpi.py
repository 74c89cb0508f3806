#!/usr/bin/env python3
"""Measure torch_mpi against raw MPI, gloo and PyTorch's own ProcessGroupMPI in one run, and print a table.

usage: beside_raw_mpi.py [--mpirun "mpirun -n 2"] [--mpicc mpicc] [--largest BYTES] [--rounds N] [--batch N]

Run it with the Python that has torch and torch_mpi. With ``$BUILTIN_MPI`` set to an extension module that exposes
PyTorch's ProcessGroupMPI (with ``create``), that is measured too. Each contender runs once in each round, in turn, so
that a change on the machine meets all of them; the figure is the least of the rounds' medians.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
OPERATIONS = ["all_reduce", "all_gather", "send_recv"]
SIZES = [8, 64, 512] + [4 << 10 + 2 * step for step in range(9)]  # to 256 MB


def sizes(largest, batch):
    """The sizes to measure up to this one, each with how many operations are timed as one."""
    found = []
    for size in SIZES:
        if size <= largest:
            found += [str(size), str(batch if size <= 64 << 10 else max(batch // 10, 1) if size <= 4 << 20 else 1)]
    return found


def contenders(directory, mpicc):
    """Name → command of each rank."""
    raw = os.path.join(directory, "raw")
    subprocess.run([mpicc, "-O2", os.path.join(HERE, "raw.c"), "-o", raw], check=True)
    python = [sys.executable, os.path.join(HERE, "operations.py")]
    found = {"raw": [raw], "mpi": python + ["mpi", "group"],
             "mpi.n": ["env", "TORCH_MPI_COMPARE=0"] + python + ["mpi", "group"],
             "mpi.f": python + ["mpi", "functions"],
             "gloo": python + ["gloo", "group"], "fake": python + ["fake", "group"],
             "fake.f": python + ["fake", "functions"]}
    if "BUILTIN_MPI" in os.environ:
        found["builtin"] = python + ["builtin", "group"]
    return found


def measure(command, turn, directory):
    """{(operation, bytes): microseconds} of one contender."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_FILE=os.path.join(directory, "meeting%d" % turn),
                       OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    found = {(row[0], int(row[1])): float(row[2]) for row in rows if len(row) == 3 and row[0] in OPERATIONS}
    if not found:
        sys.exit("%s\nended with status %d:\n%s" % (" ".join(command), done.returncode, done.stderr[-3000:]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mpirun", default="mpirun -n 2", help="starts the ranks")
    parser.add_argument("--mpicc", default="mpicc", help="compiles raw.c")
    parser.add_argument("--largest", type=int, default=256 << 20, help="bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=100, help="so many small operations are timed as one; fewer where "
                        "ranks share cores, as each of raw MPI then takes milliseconds")
    arguments = parser.parse_args()
    best, turn = {}, 0
    with tempfile.TemporaryDirectory() as directory:
        each = contenders(directory, arguments.mpicc)
        for _ in range(arguments.rounds):
            for name, command in each.items():
                turn += 1
                ranks = shlex.split(arguments.mpirun)
                found = measure(ranks + command + sizes(arguments.largest, arguments.batch), turn, directory)
                for key, time in found.items():
                    best.setdefault(key, {})[name] = min(time, best.get(key, {}).get(name, time))
    print("%-11s %10s " % ("operation", "bytes") + " ".join("%10s" % name for name in each) + "   mpi/raw")
    for (operation, size), row in sorted(best.items(), key=lambda one: (OPERATIONS.index(one[0][0]), one[0][1])):
        print("%-11s %10d " % (operation, size) + " ".join("%10.1f" % row.get(name, -1) for name in each)
              + "   %7.2f" % (row["mpi"] / row["raw"]))


if __name__ == "__main__":
    main()
