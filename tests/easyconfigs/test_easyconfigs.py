"""What every easyconfig must be, checked without installing anything; in the spirit of EasyBuild's own suite."""
import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from common import CHECKOUT

from hpc_pytorch.machine.collection_files import named_file

EASYCONFIGS = sorted((CHECKOUT / 'easyconfigs').glob('*/*/*.eb'))
# What EasyBuild puts into an easyconfig's namespace, besides its templates.
CONSTANTS = ('ARCH', 'EXTERNAL_MODULE', 'HOME', 'OS_NAME', 'OS_TYPE', 'OS_VERSION', 'SYSTEM', 'SHLIB_EXT',
             'PYPI_SOURCE', 'PYPI_LOWER_SOURCE', 'GITHUB_SOURCE', 'GITHUB_LOWER_SOURCE', 'GITHUB_RELEASE',
             'GITHUB_LOWER_RELEASE', 'SOURCE_TAR_GZ', 'SOURCE_TAR_XZ', 'SOURCELOWER_TAR_GZ', 'SOURCELOWER_TAR_XZ',
             'OS_PKG_OPENSSL_DEV', 'OS_PKG_IBVERBS_DEV')
# Of these parameters, long lists are data, not procedure.
LONG_LISTS = ('exts_list', 'checksums', 'components', 'patches')


def values(path):
    """The top-level parameters of an easyconfig whose values are plain; names of constants become strings."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        assert isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr, ast.If)), "%s: line %d is not data" % (
            path.name, node.lineno)
        if isinstance(node, ast.Assign):
            found[node.targets[0].id] = node.value
    return found


def plain(node):
    """The value of a literal in which EasyBuild's constants stand; None for what is computed."""
    if node is None:
        return None
    source = ast.unparse(node)
    for constant in CONSTANTS:
        source = re.sub(r'\b%s\b' % constant, repr(constant), source)
    try:
        return ast.literal_eval(source)
    except ValueError:
        return None


def all_checksums(value):
    """Every checksum in a value of `checksums`."""
    if isinstance(value, dict):
        return [checksum for item in value.values() for checksum in all_checksums(item)]
    if isinstance(value, (list, tuple)):
        return [checksum for item in value for checksum in all_checksums(item)]
    return [value]


@pytest.fixture(params=EASYCONFIGS, ids=lambda path: path.name)
def easyconfig(request):
    """Each easyconfig of the collection."""
    return request.param


def test_there_are_easyconfigs():
    """The pattern above finds something."""
    assert EASYCONFIGS


def test_file_name_matches_content(easyconfig):
    """<name>-<version>[-<toolchain>]<versionsuffix>.eb in <letter>/<name>/."""
    found = {key: plain(node) for key, node in values(easyconfig).items()}
    assert found['toolchain'] == 'SYSTEM'
    expected = '%s-%s%s.eb' % (found['name'], found['version'], found.get('versionsuffix') or '')
    if '%' not in expected:
        assert easyconfig.name == expected
    assert easyconfig.parent.name == found['name']
    assert easyconfig.parent.parent.name == found['name'][0].lower()


