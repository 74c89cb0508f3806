"""What CMake decided, compared with what was asked for."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_pytorch import UsersProblem
from hpc_pytorch.source import contract


def test_switch_that_no_table_has():
    """Whoever asks for a switch by name gets it, or is told; settings of setup.py are in no cache."""
    asked = {'USE_OPENMP': '1', 'USE_MPI': '1', 'BUILD_TEST': '0', 'USE_PRIORITIZED_TEXT_FOR_LD': '1'}
    cache = {'USE_OPENMP': 'OFF', 'BUILD_TEST': 'OFF', 'USE_MPI': 'ON'}
    assert not contract.compare(asked, cache, {})
    difference, = contract.compare(asked, cache, {}, named=asked)
    assert (difference.option, difference.asked, difference.found) == ('USE_OPENMP', 'ON', 'OFF')
    assert not contract.compare(asked, cache, {'USE_OPENMP': 'ON'}, named=asked)


def test_switches_in_cache(tmp_path):
    """As CMake 3.31 writes PyTorch 2.6.0's, asked for USE_MPI and USE_FLASH_ATTENTION without what they depend on."""
    cache = tmp_path / 'CMakeCache.txt'
    cache.write_text('//Use distributed\nUSE_DISTRIBUTED:BOOL=0\n\nUSE_MPI:INTERNAL=1\nUSE_FLASH_ATTENTION:INTERNAL=1\n'
                     '//No help, variable specified on the command line.\nUSE_CUPTI_SO:UNINITIALIZED=1\n'
                     'CMAKE_PREFIX_PATH:UNINITIALIZED=/opt\nCMAKE_CACHE_MAJOR_VERSION:INTERNAL=3\n')
    asked = {'USE_MPI': '1', 'USE_FLASH_ATTENTION': '1', 'USE_CUPTI_SO': '1'}
    found = contract.read_cache(cache)
    assert found['CMAKE_PREFIX_PATH'] == '/opt' and found['CMAKE_CACHE_MAJOR_VERSION'] == '3'
    assert [item.option for item in contract.compare(asked, found, {}, named=asked)] == ['USE_MPI',
                                                                                         'USE_FLASH_ATTENTION']


def test_python_itself(tmp_path):
    """Nobody asks for it by name, and CMake goes on without Python's headers; an old tree may not know the switch."""
    (tmp_path / 'build').mkdir()
    cache = tmp_path / 'build' / 'CMakeCache.txt'
    cache.write_text('BUILD_PYTHON:BOOL=OFF\n')
    with pytest.raises(UsersProblem, match='(?s)BUILD_PYTHON.*python3-devel'):
        contract.check(str(tmp_path), '-- Not compiling with python\n', {}, {})
    cache.write_text('BUILD_PYTHON:BOOL=True\n')
    contract.check(str(tmp_path), '', {}, {})
    cache.write_text('CMAKE_C_COMPILER:STRING=gcc\n')
    contract.check(str(tmp_path), '', {}, {})


def test_another_cudnn():
    """The module's is asked for, and the toolkit's is found; links may lead to the module's."""
    asked = {'USE_CUDNN': '1', 'CUDNN_ROOT': '/opt/cudnn/8.8'}
    cache = {'USE_CUDNN': '1', 'CUDNN_LIBRARY_PATH': '/usr/local/cuda/lib64/libcudnn.so'}
    assert [item.option for item in contract.compare(asked, cache, {})] == ['CUDNN_ROOT']
    assert not contract.compare(asked, dict(cache, CUDNN_LIBRARY_PATH='/opt/cudnn/8.8/lib/libcudnn.so'), {})
    assert not contract.compare(dict(asked, USE_CUDNN='0'), dict(cache, USE_CUDNN='0'), {})


def test_downloads():
    """In CMake's own words."""
    assert not contract.downloads("-- Downloading six\n-- done\n")
    assert contract.downloads("CMake Error: error: downloading 'https://example.org/six' failed\n") == [
        'https://example.org/six']
    assert contract.downloads("-- Downloading six to /build/six\n-- done\n") == ['six']
    assert contract.downloads("  Each download failed!\n") == ['something']


def test_blas_in_cmakes_words():
    """PyTorch's summary calls OpenBLAS "open", whatever it was asked for as."""
    cache = {'BLAS': 'OpenBLAS'}
    assert not contract.compare({'BLAS': 'OpenBLAS'}, cache, {'BLAS': 'open'})
    difference, = contract.compare({'BLAS': 'OpenBLAS'}, cache, {'BLAS': 'mkl'})
    assert difference.found == 'mkl'


def test_blas_in_upstreams_words():
    """Where OpenBLAS is a module, as on Bede, upstream's easyblock asks for BLAS=Eigen, and links with WITH_BLAS."""
    asked, cache = {'BLAS': 'Eigen', 'WITH_BLAS': 'open'}, {'BLAS': 'Eigen', 'WITH_BLAS': 'open'}
    assert not contract.compare(asked, cache, {'BLAS': 'open'})
    # without a BLAS, the summary has no such line
    difference, = contract.compare(asked, cache, {})
    assert (difference.asked, difference.found) == ('OpenBLAS', 'Eigen')
    assert not contract.compare({'BLAS': 'FlexiBLAS', 'WITH_BLAS': 'flexi'}, {}, {'BLAS': 'flexi'})


def test_adopted_alone(tmp_path):
    """As docs/easybuild.rst says: one file, with another exception for its only import of ours, without EasyBuild."""
    text = Path(contract.__file__).read_text()
    ours = re.findall(r'^(?:from|import) (?:hpc_pytorch|easybuild).*', text, re.M)
    assert ours == ['from hpc_pytorch import UsersProblem']
    (tmp_path / 'contract.py').write_text(text.replace(ours[0], 'UsersProblem = ValueError'))
    (tmp_path / 'build').mkdir()
    (tmp_path / 'build/CMakeCache.txt').write_text('USE_MPI:BOOL=OFF\n')
    program = "import contract; asked = {'USE_MPI': '1'}; contract.check('.', '', asked, asked)"
    done = subprocess.run([sys.executable, '-c', program], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert 'ValueError: CMake did not enable the requested options (USE_MPI)' in done.stderr
