"""How it gets into a program, and that it says clearly when it cannot work."""

import os
import shutil
import subprocess
import sys

import pytest
from mpi_installation import PROJECT, copy_sources, environment, mpi_program, mpirun

pytestmark = pytest.mark.slow

AVAILABLE = ("import sys, torch.distributed as d; print(d.distributed_c10d.is_mpi_available(), d.is_mpi_available(), "
             "'torch_mpi' in sys.modules)")
# By its name; for programs that choose by what there is, as MPI did not start this one; imported.
HERE_BY_NAME, ABSENT, ABSENT_IMPORTED = "True False True", "False False False", "False False True"
OFF = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def test_a_prefix_on_pythonpath_is_enough(installed):
    assert installed.alone(AVAILABLE).strip().endswith(HERE_BY_NAME)


@pytest.mark.nightly
def test_without_the_entry_point_it_is_imported(installed):
    """As for torch before 2.5; or before torch, which has it import itself once more."""
    assert installed.alone("import torch_mpi; " + AVAILABLE).strip().endswith(HERE_BY_NAME)
    assert installed.alone(AVAILABLE, **OFF).strip().endswith(ABSENT)
    assert installed.alone("import torch_mpi; " + AVAILABLE, **OFF).strip().endswith(HERE_BY_NAME)


@pytest.mark.parametrize("variables, expected", [({}, HERE_BY_NAME), (OFF, ABSENT)])
def test_a_site_directory_is_enough_for_any_version(installed, tmp_path, variables, expected):
    """The .pth file, which a directory on PYTHONPATH does not have read and a site directory has; unless forbidden."""
    site = tmp_path / "site"
    shutil.copytree(installed.site, site, ignore=shutil.ignore_patterns("entry_points.txt"))
    code = "import site; site.addsitedir(%r); %s" % (str(site), AVAILABLE)
    assert installed.alone(code, PYTHONPATH="", **variables).strip().endswith(expected)


def test_installed_is_not_wanted(installed, tmp_path):
    """Programs that choose "mpi" where it is available get it from mpirun alone, and not under torchrun."""
    program = tmp_path / "program.py"
    program.write_text("import os, torch, torch.distributed as d\n"
                       "d.init_process_group('mpi' if d.is_mpi_available() else 'gloo')\n"
                       "t = torch.ones(1); d.all_reduce(t)\n"
                       "os.write(1, b'%s %d\\n' % (d.get_backend().encode(), t.item()))\n"
                       "d.destroy_process_group()\n")
    assert installed.run(2, program).count("mpi 2") == 2
    under_torchrun = ("import sys; from torch.distributed.run import main; "
                      "main(['--standalone', '--nproc-per-node=2', %r])" % str(program))
    assert installed.alone(under_torchrun).count("gloo 2") == 2


@pytest.mark.nightly
def test_import_torch_beside_the_sources(installed):
    """A folder torch_mpi in the current one is not taken for the installed package."""
    for folder in (PROJECT.parent, PROJECT):
        assert installed.alone(AVAILABLE, cwd=folder).strip().endswith(HERE_BY_NAME)


@pytest.mark.parametrize("backend", ["gloo", pytest.param("mpi", marks=pytest.mark.nightly)])
def test_rendezvous(installed, backend):
    """Any backend is told by MPI who it is and where to meet."""
    output = installed.run(3, "rendezvous.py", backend)
    assert output.count("met with %s" % backend) == 3, output


def test_too_few_open_files_for_a_rendezvous(installed):
    """TCPStore would reset connections."""
    output = installed.alone("import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (150, 150)); import torch.distributed "
                             "as d; d.init_process_group('gloo', init_method='mpi://')", status=1)
    assert "1 ranks meet at the first one, which needs 257 open files, but at most 150 are allowed" in output, output


def test_another_mpi_in_pythons_own_directories(python, tmp_path):
    """The wrapper's come before those of the venv, and before where Debian's Python has its libraries."""
    log = tmp_path / "log"
    wrapper = tmp_path / "mpicxx"
    wrapper.write_text('#!/bin/sh\n'
                       'case " $* " in *" -show "*) echo g++ -I/of/the/wrapper -L/of/the/wrapper -lmpi; exit;; esac\n'
                       'echo "$@" >>%s\nwhile [ "$1" != -o ]; do shift; done; : >"$2"\n' % log)
    wrapper.chmod(0o755)
    (tmp_path / ".pydistutils.cfg").write_text("[build_ext]\nlibrary_dirs = /of/python\n")
    subprocess.run([python, "setup.py", "build_ext"], cwd=copy_sources(tmp_path / "source"), check=True,
                   env=environment(MPICXX=str(wrapper), HOME=str(tmp_path)), stdout=subprocess.DEVNULL)
    words = log.read_text().split()
    assert [word for word in words if word.startswith("-I")][0] == "-I/of/the/wrapper"
    assert words.index("-L/of/the/wrapper") < words.index("-L/of/python"), words


def test_one_process_without_mpirun(installed):
    assert "rank 0 of 1" in installed.alone(
        "import torch.distributed as d; d.init_process_group('mpi'); print('rank', d.get_rank(), 'of',"
        " d.get_world_size())")


