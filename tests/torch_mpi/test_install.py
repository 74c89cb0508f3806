"""How it gets into a program, and that it says clearly when it cannot work."""

import os
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.slow

AVAILABLE = "import sys, torch.distributed as d; print(d.is_mpi_available(), 'torch_mpi' in sys.modules)"


def test_a_prefix_on_pythonpath_is_enough(installed):
    assert installed.alone(AVAILABLE).strip().endswith("True True")


def test_without_the_entry_point_it_is_imported(installed):
    """As for torch before 2.5."""
    off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert installed.alone(AVAILABLE, **off).strip().endswith("False False")
    assert installed.alone("import torch_mpi; " + AVAILABLE, **off).strip().endswith("True True")


def test_a_site_directory_is_enough_for_any_version(installed):
    """The .pth file, which a directory on PYTHONPATH does not have read and a site directory has."""
    code = "import site; site.addsitedir(%r); %s" % (str(installed.site), AVAILABLE)
    assert installed.alone(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONPATH="").strip().endswith("True True")


def test_one_process_without_mpirun(installed):
    assert "rank 0 of 1" in installed.alone(
        "import torch.distributed as d; d.init_process_group('mpi'); print('rank', d.get_rank(), 'of',"
        " d.get_world_size())")


def test_another_mpi_loaded(installed):
    """The other family's library comes first: refused with its name, and torch says that there is no MPI."""
    other = {"mpich": "libmpi.so.40", "openmpi": "libmpich.so.12"}[installed.mpi]
    output = installed.alone("import torch_mpi; " + AVAILABLE, LD_PRELOAD=other)
    assert "torch_mpi was built for" in output and "but the MPI library loaded in this process is" in output, output
    assert "False True" in output, output


def test_started_by_the_other_mpirun(installed):
    other = {"mpich": "openmpi", "openmpi": "mpich"}[installed.mpi]
    installed.mpirun, kept = ["mpirun." + other] + (["--oversubscribe"] if other == "openmpi" else []), installed.mpirun
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
    assert "False True" in output, output


def test_other_torch(installed, tmp_path):
    """Built for another version of torch: says so."""
    site = tmp_path / "site"
    shutil.copytree(installed.site, site)
    (site / "torch_mpi" / "_built.py").write_text("torch_version = '1.0.0'\ncompiler = 'mpicxx'\n")
    output = installed.alone(AVAILABLE, PYTHONPATH=str(site))
    assert "it was built for torch 1.0.0 and this is" in output, output


def test_no_compiler(python, tmp_path):
    """The build says what it misses."""
    from mpis import CHECKOUT, environment
    source = tmp_path / "source"
    shutil.copytree(CHECKOUT / "torch_mpi", source)
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
    from mpis import CHECKOUT
    assert not os.path.exists(CHECKOUT / "torch_mpi" / "build")
