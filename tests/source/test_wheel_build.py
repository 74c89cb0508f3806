"""What a build is asked for, and what stands in front of it; whole builds are in test_pytorchhpc.py."""
import json
import os
import subprocess

import pytest

# EasyBuild is in an environment of its own
PROGRAM = '''
import json, sys
from types import SimpleNamespace
from hpc_pytorch.source.wheel_build import WheelBuild, ramgate_command, stubs_of

class Config(dict):
    parallel = 8

if sys.argv[1] == 'stubs':
    print(json.dumps(stubs_of(sys.argv[2])))
elif sys.argv[1] == 'ramgate':
    print(json.dumps(ramgate_command(SimpleNamespace(cfg=Config(name='PyTorch'), builddir='/b'), sys.argv[2])))
else:
    system = SimpleNamespace(name='x', compilers={'c': 'gcc', 'cxx': 'g++', 'fortran': 'gfortran'})
    block = SimpleNamespace(version='2.6.0', dry_run=True, system=system,
                            cfg={'custom_opts': sys.argv[2:], 'sources': ['pytorch-v2.6.0.tar.gz']})
    block.custom_opts = dict(option.split('=') for option in sys.argv[2:])
    block.compilers = lambda: WheelBuild.compilers(block)
    print(json.dumps(WheelBuild.own_options(block)))
'''


def said(checkout, *words):
    """What the program prints."""
    done = subprocess.run([str(checkout / '.venv/bin/python'), '-c', PROGRAM, *words], cwd=checkout, check=True,
                          stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_ramgate_learns_from_other_versions(tmp_path, checkout):
    """Their profiles lie beside the one that is kept, the newest first."""
    for at, name in enumerate(['PyTorch-2.1.0', 'PyTorch-2.3.0', 'PyTorch-2.3.1-Derecho', 'NCCL-2.20']):
        path = tmp_path / (name + '-ramgate.json')
        path.touch()
        os.utime(path, (at, at))
    profile = str(tmp_path / 'PyTorch-2.3.1-Derecho-ramgate.json')
    words = said(checkout, 'ramgate', profile)
    assert words[words.index('run') + 1:] == [
        '--jobs', '8', '--report', '/b/ramgate', '--profile', profile,
        '--like', str(tmp_path / 'PyTorch-2.3.0-ramgate.json'),
        '--like', str(tmp_path / 'PyTorch-2.1.0-ramgate.json')]


@pytest.mark.slow
def test_gloo_is_not_asked_for_alone(checkout):
    """Without torch.distributed there is none, and the contract would stop the build; who asks for it is told."""
    assert said(checkout, 'options')['USE_GLOO'] == '1'
    assert said(checkout, 'options', 'USE_DISTRIBUTED=OFF')['USE_GLOO'] == '0'
    assert said(checkout, 'options', 'USE_DISTRIBUTED=0', 'USE_GLOO=1')['USE_GLOO'] == '1'


def test_version_names_system_and_flags_are_added(checkout):
    """The wheel says where it is for; flags of the easyconfig come after the table's, other options in their place."""
    options = said(checkout, 'options', 'BUILD_TEST=1', 'CXXFLAGS=-O1')
    assert options['PYTORCH_BUILD_VERSION'] == '2.6.0+x' and options['CXX'] == 'g++'
    assert options['BUILD_TEST'] == '1' and options['CXXFLAGS'].endswith('-O1')


PROJECT = """cmake_minimum_required(VERSION 3.18)
project(small C)
add_library(user SHARED user.c)
target_link_libraries(user %s)
"""


@pytest.mark.slow
def test_stubs_stay_out_of_runpath(tmp_path, checkout):
    """A real CMake writes the directory of a library that is linked by its path into RUNPATH, but not one of these."""
    stubs = tmp_path / 'cuda/lib64/stubs'
    stubs.mkdir(parents=True)
    nvcc = tmp_path / 'cuda/bin/nvcc'
    (tmp_path / 'cuda.c').write_text('int cuInit(void) { return 0; }\n')
    library = stubs / 'libcuda.so'
    subprocess.run(['gcc', '-shared', '-o', library, tmp_path / 'cuda.c'], check=True)
    (tmp_path / 'user.c').write_text('int cuInit(void); int user(void) { return cuInit(); }\n')
    (tmp_path / 'CMakeLists.txt').write_text(PROJECT % library)
    found = said(checkout, 'stubs', str(nvcc))
    runpaths = {}
    for name, paths in (('before', []), ('after', found)):
        build = tmp_path / name
        environment = dict(os.environ, LIBRARY_PATH=':'.join(paths))
        for words in (['-S', tmp_path, '-B', build], ['--build', build]):
            subprocess.run(['cmake', *words], env=environment, check=True, stdout=subprocess.DEVNULL)
        runpaths[name] = subprocess.run(['readelf', '-d', build / 'libuser.so'], check=True, stdout=subprocess.PIPE,
                                        text=True).stdout
    assert str(stubs) in runpaths['before'] and str(stubs) not in runpaths['after']
