"""Compiled with the compiler's sanitizers: no error of memory, no undefined behaviour, no race between threads."""

import os
import shlex
import shutil
import subprocess

import pytest
from mpi_installation import HERE, VARIANTS, Installed

# Variant → libraries to be loaded before Python, and settings. Python and PyTorch are not compiled like this and keep
# what they want: leaks cannot be told apart. UCX, which MPICH uses, replaces functions that end threads, in which the
# thread sanitizer crashes.
SANITIZERS = {
    "mpich-memory": (["libasan.so", "libubsan.so"], {
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=66:verbosity=1", "UBSAN_OPTIONS": "halt_on_error=1:exitcode=66"}),
    "mpich-threads": (["libtsan.so"], {
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:exitcode=66", "UCX_MEM_EVENTS": "n"}),
}


def library(name):
    """Where the compiler has it."""
    return subprocess.run(["gcc", "-print-file-name=" + name], check=True, stdout=subprocess.PIPE,
                          text=True).stdout.strip()


class Sanitized(Installed):
    """Runs its programs under a sanitizer."""

    def __init__(self, python, prefix, libraries, settings, scratch):
        super().__init__("mpich", python, prefix)
        self.settings = settings
        self.python = scratch / "python"
        self.python.write_text("#!/bin/sh\nexec env LD_PRELOAD=%s %s \"$@\"\n" % (
            shlex.quote(" ".join(map(library, libraries))), shlex.quote(python)))
        self.python.chmod(0o755)

    def run(self, *arguments, **options):
        return super().run(*arguments, **self.settings, **options)


@pytest.mark.skipif(not shutil.which("gcc") and "CI" not in os.environ, reason="needs gcc")
@pytest.mark.parametrize("variant", sorted(SANITIZERS))
def test_the_sanitizer_finds_what_is_planted(variant, tmp_path):
    """The check of every day: compiler, libraries and settings of the nightly tests do what these rely on."""
    libraries, settings = SANITIZERS[variant]
    program = tmp_path / "planted"
    flags = VARIANTS[variant].split()
    subprocess.run(["gcc", *flags, HERE / "planted_faults.c", "-o", program, "-pthread"], check=True)
    preload = " ".join(map(library, libraries))
    done = subprocess.run(["setarch", "-R", "env", "LD_PRELOAD=" + preload, program, variant.split("-")[1]], stderr=-1,
                          env=dict(settings, PATH="/usr/bin:/bin"), text=True)
    assert done.returncode == 66 and "Sanitizer: " in done.stderr, done


@pytest.fixture(scope="module", params=sorted(SANITIZERS))
def sanitized(request, python, builds, tmp_path_factory):
    """torch_mpi, once for each sanitizer."""
    return Sanitized(python, builds[request.param].result(), *SANITIZERS[request.param],
                     tmp_path_factory.mktemp("sanitized"))


@pytest.mark.nightly
def test_it_is_compiled_so(sanitized):
    """The extension asks for the sanitizer's functions, so that the other tests can fail."""
    extension, = sanitized.site.glob("torch_mpi/_c*.so")
    assert any(name in extension.read_bytes() for name in (b"__asan_report_store8", b"__tsan_write8"))


@pytest.mark.nightly
def test_collectives(sanitized, tmp_path):
    assert sanitized.run(2, "collectives.py").count("all collectives are right") == 2
    output = sanitized.run(3, "random_collectives.py", 100, MEETING_FILE=str(tmp_path / "meeting"))
    assert output.count("collectives agree with gloo") == 3


@pytest.mark.nightly
@pytest.mark.parametrize("ranks, cases", [(2, ["threads", "dropped", "received", "late_first"]), (3, ["monitored"])])
def test_faults_that_are_survived(sanitized, ranks, cases, tmp_path):
    # with the status that theirs is when all went well
    sanitized.run(ranks, "faults.py", *cases, "handled", status=3, FLAG_FILE=str(tmp_path / "flag"))


@pytest.mark.nightly
@pytest.mark.parametrize("case, ranks", [("absent", 2), ("asynchronous", 2), ("aborted", 3), ("truncated", 2)])
def test_faults_that_end_all(sanitized, case, ranks, tmp_path):
    output = sanitized.run(ranks, "faults.py", case, status=None, FLAG_FILE=str(tmp_path / "flag"))
    assert "rank 0" in output and "runtime error" not in output, output
    assert "Sanitizer: data race" not in output and "ERROR: AddressSanitizer" not in output, output


@pytest.mark.nightly
def test_training(sanitized, tmp_path):
    sanitized.run(2, "training.py", "mpi", tmp_path / "results")
