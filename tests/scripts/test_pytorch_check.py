"""pytorch-check without PyTorch: what they find in a small site-packages, how long they wait."""
import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import types

import pytest
from common import SCRIPTS, clean_environment, needs_program, nightly
from torch_mpi.tests.mpi_installation import kept_venv

# c10::Error's constructor with GCC's new std::string, and with the old one that torchtext 0.14.1's wheel was made for
NEW, OLD = '_ZN3c105ErrorC1ENSt7__cxx1112basic_stringIcEE', '_ZN3c105ErrorC1ESs'


def compiled(path, text):
    """A library made of this C."""
    needs_program('gcc')
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(['gcc', '-shared', '-fPIC', '-xc', '-', '-o', path], input=text, text=True, check=True)


def package(site, name, module='', requires=(), version='1.0'):
    """An installed package with one module."""
    (site / name).mkdir(exist_ok=True)
    (site / name / '__init__.py').write_text(module)
    about = site / ('%s-%s.dist-info' % (name, version))
    about.mkdir()
    (about / 'METADATA').write_text('Metadata-Version: 2.1\nName: %s\nVersion: %s\n%s\n' % (
        name, version, ''.join('Requires-Dist: %s\n' % line for line in requires)))
    (about / 'RECORD').write_text('%s/__init__.py,,\n' % name)


@pytest.fixture
def site(tmp_path):
    """A PyTorch of one function and a package that was compiled for it."""
    compiled(tmp_path / 'torch/lib/libc10.so', 'void %s(void) {}' % NEW)
    package(tmp_path, 'torch')
    package(tmp_path, 'good', requires=['torch', 'inner; extra == "more"'])
    compiled(tmp_path / 'good/_C.so', 'void %s(void); void f(void) { %s(); }' % (NEW, NEW))
    return tmp_path


def packages_of(site, status):
    """What the command prints."""
    done = subprocess.run([sys.executable, SCRIPTS / 'pytorch-check', 'packages'], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env=dict(clean_environment(), PYTHONPATH=str(site)))
    assert done.returncode == status, done.stdout
    return done.stdout


def test_a_name_comes_before_its_probe(site):
    """PyTorch takes seconds to import, so a terminal shows first what is tried; a pipe gets the results alone."""
    package(site, 'numpy', 'print("NumPy is imported")')
    command = [sys.executable, SCRIPTS / 'pytorch-check', 'import']
    environment = dict(clean_environment(), PYTHONPATH=str(site))
    master, terminal = os.openpty()
    subprocess.run(command, stdout=terminal, stderr=subprocess.DEVNULL, env=environment)
    shown = os.read(master, 10000).decode()
    os.close(terminal)
    os.close(master)
    assert re.search(r'^import   \.\.\.\r.*NumPy is imported', shown, re.S), shown
    assert '...' not in subprocess.run(command, capture_output=True, text=True, env=environment).stdout


def test_all_is_well(site):
    """Packages that another one brought along are not imported for themselves."""
    package(site, 'inner', 'raise OSError("nobody imports it")')
    package(site, 'outer', requires=['inner>=1.0'])
    works, others = packages_of(site, 0).splitlines()
    assert works == 'packages works: 2 packages import, and find their symbols'
    assert others == 'not checked: import, gloo, mpi4py, mpi, horovod, compile, vllm, plugin (not asked for)'


@pytest.mark.parametrize('place, printed', [
    ('bin', 'works: the network is the OFI plugin (provider cxi)'),
    ('elsewhere', 'FAILS: pytorch-bandwidth was not found: add it to `scripts`'),
])
def test_plugin_of_a_module_on_top(tmp_path, place, printed):
    """Its directory has pytorch-check alone; PyTorch's, later on the path, has pytorch-bandwidth, if installed."""
    (tmp_path / 'top').mkdir()
    shutil.copy(SCRIPTS / 'pytorch-check', tmp_path / 'top')
    (tmp_path / place).mkdir()
    program = tmp_path / place / 'pytorch-bandwidth'
    program.write_text('print("nccl between nodes: OFI plugin (provider cxi)")\n')
    program.chmod(0o755)
    path = '%s:%s' % (tmp_path / 'bin', os.environ['PATH'])
    done = subprocess.run([sys.executable, tmp_path / 'top/pytorch-check', 'plugin'], capture_output=True, text=True,
                          env=dict(clean_environment(), PATH=path))
    assert 'plugin   ' + printed in done.stdout and done.returncode == (place != 'bin'), done.stdout + done.stderr


