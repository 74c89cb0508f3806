"""What a build is asked for, and what stands in front of it; whole builds are in test_pytorchhpc.py."""
import json
import os
import subprocess

# EasyBuild is in an environment of its own
PROGRAM = '''
import json, sys
from types import SimpleNamespace
from hpc_pytorch.source.wheel_build import WheelBuild, ramgate

class Config(dict):
    parallel = 8

if sys.argv[1] == 'ramgate':
    print(json.dumps(ramgate(SimpleNamespace(cfg=Config(name='PyTorch'), builddir='/b'), sys.argv[2])))
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