def test_only_what_easybuild_knows(easyconfig):
    """ruff, with EasyBuild's constants as the only names that are not defined in the file."""
    builtins = 'builtins = [%s]' % ', '.join(map(repr, CONSTANTS))
    done = subprocess.run([sys.executable, '-m', 'ruff', 'check', '--config', builtins, str(easyconfig)], cwd=CHECKOUT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def test_checksums(easyconfig):
    """Every source and patch has a SHA256, and what git fetches a commit."""
    found = {key: plain(node) for key, node in values(easyconfig).items()}
    files = sum(len(values(easyconfig)[key].elts) for key in ('sources', 'patches') if key in values(easyconfig))
    if not files:
        return
    # --inject-checksums puts these parameters one below the other, before what stood between them
    between = re.search(r'(?ms)^(?:source_urls|sources|patches) = .*^checksums = ', easyconfig.read_text())
    assert '\nlocal_' not in between.group()
    checksums = found.get('checksums') or []
    assert len(checksums) == files, "%d files, %d checksums" % (files, len(checksums))
    if found.get('easyblock') == 'SingularityContainer' and checksums == [None]:
        # the image comes from the site's own store, and the site publishes no checksum; the easyconfig says so; or
        # it is named by its digest
        assert re.search("publishes no checksums|'docker://.*@sha256:[0-9a-f]{64}'", easyconfig.read_text())
        return
    if 'git_config' in easyconfig.read_text():
        # git compares what it fetches with the commit's name
        assert re.search("'commit': local_commit", easyconfig.read_text())
        assert re.match('[0-9a-f]{40}$', found['local_commit'])
        checksums = [checksum for checksum in checksums if checksum]
    if 'no public lock file' in easyconfig.read_text():
        # wheels of an index that publishes no checksums here; once --inject-checksums wrote them, they are compared
        checksums = [checksum for checksum in checksums if checksum]
    for checksum in all_checksums(checksums):
        assert re.match(r'[0-9a-f]{64}$', str(checksum)), checksum


def with_version(text, easyconfig):
    """A text of an easyconfig with its version in the places for it."""
    return text.replace('%(version)s', ast.literal_eval(values(easyconfig)['version']))


def test_locked_packages_have_checksums(easyconfig):
    """Every entry of every lock file has a SHA256."""
    from hpc_pytorch.packages.lock_files import parse_lock
    for key, node in values(easyconfig).items():
        if 'lock_files' not in key:
            continue
        for name in plain(node):
            text = Path(named_file(str(easyconfig), with_version(name, easyconfig))).read_text()
            entries = parse_lock(text)
            assert entries and all(entry.hashes for entry in entries), name
            names = [line for line in text.splitlines() if re.match(r'[A-Za-z0-9]', line)]
            assert len(entries) == len(names), "%s: not every entry is name==version" % name
            assert '#' in text[:2], "%s does not say how it is renewed" % name


def test_https(easyconfig):
    """Nothing is fetched without encryption."""
    assert not re.search(r'\b(http|ftp|git)://', easyconfig.read_text())


def test_containers_name_the_page_of_their_images(easyconfig):
    """./eb --new-version latest names it: PyTorch's own page knows no image."""
    text = easyconfig.read_text()
    assert "= 'SingularityContainer'" not in text or 'https://pytorch.org' not in text


def test_described(easyconfig):
    """Users see homepage, description and module class."""
    found = {key: plain(node) for key, node in values(easyconfig).items()}
    assert found['homepage'].startswith('https://')
    assert found['description'].strip()
    assert found['moduleclass']


def test_sanity_checks(easyconfig):
    """Every easyconfig says what must be there, or its easyblock is ours and does."""
    found = values(easyconfig)
    assert 'sanity_check_paths' in found or 'easyblock' in found or plain(found['name']) in ('PyTorch',)


def test_short_and_data(easyconfig):
    """Under 60 lines besides lists, 25 of a container; no shell in strings."""
    lines = easyconfig.read_text().splitlines()
    long_lists = sum(node.end_lineno - node.lineno for key, node in values(easyconfig).items() if key in LONG_LISTS)
    assert len(lines) - long_lists < (25 if "easyblock = 'SingularityContainer'" in lines else 60)
    # what EasyBuild puts in front of ./configure is shell by nature
    plain_data = [node for key, node in values(easyconfig).items() if key != 'preconfigopts']
    for node in [node for top in plain_data for node in ast.walk(top)]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not re.search(r'<<|&&|\|\||\$\(|`', node.value), "shell in a string: %r" % node.value


def test_pytorch_brings_the_example(easyconfig):
    """Documents promise $EBROOTPYTORCH/examples/train.py in every module; the easyblock of containers copies all."""
    found = values(easyconfig)
    if easyconfig.name.startswith('PyTorch-') and plain(found['easyblock']) != 'SingularityContainer':
        assert 'train.py' in plain(found['example_files'])


def test_patches_say_why():
    """The first line of a patch says why it exists and when it can go."""
    for patch in CHECKOUT.glob('easyconfigs/*/*/*.patch'):
        first = patch.read_text().splitlines()[0]
        assert not first.startswith(('---', 'diff', 'Index')), patch
        assert len(first) > 20, patch


def test_nothing_lies_around():
    """Beside easyconfigs lie their patches only; every lock file, and the input of every one, is used."""
    easyconfigs = ''.join(with_version(path.read_text(), path) for path in CHECKOUT.glob('easyconfigs/?/*/*.eb'))
    easyconfigs += 'easybuild-easyconfigs.lock'  # named by the easyblock, for all of them
    # by what is a parameter's value where an easyconfig has no other
    for path in [*CHECKOUT.glob('easyconfigs/?/*/*'), *CHECKOUT.glob('easyconfigs/?/*/locks/*')]:
        if path.suffix != '.eb' and path.name != 'locks':
            assert path.suffix in (('.in', '.lock') if path.parent.name == 'locks' else ('.patch',)), path
            assert path.with_suffix('.lock' if path.suffix == '.in' else path.suffix).name in easyconfigs, path


def test_what_users_type(easyconfig):
    """Every module of PyTorch can be checked, and has environments on top of it; a container's has its own scripts."""
    found = {key: plain(node) for key, node in values(easyconfig).items()}
    if found['name'] == 'PyTorch' and found.get('easyblock') != 'SingularityContainer':
        # pytorch-check plugin calls pytorch-bandwidth, which calls pytorch-srun
        needed = {'pytorch-check', 'extend-venv-activate', 'pytorch-bandwidth', 'pytorch-srun', 'get-master'}
        assert needed <= set(found['scripts'])
