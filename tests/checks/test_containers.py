"""./eb --check of a container with a real PyTorch: its scripts, and what they say when they or the image are broken."""
import json
import shutil

import pytest
from common import nightly
from containers import images
from lumi.lumi_site import small_place

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def container(apptainer):
    """The module, and a function that runs the checks of these names: the reasons of those that fail."""
    with small_place(images.torch_image()) as place:
        more = "import_name = 'torch'\npackage_version = ''\nwrappers = ['python']"
        place.install(place.easyconfig(more, name='PyTorch'))

        def check(names):
            report = place.directory / 'report.json'
            # where the container sees its working directory
            place.eb('--check', '--name=%s' % names, '--report', report,
                     env=dict(images.FOR_ROOT, HPC_SYSTEM='workstation'), status=None, cwd=place.directory)
            checks = json.loads(report.read_text())['modules']['PyTorch/1.0']
            return {name.split('=')[1].split()[0]: one['reason'] for name, one in checks.items()}
        place.check = check
        yield place


OF_IMAGES = 'import|list-packages|run-in-container|wrapper'


@pytest.mark.parametrize('names, expected', [
    (OF_IMAGES, set(OF_IMAGES.split('|'))), nightly('probe', {*OF_IMAGES.split('|'), 'packages', 'gloo'})])
def test_container(container, names, expected):
    """What every image with PyTorch must do; nothing is said of MPI, and no contract is looked for."""
    found = container.check(names)
    assert set(found) == expected
    assert not any(found.values()), found
    assert (container.eb.prefix / 'software/PyTorch/1.0/examples/train.py').exists()


def test_broken(container):
    """A wrapper that is this machine's Python, which may have a PyTorch, too; an image that is cut short."""
    root = container.eb.prefix / 'software/PyTorch/1.0'
    image, whole, wrapper = root / 'tool.sif', root / 'whole', root / 'bin/python'
    wrapper.rename(root / 'bin/kept')
    wrapper.symlink_to(shutil.which('python3', path='/usr/bin'))
    image.rename(whole)
    image.write_bytes(whole.read_bytes()[:4096])
    try:
        found = container.check('wrapper|list-packages|run-in-container')
        assert len(found) == 3 and all('nothing like' in reason for reason in found.values()), found
    finally:
        whole.replace(image)
        (root / 'bin/kept').replace(wrapper)
