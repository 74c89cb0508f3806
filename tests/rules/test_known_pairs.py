"""Versions that are known to fail together, through ./eb."""
import subprocess

import pytest
from common import CHECKOUT, clean_environment
from small_software import Toys, site

# what is known of a machine whose driver has this version
PROGRAM = """
import sys
from hpc_pytorch.rules import known_pairs

class Easyconfig(dict):
    path = 'toy-1.0.eb'
    dependencies = list

known_pairs.DRIVER = sys.argv[1]
print(known_pairs.versions_of(Easyconfig(name='toy', version='1.0')).get('driver'))
"""


@pytest.mark.parametrize('environment, driver', [({}, '535.54'), ({'HPC_PYTORCH_REHEARSAL': 'frontier'}, 'None')])
def test_driver_of_another_machine(tmp_path, environment, driver):
    """A rehearsal is for a machine that has another driver than this one."""
    (tmp_path / 'version').write_text('535.54\n')
    found = subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', PROGRAM, str(tmp_path / 'version')], text=True,
                           cwd=CHECKOUT, env=dict(clean_environment(), **environment), check=True,
                           stdout=subprocess.PIPE).stdout
    assert found == driver + '\n'


# the check of an easyconfig of PyTorch with this version and option
BLAS = """
import sys
from hpc_pytorch.rules import known_pairs

class Easyconfig(dict):
    path = 'PyTorch-2.6.0-workstation-source.eb'
    dependencies = list

known_pairs.policy.going_to_install = lambda: True
known_pairs.policy.decide = lambda key, text: print(text)
known_pairs.check([{'ec': Easyconfig(name='PyTorch', version=sys.argv[1], custom_opts=['USE_MPI=1', sys.argv[2]])}])
"""


@pytest.mark.parametrize('version, option, told', [
    ('2.6.0', 'BLAS=OpenBLAS', True), ('2.6.0', 'BLAS=Eigen', False), ('2.9.1', 'BLAS=OpenBLAS', False)])
def test_option(version, option, told):
    """Before a build of hours, whose dot products of complex numbers would be 0."""
    said = subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', BLAS, version, option], cwd=CHECKOUT, check=True,
                          env=clean_environment(), stdout=subprocess.PIPE, text=True).stdout
    assert ('use BLAS=Eigen and WITH_BLAS=open' in said) is told, said


# the check of an easyconfig of PyTorch with this version and directory, and the lock beside it
LOCKED = BLAS.replace("'PyTorch-2.6.0-workstation-source.eb'", "sys.argv[2] + '/mine.eb'").replace(
    "custom_opts=['USE_MPI=1', sys.argv[2]]", "lock_files=['mine.lock']")


@pytest.mark.parametrize('locked, version, advice', [
    ('torchaudio==2.11.0+cu128', '2.10.0', 'torchaudio<2.11'),
    ('torchaudio==2.11.0+cu128', '2.11.0', None),
    ('numpy==2.4.6', '2.2.2', 'numpy<2'),
    ('numpy==2.4.6', '2.3.0', None),
    ('setuptools==84.2.1', '2.1.2', 'setuptools<70'),
    ('setuptools==84.2.1', '2.2.0', None),
])
def test_too_new_in_a_lock(tmp_path, locked, version, advice):
    """A lock that people made: uv takes the newest for any PyTorch, which then lacks symbols, NumPy or a module."""
    (tmp_path / 'mine.lock').write_text('%s --hash=sha256:%s\n' % (locked, 'a' * 64))
    said = subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', LOCKED, version, str(tmp_path)], cwd=CHECKOUT,
                          check=True, env=clean_environment(), stdout=subprocess.PIPE, text=True).stdout
    assert ('write %s into the .in file (' % advice in said) if advice else 'into the .in file' not in said, said
    assert ('known: fails: ' in said and said.endswith(', 2026-11-26)\n')) is bool(advice)


@pytest.mark.parametrize('runtime, driver, told', [
    ('nvidia-cuda-runtime==13.2.86', '570.133.20', True),
    ('nvidia-cuda-runtime==13.2.86', '580.95.05', False),
    ('nvidia-cuda-runtime-cu12==12.8.90', '535.183.06', False),
])
def test_driver_of_wheels(tmp_path, runtime, driver, told):
    """Wheels bring their CUDA: on a machine without a description, nothing else compares it with the driver."""
    (tmp_path / 'version').write_text(driver + '\n')
    (tmp_path / 'mine.lock').write_text('%s --hash=sha256:%s\n' % (runtime, 'a' * 64))
    program = LOCKED.replace('known_pairs.check', 'known_pairs.DRIVER = sys.argv[2] + "/version"\nknown_pairs.check')
    said = subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', program, '2.15.0', str(tmp_path)], cwd=CHECKOUT,
                          check=True, env=clean_environment(), stdout=subprocess.PIPE, text=True).stdout
    assert ('./eb --new-version 2.10.0 EASYCONFIG' in said) is told, said


@pytest.mark.slow
def test_warned(eb, tmp_path):
    """Before anything is installed; a site may refuse it. What works, or is not known, is not told."""
    eb.sources = tmp_path / 'sources'
    toys = Toys(eb, tmp_path, 'ARCHER2', {})
    toys.write('libfabric')
    easyconfig = toys.write('aws-ofi-nccl', after=['libfabric'])
    easyconfig.write_text(easyconfig.read_text().replace("version = '1.0'", "version = '1.21.1'", 1))
    easyconfig = easyconfig.rename(tmp_path / 'aws-ofi-nccl-1.21.1-ARCHER2.eb')
    ready = (easyconfig, '--robot=%s' % tmp_path, '--stop=ready')
    output = toys.run(*ready)
    assert 'WARNING: aws-ofi-nccl-1.21.1-ARCHER2.eb combines versions that are known to be incompatible' in output
    assert 'fails: the plugin is for libfabric 1.11 and newer' in output
    assert 'libfabric-1.0-ARCHER2.eb combines' not in output
    output = toys.run(*ready, status=None, env=site(tmp_path, '[policy]\npairs = refuse\n'))
    assert "rule 'incompatible versions'" in output
