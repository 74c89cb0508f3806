"""The MPIs of this machine, and PyTorch and torch_mpi installed for them as a user does it."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from common import CCACHE, kept, locked

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
CHECKOUT = HERE.parent.parent
TORCH = os.environ.get("TEST_TORCH", "2.13.0")
CACHE = CHECKOUT / ".local" / "test-cache" / "torch_mpi"

TRAINERS = ["accelerate==1.15.0", "transformers==5.23.0"]

# Name → the suffix of Debian's programs for it and the options its mpirun needs here.
MPIS = {
    "mpich": [],
    "openmpi": ["--oversubscribe", "--bind-to", "none"],
}


def environment(**more):
    """A clean one: nobody's PYTHONPATH, one thread a rank, root may start Open MPI.

    UCX opens every network interface that it sees, and ends where one goes meanwhile, as those of other tests do.
    """
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "OMPI_", "PMI_", "TORCH", "MPI"))}
    kept.update(OMP_NUM_THREADS="1", UCX_NET_DEVICES="lo", OMPI_ALLOW_RUN_AS_ROOT="1",
                OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    kept.update(more)
    return kept


def make_venv(folder, torch):
    """A venv with this PyTorch and what its tests need; returns its Python."""
    python = folder / "bin" / "python"
    numpy = "numpy<2" if tuple(map(int, torch.split(".")[:2])) < (2, 3) else "numpy"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "torch==" + torch, numpy, "expecttest", "setuptools",
                    "wheel"], check=True, env=environment())
    return str(python)


def kept_venv(name="venv", make=make_venv):
    """The Python of a venv with PyTorch, kept between runs; the file `whole` says so, as no venv can be renamed."""
    venv = CACHE / ("%s-%s" % (name, TORCH))
    with locked(venv):
        if not (venv / "whole").exists():
            shutil.rmtree(venv, ignore_errors=True)
            make(venv, TORCH)
            (venv / "whole").touch()
    return str(venv / "bin" / "python")


def make_venv_of_trainers(folder, _, packages=TRAINERS):
    """A venv with such packages on top of the one with PyTorch, which pip sees."""
    below = kept_venv()
    site = subprocess.run([below, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], check=True,
                          env=environment(), stdout=subprocess.PIPE, text=True).stdout
    subprocess.run([below, "-m", "venv", folder], check=True)
    next(folder.glob("lib/python3*/site-packages")).joinpath("below.pth").write_text(site)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", *packages], check=True, env=environment())


def mpirun(mpi):
    """The command that starts processes of this MPI, but for their number."""
    return ["mpirun." + mpi] + MPIS[mpi]


def install(compiler, python, prefix):
    """As the README says: with pip, into a prefix, offline. From a copy, to leave no build folder in the checkout."""
    source = prefix.parent / "source"
    shutil.copytree(CHECKOUT / "torch_mpi", source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    done = subprocess.run(
        [python, "-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", "--prefix", prefix, source],
        env=environment(MPICXX=str(compiler), **dict(CCACHE, PATH="/usr/lib/ccache:" + os.environ["PATH"])),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-6000:]


def build(variant, flags, python):
    """A prefix with torch_mpi, once for all processes and runs that have the same sources, compiler and PyTorch.

    The variant is the suffix of the compiler's name, and what tells it from others of the same compiler.
    """
    show = subprocess.run(["mpicxx." + variant.split("-")[0], "-show"], check=True, stdout=subprocess.PIPE).stdout
    state = hashlib.sha256(repr((show, flags, python, TORCH)).encode())
    for path in sorted(path for path in (CHECKOUT / "torch_mpi").rglob("*") if path.is_file()):
        state.update(str(path).encode() + path.read_bytes())
    place = CACHE / "builds" / variant / state.hexdigest()[:16]

    def make(partial):
        for older in place.parent.glob("*"):
            if older.is_dir() and time.time() - older.stat().st_mtime > 86400:
                shutil.rmtree(older)
        partial.mkdir(parents=True)
        compiler = partial / "mpicxx"
        compiler.write_text('#!/bin/sh\nexec mpicxx.%s "$@" %s\n' % (variant.split("-")[0], flags))
        compiler.chmod(0o755)
        install(compiler, python, partial / "prefix")
    return kept(place, make) / "prefix"


class Installed:
    """torch_mpi for one MPI, in a prefix of its own."""

    def __init__(self, mpi, python, prefix):
        self.mpi, self.python, self.prefix = mpi, python, prefix
        self.mpirun = mpirun(mpi)
        self.site = next(prefix.glob("**/torch_mpi/__init__.py")).parent.parent

    def environment(self, **variables):
        """One in which this torch_mpi is found."""
        return environment(**dict({"PYTHONPATH": str(self.site)}, **variables))

    def run(self, ranks, program, *arguments, timeout=1200, options=(), status=0, **variables):
        """Run one of the programs, or with -m a module, on so many ranks; returns its output. `status` None: any."""
        program = program if program == "-m" else PROGRAMS / program
        command = self.mpirun + list(options) + ["-n", str(ranks), self.python, *map(str, [program, *arguments])]
        done = subprocess.run(command, env=self.environment(**variables), timeout=timeout,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert status is None or done.returncode == status, done.stdout[-6000:]
        return done.stdout

    def alone(self, code, status=0, cwd=None, **variables):
        """Run Python code without mpirun."""
        done = subprocess.run([self.python, "-c", code], timeout=1200, cwd=cwd, stdin=subprocess.DEVNULL, text=True,
                              env=self.environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert status is None or done.returncode == status, done.stdout
        return done.stdout
