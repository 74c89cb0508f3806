"""
Bede's easyconfig, from a local git server, on the stand-in: the commit is named, and flags reach every compile where
the machine is an Arm one.
"""
import json
import os
import re
import shutil

import pytest
from common import CACHE, EB

from bede.git_server import git, server  # noqa: F401
from easyblocks.small_builds import SmallTorch

from hpc_pytorch.source import build_options

ARM_FLAGS = build_options.table_options('2.4.0', 'aarch64', 'gcc')['CXXFLAGS']
pytestmark = pytest.mark.slow


@pytest.fixture
def bede(tmp_path):
    """./eb with a source path of its own."""
    eb = EB(tmp_path / 'prefix')
    eb.prefix.mkdir()
    eb.sources = '%s:%s' % (tmp_path / 'sources', CACHE / 'sources')
    return eb


@pytest.fixture
def torch(bede, server, tmp_path):  # noqa: F811
    """An easyconfig that takes the small tree from the server."""
    torch = SmallTorch('PyTorch-2.4.0a0-Bede.eb', tmp_path, tmp_path / 'sources')
    tree = server.directory / 'torch'
    shutil.copytree(torch.tree, tree, dirs_exist_ok=True, ignore=shutil.ignore_patterns('.gitmodules', 'third_party'))
    part = server.directory / 'part' / 'small'
    shutil.copytree(torch.tree / 'third_party' / 'small', part)
    server.commit('part', 'part.h', 'two')
    git(tree / 'third_party' / 'part', 'pull', '--quiet', server.url + 'part', 'main')
    torch.commit = server.commit('torch', 'version.txt', '2.4.0a0\n')
    torch.server = server
    return torch


@pytest.mark.nightly
@pytest.mark.parametrize('machine', ['aarch64', os.uname().machine])
def test_commit_is_named(bede, torch, checkout, lmod, on_arm, machine):
    """
    Fetched with its submodule, built with the machine's flags for the one GPU, and everything says which commit it is;
    the second time git is not asked.
    """
    env = on_arm if machine == 'aarch64' else {}
    git_config = {'url': torch.server.url, 'repo_name': 'torch', 'commit': torch.commit, 'recursive': True}
    torch.write(sources=[{'filename': 'torch-%s.tar' % torch.commit, 'git_config': git_config}], checksums=[None])
    output = bede('--rehearse', '--system=bede', torch.path, '--disable-cleanup-builddir', env=env).stdout
    assert "CMake enabled all requested options" in output
    use = 'module use %s %s; module load PyTorch/2.4.0a0-Bede-small\n' % (
        checkout / '.local' / 'stand_ins' / 'bede' / 'modules', bede.modules)
    wheels = lmod.run(use + 'ls $PYTORCH_WHEELS')
    assert 'torch-2.4.0a0+git%s-cp3' % torch.commit[:7] in wheels
    commands = next(bede.prefix.glob('build/**/compile_commands.json'))
    compiles = {entry['file']: entry['command'].split() for entry in json.loads(commands.read_text())}
    assert sorted(os.path.splitext(name)[1] for name in compiles) == ['.cpp', '.cpp', '.cu']
    for name, words in compiles.items():
        there = [flag for flag in ARM_FLAGS.split() if flag in words]
        if name.endswith('.cu'):
            assert set(re.findall(r'(?:sm|compute)_\d+', ' '.join(words))) <= {'sm_90', 'compute_90'}
        else:
            assert there == (ARM_FLAGS.split() if machine == 'aarch64' else []), words
            assert all(words.count(flag) == 1 for flag in there), words
    torch.server.stop()
    assert 'using the wheel' in bede('--rehearse', '--system=bede', torch.path, '--rebuild', env=env).stdout


def test_rehearsed(bede, on_arm):
    """-x shows the real easyconfig's steps, Arm's flags among them, without one error that EasyBuild had to ignore."""
    output = bede('--rehearse', 'PyTorch-2.4.0a0-Bede.eb', '-x', env=on_arm).stdout
    assert 'ignoring error' not in output, output
    assert "export USE_PRIORITIZED_TEXT_FOR_LD='1'" in output
    assert "export TORCH_CUDA_ARCH_LIST='9.0'" in output
    assert ARM_FLAGS in ' '.join(re.search("export CXXFLAGS='([^']*)'", output).group(1).split())
