"""The MPIs of this machine, and PyTorch and torch_mpi installed for them as a user does it."""

import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
PROJECT = HERE.parent
TORCH = os.environ.get("TEST_TORCH", "2.13.0")
# Venvs, builds and the compiler's results, kept between runs and for all checkouts; $HOME may be read-only.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_mpi-tests"
if not os.access(CACHE.parent if CACHE.parent.exists() else CACHE.parent.parent, os.W_OK):
    CACHE = PROJECT.parent / ".local" / "torch_mpi-tests"

# What was compiled in an earlier run is found again; the directory of Debian's ccache need not exist.
CCACHE = {"CCACHE_DIR": str(CACHE / "ccache"), "CCACHE_NOHASHDIR": "1", "PATH": "/usr/lib/ccache:" + os.environ["PATH"]}

TRAINERS = ["accelerate==1.15.0", "transformers==5.23.0"]

# Name → the options its mpirun needs here.
MPIS = {
    "mpich": [],
    "openmpi": ["--oversubscribe", "--bind-to", "none"],
}

# What the compiler is told beyond what everyone's is. To optimise takes a minute, which only ./test nightly does.
VARIANTS = {
    "mpich": "-O0",
    "openmpi": "",
    "mpich-memory": "-O0 -g1 -fsanitize=address,undefined",
    "mpich-threads": "-O0 -g1 -fsanitize=thread",
}


@functools.lru_cache(maxsize=None)
def plain_mpi():
    """Return the name of the MPI whose programs have no suffix."""
    version = subprocess.run(["mpirun", "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return "openmpi" if "Open MPI" in version.stdout or "open-mpi" in version.stdout else "mpich"


def mpi_program(name, mpi):
    """Return the path of mpicc, mpicxx or mpirun of this MPI: Debian's have a suffix. None where there is none."""
    suffixed = shutil.which(name + "." + mpi)
    if suffixed or not shutil.which("mpirun") or plain_mpi() != mpi:
        return suffixed
    return shutil.which(name)


def environment(**more):
    """Return a clean environment: nobody's PYTHONPATH, one thread a rank, root may start Open MPI.

    UCX opens every network interface that it sees, and ends where one goes meanwhile, as those of other tests do.
    """
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith(("PYTHON", "OMPI_", "PMI_", "TORCH", "MPI"))}
    clean.update(OMP_NUM_THREADS="1", UCX_NET_DEVICES="lo", OMPI_ALLOW_RUN_AS_ROOT="1",
                 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    clean.update(more)
    return clean


@contextmanager
def locked(path):
    """Allow one process at a time, of this run of the tests and of others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open("%s.lock" % path, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def python_with_torch():
    """Return this Python if it has PyTorch and no other version is asked for, else that of a venv."""
    if "TEST_TORCH" not in os.environ and importlib.util.find_spec("torch"):
        return sys.executable
    return kept_venv()


def make_venv(folder, torch):
    """Make a venv with this PyTorch and what its tests need; return its Python."""
    python = folder / "bin" / "python"
    numpy = "numpy<2" if tuple(map(int, torch.split(".")[:2])) < (2, 3) else "numpy"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    # not all to byte code, but later what is imported
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-compile", "torch==" + torch, numpy, "expecttest",
                    "setuptools", "wheel"], check=True, env=environment())
    return str(python)


def kept_venv(name="venv", make=make_venv):
    """Return the Python of a venv with PyTorch, kept between runs; the file `whole` marks a complete one."""
    venv = CACHE / ("%s-%s" % (name, TORCH))
    with locked(venv):
        if not (venv / "whole").exists():
            shutil.rmtree(venv, ignore_errors=True)
            make(venv, TORCH)
            (venv / "whole").touch()
    return str(venv / "bin" / "python")


def make_venv_of_trainers(folder, _, packages=TRAINERS):
    """Make a venv with such packages on top of the one with PyTorch, which pip sees."""
    below = kept_venv()
    site = subprocess.run([below, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], check=True,
                          env=environment(), stdout=subprocess.PIPE, text=True).stdout
    subprocess.run([below, "-m", "venv", folder], check=True)
    next(folder.glob("lib/python3*/site-packages")).joinpath("below.pth").write_text(site)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", "--no-compile", *packages], check=True,
                   env=environment())


def mpirun(mpi):
    """Return the command that starts processes of this MPI, but for their number."""
    return [mpi_program("mpirun", mpi)] + MPIS[mpi]


def sources():
    """Return the files that torch_mpi is built from."""
    return [path for path in sorted(PROJECT.rglob("*"))
            if path.is_file() and not {"tests", "benchmarks", "build"}.intersection(path.relative_to(PROJECT).parts)]


def copy_sources(target):
    """Copy them, to leave no build folder in the checkout; return the copy."""
    for path in sources():
        copy = target / path.relative_to(PROJECT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return target


def install(compiler, python, prefix):
    """Install as the README says: with pip, into a prefix, offline."""
    source = copy_sources(prefix.parent / "source")
    done = subprocess.run(
        [python, "-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", "--prefix", prefix, source],
        env=environment(MPICXX=str(compiler), **CCACHE), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-6000:]


def build(variant, flags, python):
    """Return a prefix with torch_mpi, built once for all that have the same sources, compiler and PyTorch.

    The variant is the name of the MPI, and what tells it from others of the same MPI.
    """
    wrapper = mpi_program("mpicxx", variant.split("-")[0])
    show = subprocess.run([wrapper, "-show"], check=True, stdout=subprocess.PIPE).stdout
    state = hashlib.sha256(repr((show, flags, python, TORCH)).encode())
    for path in sources():
        state.update(str(path.relative_to(PROJECT)).encode() + path.read_bytes())
    place = CACHE / "builds" / variant / state.hexdigest()[:16]
    with locked(place):
        if not (place / "whole").exists():
            for older in place.parent.glob("*"):
                if older.is_dir() and time.time() - older.stat().st_mtime > 86400:
                    shutil.rmtree(older)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            compiler = place / "mpicxx"
            compiler.write_text('#!/bin/sh\nexec %s "$@" %s\n' % (wrapper, flags))
            compiler.chmod(0o755)
            install(compiler, python, place / "prefix")
            (place / "whole").touch()
    return place / "prefix"


class Installed:
    """torch_mpi for one MPI, in a prefix of its own."""

    def __init__(self, mpi, python, prefix):
        self.mpi, self.python, self.prefix = mpi, python, prefix
        self.mpirun = mpirun(mpi)
        self.site = next(prefix.glob("**/torch_mpi/__init__.py")).parent.parent

    def environment(self, **variables):
        """Return one in which this torch_mpi is found."""
        return environment(**dict({"PYTHONPATH": str(self.site)}, **variables))

    def run(self, ranks, program, *arguments, timeout=1200, options=(), status=0, **variables):
        """Run one of the programs, or with -m a module, on so many ranks; return its output. `status` None: any."""
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
