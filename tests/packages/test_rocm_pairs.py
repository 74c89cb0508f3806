"""Which ROCm wheel goes with what, and what ./eb says where they do not go together, before anything is fetched."""
import re
import sys

import pytest
from frontier.frontier_site import EASYCONFIG
from hpc_pytorch.packages.rocm_pairs import TABLE, why_not
from hpc_pytorch.machine.systems import load

VERSION = '%d.%d' % sys.version_info[:2]


def test_what_fits():
    """The pair of the page, and patch releases of ROCm."""
    for rocm in ('5.7.1', '5.7.0', '5.7', None):
        assert why_not('2.2.2+rocm5.7', rocm, '3.10', 'gfx90a') is None
    # not for ROCm at all, or newer than the table: nothing is known against it
    assert why_not('2.13.0+cpu', '5.7.1', '3.11', 'gfx90a') is None
    assert why_not('9.9.0+rocm9.9', '9.9.1', '3.99', 'gfx90a') is None


@pytest.mark.parametrize('rocm, python, gpu, says', [
    ('6.0.0', '3.10', 'gfx90a', ['ROCm 5.7', 'the loaded one is 6.0.0', 'PyTorch 2.3 with ROCm 6.0']),
    ('5.6.1', '3.10', 'gfx90a', ['PyTorch 2.1 with ROCm 5.6']),
    ('7.9.0', '3.10', 'gfx90a', ['Python 3.10: none']),
    ('5.7.1', '3.13', 'gfx90a', ['torch 2.2.2+rocm5.7 has no wheel for Python 3.13', '3.8, 3.9, 3.10, 3.11, 3.12']),
    ('5.7.1', '3.10', 'gfx942', ['not compiled for gfx942', 'PyTorch 2.3 with ROCm 6.0']),
])
def test_what_does_not(rocm, python, gpu, says):
    """Which pair would."""
    reason = why_not('2.2.2+rocm5.7', rocm, python, gpu)
    for words in says:
        assert words in reason


def test_table():
    """Every line is whole, and Frontier's own pair is in it."""
    for row in TABLE:
        assert all(re.match(r'\d+\.\d+$', word) for word in [row.pytorch, row.rocm] + row.pythons.split())
        assert all(word.startswith('gfx') for word in row.gpus.split())
    gpu = load('frontier').node['gpu_architecture']
    assert any(row.pytorch == '2.2' and row.rocm == '5.7' and gpu in row.gpus.split() for row in TABLE)


@pytest.mark.slow
@pytest.mark.parametrize('wheel, says', [
    ('torch-2.3.1+rocm6.0-{tag}-{tag}-linux_x86_64.whl', 'made for ROCm 6.0, and the loaded one is 5.7.1'),
    ('torch-2.2.2+rocm5.7-cp38-cp38-linux_x86_64.whl', 'Python tag cp38: it is for CPython 3.8'),
    ('torch-2.2.2+rocm5.7-{tag}-{tag}-linux_s390x.whl', 's390x processors'),
])
def test_refused(eb, tmp_path, wheel, says):
    """ROCm, Python and processor are compared before anything is fetched, and nothing is installed."""
    text = EASYCONFIG.read_text()
    text = re.sub(r"^python_versions = .*", "python_versions = ['%s']" % VERSION, text, flags=re.M)
    text = re.sub(r".*'aws-ofi-.*\n", '', text)
    name = wheel.format(tag='cp' + VERSION.replace('.', ''))
    text = re.sub(r"^sources = \[.*?^\]\nchecksums = .*?$", "sources = [%r]\nchecksums = [None]" % name, text,
                  flags=re.M | re.S)
    easyconfig = tmp_path / EASYCONFIG.name
    easyconfig.write_text(text)
    output = eb(easyconfig, '--rehearse', status=None)
    assert output.returncode != 0
    assert says in output.stdout.replace('\n', ' '), output.stdout
    assert 'Couldn\'t find file' not in output.stdout
    assert not (eb.prefix / 'software' / 'PyTorch').exists()
