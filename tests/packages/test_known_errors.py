"""Logs of builds that failed, as compilers and CMake write them: what is shown, and the explanation."""

import pytest

from hpc_pytorch.packages import known_errors

# The remedy's words that a message, as it was printed by a real tool, must bring up.
MESSAGES = (
    ("{standard input}: Assembler messages:\ng++: fatal error: Killed signal terminated program cc1plus", "--parallel"),
    ("error: could not write to 'x.o': Disk quota exceeded", "--buildpath"),
    ("fatal error: error writing to /tmp/ccX.s: No space left on device", "--tmpdir"),
    ("vec256_bfloat16_neon.h:110:26: error: cannot convert 'int16x4_t' to 'bfloat16x4_t' in initialization",
     "-flax-vector-conversions"),
    ("The source directory\n\n    /x/third_party/fmt\n\n  does not contain a CMakeLists.txt file.\n"
     "Did you run 'git submodule update --init --recursive --jobs 0'?", "git submodule update"),
    ("Compatibility with CMake < 3.5 has been removed from CMake.", "CMAKE_POLICY_VERSION_MINIMUM"),
    ("CMake 3.18 or higher is required.  You are running version 3.16.3", "newer CMake"),
    ("ModuleNotFoundError: No module named 'distutils'", "python_versions"),
    ("fatal error: numpy/arrayobject.h: No such file or directory", "numpy<2"),
    ("AttributeError: module 'pkg_resources' has no attribute 'packaging'", "setuptools<70"),
    ("/bin/sh: 1: CC: not found", "PrgEnv-gnu"),
    ("src/mpi4py/MPI.c:6:10: fatal error: Python.h: No such file or directory", "python3-dev"),
    ("  File \"third_party/python-peachpy/peachpy/x.py\"\nModuleNotFoundError: No module named 'six'", "add six"),
    ('  add_subdirectory given source\n\n    "/x/third_party/kineto"\n\n  which is not an existing directory.',
     "git submodule update"),
    ("FAILED: confu-deps/NNPACK/src/x86_64-fma/2d-fourier-8x8.py.o\nModuleNotFoundError: No module named 'peachpy'",
     "git submodule update"),
    ("CMake Error at cmake/Modules/FindOpenBLAS.cmake:58 (MESSAGE):\n  Could not find OpenBLAS\n", "libopenblas-dev"),
    # 2.6.0 says FATAL instead of FATAL_ERROR, and CMake ends much later
    ("FATALCannot find system pybind11\n-- pybind11 include dirs: \nCMake Error in torch/CMakeLists.txt:\n"
     "  Imported target \"pybind::pybind11\" includes non-existent path\n", "without that option"),
    ("CMake Error at cmake/Dependencies.cmake:1204 (message):\n  Cannot find gloo\n", "without that option"),
    ("ImportError: cannot import name '_DEFAULT_NUM_WORKER_THREADS' from 'torch._C._distributed_rpc'",
     "USE_TENSORPIPE=0"),
    ('appears to have been launched using "srun",\nbut OMPI was not built with SLURM\'s PMI support and therefore',
     "SLURM_MPI_TYPE=pmix"),
    ("mpi  FAILS: started as 1 process(es), not as 2: the launcher belongs to another MPI than torch_mpi's (MPICH)",
     "SLURM_MPI_TYPE=pmi2"),
    # of lists, which have no lock file for building
    ("pyfiglet cannot be imported: ModuleNotFoundError: No module named 'pkg_resources'", "setuptools<81"),
    ("sklearn_pandas cannot be imported: ModuleNotFoundError: No module named 'six'", "list that one"),
    ("toy cannot be imported: ModuleNotFoundError: No module named 'distutils'", "list that one"),
    ("pandas cannot be imported: ValueError: numpy.dtype size changed, may indicate", "list numpy<2"),
    ("ProcessGroupMPI.hpp:19:10: fatal error: mpi.h: No such file or directory", "MPI's module"),
)