def test_another_abi(site):
    """The wheel imports, and its library would fail at the first use."""
    package(site, 'torchtext')
    compiled(site / 'torchtext/lib/libtorchtext.so', 'void %s(void); void f(void) { %s(); }' % (OLD, OLD))
    assert 'torchtext/lib/libtorchtext.so was compiled for another PyTorch, or another C++ ABI: this one has no %s' % (
        OLD) in packages_of(site, 1)


def test_import_fails(site):
    """Every package that cannot be imported is named, with the reason."""
    package(site, 'one', 'import no_such_module')
    package(site, 'two', 'raise OSError("libx.so: cannot open")')
    output = packages_of(site, 1)
    assert "one cannot be imported: ModuleNotFoundError: No module named 'no_such_module'" in output
    assert 'two cannot be imported: OSError: libx.so: cannot open' in output


def test_setuptools_first(site):
    """setuptools takes the place of distutils, unless another package has imported that before."""
    package(site, 'compiler', 'import sys; sys.modules.setdefault("distutils", sys)')
    package(site, 'setuptools', 'import sys; assert "distutils" not in sys.modules')
    assert packages_of(site, 0).startswith('packages works: 3 packages')


def test_import_ends_the_process(site):
    """The package whose import crashes is the last one that is named."""
    package(site, 'crashing', 'import os; os.abort()')
    output = packages_of(site, 1)
    assert 'exit status -6' in output and output.splitlines()[-2] == 'importing crashing'


def test_without_torch(tmp_path):
    """An environment that has no PyTorch has packages all the same."""
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', tmp_path], check=True)
    package(next(tmp_path.glob('lib/python3*/site-packages')), 'alone')
    done = subprocess.run([tmp_path / 'bin/python', SCRIPTS / 'pytorch-check', 'packages'], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env=clean_environment())
    assert done.stdout.startswith('packages works: 1 packages import, and find their symbols\n')