def test_another_mpi_loaded(installed):
    """The other family's library comes first: refused with its name, and torch says that there is no MPI."""
    other = {"mpich": "libmpi.so.40", "openmpi": "libmpich.so.12"}[installed.mpi]
    output = installed.alone("import torch_mpi; " + AVAILABLE, LD_PRELOAD=other)
    assert "torch_mpi: it was built for" in output and "but the MPI library loaded in this process is" in output, output
    assert ABSENT_IMPORTED in output, output


def test_started_by_the_other_mpirun(installed):
    other = {"mpich": "openmpi", "openmpi": "mpich"}[installed.mpi]
    if not mpi_program("mpirun", other):
        pytest.skip("no mpirun of %s" % other)
    kept, installed.mpirun = installed.mpirun, mpirun(other)
    try:
        output = installed.run(2, "faults.py", "availability", status=None)
    finally:
        installed.mpirun = kept
    assert "another MPI started this program" in output, output


def test_library_missing(installed, tmp_path):
    """Without its MPI library: torch still works, and says once why there is no mpi backend."""
    site = tmp_path / "site"
    shutil.copytree(installed.site, site)
    extension = next(site.glob("torch_mpi/_c*.so"))
    library = {"mpich": b"libmpich.so.12", "openmpi": b"libmpi.so.40"}[installed.mpi]
    extension.write_bytes(extension.read_bytes().replace(library, library[:-1] + b"9"))
    output = installed.alone(AVAILABLE, PYTHONPATH=str(site))
    assert "cannot open shared object file" in output and "load the MPI it was built for" in output, output
    assert ABSENT_IMPORTED in output, output


def test_other_torch(installed, tmp_path):
    """Built for another version of torch: says so."""
    site = tmp_path / "site"
    shutil.copytree(installed.site, site)
    with open(site / "torch_mpi" / "_built.py", "a") as note:
        note.write("torch_version = '2.1.0'\n")
    output = installed.alone(AVAILABLE, PYTHONPATH=str(site))
    assert "it was built for torch 2.1.0 and this is" in output and "Traceback" not in output, output
    assert ABSENT_IMPORTED in output, output


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python with pip, an old setuptools and wheel alone."""
    venv = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin" / "python", "-m", "pip", "install", "-q", "setuptools<70", "wheel"], check=True,
                   env=environment())
    return venv / "bin" / "python"


@pytest.mark.parametrize("version, message", [
    (None, "expected PyTorch 2.1 or newer in {python}, found no PyTorch"),
    ("2.0.1+cu117", "expected PyTorch 2.1 or newer in {python}, found 2.0.1+cu117"),
    ("1.13.1", "expected PyTorch 2.1 or newer in {python}, found 1.13.1"),
])
def test_no_torch_or_too_old(bare, tmp_path, version, message):
    """pip says in one line what is missing, before anything is compiled."""
    source, place = copy_sources(tmp_path / "source"), tmp_path / "place"
    place.mkdir()
    if version:
        (place / "torch.py").write_text("__version__ = %r\n" % version)
    done = subprocess.run([bare, "-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", source],
                          env=environment(PYTHONPATH=str(place)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    assert done.returncode != 0 and message.format(python=bare) in done.stdout, done.stdout
    assert "Traceback" not in done.stdout, done.stdout


def test_old_setuptools(bare, python, tmp_path):
    """It gets as far as the compiler with the setuptools that Python 3.11 puts into a venv."""
    source = copy_sources(tmp_path / "source")
    setuptools = subprocess.run(
        [bare, "-c", "import os, setuptools; print(os.path.dirname(os.path.dirname(setuptools.__file__)))"],
        check=True, stdout=subprocess.PIPE, text=True, env=environment()).stdout.strip()
    done = subprocess.run(
        [python, "setup.py", "build_ext"], cwd=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment(PYTHONPATH=setuptools, MPICXX="false"))
    assert "false' failed" in done.stdout, done.stdout


def test_no_compiler(python, tmp_path):
    """The build says what it misses."""
    source = copy_sources(tmp_path / "source")
    done = subprocess.run([python, "setup.py", "build_ext"], cwd=source, env=environment(MPICXX=str(tmp_path / "none")),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode != 0 and "expected an MPI C++ compiler" in done.stdout, done.stdout
    assert "Traceback" not in done.stdout


def test_forked_process_leaves_mpi_alone(installed):
    """A data loader's worker: it ends without touching MPI, and is refused when it tries."""
    code = ("import os, torch, torch.distributed as d; d.init_process_group('mpi'); child = os.fork()\n"
            "if child == 0:\n"
            "    try: d.all_reduce(torch.ones(1))\n"
            "    except RuntimeError as error: print(error)\n"
            "    raise SystemExit(0)\n"
            "os.waitpid(child, 0); d.all_reduce(torch.ones(1)); print('parent goes on')")
    output = installed.alone(code)
    assert "MPI cannot be used any more" in output and "parent goes on" in output, output


def test_nothing_is_left_in_the_checkout(installed):
    assert not os.path.exists(PROJECT / "build")