@pytest.mark.parametrize('message, remedy', MESSAGES)
def test_explained(message, remedy):
    """Exactly one explanation, the right one."""
    text = "[1/7] Building CXX object x.o\n%s\nninja: build stopped: subcommand failed.\n" % message
    explanation = known_errors.explain(text)
    assert remedy in explanation and explanation.count('what to do:') == 1


def test_nothing_known():
    """No explanation is made up."""
    assert known_errors.explain("error: expected ';' before '}' token") == ''


def test_excerpt():
    """What went wrong is shown, not what CMake prints after it; without such a line, the end."""
    log = ["-- Looking for x"] * 50 + ["CMake Error at cmake/x.cmake:188 (set):", "  set given invalid arguments"]
    log += ["--   USE_MPI : 1"] * 50
    shown = known_errors.excerpt('\n'.join(log)).splitlines()
    assert shown[:2] == log[50:52] and len(shown) == known_errors.EXCERPT_LINES
    assert known_errors.excerpt("a\nb") == "a\nb"
    assert known_errors.excerpt('\n'.join(map(str, range(100)))).startswith('85\n')


PIP = """Processing ./horovod-0.28.1.tar.gz
  Building wheel for horovod (pyproject.toml): started
  error: subprocess-exited-with-error

  × Building wheel for horovod (pyproject.toml) did not run successfully.
      -- Set default CPU operation to MPI
      CMake Error at FindPackageHandleStandardArgs.cmake:230 (message):
        Could NOT find Pytorch: (Required is at least version "1.5.0") (found )
      -- Configuring incomplete, errors occurred!
      mpi.h: No such file or directory
ERROR: Failed to build one or more wheels
"""


def test_package_not_built():
    """What the package's build said is shown, of what pip printed; once only pip's own last line was."""
    said = known_errors.why_not_built(PIP)
    assert 'Could NOT find Pytorch' in said and "the MPI's headers were not found" in said
    assert known_errors.why_not_built('ERROR: No matching distribution found for toy==1') == ''


def test_excerpt_has_no_traceback():
    """setup.py's own, which hides what the compiler said; its last line stays."""
    text = ("gmake: *** [Makefile:136: all] Error 2\nTraceback (most recent call last):\n  File \"setup.py\", line 37\n"
            "    run_cmake()\nsubprocess.CalledProcessError: Command 'cmake' returned non-zero exit status 2.\n")
    assert known_errors.excerpt(text).splitlines() == [text.splitlines()[0], text.splitlines()[-1]]


def test_excerpt_of_long_lines():
    """The reason is seen between commands of kilobytes."""
    command = 'g++ ' + '-I/where ' * 800
    shown = known_errors.excerpt('[1/2] x\nFAILED: x.o\n%s\nx.cpp:1:1: error: no such thing\n' % command)
    assert 'error: no such thing' in shown and len(shown) < 600


def test_excerpt_has_no_other_jobs():
    """Those that ninja shows after the one that failed, as the build of PyTorch 2.6.0 does; alone they are shown."""
    others = ['[%d/1645] ramgate-cc /opt/cray/CC -Isrc -c x.cpp' % number for number in range(33, 53)]
    cause = ["FAILED: confu-deps/NNPACK/2d-fourier-8x8.py.o", "cd /build && python3 -m peachpy.x86_64 -o x.o x.py",
             "ModuleNotFoundError: No module named 'fp16.avx'"]
    log = others[:10] + cause[:2] + ['Traceback (most recent call last):', '  File "x.py", line 3'] + cause[2:] + others
    assert known_errors.excerpt('\n'.join(log + ["ninja: build stopped: subcommand failed."])).splitlines() == cause + [
        "ninja: build stopped: subcommand failed."]
    assert known_errors.excerpt('\n'.join(others)) == '\n'.join(others[-known_errors.EXCERPT_LINES:])