@pytest.mark.parametrize('own', [os.path.realpath(sys.executable), '/of/conda/bin/python3.11'])
def test_another_python(tmp_path, own):
    """A conda environment was activated with the module loaded, or one is gone that the module was made of."""
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'pyvenv.cfg').touch()
    (tmp_path / 'bin/python').symlink_to(own)
    (tmp_path / 'conda/bin').mkdir(parents=True)
    (tmp_path / 'conda/bin/python3').symlink_to(os.path.realpath(sys.executable))
    environment = dict(clean_environment(), EBROOTPYTORCH=str(tmp_path), PATH='%s/conda/bin:/usr/bin:/bin' % tmp_path)
    done = subprocess.run([SCRIPTS / 'pytorch-check'], capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and done.stderr.startswith(
        'FAILS: %s/conda/bin/python3 is not the Python that the module was made of (%s): conda deactivate? If that is '
        'gone, ' % (tmp_path, own)), done.stderr


def test_python_of_a_newer_system(tmp_path):
    """/usr/bin/python3 was 3.8 when the module was installed: its packages lie in another directory."""
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', tmp_path], check=True)
    os.rename(next(tmp_path.glob('lib/python3*')), tmp_path / 'lib/python3.8')
    done = subprocess.run([tmp_path / 'bin/python', SCRIPTS / 'pytorch-check'], capture_output=True, text=True,
                          env=dict(clean_environment(), EBROOTPYTORCH=str(tmp_path)))
    assert done.returncode == 1 and 'is not the Python that the module was made of' in done.stderr, done.stderr


def test_metadata_that_cannot_be_read(site):
    """Of a package that was removed in part, or that a colleague installed for nobody else."""
    package(site, 'private')
    (site / 'private-1.0.dist-info/METADATA').unlink()
    assert packages_of(site, 1).startswith(
        'packages FAILS: %s/private-1.0.dist-info has no metadata that you can read' % site)


def test_installed_by_setup_py(site):
    """pip 23.0 of Debian 12 lists the source files of such a package, with setup.py."""
    (site / 'old-1.0.egg-info').mkdir()
    (site / 'old-1.0.egg-info/PKG-INFO').write_text('Metadata-Version: 2.1\nName: old\nVersion: 1.0\n')
    (site / 'old-1.0.egg-info/SOURCES.txt').write_text('setup.py\nold.py\n')
    (site / 'old.py').touch()
    assert packages_of(site, 0).startswith('packages works: 2 packages')


@pytest.mark.parametrize('reason', ["AttributeError: no TensorBase", "ImportError: undefined symbol"])
def test_libraries_of_another_pytorch(tmp_path, reason):
    """Debian's libtorch, or the archive of libtorch, named in ~/.bashrc."""
    kind, text = reason.split(': ')
    package(tmp_path, 'torch', 'raise %s("%s")' % (kind, text))
    (tmp_path / 'libtorch_cpu.so').touch()
    environment = dict(clean_environment(), PYTHONPATH=str(tmp_path), LD_LIBRARY_PATH='/of/cuda:%s' % tmp_path)
    done = subprocess.run([sys.executable, SCRIPTS / 'pytorch-check', 'import'], capture_output=True, text=True,
                          env=environment)
    assert done.returncode == 1 and done.stderr == (
        "import   FAILS: %s (%s has libraries of another PyTorch: remove it from LD_LIBRARY_PATH)\n" % (text, tmp_path))


def test_unknown_probe():
    """The probes that there are."""
    done = subprocess.run([sys.executable, SCRIPTS / 'pytorch-check', 'packagse'], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 2 and 'unknown probe packagse; choose from: import, packages, gloo' in done.stdout


# --- what it compiles -----------------------------------------------------------------------------------------------

@pytest.mark.slow
@pytest.mark.parametrize('variables, status, words', [
    nightly({}, 0, 'compile  works: torch.compile and an extension in C++, with /'),
    ({'CXX': 'CC-of-no-module'}, 1, "compile  FAILS: CC-of-no-module was not found: load a compiler's module"),
])
def test_compile(tmp_path, variables, status, words):
    """With a real PyTorch; what it leaves is in no cache of the user's, whose $HOME may be small."""
    done = subprocess.run([kept_venv(), SCRIPTS / 'pytorch-check', 'compile'], stdout=subprocess.PIPE, cwd=tmp_path,
                          stderr=subprocess.STDOUT, text=True,
                          env=dict(clean_environment(), HOME=str(tmp_path), TMPDIR=str(tmp_path), **variables))
    assert done.returncode == status and words in done.stdout, done.stdout
    assert not list(tmp_path.iterdir())


# --- how long it waits ----------------------------------------------------------------------------------------------

@pytest.fixture
def check(monkeypatch):
    """The script as a module, which waits for a fraction of a second on an idle machine."""
    loader = importlib.machinery.SourceFileLoader('pytorch_check', str(SCRIPTS / 'pytorch-check'))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader('pytorch_check', loader))
    monkeypatch.setattr('sys.dont_write_bytecode', True)
    loader.exec_module(module)
    monkeypatch.setattr(module, 'SECONDS', 0.2)
    return module


def slow():
    """A process that takes its time."""
    return subprocess.Popen(['sh', '-c', 'sleep 2; echo done'], stdout=subprocess.PIPE)


def test_busy_machine(check, monkeypatch):
    """A build of half an hour failed at its end, as two ranks did not start within two minutes."""
    monkeypatch.setattr(os, 'getloadavg', lambda: (1000.0 * os.cpu_count(), 0, 0))
    assert check.finish(slow()) == 'done'


def test_idle_machine(check, monkeypatch):
    """What hangs is ended."""
    monkeypatch.setattr(os, 'getloadavg', lambda: (0.0, 0, 0))
    with pytest.raises(check.Failed, match='timed out after'):
        check.finish(slow())


# --- what it computes -----------------------------------------------------------------------------------------------

class Number(complex):
    """What a product of two vectors is."""
    def item(self):
        return complex(self)


@pytest.mark.parametrize('wrong', [None, ('dot', 'complex64'), ('dot', 'complex128'), ('vdot', 'complex64'),
                                   ('vdot', 'complex128')])
def test_complex_dot_products(check, monkeypatch, capsys, wrong):
    """With BLAS=OpenBLAS, PyTorch before 2.9 called it as if it were MKL: these were 0, and all else was right."""
    def product(name, conjugate):
        def compute(one, two):
            (numbers, kind), (others, _) = one, two
            return Number(0 if (name, kind) == wrong else sum(conjugate(x) * y for x, y in zip(numbers, others)))
        return compute

    class Matrix:
        def __matmul__(self, other):
            return 'four fours'

    torch = types.SimpleNamespace(
        __version__='2.6.0', __file__='/opt/torch/__init__.py', complex64='complex64', complex128='complex128',
        from_numpy=lambda array: Matrix(), ones=str, full=lambda size, number: 'four fours', equal=str.__eq__,
        tensor=lambda numbers, dtype: (numbers, dtype), dot=product('dot', complex),
        vdot=product('vdot', complex.conjugate))
    monkeypatch.delenv('EBROOTPYTORCH', raising=False)
    monkeypatch.setitem(sys.modules, 'torch', torch)
    monkeypatch.setitem(sys.modules, 'numpy', types.SimpleNamespace(ones=lambda shape, dtype: None))
    monkeypatch.setattr(sys, 'argv', ['pytorch-check', 'import'])
    monkeypatch.setattr(check, 'left_out', dict)
    assert check.main() == (1 if wrong else 0)
    said = capsys.readouterr().out
    assert ('FAILS: dot products of complex numbers are wrong ([' if wrong else 'works: PyTorch 2.6.0') in said


@pytest.mark.slow
def test_real_dot_products():
    """Those of a real PyTorch are right."""
    done = subprocess.run([kept_venv(), SCRIPTS / 'pytorch-check', 'import'], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT, env=clean_environment())
    assert done.returncode == 0 and done.stdout.startswith('import   works: PyTorch'), done.stdout


# --- what it does not check -----------------------------------------------------------------------------------------

def test_what_is_not_checked(check, monkeypatch, capsys):
    """The last line names what is not installed, what this machine cannot do and what needs a job, with the reasons."""
    def needs_job():
        raise check.NotHere("srun needs a job")

    monkeypatch.setenv('CXX', 'CC-of-no-module')
    monkeypatch.setitem(sys.modules, 'torch', None)
    monkeypatch.setattr(check.importlib.util, 'find_spec', lambda name: name == 'mpi4py')
    for name in ('import', 'packages', 'gloo'):
        monkeypatch.setitem(check.PROBES, name, lambda: "well")
    monkeypatch.setitem(check.PROBES, 'mpi4py', needs_job)
    monkeypatch.setattr(sys, 'argv', ['pytorch-check'])
    assert check.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ['import', 'packages', 'gloo', 'not']
    assert lines[-1] == ('not checked: horovod, vllm (not installed); mpi (PyTorch cannot be imported); compile (found '
                         'no CC-of-no-module); plugin (needs a GPU: pytorch-check plugin); mpi4py (srun needs a job)')


def test_without_torch_distributed(check, monkeypatch):
    """A PyTorch that was built with USE_DISTRIBUTED=0 has a module of this name with next to nothing in it."""
    for name in ('torch', 'torch.distributed'):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(check.importlib.util, 'find_spec', lambda name: None)
    assert check.left_out()['mpi'] == 'not installed'


@pytest.mark.parametrize('modules, words', [
    (['torch_mpi'], 'started as 1 process(es), not as 2: the launcher belongs to another MPI than torch_mpi\'s'),
    ([], 'torch_mpi is not installed')])
def test_ranks_that_no_mpi_started(check, monkeypatch, modules, words):
    """srun without PMI: torch_mpi is there, and makes no backend available."""
    torch = types.ModuleType('torch')
    torch.distributed = types.SimpleNamespace(is_mpi_available=lambda: False)
    monkeypatch.delitem(sys.modules, 'torch_mpi', raising=False)
    there = [('torch', torch), ('torch.distributed', torch.distributed)]
    for name, module in there + [(one, torch) for one in modules]:
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(check.Failed, match=re.escape(words)):
        check.rank_torch('mpi')


def test_compiler_without_pythons_headers(check, monkeypatch, tmp_path):
    """As on many a Debian: torch.compile cannot work there, and the installation is right."""
    monkeypatch.setenv('CXX', sys.executable)
    monkeypatch.setattr(check.sysconfig, 'get_path', lambda name: str(tmp_path))
    (tmp_path / 'Python.h').touch()
    assert 'compile' not in check.left_out()
    (tmp_path / 'Python.h').unlink()
    assert 'Python.h' in check.left_out()['compile']


def test_mpiexec_that_hangs(check, monkeypatch, tmp_path):
    """As a Cray's, which waits for its daemon; another says whose it is."""
    monkeypatch.setattr(check, 'SECONDS', 1)
    program = tmp_path / 'mpiexec'
    for text, ours in (('sleep 30; echo OpenRTE', False), ('echo "mpiexec (OpenRTE) 4.1.4"', True)):
        program.write_text('#!/bin/sh\n%s\n' % text)
        program.chmod(0o755)
        monkeypatch.setenv('PATH', '%s:%s' % (tmp_path, os.environ['PATH']))
        assert check.needs_no_job() is ours
