"""
The command that a newcomer types first, for real: PyTorch's official wheels as a module that trains on two processes.

Installed once for all tests of this file; the downloaded wheels are kept in the checkout's .local between runs.
"""
import os
import re
import shutil
import subprocess

import pytest
from common import CHECKOUT, EB, SCRIPTS, ModulesTool, needs_root, nightly

pytestmark = pytest.mark.slow

EASYCONFIG = 'PyTorch-2.13.0-workstation.eb'
WITH_MPI = 'torch_mpi-2.0.0-PyTorch-2.13.0-workstation.eb'
EXTEND = str(SCRIPTS / 'extend-venv-activate')
TRAIN = """
import gc
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train():
    dist.init_process_group('gloo')
    torch.manual_seed(dist.get_rank())
    inputs = torch.rand(64, 8)
    targets = inputs.sum(dim=1, keepdim=True)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = [torch.empty(1, 8) for _ in range(2)]
    dist.all_gather(weights, model.module.weight.detach())
    assert torch.equal(*weights), weights
    assert losses[-1] < losses[0] / 10, losses
    os.write(1, b'trained\\n')


train()
# gloo's threads end with the last reference to the group; one that still runs while Python ends aborts the process
gc.collect()
dist.destroy_process_group()
"""


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
    """The installation, and what ./eb said."""
    eb = EB(tmp_path_factory.mktemp('workstation') / 'prefix')
    eb.fetch(EASYCONFIG)
    return eb, eb(EASYCONFIG, '--robot').stdout


@pytest.fixture(scope='module')
def with_mpi(installed):
    """./eb, and the module of the MPI backend on top."""
    eb, _ = installed
    eb.fetch(WITH_MPI)
    eb(WITH_MPI)
    return eb, 'torch_mpi/2.0.0-PyTorch-2.13.0-workstation'


@pytest.fixture
def modules(installed):
    """The directory of module files of each syntax: the installation's own, and what --module-only makes of it once."""
    eb, _ = installed
    tcl = eb.prefix / 'modules-tcl'
    if not tcl.exists():
        eb(EASYCONFIG, '--module-only', '--module-syntax=Tcl', '--installpath-modules=%s' % tcl, '--rebuild',
           '--skip-sanity-check')
    return {'Lua': eb.modules, 'Tcl': tcl / 'all'}


def test_says_what_to_type(installed, tmp_path):
    """The printed lines, pasted as they are, work."""
    _, output = installed
    block = output.split('now and in job scripts:')[1].split('\n\n')[1]
    assert 'module load PyTorch/2.13.0-workstation' in block
    done = subprocess.run(['bash', '-e', '-c', block], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
                          env={'PATH': os.environ['PATH'], 'HOME': '/'})
    assert done.returncode == 0, done.stdout
    for way in ('import', 'gloo', 'compile'):
        assert '%-8s works' % way in done.stdout
    # nobody is to wait for a compiler in the first command
    assert not re.search('building (torch_mpi|mpi4py)', output)
    assert './eb %s --robot' % WITH_MPI in output.split('For MPI')[1]


@pytest.mark.parametrize('name, syntax', [
    ('Lmod', 'Lua'), nightly('Lmod', 'Tcl'), nightly('Environment Modules', 'Tcl')])
def test_train_on_two_processes(modules, tmp_path, name, syntax):
    """A small model, trained by two processes, in each syntax and with each modules tool."""
    (tmp_path / 'train.py').write_text(TRAIN)
    output = ModulesTool(name).run("""
        module use %s
        module load PyTorch
        torchrun --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 train.py || exit 1
        module unload PyTorch
        [ -z "$EBROOTPYTORCH" ]
    """ % modules[syntax], cwd=tmp_path)
    assert output.count('trained') == 2, output


def test_checked(with_mpi, tmp_path):
    """./eb --check finds the module of the MPI backend, and what its easyconfig promises works."""
    eb, name = with_mpi
    output = eb('--check', name, r'--name=\bmpi', '--report', tmp_path / 'report.json',
                '-SSpeedCheck.more=bandwidth-mpi:--to 1M --seconds 0.05', cwd=tmp_path).stdout
    assert '%s: 3 of 3 checks passed' % name in output
    output = eb('--check', 'PyTorch/2.15.0-workstation', cwd=tmp_path, status=1).stdout
    assert 'nothing was checked' in output


