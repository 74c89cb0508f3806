"""The static index, and pip installing from it."""
import subprocess
import sys
import zipfile

import pytest
from common import CHECKOUT, clean_environment

NAME = 'small_thing-1.0+git0123456-py3-none-any.whl'


def make_wheel(path, text='value = 1\n'):
    """A wheel with one module."""
    path.parent.mkdir(exist_ok=True)
    info = 'small_thing-1.0+git0123456.dist-info/'
    with zipfile.ZipFile(path, 'w') as wheel:
        wheel.writestr('small_thing.py', text)
        wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\nName: small-thing\nVersion: 1.0+git0123456\n')
        wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        wheel.writestr(info + 'RECORD', '')
    return path


def index(*arguments, status=0):
    """Run the command."""
    done = subprocess.run([sys.executable, '-m', 'hpc_pytorch.packages.static_index', *map(str, arguments)],
                          cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert bool(done.returncode) == bool(status), done.stdout
    return done.stdout


def install(directory, target, status=0):
    """pip, from the index alone."""
    done = subprocess.run([sys.executable, '-m', 'pip', 'install', '--no-cache-dir', '--index-url',
                           'file://%s' % directory, '--target', str(target), 'small-thing'],
                          env=dict(clean_environment(), PIP_CONFIG_FILE='/dev/null', PIP_FIND_LINKS=''),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert bool(done.returncode) == bool(status), done.stdout
    return done.stdout


@pytest.mark.slow
def test_pip_installs(tmp_path):
    """What was added is installed; a damaged wheel is not."""
    wheel = make_wheel(tmp_path / 'dist' / NAME)
    assert index(tmp_path / 'an index', wheel).endswith(
        'pip install --index-url file://%s/an%%20index NAME\n' % tmp_path)
    # again does no harm
    index(tmp_path / 'an index', wheel)
    (tmp_path / 'an index').rename(tmp_path / 'index')
    install(tmp_path / 'index', tmp_path / 'there')
    assert (tmp_path / 'there' / 'small_thing.py').read_text() == 'value = 1\n'
    make_wheel(tmp_path / 'index' / 'small-thing' / NAME, 'value = 2\n')
    assert 'DO NOT MATCH' in install(tmp_path / 'index', tmp_path / 'elsewhere', status=1)


def test_refused(tmp_path):
    """Another file under the same name, and what is no wheel."""
    index(tmp_path / 'index', make_wheel(tmp_path / 'dist' / NAME))
    other = make_wheel(tmp_path / 'other' / NAME, 'value = 2\n')
    assert 'with other content' in index(tmp_path / 'index', other, status=1)
    (tmp_path / 'torch.txt').write_text('')
    assert 'is no wheel' in index(tmp_path / 'index', tmp_path / 'torch.txt', status=1)
