"""A small tree with PyTorch's build interface, built (hpc_pytorch/source/wheel_build.py) on the stand-in of ARCHER2."""
import hashlib
import json
import os
import re
import signal
import subprocess
import time

import pytest
from common import CHECKOUT
from easyblocks.small_builds import OPTIONS, Small, pack

pytestmark = pytest.mark.slow


@pytest.fixture
def small(eb, tmp_path):
    """A small tree that builds."""
    return Small(eb, tmp_path)


def test_built_and_used(small, lmod, checkout):
    """Source, wheel, module: two ranks add up; the wheel is used again; every way to call EasyBuild works."""
    small.write()
    output = small()
    assert "CMake enabled all requested options" in output
    assert re.search('PyTorch has the requested options; MPI: /.*libmpi', output), output
    assert re.search('== ramgate: [1-9][0-9]* compilers in ', output), output
    stand_in = checkout / '.local' / 'stand_ins' / 'archer2-2023' / 'modules'
    use = 'module use %s %s; module load PyTorch/1.13.1-small-ARCHER2\n' % (stand_in, small.eb.modules)
    ranks = lmod.run(use + "mpiexec -n 2 python -c 'import torch; print(torch.rank_sum())'; ls $PYTORCH_WHEELS\n"
                     "cd %s; python3 -m venv mine\n"
                     "mine/bin/python -I -m pip install --no-deps $PYTORCH_WHEELS/torch-*.whl" % small.directory)
    assert ranks.count('(2, 3)') == 2 and 'Successfully installed torch-1.13.1+archer2' in ranks
    facts = json.loads((small.installation / 'wheels' / 'provenance.json').read_text())['facts']
    assert [name.split('/')[0] for name in facts['modules'] if '/' in name] == [
        'cmake', 'PrgEnv-gnu', 'cray-python', 'mkl']
    assert 'provenance.json' in ranks and '1.13.1+archer2-cp311-cp311-linux' in ranks

    small('--module-only', '--force')
    small('--sanity-check-only')
    again = small('--rebuild')
    assert 'using the wheel that was built earlier' in again and "CMake enabled all requested options" not in again

    # built from something else: not picked up
    small.write(options=OPTIONS + ['USE_GLOO=0'])
    other = small('--rebuild')
    assert 'using the wheel' not in other and "CMake enabled all requested options" in other


@pytest.mark.nightly
def test_pytorchs_own_tests(small):
    """Upstream runs them, where the easyconfig has a command for them; a wheel that fails is not kept."""
    (small.tree / 'test').mkdir()
    test = small.tree / 'test' / 'test_nn.py'
    asked = """runtest = 'cd test && %(python)s test_nn.py'\nmax_failed_tests = 0\n"""
    for fails in (True, False):
        test.write_text(TEST.replace('assertTrue', 'assertFalse') if fails else TEST)
        small.write(edit=lambda text: text + asked)
        output = small('--rebuild', status=None)
        assert 'using the wheel' not in output and "CMake enabled all requested options" in output
        assert ('An error was raised during test step' in output) == fails, output
        assert bool(list(small.sources.glob('*-built/*/*.whl'))) != fails


@pytest.mark.nightly
def test_no_nvcc(small):
    """GPUs are named, and nothing compiles for them: said before anything is fetched."""
    small.write()
    path = [part for part in os.environ['PATH'].split(os.pathsep) if not os.path.exists(os.path.join(part, 'nvcc'))]
    output = small('--cuda-compute-capabilities=8.0', status=None, env={'PATH': os.pathsep.join(path)})
    assert 'found no nvcc, which compiles for the GPUs 8.0' in output and 'packages into' not in output
    # which may be a module's, for what a dry run knows
    assert "USE_CUDA='1'" in small('-x', '--cuda-compute-capabilities=8.0')
    # one that does not know these GPUs
    nvcc = small.directory / 'nvcc'
    nvcc.write_text('#!/bin/sh\nprintf "compute_50\\ncompute_90\\n"\n')
    nvcc.chmod(0o755)
    output = small('--cuda-compute-capabilities=8.0,12.0', status=None,
                   env={'PATH': os.pathsep.join([str(small.directory)] + path)})
    assert 'nvcc cannot compile for 8.0, 12.0. It knows: compute_50 compute_90' in output
    assert 'packages into' not in output