def test_own_program(with_mpi, lmod, tmp_path):
    """The page's line for one's own program, here one that tries each collective of the machine's own MPI."""
    eb, name = with_mpi
    line, = re.findall(r'^    (mpiexec .* mine\.py)$', (CHECKOUT / 'docs/systems/workstation.rst').read_text(), re.M)
    shutil.copy(CHECKOUT / 'torch_mpi/tests/programs/collectives.py', tmp_path / 'mine.py')
    # in an environment, made with torch_mpi's module loaded, with a package that is installed with -e
    (tmp_path / 'own').mkdir()
    (tmp_path / 'own/own.py').write_text("print('own package', flush=True)\n")
    output = lmod.run("""
        module use %s; module load %s; "$SCRIPT" mine || exit
        module unload torch_mpi; [ -z "$EBROOTPYTORCH" ]; . mine/bin/activate || exit
        # as pip writes it for -e
        echo "$PWD/own" > "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/own.pth" || exit
        %s
        echo "import own" > imports.py; torchrun --nproc-per-node=2 imports.py || exit
        deactivate; [ -z "$EBROOTPYTORCH$EBROOTTORCH_MPI$PYTHON_EXEC" ]
    """ % (eb.modules, name, line), cwd=tmp_path, env={
        'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1', 'SCRIPT': EXTEND})
    assert output.count('own package') == 2, output
    assert output.count('all collectives are right') == 2, output


def test_venv_on_top(installed, tmp_path, lmod):
    """A user's virtual environment on top of the module sees the module's packages."""
    eb, _ = installed
    lmod.run("""
        module use %s
        module load PyTorch
        python -m venv --without-pip mine
        source mine/bin/activate
        python -c 'import torch, sys; assert sys.prefix.endswith("mine"); print(torch.__version__)'
    """ % eb.modules, cwd=tmp_path)


def test_debian_without_ensurepip(installed, tmp_path, lmod):
    """As for users without root: python -m venv asks for a package of Debian, extend-venv-activate needs none."""
    needs_root()
    eb, _ = installed
    (tmp_path / 'toy').mkdir()
    (tmp_path / 'toy/setup.py').write_text(
        "from setuptools import setup\nsetup(name='toy', version='1.0', py_modules=['toy'])\n")
    (tmp_path / 'toy/toy.py').touch()
    (tmp_path / 'lines').write_text("""%s
        set -e
        module use %s
        module load PyTorch
        mkdir empty src
        mount --bind empty "$(python -c 'import ensurepip; print(ensurepip.__path__[0])')"
        python -m venv broken && exit 1
        "$SCRIPT" src && exit 1
        "$SCRIPT" "my venv"
        source "my venv/bin/activate"
        pip install --no-index --no-build-isolation --use-pep517 ./toy
        python -c 'import torch, toy; print(toy.__file__)'
        pip uninstall -y toy
        pip list --local
    """ % (lmod.start, eb.modules))
    output = lmod.run('unshare --mount bash lines', cwd=tmp_path, env={'SCRIPT': EXTEND})
    assert "src is no virtual environment" in output
    assert '\n%s/my venv/lib/' % tmp_path in output and 'Successfully uninstalled toy-1.0' in output
    assert 'torch' not in output.split('Successfully uninstalled')[1]


def without_torch(tmp_path):
    """The easyconfig for mpi4py alone, to which torch makes no difference; its probe adds up NumPy's arrays."""
    easyconfig = (CHECKOUT / 'easyconfigs/t/torch_mpi' / WITH_MPI).read_text()
    easyconfig = re.sub(r"(collection_packages|dependencies) = .*\n", '', easyconfig)
    easyconfig = easyconfig.replace("'mpi4py.lock'", "'mpi4py.lock', 'numpy.lock'")
    easyconfig = easyconfig.replace('pytorch-check mpi4py mpi', 'pytorch-check mpi4py')
    (tmp_path / WITH_MPI).write_text(easyconfig)
    lock = (CHECKOUT / 'easyconfigs/p/PyTorch/locks/PyTorch-2.13.0-workstation.lock').read_text()
    (tmp_path / 'numpy.lock').write_text(''.join(re.findall(r'^numpy==.*\n(?:[ #].*\n)*', lock, re.M)))
    (tmp_path / 'bin').mkdir()
    return tmp_path / WITH_MPI, tmp_path / 'bin'


