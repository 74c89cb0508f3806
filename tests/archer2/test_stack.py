"""All of ARCHER2's module around a real PyTorch 1.13.1, Debian's: Horovod and mpi4py compiled, MPI ranks that talk."""
import hashlib
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from common import CACHE, CHECKOUT

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

TREE = Path(__file__).parent / 'debian_torch'
# what Debian built, where it differs from what ARCHER2 wants
OPTIONS = ['USE_MPI=0', 'USE_ROCM=0', 'USE_MKL=0', 'BLAS=generic']
# Debian's has no mpi backend, and another BLAS
CHECKS = ['pytorch-check gloo mpi4py', 'horovodrun --check-build']
# starts one process where two are asked for, as a launcher of another MPI than the ranks' does
ONE_RANK = """#!/bin/sh
[ "$1" = --version ] && echo HYDRA && exit
shift 2
exec "$@"
"""


@pytest.fixture
def stack(eb, tmp_path):
    """The real easyconfig with Debian's PyTorch as its source; packages are fetched once for all runs."""
    eb.sources = CACHE / 'archer2'
    store = eb.sources / 'p' / 'PyTorch'
    shutil.rmtree(store / 'PyTorch-1.13.1-ARCHER2-built', ignore_errors=True)
    store.mkdir(parents=True, exist_ok=True)
    tarball = store / 'debian-torch.tar'
    with tarfile.open(tarball, 'w') as packed:
        packed.add(TREE, 'debian-torch')
    checksum = hashlib.sha256(tarball.read_bytes()).hexdigest()
    easyconfig = tmp_path / 'PyTorch-1.13.1-ARCHER2.eb'
    easyconfig.write_text((CHECKOUT / 'easyconfigs/p/PyTorch' / easyconfig.name).read_text()
                          + "sources = ['%s']\npatches = []\nchecksums = ['%s']\ncustom_opts = %s\n"
                          "sanity_check_commands = %s\n" % (tarball.name, checksum, OPTIONS, CHECKS))
    yield easyconfig
    shutil.rmtree(store / 'PyTorch-1.13.1-ARCHER2-built', ignore_errors=True)


# 265 packages are fetched and installed
def test_stack(stack, eb, lmod, tmp_path):
    """Built once, kept as a wheel, and installed from that where there is no network, with everything around it."""
    # Horovod's own flags want minutes of optimising
    flags = {'CXXFLAGS': '-O0 -g0'}
    eb('--rehearse', stack, '--stop=install', env=flags)
    note = next(eb.sources.glob('p/PyTorch/*-built/*/provenance.json'))
    # whoever puts a wheel into the store says what it has; these are Debian's compilers
    known = json.loads(note.read_text())
    note.write_text(json.dumps(dict(known, asked={'USE_MPI': '0', 'USE_GLOO': '1', 'BLAS': 'generic'})))

    offline = type(eb)(eb.prefix, ['unshare', '--net', 'sh', '-c', 'ip link set lo up && exec "$@"', 'sh'] + eb.command)
    offline.sources = eb.sources
    output = offline('--rehearse', stack, env=flags).stdout
    assert 'using the wheel that was built earlier' in output
    assert 'PyTorch has the requested options' in output

    modules = CHECKOUT / '.local' / 'stand_ins' / 'archer2-2023' / 'modules'
    use = 'module use %s %s; module load PyTorch/1.13.1-ARCHER2\n' % (modules, eb.modules)
    built = lmod.run(use + 'horovodrun --check-build')
    for part in ('PyTorch', 'MPI', 'Gloo'):
        assert '[X] ' + part in built, built
    said = lmod.run(use + 'pytorch-check mpi4py horovod')
    assert 'mpi4py   works: ' in said and 'horovod  works: ' in said, said
    (tmp_path / 'mpiexec').write_text(ONE_RANK)
    (tmp_path / 'mpiexec').chmod(0o755)
    said = lmod.run(use + 'PATH=%s:$PATH pytorch-check horovod || true' % tmp_path)
    assert 'horovod  FAILS: ' in said and 'not as 2' in said, said
    # what the page installs besides
    lmod.run(use + 'python -c "import torchmetrics, tensorboard, matplotlib, h5py, gym, pyspark"')
    assert os.path.exists(eb.prefix / 'software' / 'PyTorch' / '1.13.1-ARCHER2' / 'wheels' / 'provenance.json')
