"""Bede's easyconfig, from a local git server, on the stand-in: the commit is named, and flags reach every compile."""
import json
import os
import shutil

import pytest
from common import CACHE, EB

from bede.test_git_sources import git, server  # noqa: F401
from derecho.small_builds import SmallTorch

from hpc_pytorch import build_options

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


def test_commit_is_named(bede, torch, checkout, lmod):
    """Fetched with its submodule, built, and everything says which commit it is; the second time git is not asked."""
    torch.write(sources=[], checksums=[], git_source={'url': torch.server.url + 'torch', 'revision': torch.commit})
    output = bede('--rehearse', '--system=bede', torch.path, '--disable-cleanup-builddir').stdout
    assert "CMake's decisions are what was asked for" in output
    use = 'module use %s %s; module load PyTorch/2.4.0a0-Bede-small\n' % (
        checkout / '.local' / 'stand_ins' / 'bede' / 'modules', bede.modules)
    wheels = lmod.run(use + 'ls $PYTORCH_WHEELS')
    assert 'torch-2.4.0a0+git%s-cp3' % torch.commit[:7] in wheels
    commands = next(bede.prefix.glob('build/**/compile_commands.json'))
    compiles = [entry['command'] for entry in json.loads(commands.read_text()) if entry['file'].endswith('.cpp')]
    expected = build_options.architecture_flags(os.uname().machine, 'gcc', '2.4.0').get('CXXFLAGS', '').split()
    assert len(compiles) == 2
    for command in compiles:
        assert all(flag in command for flag in expected)
        assert ('-flax-vector-conversions' in command) == bool(expected)
    torch.server.stop()
    assert 'using the wheel' in bede('--rehearse', '--system=bede', torch.path, '--rebuild').stdout


def test_moved_tag(bede, torch):
    """A tag that is another commit than the easyconfig says: nothing is built."""
    torch.write(sources=[], checksums=[], git_source={
        'url': torch.server.url + 'torch', 'revision': 'v1', 'commit': torch.commit})
    done = bede('--rehearse', '--system=bede', torch.path, status=None)
    assert done.returncode and 'it was moved' in done.stdout


def test_rehearsed(bede):
    """-x shows the real easyconfig's steps without one error that EasyBuild had to ignore."""
    output = bede('--rehearse', 'PyTorch-2.4.0a0-Bede.eb', '-x').stdout
    assert 'ignoring error' not in output, output
