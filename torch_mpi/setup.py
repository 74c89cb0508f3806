"""Compile the extension against the PyTorch of this Python with the MPI's own compiler wrapper.

The wrapper is ``$MPICXX``, options included, or the ``mpicxx`` on ``PATH`` (``CC`` on Cray systems).
"""

import os
import shlex
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from torch_mpi_build import pytorch, release

# What distutils calls its compilers and linkers → what they need besides.
OPTIONS = {"compiler_so": ["-fPIC"], "compiler_so_cxx": ["-fPIC"], "compiler_cxx": [],
           "linker_so": ["-shared"], "linker_so_cxx": ["-shared"]}


def mpi_compiler():
    """Return the MPI's C++ compiler wrapper, its path and the options that it was given."""
    given = shlex.split(os.environ.get("MPICXX", ""))
    for name in given[:1] or ["mpicxx", "CC"]:
        path = shutil.which(name)
        if path:
            return [path] + given[1:]
    sys.exit("torch_mpi: expected an MPI C++ compiler, found none; set MPICXX to it, for example MPICXX=mpicxx")


def mpi_dirs(compiler, option):
    """Return the wrapper's directories, which must come first: Python's own may hold those of another MPI."""
    shown = subprocess.run(compiler + ["-show"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return [word[2:] for word in shlex.split(shown) if word.startswith(option)]


class BuildExtension(build_ext):
    """Takes the extension's flags from the PyTorch it is for, its compiler and linker from MPI."""

    def build_extension(self, ext):
        """Fill in what is only known when the extension is compiled."""
        torch = pytorch()
        # torch.utils.cpp_extension would do it, but before 2.3 it cannot be imported beside setuptools 70 and newer
        home = os.path.dirname(torch.__file__)
        compiler = mpi_compiler()
        # PyTorch's headers ask for their own C++; torch_mpi itself is C++17
        ext.extra_compile_args.append("-std=c++20" if release(torch.__version__) >= (2, 14) else "-std=c++17")
        ext.include_dirs = mpi_dirs(compiler, "-I") + [
            "src/less",
            os.path.join(home, "include"),
            os.path.join(home, "include/torch/csrc/api/include"),
        ]
        ext.library_dirs = [os.path.join(home, "lib")] + mpi_dirs(compiler, "-L")
        ext.define_macros.append(("_GLIBCXX_USE_CXX11_ABI", str(int(torch._C._GLIBCXX_USE_CXX11_ABI))))
        # by these, older versions tell pybind11 modules apart
        for name in ["COMPILER_TYPE", "STDLIB", "BUILD_ABI"]:
            value = getattr(torch._C, "_PYBIND11_" + name, None)
            if value is not None:
                ext.define_macros.append(("PYBIND11_" + name, '"%s"' % value))
        # the setuptools that Python 3.11 puts into a venv does not know the names in _cxx
        for name in set(self.compiler.executables).intersection(OPTIONS):
            self.compiler.set_executable(name, compiler + OPTIONS[name])
        super().build_extension(ext)


class BuildPackage(build_py):
    """Adds the .pth file, which belongs beside the package, and a note of what the extension is for."""

    def run(self):
        torch = pytorch()
        super().run()
        self.copy_file("torch_mpi.pth", os.path.join(self.build_lib, "torch_mpi.pth"))
        with open(os.path.join(self.build_lib, "torch_mpi", "_built.py"), "w") as note:
            note.write("torch_version = %r\ncompiler = %r\n" % (torch.__version__, shlex.join(mpi_compiler())))


setup(
    cmdclass={"build_ext": BuildExtension, "build_py": BuildPackage},
    # What an earlier build left may be for another PyTorch or another MPI.
    options={"build_ext": {"force": True}},
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
