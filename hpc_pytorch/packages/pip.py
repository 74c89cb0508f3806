"""
pip for one Python, and its errors in words.

Only downloading sees how the user configured pip; everything else works from the fetched files alone.

Python 3.6; runs inside EasyBuild.
"""
import glob
import os
import re
import sys
import tempfile
from contextlib import contextmanager

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import remove_dir, write_file
from easybuild.tools.run import run_shell_cmd

from hpc_pytorch.packages import known_errors
from hpc_pytorch.packages.lock_files import normal_name
from hpc_pytorch.packages.wheel_tags import parse_wheel, why_not

# pip's last word about a requirement that no file fits
NO_MATCH = re.compile(r'No matching distribution found for ([A-Za-z0-9._-]+)==([^\s;]+)')


@contextmanager
def lock_file(entries):
    """A temporary lock file with just these entries."""
    directory = tempfile.mkdtemp(prefix='lock-')
    path = os.path.join(directory, 'lock.txt')
    write_file(path, '\n'.join(entry.text for entry in entries) + '\n')
    try:
        yield path
    finally:
        remove_dir(directory)


class Pip:
    """EasyBuild's own pip where it can work for this Python, else the Python's."""

    def __init__(self, python, path=None):
        """`python` tells which wheels fit; `path` is its own, or that of a virtual environment of it."""
        self.python = python
        self.path = path or python.path

    def __call__(self, *arguments, environment=None, **options):
        """Run pip; a failure is the caller's to tell."""
        unwanted = ('PYTHON',) if arguments[0] == 'download' else ('PYTHON', 'PIP_')
        variables = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
        if arguments[0] != 'download':
            variables['PIP_CONFIG_FILE'] = os.devnull
        # pip folds its messages at the terminal's width, and says nothing at all where that is 0 (under `script`)
        variables.update(PYTHONNOUSERSITE='1', PIP_DISABLE_PIP_VERSION_CHECK='1', COLUMNS='1000', **(environment or {}))
        own = [sys.executable, '-m', 'pip', '--python', self.path]
        other = run_shell_cmd(own + ['--version'], fail_on_error=False, hidden=True, env=variables,
                              output_file=False, in_dry_run=True, use_bash=False).exit_code
        command = [self.path, '-m', 'pip'] if other else own
        return run_shell_cmd(command + list(arguments), env=variables, fail_on_error=False, hidden=True,
                             use_bash=False, **options)

    def missing(self, entries, directory):
        """Whether pip could not install these from this directory alone."""
        with lock_file(entries) as lock:
            result = self('install', '--dry-run', '--ignore-installed', '--quiet', '--no-index',
                          '--find-links', directory, '--no-deps', '--require-hashes', '--only-binary', ':all:',
                          '--target', directory, '-r', lock, output_file=False)
        return result.exit_code != 0

    def install(self, entries, directory, *arguments, **options):
        """Install entries from the fetched files, every checksum verified, no network."""
        with lock_file(entries) as lock:
            # without pip's cache: it would hand out what was built for another MPI
            result = self('install', '--quiet', '--no-index', '--find-links', directory, '--no-deps',
                          '--require-hashes', '--no-warn-script-location', '--no-cache-dir', *arguments,
                          '-r', lock, **options)
        if result.exit_code:
            raise EasyBuildError("Installing from %s failed: %s%s", directory, last_words(result.output),
                                 self.explain(result.output, directory) or known_errors.why_not_built(result.output))

    def download(self, entries, directory, *arguments, **options):
        """Download the files of entries, every checksum verified."""
        with lock_file(entries) as lock:
            return self('download', '--quiet', '--no-deps', '--require-hashes', '--dest', directory, *arguments,
                        '-r', lock, **options)

    def explain(self, output, store):
        """More than pip says about a package that does not fit: its wheels' tags taken apart."""
        match = NO_MATCH.search(output)
        if not match:
            if re.search('hashes are required|DO NOT MATCH THE HASHES', output, re.I):
                return "\nThe index served another file than the one that was locked; do not use it."
            if re.search('connection|resolution|timed out|unreachable|proxy', output, re.I):
                return ("\nNo index could be reached: check the network, or the mirror and proxy in 'pip config list'; "
                        "or fetch on a machine with a network (eb --fetch) and bring %s." % store)
            return ''
        name, version = normal_name(match.group(1)), match.group(2)
        lines = []
        for path in sorted(glob.glob(os.path.join(store, '*.whl'))):
            wheel = parse_wheel(path)
            if (wheel.name, wheel.version) == (name, version):
                lines.append("  %s:" % os.path.basename(path))
                lines += ["    " + reason for reason in why_not(path, self.python)]
        if not lines:
            return ("\nNo index has %s %s for Python %s on %s, or none could be reached."
                    % (name, version, self.python.version, self.python.machine))
        return "\nThere is a wheel, and it does not fit:\n" + '\n'.join(lines)


def last_words(output):
    """pip's reason, without its advice."""
    lines = [line for line in output.splitlines() if line.strip() and not re.match(r'warning|hint', line, re.I)]
    errors = [line for line in lines if line.startswith('ERROR')]
    return (errors or lines or ['pip failed without a word'])[-1]
