"""pip for one Python, and uv for what pip has fetched; the user's settings of pip count for downloads alone."""
import importlib.util
import os
import tempfile
from contextlib import contextmanager

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import remove_dir
from easybuild.tools.run import run_shell_cmd

from hpc_pytorch.machine.collection_files import own_uv
from hpc_pytorch.packages import known_errors
from hpc_pytorch.packages.pip_errors import explain, last_words

# what pip did, where it downloads to; a name without a dot is not kept as a package's file
LOG = 'log'
# options with which pip and uv take nothing but locked files that are here
LOCKED = ('--quiet', '--no-index', '--no-deps', '--require-hashes')
# path of a Python -> the command that runs pip for it, which takes a second to find out
COMMANDS = {}


def without(*prefixes):
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def ask(*command, **options):
    """Run a program without a trace on the terminal; callers look at its exit code and output."""
    return run_shell_cmd(list(command), use_bash=False, fail_on_error=False, hidden=True, output_file=False, **options)


class IndexNotReached(EasyBuildError):
    """No index that was reached has a file: another index may."""


@contextmanager
def lock_file(entries):
    with tempfile.NamedTemporaryFile('w', prefix='lock-', suffix='.txt', encoding='utf-8') as file:
        file.write('\n'.join(entry.text for entry in entries) + '\n')
        file.flush()
        yield file.name


class Pip:
    """EasyBuild's own pip where it can work for this Python, else the Python's."""

    def __init__(self, python, path=None):
        """`python` tells which wheels fit; `path` is its own, or that of a virtual environment of it."""
        self.python = python
        self.path = path or python.path

    def __call__(self, *arguments, environment=None, **options):
        variables = without('PYTHON')
        if arguments[0] != 'download':
            variables = dict(without('PYTHON', 'PIP_'), PIP_CONFIG_FILE=os.devnull)
        # pip folds its messages at the terminal's width, and prints nothing where that is 0 (under `script`)
        variables.update(PYTHONNOUSERSITE='1', PIP_DISABLE_PIP_VERSION_CHECK='1', COLUMNS='1000')
        # what is locked needs neither
        variables.update(PIP_REQUIRE_VIRTUALENV='0', PIP_CONSTRAINT=os.devnull)
        variables.update(environment or {})
        return run_shell_cmd(self.command(variables) + list(arguments), env=variables, fail_on_error=False,
                             hidden=True, use_bash=False, **options)

    def command(self, variables):
        if self.path not in COMMANDS:
            ours = importlib.util.find_spec('pip')
            # what pip's option --python starts, once pip has started for EasyBuild's Python
            own = [self.path, os.path.join(os.path.dirname(ours.origin), '__pip-runner__.py')] if ours else ['false']
            tried = ask(*own, '--version', env=variables, in_dry_run=True)
            COMMANDS[self.path] = [self.path, '-m', 'pip'] if tried.exit_code else own
        return COMMANDS[self.path]

    def can_install(self, entries, directory):
        """True if this directory alone has files for these entries."""
        with lock_file(entries) as lock:
            result = self('install', *LOCKED, '--dry-run', '--ignore-installed', '--find-links', directory,
                          '--only-binary', ':all:', '--target', directory, '-r', lock, output_file=False)
        return result.exit_code == 0

    def install(self, entries, directory, *arguments, **options):
        """Install entries from the fetched files: no network, every checksum verified."""
        with lock_file(entries) as lock:
            # without pip's cache, which has what was built for another MPI
            result = self('install', *LOCKED, '--find-links', directory, '--no-warn-script-location',
                          '--no-cache-dir', *arguments, '-r', lock, **options)
        if result.exit_code:
            reason = explain(result.output, directory, self.python) or known_errors.why_not_built(result.output)
            raise EasyBuildError("Installing failed: %s%s", last_words(result.output), reason)

    def install_wheels(self, entries, directory):
        """Install wheels with uv, on all cores; pip does it, or tells why it fails, where uv cannot."""
        uv = own_uv()
        # on the same file system, so that files are linked
        cache = os.path.join(os.path.dirname(self.path), '.uv')
        if uv:
            with lock_file(entries) as lock:
                command = [uv, 'pip', 'install', *LOCKED, '--no-config', '--offline', '--python', self.path,
                           '--cache-dir', cache, '--find-links', directory, '--only-binary', ':all:', '-r', lock]
                done = ask(*command, env=without('PYTHON', 'PIP_', 'UV_'))
            remove_dir(cache)
        if not uv or done.exit_code:
            self.install(entries, directory, '--only-binary', ':all:', '--no-compile')

    def download(self, entries, directory, *arguments, **options):
        """Download the files of entries, every checksum verified; all that pip did is in its log beside them."""
        with lock_file(entries) as lock:
            return self('download', '--quiet', '--no-deps', '--require-hashes', '--dest', directory,
                        '--log', os.path.join(directory, LOG), *arguments, '-r', lock, **options)
