"""
pip for one Python.

Only downloading sees how the user configured pip; everything else works from the fetched files alone.
"""
import os
import sys
import tempfile
from contextlib import contextmanager

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import remove_dir, write_file
from easybuild.tools.run import run_shell_cmd

from hpc_pytorch.packages import known_errors
from hpc_pytorch.packages.lock_files import normal_name
from hpc_pytorch.packages.pip_errors import FULL, NO_MATCH, explain, last_words, other_files


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


# The path of a Python -> whether EasyBuild's pip can work for it, which takes a second to find out.
USES_OWN = {}


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
        if self.path not in USES_OWN:
            asked = run_shell_cmd(own + ['--version'], fail_on_error=False, hidden=True, env=variables,
                                  output_file=False, in_dry_run=True, use_bash=False)
            USES_OWN[self.path] = asked.exit_code == 0
        command = own if USES_OWN[self.path] else [self.path, '-m', 'pip']
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
            raise EasyBuildError("Installing failed: %s%s", last_words(result.output),
                                 explain(result.output, directory, self.python)
                                 or known_errors.why_not_built(result.output))

    def download(self, entries, directory, *arguments, **options):
        """Download the files of entries, every checksum verified."""
        with lock_file(entries) as lock:
            return self('download', '--quiet', '--no-deps', '--require-hashes', '--dest', directory, *arguments,
                        '-r', lock, **options)

    def why_not_fetched(self, entries, output, files, store, *indexes):
        """What went wrong, from what pip printed; about an index that it could not reach pip has to be asked again."""
        missed = NO_MATCH.search(output)
        if missed:
            name = normal_name(missed.group(1))
            output += self.download([entry for entry in entries if entry.name == name], files, '-vvv', '--retries', '0',
                                    *indexes).output
        room = "\nMake room in %s and %s, or choose others: --sourcepath, --tmpdir" % (store, tempfile.gettempdir())
        return other_files(output) or last_words(output) + (
            room if FULL.search(output) else explain(output, files, self.python))
