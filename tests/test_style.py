"""Style, and what the oldest Python of a cluster understands."""
import subprocess
import sys
from pathlib import Path

import pytest
from common import CHECKOUT, needs_program

# What EasyBuild itself, or a compute node's own Python, runs.
FOR_PYTHON_3_6 = ('easyblocks', 'hooks', 'ramgate/ramgate', 'hpc_pytorch', 'docs/site-example.py')
# What runs with the Python that ./eb made its environment of, or of a module or an image: 3.9 or newer.
FOR_NEWER = ('hpc_pytorch/start.py', 'stand_ins/make.py', 'scripts/pytorch-check', 'scripts/check-packages',
             'scripts/vllm', 'src/inventory.py')


def tracked():
    """All files of the project, also those that are not committed yet; of an sdist all that is in it."""
    if not (CHECKOUT / '.git').exists():
        return [path for path in CHECKOUT.rglob('*')
                if path.is_file() and not path.relative_to(CHECKOUT).parts[0].startswith(('.venv', '.local'))]
    listed = subprocess.run(['git', 'ls-files', '--cached', '--others', '--exclude-standard'], cwd=CHECKOUT,
                            stdout=subprocess.PIPE, text=True, check=True)
    return [path for path in map(CHECKOUT.joinpath, listed.stdout.splitlines()) if path.is_file()]


def first_line(path):
    """The first line of a file, as far as it is text."""
    with path.open('rb') as handle:
        return handle.readline(100).decode(errors='replace')


def scripts(interpreter):
    """All files that are run by this interpreter."""
    return [path for path in tracked() if first_line(path).startswith('#!') and interpreter in first_line(path)]


def python_files():
    """All Python files, with and without a suffix."""
    return sorted(set([path for path in tracked() if path.suffix == '.py'] + scripts('python')))


def test_ruff():
    """ruff finds nothing; its settings are in pyproject.toml."""
    done = subprocess.run([sys.executable, '-m', 'ruff', 'check', *map(str, python_files())], cwd=CHECKOUT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def test_shellcheck():
    """shellcheck finds nothing in any shell script."""
    needs_program('shellcheck')
    found = scripts('bash') + [path for path in tracked() if path.suffix in ('.sh', '.bash')]
    assert found
    done = subprocess.run(['shellcheck', *map(str, sorted(set(found)))], cwd=CHECKOUT,
                          stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize('folder', FOR_PYTHON_3_6)
def test_python_3_6(folder):
    """Nothing newer than Python 3.6 in what EasyBuild runs."""
    files = [str(path) for path in python_files() if CHECKOUT / folder in (path, *path.parents)
             and '/'.join(path.parts[-2:]) not in FOR_NEWER]
    done = subprocess.run([str(Path(sys.executable).parent / 'vermin'), '--no-tips', '--violations', '-t=3.6-', *files],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def test_executables_have_an_interpreter():
    """What can be executed says by what."""
    for path in tracked():
        if not path.is_symlink() and path.stat().st_mode & 0o100:
            assert first_line(path).startswith('#!'), path
