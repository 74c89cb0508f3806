"""
PyTorch in a toolchain of EasyBuild's, which is installed for real with toys in the place of its compiler, by upstream's
own easyblock with a site's hooks (hpc_pytorch/source/upstream_build.py).
"""
import ast
import json
import os
import re
import shutil
import sys
import textwrap

import pytest
from common import CACHE, CHECKOUT
from easyblocks.small_builds import SMALL_TORCH, pack
from small_software import site_hooks

pytestmark = pytest.mark.slow

HEAD = """name = {name!r}
version = {version!r}
easyblock = {easyblock!r}
homepage = 'https://example.org/'
description = 'a toy'
toolchain = {toolchain}
moduleclass = 'ai'
"""
VERSION = '%d.%d' % sys.version_info[:2]
COMPILER = {'name': 'GCCcore', 'version': '9.9.9'}
# what is built with is in the tests' own environment
PROGRAMS = ["mkdir %(installdir)s/bin"] + [
    """printf '#!/bin/sh\\nexec "%s/bin/%s" "$@"\\n' > %%(installdir)s/bin/%s""" % (sys.prefix, name, name)
    for name in ('python', 'python3', 'cmake')] + ["chmod +x %(installdir)s/bin/*"]
BUILT = """
sources = ['small-torch.tar.gz']
checksums = [%r]
dependencies = [('FlexiBLAS', '1.0'), ('Python', %r)]
custom_opts = ['USE_MPI=1']
"""
HOOKS = """
from hpc_pytorch.rules import within_memory
from hpc_pytorch.source.upstream_build import compare_with_cmake

def pre_configure_hook(easyblock):
    if easyblock.name == 'PyTorch':
        within_memory.watch(easyblock)

def post_configure_hook(easyblock):
    if easyblock.name == 'PyTorch':
        compare_with_cmake(easyblock)
"""

# the two lines of docs/easybuild.rst, as a hook in the place of upstream's configure step
ADOPTED = """
from hpc_pytorch.source.upstream_build import compare_with_cmake

def post_configure_hook(self):
    if self.name == 'PyTorch':
        %s
        compare_with_cmake(self)
"""


@pytest.fixture
def toolchain(eb, tmp_path):
    """A function that writes the easyconfig of the small tree in the toolchain; an environment with a site's hooks."""
    eb.sources = '%s:%s' % (tmp_path / 'sources', CACHE / 'small-torch')

    def write(name, version, easyblock, toolchain, more=''):
        suffix = '' if toolchain == 'SYSTEM' else '-%(name)s-%(version)s' % toolchain
        path = tmp_path / ('%s-%s%s.eb' % (name, version, suffix))
        path.write_text(HEAD.format(name=name, version=version, easyblock=easyblock, toolchain=toolchain) + more)
        return path

    write('GCCcore', COMPILER['version'], 'Toolchain', 'SYSTEM')
    write('FlexiBLAS', '1.0', 'Toolchain', COMPILER)
    write('Python', VERSION, 'Toolchain', COMPILER, 'postinstallcmds = %r\n' % PROGRAMS)
    tree = tmp_path / 'small-torch'
    shutil.copytree(SMALL_TORCH, tree)
    cmake = tree / 'CMakeLists.txt'
    text = cmake.read_text().replace(': ${BLAS}"', ': flexi"')
    text = text.replace('Each download failed!', 'none')
    cmake.write_text(re.sub(r'set\(see_six ".*"\)', 'set(see_six "pass")', text))

    def torch(easyblock, more='', edit=None):
        if edit:
            cmake.write_text(cmake.read_text().replace(*edit))
        checksum = pack(tree, 'small-torch', tmp_path / 'sources' / 'p' / 'PyTorch' / 'small-torch.tar.gz')
        easyconfig = write('PyTorch', '2.1.0', easyblock, COMPILER, BUILT % (checksum, VERSION) + more)
        return lambda *words, **options: eb(easyconfig, '--robot=%s' % tmp_path, '--skip-test-step', *words,
                                            cwd=tmp_path, **options).stdout
    return torch, site_hooks(tmp_path, HOOKS)


