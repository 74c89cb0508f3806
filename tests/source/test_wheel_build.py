"""What stands in front of a build; whole builds are in tests/easyblocks/test_pytorchhpc.py."""
import json
import os
import subprocess

# EasyBuild is in an environment of its own
PROGRAM = '''
import json, sys
from types import SimpleNamespace
from hpc_pytorch.source.wheel_build import WheelBuild

class Config(dict):
    parallel = 8

cfg = Config(name='PyTorch', max_memory='48G')
building = WheelBuild(SimpleNamespace(easyblock=SimpleNamespace(builddir='/b', log=None), cfg=cfg))
print(json.dumps(building.ramgate(sys.argv[1])))
'''


def test_ramgate_learns_from_other_versions(tmp_path, checkout):
    """Their profiles lie beside the one that is kept, the newest first."""
    for at, name in enumerate(['PyTorch-2.1.0', 'PyTorch-2.3.0', 'PyTorch-2.3.1-Derecho', 'NCCL-2.20']):
        path = tmp_path / (name + '-ramgate.json')
        path.touch()
        os.utime(path, (at, at))
    profile = str(tmp_path / 'PyTorch-2.3.1-Derecho-ramgate.json')
    done = subprocess.run([str(checkout / '.venv/bin/python'), '-c', PROGRAM, profile], cwd=checkout, check=True,
                          stdout=subprocess.PIPE, text=True)
    words = json.loads(done.stdout)
    assert words[words.index('run') + 1:] == [
        '--jobs', '8', '--report', '/b/ramgate', '--profile', profile,
        '--like', str(tmp_path / 'PyTorch-2.3.0-ramgate.json'),
        '--like', str(tmp_path / 'PyTorch-2.1.0-ramgate.json'), '--memory', '48G', '--']


OPTIONS = '''
import json, sys
from types import SimpleNamespace
from hpc_pytorch.source.wheel_build import WheelBuild

class Config(dict):
    version = '2.6.0'

system = SimpleNamespace(name='x', compilers={'c': 'gcc', 'cxx': 'g++', 'fortran': 'gfortran'})
packages = SimpleNamespace(easyblock=SimpleNamespace(dry_run=True), cfg=Config(custom_opts=sys.argv[1:]), system=system)
print(json.dumps(WheelBuild(packages).own_options()))
'''


def test_gloo_is_not_asked_for_alone(checkout):
    """Without torch.distributed there is none, and the contract would stop the build; who asks for it is told."""
    def options(*custom):
        done = subprocess.run([str(checkout / '.venv/bin/python'), '-c', OPTIONS, *custom], cwd=checkout, check=True,
                              stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout)
    assert 'USE_GLOO=1' in options()
    assert 'USE_GLOO=0' in options('USE_DISTRIBUTED=OFF')
    assert 'USE_GLOO=1' in options('USE_DISTRIBUTED=0', 'USE_GLOO=1')
