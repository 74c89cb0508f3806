"""Compile the extension against the PyTorch of this Python with the MPI's own compiler wrapper.

The wrapper is ``$MPICXX``, or the ``mpicxx`` on ``PATH`` (``CC`` on Cray systems).
"""

import os
import re
import shlex
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

OLDEST_TORCH = "2.1"


def pytorch():
    """The PyTorch of this Python, or the end with a line that says what to do."""
    try:
        import torch
    except ImportError as error:
        sys.exit("torch_mpi: expected PyTorch %s or newer in %s, found none (%s); install it there, then run: "
                 "pip install --no-build-isolation --no-deps ./torch_mpi" % (OLDEST_TORCH, sys.executable, error))
    if release(torch.__version__) < release(OLDEST_TORCH):
        sys.exit("torch_mpi: expected PyTorch %s or newer in %s, found %s; install a newer one, for example: "
                 "pip install 'torch>=%s'" % (OLDEST_TORCH, sys.executable, torch.__version__, OLDEST_TORCH))
    return torch


def release(version):
    """The first two numbers of a version."""
    return tuple(int(part) for part in version.split(".")[:2])


def mpi_compiler():
    """The MPI's C++ compiler wrapper, or the end with a line that says what to type."""
    for name in filter(None, [os.environ.get("MPICXX"), "mpicxx", "CC"]):
        found = shutil.which(name)
        if found:
            return found
        if name == os.environ.get("MPICXX"):
            break
    sys.exit("torch_mpi: expected an MPI C++ compiler, found none; set MPICXX to it, for example MPICXX=mpicxx")


def mpi_headers(compiler):
    """The wrapper's include directories, and whether its own mpi.h is that of Open MPI.

    They come first: a venv may hold the mpi.h of another MPI, and setuptools puts that directory before the wrapper's.
    """
    def said(*arguments, **options):
        clean = {name: value for name, value in os.environ.items() if name not in ("CPATH", "CPLUS_INCLUDE_PATH")}
        return subprocess.run([compiler, *arguments], env=clean, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True, **options).stdout
    folders = [word[2:] for word in shlex.split(said("-show")) if word.startswith("-I")]
    macros = said("-x", "c++", "-E", "-dM", "-", input="#include <mpi.h>\n")
    return folders, re.search(r"^#define OPEN_MPI\b", macros, re.MULTILINE) is not None


def cxx_standard(torch_version):
    """The C++ that the headers of this PyTorch are written in; torch_mpi itself is C++17."""
    return "-std=c++20" if release(torch_version) >= (2, 14) else "-std=c++17"


class Build(build_ext):
    """The extension's flags come from the PyTorch it is for, its compiler and linker from MPI."""

    def finalize_options(self):
        """Compile anew each time: what an earlier build left may be for another PyTorch or another MPI."""
        super().finalize_options()
        self.force = True

    def build_extension(self, ext):
        """Fill in what is only known when the extension is compiled."""
        torch = pytorch()
        # Not by torch.utils.cpp_extension: before 2.3 that cannot be imported beside setuptools 70 and newer.
        home = os.path.dirname(torch.__file__)
        ext.extra_compile_args.append(cxx_standard(torch.__version__))
        ext.include_dirs += [
            "src/less", os.path.join(home, "include"), os.path.join(home, "include/torch/csrc/api/include")]
        ext.library_dirs.append(os.path.join(home, "lib"))
        ext.define_macros.append(("_GLIBCXX_USE_CXX11_ABI", str(int(torch._C._GLIBCXX_USE_CXX11_ABI))))
        for name in ["COMPILER_TYPE", "STDLIB", "BUILD_ABI"]:  # how older versions tell pybind11 modules apart
            value = getattr(torch._C, "_PYBIND11_" + name, None)
            if value is not None:
                ext.define_macros.append(("PYBIND11_" + name, '"%s"' % value))
        compiler = mpi_compiler()
        folders, open_mpi = mpi_headers(compiler)
        ext.include_dirs[:0] = folders
        ext.define_macros.append(("WRAPPER_IS_OPEN_MPI", str(int(open_mpi))))
        commands = {"compiler_so": [compiler, "-fPIC"], "compiler_so_cxx": [compiler, "-fPIC"],
                    "compiler_cxx": [compiler], "linker_so": [compiler, "-shared"],
                    "linker_so_cxx": [compiler, "-shared"]}
        # Two of them came later than the setuptools that Python 3.11 puts into a venv.
        self.compiler.set_executables(
            **{name: command for name, command in commands.items() if name in self.compiler.executables})
        super().build_extension(ext)


class Package(build_py):
    """Adds the .pth file, which belongs beside the package, and a note of what the extension is for."""

    def run(self):
        """Build the package, then add to it."""
        torch = pytorch()
        super().run()
        self.copy_file("torch_mpi.pth", os.path.join(self.build_lib, "torch_mpi.pth"))
        with open(os.path.join(self.build_lib, "torch_mpi", "_built.py"), "w") as note:
            note.write("torch_version = %r\ncompiler = %r\noldest_torch = %r\n" % (
                torch.__version__, mpi_compiler(), OLDEST_TORCH))


setup(
    cmdclass={"build_ext": Build, "build_py": Package},
    ext_modules=[Extension(
        "torch_mpi._c",
        ["src/all.cpp"],
        # The C++ bindings of MPI are not used and long gone from the standard.
        # Of PyTorch's operators only those that are used are read, each from a header of its own.
        define_macros=[("OMPI_SKIP_MPICXX", "1"), ("MPICH_SKIP_MPICXX", "1"), ("AT_PER_OPERATOR_HEADERS", "1")],
        extra_compile_args=["-O2", "-g0", "-Wall", "-fvisibility=hidden"],
        libraries=["c10", "torch", "torch_cpu", "torch_python"],
        extra_link_args=["-Wl,--as-needed"],
    )],
)