def test_upstreams_easyblock(toolchain, eb):
    """With the site's hooks it stops when CMake is without MPI, before it compiles; else ramgate runs the build."""
    torch, hooks = toolchain
    output = torch('EB_PyTorch', edit=('find_package(MPI)', 'set(MPI_CXX_FOUND OFF)'))(env=hooks, status=None)
    refused = output.partition('ERROR')[2]
    assert 'CMake did not enable the requested options (USE_MPI)' in refused and 'asked for:     ON' in refused
    assert 'BLAS' not in refused.partition('CMake did not')[2]
    torch('EB_PyTorch', edit=('set(MPI_CXX_FOUND OFF)', 'find_package(MPI)'))(env=hooks)
    installed, = eb.prefix.glob('software/PyTorch/2.1.0-*')
    log = next(installed.glob('easybuild/*.log')).read_text()
    assert "CMake enabled all requested options" in log and ' compilers in ' in log
    # EasyBuild's own wrappers, its default, are in the build, too
    assert 'Putting RPATH wrappers in place' in log and '/rpath_wrappers/' in log
    assert list(installed.glob('lib/python*/site-packages/torch/_C.so'))


def adopted():
    """EasyBuild's pytorch.py with the contract, as docs/easybuild.rst says to adopt it."""
    path, = CHECKOUT.glob('.venv/lib/python3*/site-packages/easybuild/easyblocks/p/pytorch.py')
    lines = path.read_text().splitlines()
    page = (CHECKOUT / 'docs/easybuild.rst').read_text()
    call, function = re.search(r'# at the end of configure_step\n(.*?)\n\n(.*?)\n\n *\.\. a file', page, re.S).groups()
    easyblock = next(node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))
    step = next(node for node in easyblock.body if getattr(node, 'name', '') == 'configure_step')
    lines[step.end_lineno:step.end_lineno] = [textwrap.indent(textwrap.dedent(call), ' ' * 8), '',
                                              textwrap.indent(textwrap.dedent(function), ' ' * 4)]
    contract = (CHECKOUT / 'hpc_pytorch/source/contract.py').read_text()
    contract = contract.replace('from hpc_pytorch import UsersProblem\n', '').replace('UsersProblem', 'EasyBuildError')
    lines.insert(easyblock.lineno - 1, contract)
    return '\n'.join(lines) + '\n'


def test_contract_adopted(toolchain, tmp_path):
    """The lines of the page stop the build; upstream's tests look for an easyblock in the first class of a file."""
    torch, _ = toolchain
    path = tmp_path / 'pytorch.py'
    path.write_text(adopted())
    assert re.search(r'^class (.*)\(.*', path.read_text(), re.M).group(1) == 'EB_PyTorch'
    output = torch('EB_PyTorch', edit=('find_package(MPI)', 'set(MPI_CXX_FOUND OFF)'))(
        '--include-easyblocks=%s' % path, status=None)
    assert 'CMake did not enable the requested options (USE_MPI)' in output.partition('ERROR')[2], output


@pytest.mark.nightly
def test_ramgate_adopted(toolchain, eb, tmp_path):
    """The lines of the page put ramgate in front of CMake, and of pip, which compiles."""
    torch, hooks = toolchain
    page = (CHECKOUT / 'docs/easybuild.rst').read_text()
    lines = re.search(r"for name in \('prebuildopts'.*\n.*", page).group()
    report = tmp_path / 'report'
    lines = re.sub(r'\n +', '\n            ', lines).replace('run --jobs', 'run --report %s --jobs' % report)
    (tmp_path / 'site_hooks.py').write_text(ADOPTED % lines)
    program = tmp_path / 'bin/ramgate'
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nPYTHONPATH=%s exec python3 -m ramgate "$@"\n' % (CHECKOUT / 'ramgate'))
    program.chmod(0o755)
    torch('EB_PyTorch')(env=dict(hooks, PATH='%s:%s' % (program.parent, os.environ['PATH'])))
    compiled = json.loads((report / 'report.json').read_text())['compilations']
    assert compiled and {one['came'] for one in compiled} == {'by launcher'}, compiled
