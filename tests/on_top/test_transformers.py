"""What people put on top of the module of PyTorch, installed for real, on a PyTorch that tests keep."""
import subprocess

import pytest
from common import SCRIPTS

from on_top.below import on_top

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

# two steps of each: a model of a few thousand weights, on data made here
TRAIN = """
import torch, datasets, lightning
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM
data = datasets.Dataset.from_dict({'input_ids': [[1, 2, 3, 4]] * 4}).with_format('torch')
model = LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                     num_attention_heads=1, num_key_value_heads=1))
accelerator = Accelerator(cpu=True)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.SGD(model.parameters(), lr=0.1), torch.utils.data.DataLoader(data, batch_size=2))
losses = []
for batch in loader:
    loss = model(input_ids=batch['input_ids'], labels=batch['input_ids']).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[1] < losses[0], losses
print('trained', torch.__file__)
"""


@pytest.fixture(scope='module')
def installed():
    with on_top('Transformers-5.23.0-workstation.eb') as found:
        yield found


def test_trains(installed, lmod, tmp_path):
    """With the PyTorch below, whose packages are not there twice; all import and find their symbols."""
    eb, root = installed
    packages = next(eb.prefix.glob('software/Transformers/*/lib/python3.*/site-packages'))
    assert (packages / 'transformers').exists() and not (packages / 'torch').exists()
    assert not (packages / 'numpy').exists()
    # built from its source, beside the PyTorch below; its operations are compiled when they are used
    assert "'version': '2.13'" in (packages / 'deepspeed' / 'git_version_info_installed.py').read_text()
    (tmp_path / 'train.py').write_text(TRAIN)
    output = lmod.run("""
        module use %s; module load Transformers
        python train.py || exit 1
        pytorch-check packages || exit 1
        module unload Transformers; [ -z "$EBROOTTRANSFORMERS" ]
        [[ $PYTHONPATH != *Transformers* ]]; echo "status $?"
        """ % eb.modules, cwd=tmp_path, env={'HF_HUB_OFFLINE': '1', 'HOME': str(tmp_path)})
    assert 'trained %s/' % root in output and 'packages import, and find their symbols' in output
    assert output.splitlines()[-1] == 'status 0', output


def test_broken_for_this_pytorch(installed, lmod, tmp_path):
    """A library that was compiled for another PyTorch is found in the module on top, too."""
    eb, _ = installed
    site = tmp_path / 'site'
    (site / 'flash-1.0.dist-info').mkdir(parents=True)
    (site / 'flash-1.0.dist-info' / 'METADATA').write_text('Metadata-Version: 2.1\nName: flash\nVersion: 1.0\n')
    subprocess.run(['gcc', '-shared', '-fPIC', '-xc', '-', '-o', site / 'flash.so'], check=True, text=True,
                   input='void _ZN3c1014no_such_symbolEv(void); void f(void) { _ZN3c1014no_such_symbolEv(); }')
    output = lmod.run("module use %s; module load Transformers; PYTHONPATH=%s:$PYTHONPATH python %s packages" % (
        eb.modules, site, SCRIPTS / 'pytorch-check'), status=1)
    assert 'flash.so was compiled for another PyTorch' in output


def test_package_that_is_built_with_pytorch(installed, lmod, tmp_path):
    """As flash-attn is, in a user's environment on top: pip's isolation hides PyTorch from it."""
    eb, root = installed
    (tmp_path / 'toy').mkdir()
    (tmp_path / 'toy' / 'setup.py').write_text(
        "import torch\nfrom setuptools import setup\nsetup(name='toy', version=torch.__version__.split('+')[0])\n")
    output = lmod.run("""
        module use %s; module load PyTorch
        python -m venv mine && %s mine && source mine/bin/activate || exit 1
        pip install --no-deps --use-pep517 ./toy 2>&1 | grep -o "No module named 'torch'" | uniq
        pip install --no-deps --no-build-isolation --use-pep517 ./toy || exit 1
        """ % (eb.modules, SCRIPTS / 'extend-venv-activate'), cwd=tmp_path)
    assert "No module named 'torch'" in output and 'Successfully installed toy-2.13.0' in output