@pytest.mark.nightly
@pytest.mark.parametrize('mpi, loaded', [('openmpi', 'libmpi.so.40'), ('mpich', 'libmpich.so.12')])
def test_mpi4py_of_this_machines_mpi(tmp_path, lmod, mpi, loaded):
    """Compiled with the MPI whose compiler is found."""
    easyconfig, tools = without_torch(tmp_path)
    for name in ('mpicc', 'mpicxx', 'mpiexec'):
        (tools / name).write_text('#!/bin/sh\nexec %s.%s "$@"\n' % (name, mpi))
        (tools / name).chmod(0o755)
    path = {'PATH': '%s:%s' % (tools, os.environ['PATH'])}
    eb = EB(tmp_path / 'prefix')
    eb.fetch(easyconfig, env=path)
    assert 'building mpi4py' in eb(easyconfig, env=path).stdout
    output = lmod.run("""
        module use %s; module load torch_mpi; pytorch-check mpi4py
        python -c 'import mpi4py.MPI; print(open("/proc/self/maps").read())'
    """ % eb.modules, env=path)
    assert 'mpi4py   works: ' in output
    assert loaded in output


def test_no_mpi_on_the_machine(tmp_path, lmod):
    """Without mpicc on the path a real MPI comes with the module."""
    easyconfig, tools = without_torch(tmp_path)
    for folder in os.environ['PATH'].split(os.pathsep):
        if os.path.isdir(folder):
            for name in os.listdir(folder):
                if not name.startswith(('mpi', 'ompi', 'orte', 'prte', 'hydra')) and not os.path.lexists(tools / name):
                    (tools / name).symlink_to(os.path.join(folder, name))
    eb = EB(tmp_path / 'prefix')
    eb.fetch(easyconfig, env={'PATH': str(tools)})
    eb(easyconfig, env={'PATH': str(tools)})
    output = lmod.run("module use %s; module load torch_mpi; which mpiexec; pytorch-check mpi4py" % eb.modules,
                      env={'PATH': str(tools)})
    assert str(eb.prefix) in output.splitlines()[0]
    assert 'MPICH' in output
    # what building needed is not part of what is installed
    assert not list(eb.prefix.glob('software/torch_mpi/*/tools'))
    # the machine's own libraries of another MPICH have the same name; neither they nor a variable decide
    output = lmod.run("""
        module use %s; module load torch_mpi; unset LD_LIBRARY_PATH
        python -c 'import mpi4py.MPI; print(open("/proc/self/maps").read())'
    """ % eb.modules)
    loaded = set(re.findall(r'/\S*/libmpi\S*', output))
    assert loaded and all(path.startswith(str(eb.prefix)) for path in loaded), loaded
    # which its wheel does as well as a build of minutes
    assert 'MPI.mpich.' in output


def test_help(installed, lmod):
    """What a researcher reads first: what it is, and what to type; on one screen."""
    lines = lmod.run("module use %s; module help PyTorch" % installed[0].modules).splitlines()
    assert len(lines) <= 40
    for words in ("official CPU wheels", "pytorch-check", "pytorch-srun train.py", "extend-venv-activate mine",
                  "torchrun --nproc-per-node 2 $EBROOTPYTORCH/examples/train.py", "cp $EBROOTPYTORCH/examples/*.py ."):
        assert any(words in line for line in lines), words


def test_extended_venv(modules, tmp_path, modules_tool):
    """Activating an environment loads the module, deactivating it leaves everything as it was; twice is once."""
    syntax = 'Lua' if modules_tool.name == 'Lmod' else 'Tcl'
    output = modules_tool.run("""
        set -e
        export PYTHONPATH=/users/own
        module use %s
        module load PyTorch
        "$SCRIPT" "my venv"; cp "my venv/bin/activate" first
        "my venv/bin/pip" --version; [ ! -d "$EBROOTPYTORCH/my venv" ]
        "$SCRIPT" "my venv"; cmp first "my venv/bin/activate"
        packages=$(echo "my venv"/lib/python3.*/site-packages)
        mkdir "$packages/numpy"; echo "mine = True" > "$packages/numpy/__init__.py"
        module unload PyTorch
        # Lmod has removed what is in it twice
        before=$PATH
        for turn in 1 2; do
            . "my venv/bin/activate"
            . "my venv/bin/activate"
            python -c 'import sys, numpy, sympy; print("inside", numpy.mine, sys.prefix)'
            deactivate
            [ "$PATH" = "$before" ]; [ "$PYTHONPATH" = /users/own ]; [ -z "$EBROOTPYTORCH" ]
        done
        module load PyTorch; loaded=$PYTHONPATH
        . "my venv/bin/activate"; deactivate
        [ -n "$EBROOTPYTORCH" ]; [ "$PYTHONPATH" = "$loaded" ]
        module unload PyTorch
        "$SCRIPT" "my venv" || "$SCRIPT" nowhere || echo refused
    """ % modules[syntax], cwd=tmp_path, env={'SCRIPT': EXTEND})
    assert output.count("inside True %s/my venv" % tmp_path) == 2
    assert "load PyTorch's module first" in output and 'refused' in output
