"""What docs/researchers.rst says of uv on the module, with the real uv and small wheels."""
import subprocess
import sys

import pytest
from common import CHECKOUT, clean_environment
from small_software import make_wheel

UV = CHECKOUT / '.venv/bin/uv'


def documented(word):
    """The command of docs/researchers.rst that has this word."""
    lines = (CHECKOUT / 'docs/researchers.rst').read_text().split('\n')
    command, = [line for line in lines if line.startswith('    ') and word in line]
    return command


@pytest.fixture
def shell(tmp_path):
    """Run commands of the page where a PyTorch module is loaded, which has torch 2.6.0."""
    (tmp_path / 'share').mkdir()
    (tmp_path / 'share/constraints.txt').write_text('torch==2.6.0\n')
    wheels = tmp_path / 'wheels'
    wheels.mkdir()
    make_wheel(wheels, 'einops')
    make_wheel(wheels, 'torchmetrics', requires=['torch', 'einops'])
    make_wheel(wheels, 'pinned', requires=['torch==9.0'])
    make_wheel(wheels, 'torch', '9.0')
    environment = dict(clean_environment(), EBROOTPYTORCH=str(tmp_path), UV_OFFLINE='1', UV_FIND_LINKS=str(wheels),
                       HOME=str(tmp_path), VIRTUAL_ENV=str(tmp_path / 'mine'),
                       PATH='%s:%s/bin:/usr/bin:/bin' % (UV.parent, sys.prefix))

    def run(*lines, **variables):
        return subprocess.run(['bash', '-ec', '\n'.join(lines)], cwd=tmp_path, env=dict(environment, **variables),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    run.made = run(documented('UV_CACHE_DIR'), documented('uv venv'))
    run.installed = lambda: {path.name for path in tmp_path.glob('mine/lib/*/site-packages/*.py')}
    return run


def test_packages_on_top(shell):
    """The environment is made, and gets a package."""
    assert shell.made.returncode == 0, shell.made.stdout
    done = shell(documented('uv pip install einops'))
    assert done.returncode == 0 and 'einops.py' in shell.installed(), done.stdout


def test_the_modules_pytorch_is_kept(shell):
    """A package that needs PyTorch brings none; without the override it brings one."""
    done = shell(documented('python_version'), documented('--override'))
    assert done.returncode == 0 and {'torchmetrics.py', 'einops.py'} <= shell.installed(), done.stdout
    assert 'torch.py' not in shell.installed()
    shell('uv pip install pinned')
    assert 'torch.py' in shell.installed()


def test_another_pytorch_is_refused(shell, tmp_path):
    """With the module's constraints, and a line that names both."""
    done = shell('uv pip install pinned', UV_CONSTRAINT=str(tmp_path / 'share/constraints.txt'))
    assert done.returncode and 'torch==9.0' in done.stdout and 'torch==2.6.0' in done.stdout, done.stdout