TEST = """import unittest
import torch
class Small(unittest.TestCase):
    def test_mpi(self):
        self.assertTrue(torch.mpi_available())
if __name__ == '__main__':
    unittest.main()
"""
FILL = """
add_custom_target(fill ALL COMMAND dd if=/dev/zero of=filled bs=1M count=400)
"""
FAULTS = """
file(WRITE ${CMAKE_BINARY_DIR}/omp.c "void omp(void) {}")
add_library(omp SHARED ${CMAKE_BINARY_DIR}/omp.c)
target_link_options(_C PRIVATE -Wl,--no-as-needed)
target_link_libraries(_C PRIVATE omp)
set_target_properties(_C PROPERTIES INSTALL_RPATH "$ORIGIN;/opt/cuda/lib64/stubs")
install(TARGETS omp DESTINATION torch)
"""
PATCH = """--- a/version.txt
+++ b/version.txt
@@ -1 +1 @@
-9.9.9
+9.9.10
"""
HOLD = """
add_custom_target(hold ALL DEPENDS _C COMMAND touch $ENV{HOLD}.reached
                  COMMAND sh -c "while [ -e $ENV{HOLD} ]; do sleep 0.05; done" VERBATIM)
"""


def kill_in_the_middle(small, hold):
    """Start to build it, as it is now, and kill that when some of it is compiled."""
    cmake = small.tree / 'CMakeLists.txt'
    cmake.write_text(cmake.read_text() + HOLD)
    small.write()
    hold.touch()
    with small.eb.started('--rehearse', small.easyconfig, env={'HOLD': str(hold)}) as process:
        wait_for(hold.with_name('hold.reached').exists, process)
        os.killpg(process.pid, signal.SIGKILL)
    hold.unlink()


def test_killed_and_resumed(small, tmp_path):
    """A build that is killed goes on where it was."""
    kill_in_the_middle(small, tmp_path / 'hold')
    output = small(env={'HOLD': str(tmp_path / 'hold')})
    assert 'continuing the build that was interrupted' in output
    assert not small.compiled() and '--cmake-only' not in output


@pytest.mark.nightly
def test_killed_and_not_resumed(small, tmp_path):
    """One that is to be another starts from the beginning and says why."""
    kill_in_the_middle(small, tmp_path / 'hold')
    small.write(options=OPTIONS + ['USE_GLOO=0'])
    output = small(env={'HOLD': str(tmp_path / 'hold')})
    assert 'not continued, as it differs in: checksums, options' in output and small.compiled()


def wait_for(condition, process):
    """Wait, as long as the process runs."""
    while not condition():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)


@pytest.mark.nightly
def test_rehearsed(eb, tmp_path):
    """-x shows a real easyconfig's steps, its source without a checksum, and no error that EasyBuild had to ignore."""
    text = (CHECKOUT / 'easyconfigs/p/PyTorch/PyTorch-1.13.1-ARCHER2.eb').read_text()
    (tmp_path / 'PyTorch-1.13.1-ARCHER2.eb').write_text(re.sub(r'^checksums = \[.*?^\]', '', text, flags=re.M | re.S))
    output = eb('--rehearse', tmp_path / 'PyTorch-1.13.1-ARCHER2.eb', '-x').stdout
    assert 'setup.py build --cmake-only' in output and 'setup.py bdist_wheel' in output
    assert 'ignoring error' not in output, output


@pytest.mark.nightly
def test_without_mpi(small):
    """CMake does not find MPI: it stops before anything is built, and names MPI."""
    cmake = small.tree / 'CMakeLists.txt'
    cmake.write_text(cmake.read_text().replace('find_package(MPI)', 'set(MPI_CXX_FOUND OFF)'))
    small.write()
    output = small.refused()
    assert 'CMake did not enable the requested options (USE_MPI)' in output and 'asked for:     ON' in output


@pytest.mark.nightly
def test_installed_without_mpi(small):
    """CMake found MPI, and what comes out is without it all the same: there is no module of it."""
    cmake = small.tree / 'CMakeLists.txt'
    cmake.write_text(cmake.read_text().replace('target_compile_definitions(_C PRIVATE USE_C10D_MPI)', ''))
    small.write()
    done = small.eb('--rehearse', small.easyconfig, status=None)
    assert done.returncode and 'the installed PyTorch differs from what was requested (USE_MPI)' in done.stdout
    assert 'no mpi backend in torch.distributed' in done.stdout
    assert not list(small.eb.modules.glob('PyTorch/*'))


