"""PyTorch's own distributed tests and those of this directory, on many versions of PyTorch.

    python torch_versions.py FOLDER [--torch 2.1.2 ...] [--mpis mpich openmpi] [--ranks 2 4]

Makes a venv in FOLDER for each version, installs torch_mpi there for each MPI as the README says, runs PyTorch's test
class on gloo and on mpi, and the programs below; then prints the table of the README, and by name what passes on gloo
and not on mpi. A wheel with CUDA takes 6 GB, so a venv made here is removed when its version is done, while one that
was there is left. Whatever has its result in FOLDER is not run again, so it can be stopped and started.
"""

import argparse
import json
import re
import shutil
import subprocess
from pathlib import Path

from programs import upstream_suite
from mpi_installation import MPIS, Installed, environment, install, make_venv, mpi_program, mpirun

# The oldest supported, the newest, and some between.
VERSIONS = ["2.1.2", "2.4.1", "2.9.1", "2.13.0", "2.15.0"]

# Name → number of processes, program and arguments, what each rank prints when all is right, variables.
PROGRAMS = {
    "collectives 2": (2, ["collectives.py"], "all collectives are right", {}),
    "collectives 3": (3, ["collectives.py"], "all collectives are right", {}),
    "random_collectives": (3, ["random_collectives.py", 1000], "collectives agree with gloo", {}),
    "groups alone": (2, ["groups.py", "alone"], "all groups are right", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    "groups beside": (2, ["groups.py", "beside"], "all groups are right", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    "groups by_device": (2, ["groups.py", "by_device"], "all groups are right", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
}


class Version:
    """One version of PyTorch, and what was found with it."""

    def __init__(self, folder, torch):
        self.torch, self.venv = torch, folder / ("venv-" + torch)
        self.results = folder / "results" / torch
        self.prefixes = folder / ("prefixes-" + torch)
        self.made = False

    def python(self):
        """Its Python, in a venv that is made when it is first needed."""
        if not (self.venv / "whole").exists() and not self.venv.is_symlink():
            self.made = True
            shutil.rmtree(self.venv, ignore_errors=True)
            make_venv(self.venv, self.torch)
            (self.venv / "whole").touch()
        return str(self.venv / "bin" / "python")

    def installed(self, mpi):
        """torch_mpi for this MPI."""
        prefix = self.prefixes / mpi / "prefix"
        whole = prefix.parent / "whole"
        if not whole.exists():
            shutil.rmtree(prefix.parent, ignore_errors=True)
            prefix.parent.mkdir(parents=True)
            install(mpi_program("mpicxx", mpi), self.python(), prefix)
            whole.touch()
        return Installed(mpi, self.python(), prefix)

    def once(self, name, run):
        """What run() returned, this time or an earlier one."""
        kept = self.results / (name + ".json")
        if not kept.exists():
            self.results.mkdir(parents=True, exist_ok=True)
            print("%s: %s" % (self.torch, name), flush=True)
            found = run()
            kept.with_suffix(".part").write_text(json.dumps(found, indent=1))
            kept.with_suffix(".part").rename(kept)
        return json.loads(kept.read_text())

    def upstream(self, where, ranks):
        """PyTorch's own class, `where` it runs: "gloo" or the name of an MPI."""
        def run():
            scratch = self.results / ("%s-%d" % (where, ranks))
            shutil.rmtree(scratch, ignore_errors=True)
            start = mpirun("mpich" if where == "gloo" else where) + ["-n", str(ranks)]
            around = environment() if where == "gloo" else self.installed(where).environment()
            return upstream_suite.run_all(start, "gloo" if where == "gloo" else "mpi", str(scratch), ["test_*"],
                                         python=self.python(), environment=around)
        return self.once("%s %d" % (where, ranks), run)

    def program(self, mpi, name):
        """The number of ranks that say it is right."""
        ranks, (program, *arguments), right, variables = PROGRAMS[name]

        def run():
            meeting = self.results / "meeting"
            meeting.unlink(missing_ok=True)
            try:
                output = self.installed(mpi).run(ranks, program, *arguments, timeout=900, status=None,
                                                 MEETING_FILE=str(meeting), **variables)
            except subprocess.TimeoutExpired as error:
                output = str(error)
            (self.results / ("%s %s.txt" % (mpi, name))).write_text(output)
            return output.count(right)
        return self.once("%s %s" % (mpi, name), run)

    def title(self, mpi):
        """The name of an MPI with its version."""
        def run():
            return self.installed(mpi).alone("import torch_mpi; print(torch_mpi.library_version())")
        text = self.once("%s version" % mpi, run)
        return "%s %s" % ("Open MPI" if "Open MPI" in text else "MPICH", re.search(r"\d+\.\d+\.\d+", text).group())

    def clean(self):
        """Remove the venv, when it was made here."""
        if self.made:
            shutil.rmtree(self.venv)


def counts(summary):
    """passed / failed / skipped."""
    found = [one["status"] for one in summary.values()]
    passed, skipped = found.count(upstream_suite.PASSED), found.count(upstream_suite.SKIPPED)
    return "%d / %d / %d" % (passed, len(found) - passed - skipped, skipped)


def print_table(rows):
    """A table as in the README; the first row is its head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    line = "  ".join("=" * width for width in widths)
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    print("\n".join([line, rows[0], line] + rows[1:] + [line]))


def failing(summary):
    """The names that neither passed nor were skipped."""
    return {name for name, one in summary.items()
            if one["status"] not in (upstream_suite.PASSED, upstream_suite.SKIPPED)}


def main():
    """Run what has no result yet, and print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the venvs and the results")
    parser.add_argument("--torch", nargs="+", default=VERSIONS, help="versions, e.g. 2.13.0")
    parser.add_argument("--mpis", nargs="*", default=sorted(MPIS), choices=sorted(MPIS))
    parser.add_argument("--ranks", nargs="*", type=int, default=[2, 4], help="numbers of processes of PyTorch's class")
    arguments = parser.parse_args()
    rows, lines, wrong = [], [], 0
    for version in [Version(arguments.folder.resolve(), torch) for torch in arguments.torch]:
        for ranks in arguments.ranks:
            gloo = version.upstream("gloo", ranks)
            found = [(version.title(mpi), version.upstream(mpi, ranks)) for mpi in arguments.mpis]
            rows.append([version.torch, str(ranks), counts(gloo)] + [counts(summary) for _, summary in found])
            for title, summary in found:
                for name, message in upstream_suite.lost(gloo, summary).items():
                    wrong += 1
                    lines.append("%s, %d processes, %s: %s passes on gloo alone: %s" % (
                        version.torch, ranks, title, name, (message.strip().splitlines() or [""])[-1]))
            both = set.intersection(failing(gloo), *[failing(summary) for _, summary in found])
            lines.append("%s, %d processes: fail everywhere: %s" % (version.torch, ranks, " ".join(sorted(both))))
            lines.append("%s, %d processes: fail on gloo alone: %s" % (
                version.torch, ranks, " ".join(sorted(failing(gloo) - both))))
        for mpi in arguments.mpis:
            for name, (ranks, *_) in PROGRAMS.items():
                right = version.program(mpi, name)
                wrong += right != ranks
                lines.append("%s, %s: %s: %d of %d ranks are right" % (
                    version.torch, version.title(mpi), name, right, ranks))
        titles = [version.title(mpi) for mpi in arguments.mpis]
        version.clean()
    print_table([["torch", "processes", "gloo"] + titles] + rows)
    print("\n".join(lines))
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
