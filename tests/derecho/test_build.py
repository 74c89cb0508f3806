"""Derecho's easyconfigs, built on its stand-in: NCCL, its plugin, and PyTorch with both, from small sources."""
import ctypes
import re
import shutil
from pathlib import Path

import pytest
from common import CACHE, EB, ModulesTool

from easyblocks.small_builds import SmallTorch, pack

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
NCCL = 'NCCL-2.21.5-1-Derecho.eb'
PLUGIN = 'aws-ofi-nccl-1.6.0-Derecho.eb'
SMALL = '--try-software-version=9.9.9'
# loads a plugin as NCCL does, and prints what it says
LOAD = r'''
import ctypes, sys
LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p,
                       ctypes.c_char_p)
class Plugin(ctypes.Structure):
    _fields_ = [('name', ctypes.c_char_p), ('initialise', ctypes.CFUNCTYPE(ctypes.c_int, LOG))]
plugin = Plugin.in_dll(ctypes.CDLL('libnccl-net.so'), 'ncclNetPlugin_v6')
print(plugin.name.decode())
log = LOG(lambda level, flags, file, line, format, argument: print(format.decode(), flush=True))
plugin.initialise(log)
'''


class Derecho:
    """./eb on the stand-in, with NCCL and the plugin installed from small sources."""

    def __init__(self, directory):
        self.eb = EB(directory / 'prefix')
        self.sources = directory / 'sources'
        self.eb.sources = '%s:%s' % (self.sources, CACHE / 'sources')
        self.eb.prefix.mkdir()
        pack(HERE / 'small_nccl', 'nccl-9.9.9', self.sources / 'n' / 'NCCL' / 'nccl-9.9.9.tar.gz')
        pack(HERE / 'small_plugin', 'aws-ofi-nccl-9.9.9',
             self.sources / 'a' / 'aws-ofi-nccl' / 'aws-ofi-nccl-9.9.9.tar.gz')

    def __call__(self, *arguments, **options):
        """./eb; what it prints."""
        return self.eb('--rehearse', '--system=derecho', *arguments, **options).stdout

    @property
    def software(self):
        """Where it is installed."""
        return self.eb.prefix / 'software'

    def use(self, checkout, module):
        """The shell commands to load a module."""
        return 'module use %s %s; module load %s\n' % (
            checkout / '.local' / 'stand_ins' / 'derecho-2024' / 'modules', self.eb.modules, module)


@pytest.fixture(scope='module')
def derecho(tmp_path_factory):
    """A Derecho with small NCCL and plugin."""
    derecho = Derecho(tmp_path_factory.mktemp('derecho'))
    derecho(NCCL, SMALL)
    derecho(PLUGIN, SMALL)
    return derecho


def test_nccl(derecho, checkout, lmod):
    """The machine's nvcc compiles for the architecture of the easyconfig, or for the user's."""
    library = derecho.software / 'NCCL' / '9.9.9-Derecho' / 'lib' / 'libnccl.so'
    script = derecho.use(checkout, 'NCCL/9.9.9-Derecho') + 'cuobjdump --list-elf %s || strings -a %s | grep -o sm_..'
    assert 'sm_80' in lmod.run(script % (library, library))
    derecho(NCCL, SMALL, '--cuda-compute-capabilities=9.0', '--rebuild')
    assert 'sm_90' in lmod.run(script % (library, library))
    version = ctypes.c_int()
    ctypes.CDLL(str(library)).ncclGetVersion(ctypes.byref(version))
    assert version.value == 90909


def loaded_plugin(derecho, checkout, lmod, module):
    """What a plugin says when it is loaded."""
    (derecho.eb.prefix / 'load.py').write_text(LOAD)
    # it may end with an error for want of a network; what counts comes first
    return lmod.run(derecho.use(checkout, module) + 'python3 %s; true' % (derecho.eb.prefix / 'load.py'))


def test_plugin(derecho, checkout, lmod):
    """It is found by the name that NCCL looks for, and is linked with the module's libfabric."""
    said = loaded_plugin(derecho, checkout, lmod, 'aws-ofi-nccl/9.9.9-Derecho')
    assert 'AWS Libfabric' in said and 'Using aws-ofi-nccl 9.9.9' in said
    library = derecho.software / 'aws-ofi-nccl' / '9.9.9-Derecho' / 'lib' / 'libnccl-net.so'
    linked = lmod.run(derecho.use(checkout, 'aws-ofi-nccl/9.9.9-Derecho') + 'ldd %s' % library)
    assert 'stand_ins/derecho-2024/parts/libfabric/lib' in linked


def test_todays_plugin(derecho, checkout, lmod, tmp_path):
    """On the modules of 2026, without CUDA's at run time, which is the wheels' own; NCCL's name for it finds it."""
    eb = EB(tmp_path / 'prefix')
    eb.sources = derecho.sources
    eb.prefix.mkdir()
    eb('--rehearse', 'aws-ofi-nccl-1.21.1-Derecho.eb', SMALL)
    (tmp_path / 'load.py').write_text(LOAD)
    said = lmod.run("""module use %s/.local/stand_ins/derecho/modules %s; module load aws-ofi-nccl/9.9.9-Derecho
                    module list 2>&1; LD_DEBUG=libs python3 %s 2>&1; true""" % (
                        checkout, eb.modules, tmp_path / 'load.py'))
    assert 'Using aws-ofi-nccl 9.9.9' in said and 'ncarenv/24.12' in said and ') cuda/' not in said
    assert 'calling init: %s/aws-ofi-nccl/9.9.9-Derecho/lib/libnccl-net.so' % (eb.prefix / 'software') in said