def test_faults_in_libraries(small):
    """CUDA's stubs in RUNPATH and a second OpenMP: in the wheel, then in what is installed, where they came later."""
    cmake = small.tree / 'CMakeLists.txt'
    whole = cmake.read_text()
    cmake.write_text(whole + FAULTS)
    small.write()
    output = small.refused()
    assert 'libraries that no module should have (RUNPATH, OpenMP)' in output, output
    assert '/opt/cuda/lib64/stubs' in output and 'libomp.so' in output
    cmake.write_text(whole)
    small.write()
    small()
    source = small.directory / 'planted.c'
    source.write_text('void planted(void) {}\n')
    torch, = small.installation.glob('**/site-packages/torch')
    planted = ['gcc', '-shared', '-fPIC', source, '-Wl,-rpath,$ORIGIN:%s' % (small.eb.prefix / 'build' / 'PyTorch')]
    subprocess.run(planted + ['-o', torch / 'libomp.so'], check=True)
    subprocess.run(planted + ['-o', torch / 'libplanted.so', '-Wl,--no-as-needed', torch / 'libomp.so'], check=True)
    output = small('--sanity-check-only', status=None)
    assert 'the installed PyTorch differs from what was requested (RUNPATH, OpenMP)' in output, output
    assert 'the build directory' in output


@pytest.mark.nightly
def test_download_failed(small):
    """CMake goes on without what it could not download; the build would end with another error, much later."""
    cmake = small.tree / 'CMakeLists.txt'
    cmake.write_text(cmake.read_text() + 'message(STATUS "error: downloading \'https://example.org/x\' failed")\n')
    small.write()
    assert 'CMake downloads https://example.org/x by itself; build stopped' in small.refused()


@pytest.mark.nightly
def test_without_mkl(small):
    """MKL is loaded, and the build does not find it where it is told to look."""
    small.write(options=OPTIONS + ['INTEL_MKL_DIR=/nowhere'])
    output = small.refused()
    assert '(BLAS)' in output and 'found:         Eigen' in output


def test_wrong_input(small):
    """Each with an error that says what is wrong, before anything is built."""
    small.write(options=OPTIONS + ['USE_MPII=1'])
    assert 'USE_MPII (did you mean USE_MPI?)' in small.refused()
    small.write(checksum='f' * 64)
    assert 'Checksum verification' in small.refused()
    small.write(edit=lambda text: text.replace("['3.9', '3.11']", "['3.6']").replace("features = ['mpi']\n", ''))
    refused = small.refused()
    assert 'needs Python 3.6; found: 3.' in refused and "such as features = ['mpi']" in refused
    small.write(edit=lambda text: text.replace(", ('mkl/2023.0.0', EXTERNAL_MODULE)", ''))
    assert 'BLAS' in small.refused()
    # once a traceback; without the login's default environment nothing else brings the compilers
    small.write(edit=lambda text: text.replace("('PrgEnv-gnu', EXTERNAL_MODULE), ", ''))
    refused = small.refused(env={'HPC_LOGIN': 'bare'})
    assert 'CC, which ARCHER2' in refused and 'was not found' in refused


