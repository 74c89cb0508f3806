"""What a build refuses, and how it calls the compiler: quick, as a torch of a few lines stands in for the real one."""

import subprocess
import sys

import pytest
from mpi_installation import copy_sources, environment

TORCH = "__version__ = %r\nclass _C:\n    _GLIBCXX_USE_CXX11_ABI = True\n"
COMMAND = "pip install --no-build-isolation --no-deps ./torch_mpi"


@pytest.fixture
def place(tmp_path):
    """A directory for the modules of an environment; none is there yet."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def source(tmp_path):
    """A copy of the sources."""
    return copy_sources(tmp_path / "source")


def run(*command, cwd=None, **variables):
    """Run it; return its exit status and output."""
    variables = {name: str(value) for name, value in variables.items()}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment(**variables), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def load(source, place):
    """Do what pip does first, in a Python that has nothing but what lies in this place."""
    code = "import sys; sys.path[:0] = sys.argv[1:]; import torch_mpi_build"
    return run(sys.executable, "-S", "-c", code, source, place)


@pytest.mark.parametrize("modules, message", [
    ({}, "found no PyTorch"),
    ({"torch": "2.0.1+cu117"}, "found 2.0.1+cu117"),
    ({"torch": "2.13.0"}, "expected setuptools and wheel"),
    ({"torch": "2.13.0", "setuptools": "65"}, "expected setuptools and wheel"),
])
def test_what_is_missing_is_named(source, place, modules, message):
    for name, version in modules.items():
        (place / name / "command").mkdir(parents=True)
        (place / name / "__init__.py").write_text(TORCH % version)
        (place / name / "command" / "__init__.py").touch()
    status, output = load(source, place)
    assert status == 1 and message in output and sys.executable in output, output
    assert "Traceback" not in output and "pip install" in output, output


@pytest.mark.slow
def test_isolation_is_refused(source, tmp_path):
    """pip would have compiled against a torch of its own choice; here it downloads nothing and names the option."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = next(venv.glob("lib/python3*/site-packages"))
    (site / "torch.py").write_text(TORCH % "2.13.0")
    status, output = run(sys.executable, "-m", "pip", "--python", venv, "install", "--no-index", "--no-deps", source)
    assert status != 0 and "found no PyTorch" in output and COMMAND in output, output
    assert "bdist_wheel" not in output and "Traceback" not in output, output


def test_compiler_with_options(source, place, tmp_path):
    (place / "torch.py").write_text(TORCH % "2.13.0")
    log, wrapper = tmp_path / "log", tmp_path / "mpicxx"
    wrapper.write_text('#!/bin/sh\ncase " $* " in *" -show "*) echo g++;; *) echo "$@" >%s; exit 1;; esac\n' % log)
    wrapper.chmod(0o755)
    _, output = run(sys.executable, "setup.py", "build_ext", cwd=source, PYTHONPATH=place,
                    MPICXX="%s -O2 -DWITH_OPTION" % wrapper)
    assert log.exists(), output
    assert log.read_text().startswith("-O2 -DWITH_OPTION "), log.read_text()