def test_real_plugin(derecho, checkout, lmod):
    """The real source: compiled, loaded, and it says its version."""
    derecho.eb.fetch_from_github(PLUGIN, '--rehearse', '--system=derecho')
    derecho(PLUGIN)
    said = loaded_plugin(derecho, checkout, lmod, 'aws-ofi-nccl/1.6.0-Derecho')
    assert 'AWS Libfabric' in said and 'Using aws-ofi-nccl 1.6.0' in said


@pytest.fixture
def torch(derecho, tmp_path):
    """The small tree of PyTorch 2.3.1, as Derecho's easyconfig builds it."""
    return SmallTorch('PyTorch-2.3.1-Derecho.eb', tmp_path, derecho.sources)


def refused(derecho, torch, *arguments):
    """It stops with an error, and nothing is installed."""
    done = derecho.eb('--rehearse', '--system=derecho', torch.path, *arguments, status=None)
    assert done.returncode, done.stdout
    assert not list(derecho.eb.modules.glob('PyTorch/*refused*'))
    return done.stdout


def test_torch(derecho, torch, checkout, lmod):
    """Source, wheel, module: the right NCCL, GPU architecture and MPI; settings that the user can overrule."""
    torch.write()
    assert "CMake enabled all requested options" in derecho(torch.path)
    module = 'PyTorch/2.3.1-Derecho-small'
    use = derecho.use(checkout, module)
    asked = "python -c 'import torch._C as c; print(c.nccl_version(), c.takes_gpu_memory())'"
    assert '90909 True' in lmod.run(use + 'TORCH_MPI_GPU_AWARE=1 ' + asked)
    refusal = lmod.run(use + asked, status=1)
    assert 'MPICH_GPU_SUPPORT_ENABLED=1' in refusal and 'TORCH_MPI_GPU_AWARE=1' in refusal

    # the plugin is 9.9.9: the new name
    shown = 'echo "<$NCCL_NET> <$FI_CXI_DEFAULT_CQ_SIZE> <$NCCL_CROSS_NIC>"\n'
    said = lmod.run('export FI_CXI_DEFAULT_CQ_SIZE=7\n' + use + shown + 'module unload %s\n' % module + shown)
    assert re.findall('^<.*>$', said, re.M) == ['<OFI> <7> <1>', '<> <7> <>']

    # for another GPU another wheel is built
    assert 'using the wheel' in derecho(torch.path, '--rebuild')
    assert 'using the wheel' not in derecho(torch.path, '--rebuild', '--cuda-compute-capabilities=9.0')


@pytest.mark.nightly
def test_settings_with_environment_modules(derecho, torch, checkout):
    """The same settings in Tcl."""
    torch.write(versionsuffix='-Derecho-tcl')
    tool = ModulesTool('Environment Modules')
    tcl = EB(derecho.eb.prefix.parent / 'tcl')
    tcl.sources = derecho.eb.sources
    tcl.prefix.mkdir()
    for arguments in ([NCCL, SMALL], [PLUGIN, SMALL], [torch.path]):
        tcl('--rehearse', '--system=derecho', *arguments, env=tool.for_easybuild)
    use = 'module use %s %s; module load PyTorch/2.3.1-Derecho-tcl\n' % (
        checkout / '.local' / 'stand_ins' / 'derecho-2024' / 'modules', tcl.modules)
    shown = 'echo "<$NCCL_NET> <$FI_CXI_DEFAULT_CQ_SIZE> <$NCCL_CROSS_NIC>"\n'
    said = tool.run('export FI_CXI_DEFAULT_CQ_SIZE=7\n' + use + shown
                    + 'module unload PyTorch/2.3.1-Derecho-tcl\n' + shown)
    assert '<OFI> <7> <1>' in said and '<> <7> <>' in said


def test_bundled_nccl(derecho, torch):
    """Another NCCL than the module's is found: it stops before anything is built, and says where it is."""
    other = torch.directory / 'other'
    shutil.copytree(derecho.software / 'NCCL' / '9.9.9-Derecho', other)
    cmake = torch.tree / 'CMakeLists.txt'
    cmake.write_text(cmake.read_text().replace('HINTS $ENV{NCCL_LIB_DIR}', 'PATHS %s/lib NO_DEFAULT_PATH' % other))
    torch.write(versionsuffix='-Derecho-refused')
    output = refused(derecho, torch)
    assert '(NCCL_LIB_DIR)' in output and str(other) in output


@pytest.mark.nightly
def test_other_architecture(derecho, torch):
    """The build forgets the architecture that was asked for."""
    cmake = torch.tree / 'CMakeLists.txt'
    cmake.write_text(cmake.read_text().replace('"$ENV{TORCH_CUDA_ARCH_LIST}"', '"9.0"'))
    torch.write(versionsuffix='-Derecho-refused')
    output = refused(derecho, torch)
    assert '(TORCH_CUDA_ARCH_LIST)' in output and 'found:         9.0' in output


def test_no_place_for_the_decision(derecho, torch):
    """A version whose MPI backend decides otherwise is refused, with the place that was not found."""
    backend = torch.tree / 'torch' / 'csrc' / 'distributed' / 'c10d' / 'ProcessGroupMPI.cpp'
    backend.write_text(backend.read_text().replace('bool cudaAwareMpiCheck() {', 'bool cudaAware() {'))
    torch.write(versionsuffix='-Derecho-refused')
    output = refused(derecho, torch)
    assert 'gpu_aware_mpi' in output and "'bool cudaAwareMpiCheck() {'" in output and 'found it 0 times' in output


@pytest.mark.parametrize('name', ['PyTorch-2.3.1-Derecho.eb', 'PyTorch-2.4.0-Derecho.eb'])
def test_rehearsed(derecho, name):
    """-x shows the real easyconfig's steps without one error that EasyBuild had to ignore."""
    output = derecho(name, '-x')
    assert 'ignoring error' not in output, output