@pytest.mark.nightly
def test_damaged_source(small):
    """A tarball that was cut short before anybody took its checksum, and a patch for another version."""
    small.write()
    tarball = small.sources / 'small-torch.tar.gz'
    whole = tarball.read_bytes()
    tarball.write_bytes(whole[:len(whole) // 2])
    text = small.easyconfig.read_text()
    digest, cut = (hashlib.sha256(content).hexdigest() for content in (whole, tarball.read_bytes()))
    assert 'Checksum verification' in small.refused()
    small.easyconfig.write_text(text.replace(digest, cut))
    assert 'small-torch.tar.gz' in small.refused('--rebuild') and 'tar' in small.refused()

    tarball.write_bytes(whole)
    patch = small.easyconfig.parent / 'other.patch'
    patch.write_text(PATCH)
    small.easyconfig.write_text(text.replace("['%s']" % digest, "['%s', '%s']" % (
        digest, hashlib.sha256(patch.read_bytes()).hexdigest())) + "patches = ['other.patch']\n")
    assert 'other.patch' in small.refused()


@pytest.mark.nightly
def test_no_space_left(small, tmp_path):
    """The disk is full in the middle of the build; fetched wheels once counted as if they were to be compiled."""
    store = small.sources / 'PyTorch-1.13.1-small-ARCHER2-wheels'
    store.mkdir()
    with open(store / 'other.bin', 'wb') as handle:
        handle.truncate(100 * 2 ** 20)
    cmake = small.tree / 'CMakeLists.txt'
    cmake.write_text(cmake.read_text() + FILL)
    small.write()
    place = tmp_path / 'small-disk'
    place.mkdir()
    # more than EasyBuild wants to see, less than the build writes
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=300M', 'none', str(place)], check=True)
    try:
        output = small.refused('--buildpath=%s' % place)
    finally:
        subprocess.run(['umount', str(place)], check=True)
    assert 'likely cause: the disk is full' in output and '--buildpath=DIRECTORY' in output


SETUP = "from setuptools import setup\nsetup(name='easybuild-easyconfigs', version='0.1')\n"
OF_UPSTREAM = 'PyTorch-1.13.1_small.patch'


@pytest.fixture
def distribution(small):
    """A small distribution of upstream's easyconfigs, locked beside the easyconfig; returns what pip finds it by."""
    tree = small.directory / 'distribution'
    patches = tree / 'easybuild/easyconfigs/p/PyTorch'
    patches.mkdir(parents=True)
    (tree / 'setup.py').write_text(SETUP)
    (tree / 'PKG-INFO').write_text('Metadata-Version: 2.1\nName: easybuild-easyconfigs\nVersion: 0.1\n')
    patch = PATCH.replace('9.9.9', (small.tree / 'version.txt').read_text().strip())
    (patches / OF_UPSTREAM).write_text(patch)
    found = small.directory / 'found'
    checksum = pack(tree, 'easybuild_easyconfigs-0.1', found / 'easybuild_easyconfigs-0.1.tar.gz')
    (small.directory / 'easybuild-easyconfigs.lock').write_text(
        'easybuild-easyconfigs==0.1 --hash=sha256:%s\n' % checksum)
    small.digest = hashlib.sha256(patch.encode()).hexdigest()
    return {'PIP_FIND_LINKS': str(found)}


def with_patch(small, name):
    """Write the easyconfig with a patch."""
    small.write(edit=lambda text: re.sub(r"^checksums = \[(.*)\]$", r"checksums = [\1, {%r: %r}]\npatches = [%r]" % (
        name, small.digest, name), text, flags=re.M))


@pytest.mark.nightly
def test_patches_of_upstream(small, distribution):
    """Taken out of the distribution once, and applied; then without it and without a network."""
    with_patch(small, OF_UPSTREAM)
    for env in (distribution, {'PIP_NO_INDEX': '1'}):
        small('--stop=patch', '--disable-cleanup-builddir', env=env)
        version, = small.eb.prefix.glob('build/PyTorch/**/small-torch/version.txt')
        assert version.read_text() == '9.9.10\n'
        assert (small.sources / OF_UPSTREAM).exists()
        for path in small.sources.glob('*-wheels/easybuild*'):
            path.unlink()


@pytest.mark.nightly
def test_wrong_patch_of_upstream(small, distribution):
    """Changed, not to be had, or not in the distribution: the fetch step stops and names it."""
    changed = small.sources / OF_UPSTREAM
    changed.write_text('another\n')
    with_patch(small, OF_UPSTREAM)
    output = small.refused('--fetch', env=distribution)
    assert 'Checksum verification for' in output and OF_UPSTREAM in output
    changed.unlink()
    output = small.refused('--fetch', env={'PIP_NO_INDEX': '1'})
    assert 'Fetching failed' in output and 'easybuild-easyconfigs' in output, output
    with_patch(small, 'PyTorch-1.13.1_unknown.patch')
    output = small.refused('--fetch', env=distribution)
    assert 'PyTorch-1.13.1_unknown.patch is neither beside the easyconfig nor in the distribution' in output
