"""What a PyTorch's libraries search, and whose OpenMP they load: real ones, compiled here."""
import subprocess
import zipfile

import pytest
from common import needs_program

from hpc_pytorch.source import libraries

LDD = """\tlibgomp.so.1 => /usr/lib/libgomp.so.1 (0x0)
\tlibgompertz.so.1 => /usr/lib/libgompertz.so.1 (0x0)
\tlibompi.so => /usr/lib/libompi.so (0x0)
/prefix/torch/lib/libtorch_python.so:
\tlibgomp.so.1 => /usr/lib/libgomp.so.1 (0x0)
"""


@pytest.fixture
def library(tmp_path):
    """Link a library with these words."""
    needs_program('gcc')
    source = tmp_path / 'x.c'
    source.write_text('int x(void) { int n = 0;\n#pragma omp parallel\nn = 1;\nreturn n; }\n')

    def link(*words, name='libx.so'):
        path = tmp_path / 'torch' / 'lib' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(['gcc', '-shared', '-fPIC', '-o', path, source, *words], check=True)
        return str(path)
    return link


@pytest.mark.parametrize('words, wrong', [
    (['-Wl,-rpath,$ORIGIN:/opt/mpi/lib'], []),
    (['-Wl,-rpath,$ORIGIN:/opt/cuda/lib64/stubs'], ['/opt/cuda/lib64/stubs']),
    (['-Wl,-rpath,/build/PyTorch/x/lib:/builder', '-Wl,--disable-new-dtags'], ['/build/PyTorch/x/lib']),
])
def test_search_paths(library, words, wrong):
    """RUNPATH and RPATH; the reason names which of the two faults it is."""
    path = library(*words)
    found = libraries.compare_search_paths([path], '/build')
    assert [item.found for item in found] == wrong and all(item.places == [path] for item in found)
    reasons = [libraries.STUBS if 'stubs' in path else libraries.BUILD_DIRECTORY for path in wrong]
    assert [item.reason for item in found] == reasons


def test_origin_in_the_build_directory(library, tmp_path, monkeypatch):
    """EasyBuild works there when the wheel is looked at: $ORIGIN is no name of a directory below it."""
    path = library('-Wl,-rpath,$ORIGIN:$ORIGIN/../torch/lib')
    monkeypatch.chdir(tmp_path)
    assert not libraries.compare_search_paths([path], str(tmp_path))


def test_openmp():
    """The same one many times is one; another compiler's is wrong even if it is alone."""
    def found(printed, compiler='gcc'):
        return [item.found for item in libraries.compare_openmp(printed, compiler)]
    assert not found(LDD) and not found(LDD, '') and not found('')
    second = LDD + '\tlibomp.so.5 => /usr/lib/llvm/libomp.so.5 (0x0)\n'
    assert found(second) == ['/usr/lib/libgomp.so.1, /usr/lib/llvm/libomp.so.5'] == found(second, '')
    assert found('\t/opt/lib/libomp.so (0x0)\n') == ['/opt/lib/libomp.so'] and not found('/opt/lib/libomp.so:\n')
    assert found(LDD, 'clang') == ['/usr/lib/libgomp.so.1']
    assert found(LDD + '\tlibgomp-a34b3233.so.1 => /prefix/torch/lib/libgomp-a34b3233.so.1 (0x0)\n')


def test_wheel(library, tmp_path):
    """All libraries of a wheel are looked at, wherever they lie in it."""
    path = library('-fopenmp', '-Wl,-rpath,/build/x')
    wheel = tmp_path / 'torch.whl'
    with zipfile.ZipFile(wheel, 'w') as packed:
        for name in ('torch/lib/libx.so', 'torch/_C.cpython-311.so', 'torch/lib/libx.so.1', 'torch/sources.so/note'):
            packed.write(path, name)
    found = libraries.unpack(str(wheel), str(tmp_path / 'unpacked'))
    assert len(found) == 3
    printed = libraries.ldd(found, str(tmp_path))
    assert len(libraries.runtimes(printed)) == 1 and set(libraries.runtimes(printed).values()) == {'gcc'}
    differences = libraries.compare(found, printed, 'clang', '/build')
    assert [item.option for item in differences] == ['RUNPATH'] * 3 + ['OpenMP']
