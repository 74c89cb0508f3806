"""./eb --new-version and --renew: easyconfig and locks for another version, with real uv, from a small index."""
import functools
import http.server
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from common import CHECKOUT, EB, FOR_ROOT
from small_software import add

from hpc_pytorch import UsersProblem
from hpc_pytorch.packages import new_version
from ramgate.processes import descendants, read, stat

pytestmark = pytest.mark.slow

EASYCONFIG = """easyblock = 'LockedWheels'
name = 'toy'
version = '1.0'
homepage = 'https://example.org'
description = 'a toy'
toolchain = SYSTEM
lock_files = ['toy-%(version)s.lock']
python_versions = ['3.11']
moduleclass = 'ai'
"""
COMMAND = 'uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url '

SOURCE = """sources = ['toy-%(version)s.tar.gz']
patches = [
    'PyTorch-1.0_fix-crash.patch',
    'PyTorch-1.0_fix-speed.patch',
]
checksums = [
    'ab',
    {'PyTorch-1.0_fix-crash.patch':
     'cd'},
    {'PyTorch-1.0_fix-speed.patch':
     'ef'},
]
"""


@pytest.fixture
def toy(tmp_path):
    """An easyconfig for PyTorch 1.0 with a companion that says which PyTorch it is for; the index has 2.0, too."""
    index = tmp_path / 'index'
    for version in ('1.0', '2.0'):
        add(index, 'torch', version, 'numbers-of-toys')
        add(index, 'torchvision', '0.' + version, 'torch==' + version)
    add(index, 'numbers_of_toys', '5.1')
    (tmp_path / 'toy-1.0.eb').write_text(EASYCONFIG)
    (tmp_path / 'toy-1.0.in').write_text('# What the toy needs. toy-1.0.lock is made from this file:\n#   %s'
                                         'toy-1.0.in -o toy-1.0.lock\ntorch==1.0\ntorchvision==0.1.0\n' % COMMAND)
    return tmp_path


@pytest.fixture
def call(toy, eb):
    """./eb with these options for the toy, asking its index."""
    def run(*options, status=0, easyconfig='toy-1.0.eb', index=None):
        return eb(*options, toy / easyconfig, status=status,
                  env={'UV_DEFAULT_INDEX': index or 'file://%s' % (toy / 'index')}).stdout
    return run


def test_new_version(toy, call, eb):
    """The newest, with the companion that goes with it; it names nothing of this machine, and can be renewed."""
    output = call('--new-version', 'latest')
    assert "+version = '2.0'" in output and 'To try it: ./eb -x %s (' % (toy / 'toy-2.0.eb') in output
    assert (toy / 'toy-2.0.eb').read_text() == EASYCONFIG.replace("'1.0'", "'2.0'")
    lock = (toy / 'toy-2.0.lock').read_text()
    for line in ('torch==2.0 \\', 'torchvision==0.2.0 \\', 'numbers-of-toys==5.1 \\', COMMAND + 'toy-2.0.in -o'):
        assert line in lock, lock
    assert lock.count('--hash=sha256:') == 3 and str(toy) not in lock and '--refresh' not in lock
    # what was made can be fetched
    eb.sources = toy / 'sources'
    eb.fetch(toy / 'toy-2.0.eb', env={'PIP_INDEX_URL': 'file://%s' % (toy / 'index')})
    fetched = {path.name.split('-')[0] for path in eb.sources.rglob('*.whl')}
    assert fetched == {'torch', 'torchvision', 'numbers_of_toys'}
    add(toy / 'index', 'numbers_of_toys', '5.2')
    output = call('--renew', easyconfig='toy-2.0.eb')
    assert '-numbers-of-toys==5.1' in output and '+numbers-of-toys==5.2' in output
    assert output.endswith('until ./eb --rebuild %s\n' % (toy / 'toy-2.0.eb'))
    assert 'numbers-of-toys==5.2' in (toy / 'toy-2.0.lock').read_text()


@pytest.mark.parametrize('version, options, words', [
    ('3.0', {}, 'the indexes have no torch 3.0'),
    ('2.0', {'index': 'https://localhost:9/simple'}, 'could not be reached'),
])
def test_impossible(toy, call, version, options, words):
    """One line, and nothing is written."""
    before = sorted(toy.iterdir())
    output = call('--new-version=' + version, status=1, **options)
    assert words in output and 'nothing was written' in output
    assert sorted(path for path in toy.iterdir() if path.name != 'prefix') == before


def for_system(toy, suffix, *lines, index='index'):
    """The toy for a system; its .in file asks an index of its own, as PyTorch's are, for what these lines say."""
    (toy / ('toy-1.0-%s.eb' % suffix)).write_text(EASYCONFIG.replace("'1.0'", "'1.0'\nversionsuffix = '-%s'" % suffix))
    command = COMMAND + '--extra-index-url file://%s ' % (toy / 'more' / index)
    (toy / 'toy-1.0.in').write_text('#   %stoy-1.0.in -o toy-1.0.lock\n%s\n' % (command, '\n'.join(lines)))
    (toy / 'more' / index).mkdir(parents=True)
    return 'toy-1.0-%s.eb' % suffix, toy / 'more' / index


def test_newest_that_fits(toy, call):
    """What the index of the wheels has, for the CUDA that the system's driver takes, and what PyTorch itself brings."""
    name, index = for_system(toy, 'Bede', 'torch==1.0+cu126', 'triton-rocm==1')
    for version, cuda in (('1.0', 'cu126'), ('1.5', 'cu126'), ('3.0', 'cu130')):
        add(index, 'torch', '%s+%s' % (version, cuda), 'triton-rocm==3.%s' % version)
        add(index, 'triton_rocm', '3.' + version)
    call('--new-version', 'latest', easyconfig=name)
    made = (toy / 'toy-1.5.lock').read_text()
    assert 'torch==1.5+cu126' in made and 'triton-rocm==3.1.5' in (toy / 'toy-1.5.in').read_text()
    again = call('--new-version', 'latest', easyconfig=name, status=1)
    assert 'toy-1.5-Bede.eb exists already' in again and '--renew %s;' % (toy / 'toy-1.5-Bede.eb') in again


@pytest.mark.parametrize('version, index', [('2.0.dev20261101+cpu', 'cpu'), ('latest', 'nightly/cpu')])
def test_nightly_builds(toy, made, version, index):
    """They are gone before a lock file of them is of use."""
    name, _ = for_system(toy, 'ARCHER2', 'torch==1.0+cpu', index=index)
    with pytest.raises(UsersProblem, match="nightly builds disappear from their index .*: take a release"):
        made(version, name)


def test_driver_is_too_old(toy, call):
    """As PyPI's wheels say it, through what they ask for."""
    name, index = for_system(toy, 'Bede', 'torch==1.0')
    add(toy / 'index', 'torch', '2.5', 'nvidia-cuda-runtime-cu13')
    add(toy / 'index', 'nvidia_cuda_runtime_cu13', '13.0.48')
    output = call('--new-version', '2.5', easyconfig=name, status=1)
    assert 'these wheels bring CUDA 13, and the driver of bede takes 12' in output


def test_system_of_ones_own(toy, made, monkeypatch):
    """The driver is that of the system which ./eb works for, unless the easyconfig's name says another."""
    add(toy / 'index', 'torch', '2.5', 'nvidia-cuda-runtime-cu13')
    add(toy / 'index', 'nvidia_cuda_runtime_cu13', '13.0.48')
    monkeypatch.setenv('HPC_SYSTEM', 'bede')
    with pytest.raises(UsersProblem, match='the driver of bede takes 12'):
        made('2.5')
    assert made('2.5', 'toy-1.0-workstation.eb', EASYCONFIG.replace("'1.0'", "'1.0'\nversionsuffix = '-workstation'"))


def test_companion_that_ended(toy, call):
    """It is left out with a word; the others follow."""
    add(toy / 'index', 'torchaudio', '0.1', 'torch==1.0')
    (toy / 'toy-1.0.in').write_text((toy / 'toy-1.0.in').read_text() + 'torchaudio==0.1\n')
    assert 'the indexes have no torchaudio that goes with torch==2.0: left out\n' in call('--new-version', 'latest')
    made = (toy / 'toy-2.0.lock').read_text()
    assert 'torchvision==0.2.0' in made and 'torchaudio' not in made


def test_other_rocm(toy, call):
    """A version that has no wheels for this ROCm; then for another ROCm, from the index of that one."""
    name, index = for_system(toy, 'Frontier', 'torch==1.0+rocm7.1', 'triton-rocm==3.6', index='rocm7.1')
    text = (toy / name).read_text().replace('a toy', 'a toy for ROCm 7.1')
    (toy / name).write_text(text + 'local_wheels = "rocm7.1"\n')
    output = call('--new-version', '2.9.1', easyconfig=name, status=1)
    assert 'the indexes have no torch 2.9.1+rocm7.1; nothing was written' in output
    other = index.with_name('rocm6.4')
    other.mkdir()
    add(other, 'torch', '2.9.1+rocm6.4', 'pytorch-triton-rocm==3.5.1')
    add(other, 'pytorch_triton_rocm', '3.5.1')
    output = call('--new-version', '2.9.1+rocm6.4', easyconfig=name)
    assert "+description = 'a toy for ROCm 6.4'" in output
    assert re.findall('^(?:torch|py).*==.*', (toy / 'toy-2.9.1.in').read_text(), re.M) == [
        'torch==2.9.1+rocm6.4', 'pytorch-triton-rocm==3.5.1']
    assert str(other) in (toy / 'toy-2.9.1.in').read_text()
    assert 'local_wheels = "rocm6.4"' in (toy / name.replace('1.0', '2.9.1')).read_text()
    (toy / 'toy-1.0.in').write_text('#   %stoy-1.0.in -o toy-1.0.lock\ntorch==1.0\n' % COMMAND)
    output = call('--new-version', '2.0+rocm6.4', easyconfig=name, status=1)
    assert 'PyPI, which has none of +rocm6.4: begin with an easyconfig' in output


def test_other_wheels_than_for_processors(toy, call):
    """From CPU wheels to those for CUDA: the index, the pins and the files have its name."""
    name, index = for_system(toy, 'Bede', 'torch==1.0+cpu', index='cpu')
    other = index.with_name('cu126')
    other.mkdir()
    add(other, 'torch', '2.0+cu126')
    source = toy / 'toy-1.0.in'
    source.write_text('# The official CPU wheels.\n' + source.read_text())
    call('--new-version', '2.0+cu126', easyconfig=name)
    made = (toy / 'toy-2.0.in').read_text()
    assert '# The official CUDA 12.6 wheels.\n' in made
    assert 'torch==2.0+cu126\n' in made and '--extra-index-url file://%s ' % other in made
    assert 'torch==2.0+cu126 ' in (toy / 'toy-2.0.lock').read_text()


@pytest.mark.parametrize('build, name', [('cu130', 'CUDA 13.0'), ('rocm6.4', 'ROCm 6.4'), ('cpu', 'CPU')])
def test_comments_that_name_the_wheels(toy, made, build, name):
    """They are true for the new ones."""
    easyconfig, index = for_system(toy, 'workstation', 'torch==1.0+cu128', index='cu128')
    source = toy / 'toy-1.0.in'
    source.write_text('# Wheels for CUDA 12.8.\n' + source.read_text())
    other = index.with_name(build)
    other.mkdir()
    add(other, 'torch', '2.0+' + build)
    assert '# Wheels for %s.\n' % name in made('2.0+' + build, easyconfig)[1]['toy-2.0.in']


def test_file_without_its_version(made):
    """Its new version would have the same name."""
    with pytest.raises(UsersProblem, match='the name of its file lacks its version: rename it, such as NAME-1.0.eb'):
        made('2.0', 'mine.eb', EASYCONFIG)


def test_one_version_for_all_pythons(toy, call):
    """The newest that the oldest Python has, too."""
    add(toy / 'index', 'torch', '4.0', python='>=3.12')
    call('--new-version', 'latest')
    assert (toy / 'toy-2.0.eb').exists()


def test_source_and_patches(toy, call):
    """The checksums are left out; the patches stay under their own names, for a person to check."""
    path = toy / 'toy-1.0.eb'
    path.write_text(path.read_text() + SOURCE)
    output = call('--new-version', 'latest', status=1)
    new = toy / 'toy-2.0.eb'
    check, _, last = output.partition('To try it: ')
    # the last line, as it cannot be installed yet
    assert re.search(r'^ERROR: %s cannot be installed before this is completed by hand:\n  toy-2.0.eb:\d+: checksums = '
                     r'\[\'0{64}\'\]: ./eb --inject-checksums --force %s fetches and hashes its sources\n\Z'
                     % (new, new), last, re.M), output
    assert re.search(r'^To be checked by hand:\n  toy-2.0.eb:\d+: patches = \[: check the patches', check, re.M), output
    text = new.read_text()
    assert SOURCE[SOURCE.index('patches'):SOURCE.index('checksums')] in text
    assert "checksums = ['%s']\n" % new_version.UNKNOWN in text and "sources = ['toy-%(version)s.tar.gz']" in text


def test_newer_python(toy, call):
    """A version that is asked for by name leaves out the Pythons that are too old for it, and says so."""
    name, index = for_system(toy, 'ARCHER2', 'torch==1.0+cpu', 'torchvision==0.1.0+cpu')
    (toy / name).write_text((toy / name).read_text().replace("['3.11']", "['3.12', '3.11']"))
    add(index, 'torch', '4.0+cpu', python='>=3.12')
    add(index, 'torchvision', '0.4.0+cpu', 'torch==4.0')
    output = call('--new-version', '4.0', easyconfig=name)
    assert 'Left out: Python 3.11 (torch==4.0+cpu requires Python >=3.12)' in output
    assert "python_versions = ['3.12']\n" in (toy / name.replace('1.0', '4.0')).read_text()
    assert '--python-version 3.12 ' in (toy / 'toy-4.0.in').read_text()


def test_locks_of_another_easyconfig(toy, call):
    """Those of this version that are there already stay as they are: somebody else's easyconfig has them, too."""
    (toy / 'toy-2.0.in').write_text('# mine\n')
    (toy / 'toy-2.0.lock').write_text('# mine, too\n')
    assert 'same: %s' % (toy / 'toy-2.0.lock') in call('--new-version', '2.0')
    assert (toy / 'toy-2.0.eb').exists() and (toy / 'toy-2.0.lock').read_text() == '# mine, too\n'


@pytest.fixture
def made(toy, monkeypatch):
    """What becomes of an easyconfig in the toy's directory: the change, and {file name: text}."""
    monkeypatch.setenv('UV_DEFAULT_INDEX', 'file://%s' % (toy / 'index'))
    monkeypatch.setenv('PATH', '%s:%s' % (CHECKOUT / '.venv/bin', os.environ['PATH']))
    for name in ('HPC_SYSTEM', 'UV_PYTHON'):
        monkeypatch.delenv(name, raising=False)

    def make(version, name='toy-1.0.eb', text=None):
        if text:
            (toy / name).write_text(text)
        (toy / 'work').mkdir(exist_ok=True)
        change = new_version.Change(str(toy / name), version, str(toy / 'work'))
        return change, {Path(path).name: text for path, text in change.make().items()}
    return make


@pytest.mark.parametrize('version, result', [('2', '2.0'), ('v2.0', '2.0'), ('2.0', '2.0')])
def test_as_it_is_published(made, version, result):
    """The version that the index has, however it was written."""
    assert 'toy-%s.eb' % result in made(version)[1]


def test_version_like_that_of_a_toolchain(toy, made):
    """A list of one's own may be called 2025b, as EasyBuild's toolchains are."""
    (toy / 'toy-2025b.in').write_text('#   %stoy-2025b.in -o toy-2025b.lock\nnumbers-of-toys\n' % COMMAND)
    change, files = made('2026a', 'toy-2025b.eb', EASYCONFIG.replace('1.0', '2025b'))
    assert {'toy-2026a.in', 'toy-2026a.lock', 'toy-2026a.eb'} == set(files) and not change.by_hand
    assert "version = '2026a'" in files['toy-2026a.eb'] and 'toy-2026a.in -o toy-2026a.lock' in files['toy-2026a.in']


@pytest.mark.parametrize('version', ['', '2.*', '>=2', 'newest', '2.0 ', '2.x', '2.0-', 'v', '2..0'])
def test_no_version(made, version):
    with pytest.raises(UsersProblem, match='expected a version such as'):
        made(version)


@pytest.mark.parametrize('lock_files', ["['toy-%s.lock' % version]", "'toy-1.0.lock'", "['%(nosuch)s.lock']", 'none'])
def test_locks_that_are_no_list(made, lock_files):
    """What cannot be read is not taken for an easyconfig without locks."""
    text = EASYCONFIG.replace("['toy-%(version)s.lock']", lock_files)
    with pytest.raises(UsersProblem, match=r"expected lock_files = \['NAME-%\(version\)s.lock'\], found another"):
        made('2.0', text=text)


def test_templates(made):
    """EasyBuild's templates in names of locks, as for an installation."""
    text = EASYCONFIG.replace('toy-%(version)s.lock', '%(name)s-%(version)s.lock')
    assert 'toy-2.0.lock' in made('2.0', text=text)[1]


def test_yanked(toy, made, capsys):
    """A version that was withdrawn is locked if it is asked for by name, with a word."""
    page = toy / 'index/torch/index.html'
    page.write_text(page.read_text().replace('<a href="torch-2.0', '<a data-yanked="broken" href="torch-2.0'))
    assert 'torch==2.0 ' in made('2.0')[1]['toy-2.0.lock']
    assert 'warning: `torch==2.0` is yanked (reason: "broken")\n' in capsys.readouterr().out


def test_extra_that_is_gone(toy, made, capsys):
    """The newer version brings less, as JAX's for GPUs: said, as an installation of the lock cannot say it."""
    path = toy / 'toy-1.0.in'
    path.write_text(path.read_text() + 'numbers-of-toys[gpu]\n')
    assert 'numbers-of-toys==5.1' in made('2.0')[1]['toy-2.0.lock']
    assert 'warning: The package `numbers-of-toys==5.1` does not have an extra named `gpu`\n' in capsys.readouterr().out


def test_second_lock_without_the_version(toy, made):
    """Its packages stay as they are, also beside a lock that is made anew."""
    (toy / 'more.in').write_text('#   %smore.in -o more.lock\nnumbers-of-toys\n' % COMMAND)
    change, files = made('2.0', text=EASYCONFIG.replace(".lock']", ".lock', 'more.lock']"))
    assert 'toy-2.0.lock' in files and change.to_check[0].startswith('more.lock: no name has 1.0 in it, so the pack')


def test_package_that_begins_with_torch(toy, made):
    """A pin of torch-geometric with the list's own version is its own."""
    add(toy / 'index', 'torch_toys', '1.0')
    path = toy / 'toy-1.0.in'
    path.write_text(path.read_text().replace('torch==1.0\n', 'torch-toys==1.0\n').replace('torchvision==0.1.0\n', ''))
    assert 'torch-toys==1.0' in made('1.1')[1]['toy-1.1.lock']


def test_version_that_is_one_number(toy, made, capsys):
    """Lists may be counted; numbers in names of packages and options are none of theirs, and the list is shown."""
    add(toy / 'index', 'sam2', '2')
    text = '#   uv pip compile --python-version 3.9 --generate-hashes --overrides <(echo jinja2) %s\nsam2==2\n'
    (toy / 'toy-2.in').write_text(text % 'toy-2.in -o toy-2.lock')
    change, files = made('3', 'toy-2.eb', EASYCONFIG.replace('1.0', '2'))
    assert files['toy-3.in'] == text % 'toy-3.in -o toy-3.lock' and 'sam2==2 ' in files['toy-3.lock']
    assert any('toy-2.in -o toy-2.lock\n+' in line for line in change.differences(change.make()))


def test_pytorch_beside_packages_of_that_version(toy, made):
    """A PyTorch of one's own has PyTorch's version, whatever pytorch-lightning's is."""
    add(toy / 'index', 'pytorch_lightning', '1.0')
    path = toy / 'toy-1.0.in'
    path.write_text(path.read_text().replace('torch==1.0\n', 'pytorch-lightning==1.0\ntorch==1.0\n', 1))
    _, files = made('2.0', text=EASYCONFIG.replace("name = 'toy'", "name = 'PyTorch'"))
    assert 'pytorch-lightning==1.0\ntorch==2.0\n' in files['toy-2.0.in']


def test_other_checksums(toy, made):
    """A lock with MD5 would be refused by the installation: it is not written."""
    page = toy / 'index/torch/index.html'
    page.write_text(re.sub(r'sha256=\w+(">torch-2.0)', r'md5=%s\1' % ('0' * 32), page.read_text()))
    change, files = made('2.0')
    assert 'toy-2.0.lock' not in files
    assert "toy-2.0.lock: expected NAME==VERSION --hash=sha256:..., found 'torch==2.0" in change.by_hand[0]


def test_symbolic_link(toy):
    """A collection that is reached through one is the collection; an easyconfig that is one stays where it is."""
    (toy / 'link').symlink_to(CHECKOUT)
    name = 'easyconfigs/p/PyTorch/PyTorch-2.13.0-ARCHER2-whl.eb'
    assert new_version.find(str(toy / 'link' / name)) == str(CHECKOUT / name)
    (toy / 'mine.eb').symlink_to(CHECKOUT / name)
    assert new_version.find(str(toy / 'mine.eb')) == str(toy / 'mine.eb')


def test_first_lines_only(toy, eb):
    """Files are written also if nobody reads what is printed."""
    begin = eb.call(['--new-version', '2.0', toy / 'toy-1.0.eb'], {'UV_DEFAULT_INDEX': 'file://%s' % (toy / 'index')},
                    toy)
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(**dict(begin, stdout=write_end, stderr=subprocess.PIPE))
    os.close(write_end)
    assert (toy / 'toy-2.0.eb').exists() and (toy / 'toy-2.0.lock').exists()
    assert done.returncode == 141 and 'BrokenPipe' not in done.stderr


@pytest.mark.parametrize('text', [
    "version = '1.0'\n", "name = 'x'\n", "name = (\n", "name = 'x'\nversion = 2026.11\n"])
def test_no_easyconfig(toy, made, text):
    (toy / 'toy-1.0.eb').write_text(text)
    with pytest.raises(UsersProblem, match='it is no easyconfig with name and version that can be read'):
        made('2.0')


@pytest.mark.parametrize('name', ['toy-1.0.eb', 'toy-1.0.in'])
def test_unreadable(toy, made, monkeypatch, name):
    """Somebody's own, as root may read all; or in another encoding."""
    def refuse(path, **_):
        if path.name == name:
            raise PermissionError(13, 'Permission denied', str(path))
        return path.read_bytes().decode()
    with monkeypatch.context() as patch:
        patch.setattr(Path, 'read_text', refuse)
        with pytest.raises(UsersProblem, match='%s cannot be read: .*Permission denied' % (toy / name)):
            made('2.0')
    (toy / name).write_bytes(b'# \xff\n' + (toy / name).read_bytes())
    with pytest.raises(UsersProblem, match="%s cannot be read: 'utf-8' codec" % (toy / name)):
        made('2.0')


def test_path_that_is_wrong(tmp_path):
    """The collection's easyconfig of that name is not taken for it."""
    name = 'PyTorch-2.15.0-workstation.eb'
    assert new_version.find(name) == str(CHECKOUT / 'easyconfigs/p/PyTorch' / name)
    with pytest.raises(UsersProblem, match='no easyconfig is called %s; .* give its path' % (tmp_path / name)):
        new_version.find(str(tmp_path / name))


def test_robot_paths(toy, call, eb):
    """An easyconfig of one's own with the name of one of the collection's, as an installation takes it."""
    name = 'PyTorch-2.15.0-workstation.eb'
    (toy / 'mine').mkdir()
    (toy / 'toy-1.0.eb').rename(toy / 'mine' / name)
    (toy / 'toy-1.0.in').rename(toy / 'mine/toy-1.0.in')
    output = eb('--renew', name, '-x', '--robot-paths=%s' % (toy / 'mine'),
                env={'UV_DEFAULT_INDEX': 'file://%s' % (toy / 'index')}).stdout
    assert 'new: %s (' % (toy / 'mine/toy-1.0.lock') in output, output


def test_options_of_easybuild(toy, call, eb):
    """They are EasyBuild's, as for an installation: none is taken for a second easyconfig, no typing error for none."""
    before = sorted(toy.iterdir())
    said = eb('--new-version', 'x', '--buildpath', toy / 'a', toy / 'toy-1.0.eb', status=1).stdout
    assert 'toy-1.0.eb: expected a version' in said
    assert 'expected one easyconfig, NAME.eb; found /' in call('--new-version', '2.0', toy / 'other-1.0.eb', status=1)
    assert 'expected one easyconfig, NAME.eb; found other-1.0 /' in call('--new-version', '2.0', 'other-1.0', status=1)
    assert 'toy-1.0; for one outside the collection' in call('--new-version', '2.0', easyconfig='toy-1.0', status=1)
    assert 'no such option: --dryrun' in call('--new-version', '2.0', '--dryrun', status=None)
    assert sorted(path for path in toy.iterdir() if path.name != 'prefix') == before


@pytest.mark.parametrize('status, words', [
    (404, 'the indexes have no package torch. Are they the right ones'),
    (403, '/simple could not be reached: 403 Forbidden. Are address and password right'),
    (401, '/simple could not be reached: 401 Unauthorized'),
    (500, '/simple/torch/ could not be reached: 500 Internal Server Error'),
    (200, "the index answered with a web page, or a list without versions. It may ask to sign in"),
])
def test_index_that_refuses(made, monkeypatch, status, words):
    """A wrong address, no password, a broken server: said as such, and not that there is no such version."""
    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(status)

        def log_message(self, *_):
            pass
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Refuses) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setenv('UV_DEFAULT_INDEX', 'http://127.0.0.1:%d/simple' % server.server_port)
        # a busy machine may lose a request
        monkeypatch.setenv('UV_HTTP_RETRIES', '2')
        with pytest.raises(UsersProblem, match=words):
            made('2.0')
        server.shutdown()


def test_release_of_just_now(toy, made, monkeypatch):
    """uv had the page of a moment ago."""
    pages = functools.partial(http.server.SimpleHTTPRequestHandler, directory=toy / 'index')
    for page in (toy / 'index').glob('*/index.html'):
        os.utime(page, (10 ** 9, 10 ** 9))
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), pages) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setenv('UV_DEFAULT_INDEX', 'http://127.0.0.1:%d' % server.server_port)
        found = [made(None)[1]['toy-1.0.lock']]
        add(toy / 'index', 'numbers_of_toys', '5.2')
        shutil.rmtree(toy / 'work')
        found.append(made(None)[1]['toy-1.0.lock'])
        server.shutdown()
    assert [re.search('^numbers-of-toys==([0-9.]+)', text, re.M)[1] for text in found] == ['5.1', '5.2']


@pytest.mark.parametrize('proxy, words', [
    ('', '/torch/ could not be reached: Connection refused'),
    ('http://localhost:9', r'could not be reached: the proxy refuses, or is not reached itself \(Connection refused'),
])
def test_no_way_to_an_index(made, monkeypatch, proxy, words):
    """The reason is named, and what to look at."""
    for name in [name for name in os.environ if name.lower().endswith('_proxy')]:
        monkeypatch.delenv(name)
    monkeypatch.setenv('ALL_PROXY', proxy)
    monkeypatch.setenv('UV_DEFAULT_INDEX', 'https://localhost:9/simple')
    # a port that refuses does so again
    monkeypatch.setenv('UV_HTTP_RETRIES', '0')
    with pytest.raises(UsersProblem, match=words):
        made('2.0')


def test_cache_that_cannot_be_written(toy, made, monkeypatch):
    """As with a full or read-only $HOME: it can be elsewhere."""
    (toy / 'file').touch()
    monkeypatch.setenv('UV_CACHE_DIR', str(toy / 'file/uv'))
    with pytest.raises(UsersProblem, match='cache, %s/uv: Not a directory. Choose .* UV_CACHE_DIR=' % (toy / 'file')):
        made('2.0')


def test_no_homepage(made):
    """Of an easyconfig from elsewhere, which need not have one."""
    with pytest.raises(UsersProblem, match='look at its homepage, and name it'):
        made('latest', text="name = 'zlib'\nversion = '1.0'\n")


def test_nothing_newer(toy, call):
    """The newest stays as it is, which is no error; that a lock could be renewed is said."""
    (toy / 'toy-1.0.eb').rename(toy / 'toy-2.0.eb')
    (toy / 'toy-2.0.eb').write_text(EASYCONFIG.replace('1.0', '2.0'))
    (toy / 'toy-2.0-Derecho.eb').write_text(EASYCONFIG.replace('1.0', '2.0') + "versionsuffix = '-Derecho'\n")
    (toy / 'toy-1.0.in').rename(toy / 'toy-2.0.in')
    (toy / 'toy-2.0.in').write_text((toy / 'toy-2.0.in').read_text().replace('1.0', '2.0'))
    before = sorted(toy.iterdir())
    for name, fits in (('toy-2.0.eb', 'on workstation'), ('toy-2.0-Derecho.eb', 'on derecho with CUDA 12')):
        said = 'nothing newer than 2.0 fits Python 3.11 %s; to make its locks again: ./eb --renew %s\n'
        assert said % (fits, toy / name) in call('--new-version', 'latest', easyconfig=name)
    assert sorted(path for path in toy.iterdir() if path.name != 'prefix') == before


def test_pythons_without_wheels(toy, made, capsys):
    """A Python that the version has no wheels for does not stay the first."""
    page = toy / 'index' / 'torch'
    (page / 'torch-2.0-py3-none-any.whl').rename(page / 'torch-2.0-cp311-none-any.whl')
    # most packages have a source, too
    (page / 'index.html').write_text((page / 'index.html').read_text().replace('2.0-py3', '2.0-cp311')
                                     + '<a href="torch-2.0.tar.gz#sha256=%s">torch-2.0.tar.gz</a>' % ('a' * 64))
    text = EASYCONFIG.replace("['3.11']", "['3.13', '3.11']  # newest first") + "scripts = ['toy']\n"
    new = made('2.0', text=text)[1]['toy-2.0.eb']
    assert "python_versions = ['3.11']  # newest first\nmoduleclass = 'ai'\nscripts = ['toy']\n" in new
    assert 'Left out: Python 3.13 (it has no wheel' in capsys.readouterr().out


def test_comments_that_name_versions(made):
    """They are true for the old version only."""
    text = EASYCONFIG + "# with CUDA 12.6,\n# and NCCL\nramgate = True  # since 1.0\n# in minutes\nscripts = []  # no\n"
    new = made('2.0', text=text)[1]['toy-2.0.eb']
    assert new.endswith("'ai'\nramgate = True\n# in minutes\nscripts = []  # no\n")


def test_shared_locks(toy, made):
    """They stay for all Pythons that they are for, though this easyconfig has fewer."""
    (toy / 'tools.in').write_text('#   %stools.in -o tools.lock\nnumbers-of-toys\n' % COMMAND.replace('3.11', '3.9'))
    text = EASYCONFIG + "build_lock_files = ['tools.lock']\n"
    files = made(None, text=text)[1]
    assert sorted(files) == ['tools.in', 'tools.lock', 'toy-1.0.in', 'toy-1.0.lock']
    assert files['tools.in'] == (toy / 'tools.in').read_text() and '--python-version 3.9 ' in files['tools.lock']
    # and those of several versions are left alone by a new one
    assert sorted(made('2.0')[1]) == ['toy-2.0.eb', 'toy-2.0.in', 'toy-2.0.lock']


def test_locks_for_newer_pythons(toy, made):
    """Those that another easyconfig of the new version has are for its Pythons, which may all be newer than here."""
    for name in ('toy-2.0.in', 'toy-2.0.lock'):
        (toy / name).write_text('#   %stoy-2.0.in -o toy-2.0.lock\n' % COMMAND.replace('3.11', '3.13'))
    files = made('2.0')[1]
    assert '--python-version 3.11 ' in files['toy-2.0.in'] and 'torch==2.0 ' in files['toy-2.0.lock']


@pytest.mark.parametrize('pinned', ['transformers==', 'transformers[torch,vision]==', 'transformers [torch] == '])
def test_other_packages(toy, made, pinned):
    """Of a software with a version of its own, and none of PyTorch's."""
    add(toy / 'index', 'transformers', '5.0', 'torch')
    add(toy / 'index', 'transformers', '5.1', 'torch')
    (toy / 'toy-5.0.in').write_text('#   %s--overrides <(printf \'%%s ; python_version < "0"\\n\' torch) toy-5.0.in '
                                    '-o toy-5.0.lock\n%s5.0\n' % (COMMAND, pinned))
    text = EASYCONFIG.replace('1.0', '5.0').replace("'toy'", "'Transformers'")
    change, files = made('latest', 'toy-5.0.eb', text)
    assert change.version == '5.1' and 'transformers==5.1 ' in files['toy-5.1.lock']
    assert 'torch' not in re.sub('#.*', '', files['toy-5.1.lock']) and not change.by_hand


@pytest.mark.parametrize('listed', ['Numbers_of.Toys', 'numbers-of-toys [extra] '])
def test_names_as_people_write_them(toy, made, listed):
    """PyYAML and scikit_learn are pyyaml and scikit-learn for uv: such a pin was a traceback."""
    (toy / 'toy-1.0.in').write_text('#   %stoy-1.0.in -o toy-1.0.lock\n%s==1.0\n' % (COMMAND, listed))
    change, files = made('latest', text=EASYCONFIG.replace("'toy'", "'Numbers_of_toys'"))
    assert files['toy-5.1.in'].endswith('\n%s==5.1\n' % listed) and 'numbers-of-toys==5.1 ' in files['toy-5.1.lock']
    assert not change.by_hand and not change.to_check


@pytest.mark.parametrize('own, pin', [
    ('torch==1.0', '==1.0'), ('torch==1.0', ' == 1.0'), ('torch==1.0', ' <2.0, >= 1.0'),
    ('torch', '<=1.0'), ('torch', '==1.0.*'), ('Toy~=1.0', '~=1.0'),
])
def test_pin_of_another_package(toy, made, own, pin):
    """It stays, though that package happens to have the easyconfig's own version; so does a bound."""
    add(toy / 'index', 'numbers_of_toys', '1.0')
    add(toy / 'index', 'numbers_of_toys', '2.0')
    add(toy / 'index', 'toy', '2.0')
    (toy / 'toy-1.0.in').write_text('#   %stoy-1.0.in -o toy-1.0.lock\n%s\nnumbers-of-toys%s  # of toy-1.0\n'
                                    % (COMMAND, own, pin))
    change, files = made('2.0')
    lines = '%s\nnumbers-of-toys%s  # of toy-2.0' % (own.replace('=1', '=2'), pin)
    assert files['toy-2.0.in'].endswith('\n%s\n' % lines) and 'numbers-of-toys==1.0 ' in files['toy-2.0.lock']
    # whether another version is right for the new software, only a person knows
    assert [line.split(': check ')[0] for line in change.to_check] == lines.splitlines()[1:]


@pytest.mark.parametrize('before, behind', [('', ''), ('\n    ', ',\n')])
def test_pytorch_below(made, before, behind):
    """What is on top of a module of PyTorch may need another one: its lock leaves PyTorch out, and says nothing."""
    module = "('PyTorch', '2.13.0', '-workstation')"
    line, = made('2.0', text=EASYCONFIG + 'dependencies = [%s%s%s]\n' % (before, module, behind))[0].to_check
    assert module in line and line.endswith(': check that this is the PyTorch that the new version needs')


def test_companion_from_its_source(toy, made, capsys):
    """Its version follows PyTorch's; zeros stand for the SHA256. Its lock is a new one, and nobody need look at it."""
    add(toy / 'index', 'torchvision', '0.7.1', 'torch==2.0')
    (toy / 'torchvision-0.1.0.lock').write_text('torchvision==0.1.0 --hash=sha256:%s\n' % ('a' * 64))
    text = EASYCONFIG.replace('LockedWheels', 'EB_PyTorchHPC').replace("'toy'", "'PyTorch'", 1)
    text = text.replace("'toy-%(version)s.lock'", "'torchvision-0.1.0.lock'")
    text += "package_urls = {'torchvision': 'https://localhost:9/v0.1.0.tar.gz'}\nv = {'BUILD_VERSION': '0.1.0'}\n"
    change, files = made('2.0', 'PyTorch-1.0.eb', text)
    assert "localhost:9/v0.7.1.tar.gz'}\nv = {'BUILD_VERSION': '0.7.1'}" in files['PyTorch-2.0.eb']
    assert 'torchvision==0.7.1 --hash=sha256:%s ' % ('0' * 64) in files['torchvision-0.7.1.lock']
    assert '# of https://localhost:9/v0.7.1.tar.gz: put its SHA256 in the place of the zeros' in change.by_hand[0]
    assert not change.to_check and 'it stays as it is' not in capsys.readouterr().out


def test_zeros_for_a_checksum(toy, call):
    """What stands for a SHA256 that is missing is refused, and named in a dry run."""
    (toy / 'toy-1.0.lock').write_text('numbers-of-toys==5.1 --hash=sha256:%s\n' % ('0' * 64))
    output = call('-x')
    assert 'numbers-of-toys 5.1 has no SHA256 yet, but zeros' in output[output.index('[SUCCESS]'):]
    assert 'has no SHA256 yet, but zeros' in call('--fetch', status=1)


def test_module_of_another_version(toy, call):
    """The module toy/1.0 had another toy in it, if a lock had; only PyTorch's was compared."""
    (toy / 'toy-1.0.lock').write_text('Toy==1.5 --hash=sha256:%s\n' % ('a' * 64))
    assert 'The lock file has toy 1.5, the easyconfig says 1.0. For an easyconfig and lock' in call('-x')
    (toy / 'toy-1.0.lock').write_text('Toy==1.0.0+cpu --hash=sha256:%s\n' % ('a' * 64))
    assert 'The lock file has' not in call('-x')


def test_own_index_instead(toy, made, capsys, monkeypatch):
    """Where PyTorch's index is not reached: the locks for that case; without them a person makes the lock."""
    # a port that refuses does so again
    monkeypatch.setenv('UV_HTTP_RETRIES', '0')
    closed = '#   %s--extra-index-url https://localhost:9/cpu toy-1.0.in -o toy-1.0.lock\ntorch==1.0+cpu\n' % COMMAND
    (toy / 'toy-1.0-pypi.in').write_text((toy / 'toy-1.0.in').read_text().replace('toy-1.0', 'toy-1.0-pypi'))
    (toy / 'toy-1.0.in').write_text(closed)
    text = EASYCONFIG.replace("s.lock']", "s.lock',\n              'more-toys.lock']")
    text += "extra_index_urls = ['https://localhost:9/cpu']\n"
    text += "lock_files_instead = ['toy-%(version)s-pypi.lock']\n"
    change, files = made('latest', text=text)
    assert change.to_check == [
        "description: check it: it is that of the other wheels",
        "lock_files: check whether they have all packages of toy-1.0.lock, more-toys.lock, which they replace"]
    said = capsys.readouterr().out
    assert 'Cannot reach https://localhost:9/cpu: the wheels are those of your own' in said
    assert sorted(files) == ['toy-2.0-pypi.in', 'toy-2.0-pypi.lock', 'toy-2.0.eb']
    assert "lock_files = ['toy-%(version)s-pypi.lock']" in files['toy-2.0.eb'] and 'index' not in files['toy-2.0.eb']
    # what is asked for by name is not replaced, nor when it is installed
    change, files = made('2.0+cpu', text=text)
    assert sorted(files) == ['toy-2.0.eb', 'toy-2.0.in'] and 'instead' not in files['toy-2.0.eb']
    change, files = made('2.0', text=EASYCONFIG)
    assert sorted(files) == ['toy-2.0.eb', 'toy-2.0.in'] and 'torch==2.0+cpu' in files['toy-2.0.in']
    assert 'toy-2.0.lock: https://localhost:9/cpu/torch/ could not be reached' in change.by_hand[0]
    with pytest.raises(UsersProblem, match='only it knows the newest .* for cpu. Name a version: ./eb --new-version X'):
        made('latest', text=EASYCONFIG)
    # what PyTorch brings is not that of the old version
    (toy / 'toy-1.0.in').write_text(closed + 'triton-rocm==3.6\n')
    change, files = made('2.0', text=EASYCONFIG)
    assert 'toy-2.0.in:3: triton-rocm==0: put the version that this torch asks for' in change.by_hand[1]
    # what is built from source has no wheels there
    (toy / 'toy-1.0.in').write_text(closed.replace('+cpu', ''))
    assert 'toy-2.0.eb' in made('latest', text=EASYCONFIG)[1]
    said = 'Cannot reach https://localhost:9/cpu, which may not have the version that your own index has.\n'
    assert said in capsys.readouterr().out


@pytest.mark.parametrize('pin, name', [('>=1.0', 'toy-1.0'), ('==1.*', 'toy-1.0'), ('==1.0', 'mine')])
def test_lock_of_another_version(toy, made, pin, name):
    """What the .in file does not pin gets another version, and a lock without a version in its name stays: named."""
    add(toy / 'index', 'toy', '1.0')
    add(toy / 'index', 'toy', '1.5')
    add(toy / 'index', 'toy', '3.0')
    (toy / (name + '.in')).write_text('#   %s%s.in -o %s.lock\ntoy%s\n' % (COMMAND, name, name, pin))
    (toy / (name + '.lock')).write_text('toy==1.0 --hash=sha256:%s\n' % ('a' * 64))
    change, files = made('2.0', text=EASYCONFIG.replace('toy-%(version)s.lock', name.replace('1.0', '%(version)s.lock')
                                                        if '-' in name else name + '.lock'))
    line, = change.by_hand
    assert re.search(r'/%s\.lock has toy \S+: pin 2\.0 in its \.in file' % name.replace('1.0', '2.0'), line)


def test_packages_that_became_older(toy, made):
    """What a bound keeps from the newest may be replaced by one of years ago that names no bound."""
    for version, needs in (('1.0', ()), ('4.0', 'torch<2')):
        add(toy / 'index', 'transformers', version, *([needs] if needs else []))
    with open(toy / 'toy-1.0.in', 'a') as stream:
        stream.write('transformers<5\n')
    for name, text in made(None)[1].items():
        (toy / name).write_text(text)
    change, files = made('2.0')
    assert 'transformers==1.0 ' in files['toy-2.0.lock'] and not change.by_hand
    line, = change.to_check
    assert line.startswith('transformers 1.0: check whether it may be older: it was 4.0.')
    # an older version has older packages
    for name, text in files.items():
        (toy / name).write_text(text)
    add(toy / 'index', 'torch', '0.9')
    assert not made('0.9', 'toy-2.0.eb')[0].to_check


def test_index_that_is_behind(toy, made):
    """Mirrors lag, or give no checksums, so that uv knows only that of the file for this computer."""
    _, files = made(None)
    text = files['toy-1.0.lock']
    (toy / 'toy-1.0.lock').write_text(text.replace('numbers-of-toys==5.1', 'numbers-of-toys==5.2'))
    line, = made(None)[0].to_check
    assert line.startswith('numbers-of-toys 5.1: check whether it may be older: it was 5.2.')
    lock = re.sub(r'(numbers-of-toys==5.1)', r'\1 --hash=sha256:%s' % ('5' * 64), text)
    (toy / 'toy-1.0.lock').write_text(lock)
    with pytest.raises(UsersProblem, match='of numbers-of-toys, the index has fewer files than the lock'):
        made(None)
    (toy / 'toy-1.0.lock').write_text('half of a lo')
    assert made(None)[1]['toy-1.0.lock'] == text


@pytest.mark.parametrize('added, found', [('', 0), ('numbers-of-toys>=5\n', 1), ('# why\n', 0)])
def test_lock_of_an_earlier_try(toy, made, added, found):
    """The easyconfig was removed to try again; what was added to the old list since then is not in the new one."""
    for name, text in made('2.0')[1].items():
        if name != 'toy-2.0.eb':
            (toy / name).write_text(text)
    with open(toy / 'toy-1.0.in', 'a') as stream:
        stream.write(added)
    lines = made('2.0')[0].to_check
    assert len(lines) == found
    assert all(line.startswith('%s: check its list: it existed already' % (toy / 'toy-2.0.in')) for line in lines)


def test_list_that_was_written_first(toy, made):
    """Next month's list, or one that was mended after a first try, is locked as it is."""
    add(toy / 'index', 'more_of_toys', '1.0')
    text = (toy / 'toy-1.0.in').read_text().replace('1.0', '2.0') + 'more-of-toys\n'
    (toy / 'toy-2.0.in').write_text(text)
    change, files = made('2.0')
    assert files['toy-2.0.in'] == text and 'more-of-toys==1.0 ' in files['toy-2.0.lock']
    assert [line for line in change.to_check if 'toy-2.0.in: check its list: it existed already' in line]


@pytest.mark.parametrize('name, options', [('toy-1.0', ['--renew']), ('toy-2.0', ['--new-version', '2.0'])])
def test_list_that_is_changed_meanwhile(toy, call, monkeypatch, name, options):
    """What a user saves while uv runs stays: the list as it had been was written over it."""
    monkeypatch.setenv('THE_LIST', str(toy / (name + '.in')))
    command = COMMAND + '--overrides <(echo numbers-of-toys >> "$THE_LIST") {0}.in -o {0}.lock\n'.format(name)
    (toy / (name + '.in')).write_text('#   %storch==%s\n' % (command, name[4:]))
    output = call(*options, status=1)
    assert name + '.in was changed meanwhile: type the same again; nothing was written' in output
    assert (toy / (name + '.in')).read_text().endswith('\nnumbers-of-toys\n') and not (toy / (name + '.lock')).exists()


@pytest.mark.parametrize('name, to_check', [
    ('numbers-of-toys', ['numbers-of-toys==1.0: check whether it still fits: it has the older version']),
    ('torchmetrics', []),
    ('toybox', ['toybox==1.0: check whether it still fits: it has the older version']),
])
def test_pin_with_the_version_of_the_list(toy, made, name, to_check):
    """It is not the software itself: it stays as it is, and a person checks it."""
    add(toy / 'index', name.replace('-', '_'), '1.0')
    (toy / 'toy-1.0.in').write_text('#   %stoy-1.0.in -o toy-1.0.lock\n%s==1.0\n' % (COMMAND, name))
    change, files = made('2027.01')
    assert name + '==1.0 ' in files['toy-2027.01.lock'] and change.to_check == to_check
    with pytest.raises(UsersProblem, match='which version is the newest is not known here'):
        made('latest')


@pytest.mark.parametrize('name, said', [('our-stack', True), ('stack-1.0', False), ('stack-1.0-cpu', False)])
def test_lock_without_a_version(toy, made, name, said):
    """The new version of a group's stack has the packages of the old one, which has the same lock."""
    (toy / (name + '.in')).write_text('#   %s{0}.in -o {0}.lock\nnumbers-of-toys\n'.format(name) % COMMAND)
    (toy / (name + '.lock')).write_text('numbers-of-toys==5.0 --hash=sha256:%s\n' % ('a' * 64))
    change, files = made('2.0', text=EASYCONFIG.replace('toy-%(version)s', name))
    assert len(files) == (1 if said else 3)
    assert ('check its packages: the older version has the same file' in ''.join(change.to_check)) == said


def test_lock_that_nobody_can_make(toy, made):
    """Without the .in file, the lock of the new version is missing: named, with status 1."""
    (toy / 'toy-1.0.in').rename(toy / 'other.in')
    (toy / 'toy-1.0.lock').write_text('toy==1.0 --hash=sha256:%s\n' % ('a' * 64))
    line, = made('2.0')[0].by_hand
    assert line == '%s is missing, and no .in file has the command that makes it' % (toy / 'toy-2.0.lock')


@pytest.mark.parametrize('place', ['{0}/', 'locks/'])
def test_command_with_a_directory(toy, made, place):
    """A command with a path, folded: nothing but the draft is written. A dry run had overwritten the lock."""
    (toy / 'toy-1.0.lock').write_text('torch==1.0 --hash=sha256:1\n')
    place = place.format(toy)
    (toy / 'toy-1.0.in').write_text('#   %s\\\n#     %stoy-1.0.in -o %stoy-1.0.lock\ntorch==1.0\n'
                                    % (COMMAND, place, place))
    change, files = made(None)
    assert 'numbers-of-toys==5.1 ' in files['toy-1.0.lock'] and not change.by_hand
    assert (toy / 'toy-1.0.lock').read_text() == 'torch==1.0 --hash=sha256:1\n'


@pytest.mark.parametrize('listed', ['numpy', 'numpy>=1.24', 'numpy >= 1.20, <3  # ours', 'NumPy<3', 'numpy!=1.25'])
@pytest.mark.parametrize('version, numpy', [('2.2', '1.26.4'), ('2.3', '2.1')])
def test_numpy_of_old_wheels(toy, made, version, numpy, listed):
    """PyTorch before 2.3 was compiled with NumPy 1: with 2, it says that NumPy is not available."""
    for name, versions in {'numpy': ('1.26.4', '2.1'), 'torch': ('2.0', '2.2', '2.3')}.items():
        for found in versions:
            add(toy / 'index', name, found)
    (toy / 'toy-2.0.in').write_text((toy / 'toy-1.0.in').read_text().replace('1.0', '2.0').split('torchvision')[0]
                                    + listed + '\npip\n')
    add(toy / 'index', 'pip', '26.0')
    files = made(version, 'toy-2.0.eb', EASYCONFIG.replace('1.0', '2.0'))[1]
    assert 'numpy==%s ' % numpy in files['toy-%s.lock' % version] and '<2,<2' not in files['toy-%s.in' % version]


@pytest.mark.parametrize('listed, left, numpy', [
    ('numpy<2', 'numpy', '2.1'), ('NumPy >= 1.20,<2, <2  # ours', 'NumPy >= 1.20  # ours', '2.1'),
    ('numpy<2,!=1.25; python_version > "3"', 'numpy!=1.25; python_version > "3"', '2.1'),
    # other bounds, and other packages
    ('numpy<2.1', 'numpy<2.1', '1.26.4'), ('numpy-stl<2', 'numpy-stl<2', None)])
def test_bounds_of_old_wheels(toy, made, listed, left, numpy):
    """What PyTorch before 2.3 needs is taken out of a list for a newer one, with a word."""
    for name, versions in {'numpy': ('1.26.4', '2.1'), 'torch': ('2.2', '2.3'), 'numpy_stl': ('1.0', '2.0')}.items():
        for found in versions:
            add(toy / 'index', name, found)
    (toy / 'toy-2.2.in').write_text('#   %stoy-2.2.in -o toy-2.2.lock\ntorch==2.2\n%s\n' % (COMMAND, listed))
    change, files = made('2.3', 'toy-2.2.eb', EASYCONFIG.replace('1.0', '2.2'))
    assert files['toy-2.3.in'].endswith('\n%s\n' % left)
    assert numpy is None or 'numpy==%s ' % numpy in files['toy-2.3.lock']
    assert len([line for line in change.to_check if line.startswith('numpy<2: check')]) == (left != listed)


def test_requirements_that_do_not_go_together():
    """In uv's words: those of torchaudio's old versions without a wheel for this Python are not the reason."""
    said = ('Because torchaudio<=0.13.1 has no wheels with a matching Python ABI tag and torchaudio==2.10.0 depends on '
            'torch==2.10.0, we can conclude that torchaudio<=2.10.0 depends on torch>=2.0.0,<=2.10.0.\n And because '
            'you require torch==2.15.0 and torchaudio<2.11, we can conclude that your requirements are unsatisfiable.')
    rows = [row for row in new_version.read_table('uv_errors', re.S | re.I) if row.pattern.search(said)]
    found = rows[0].cause.format(*rows[0].pattern.search(said).groups())
    assert found.startswith('torch==2.15.0 and torchaudio<2.11 do not go together')


@pytest.mark.parametrize('version, setuptools', [('2.1.2', '69.5.1'), ('2.2', '84.0')])
def test_setuptools_of_old_wheels(toy, made, version, setuptools):
    """Extensions of PyTorch before 2.2 import what setuptools 70 lacks; its own needs were those of a newer PyTorch."""
    for name, versions in {'setuptools': ('69.5.1', '84.0'), 'torch': ('2.1.2', '2.2', '2.13')}.items():
        for found in versions:
            add(toy / 'index', name, found)
    (toy / 'toy-2.13.in').write_text('#   %stoy-2.13.in -o toy-2.13.lock\ntorch==2.13\nsetuptools>=77.0.3\n' % COMMAND)
    files = made(version, 'toy-2.13.eb', EASYCONFIG.replace('1.0', '2.13'))[1]
    assert 'setuptools==%s ' % setuptools in files['toy-%s.lock' % version]


@pytest.mark.parametrize('listed', ['torchaudio==2.11.0', 'Torchaudio == 2.11.0', 'torchaudio', 'TorchAudio>=2.5'])
@pytest.mark.parametrize('version, audio', [('2.10', '2.10.0'), ('2.12', '2.11.0')])
def test_torchaudio_that_names_no_torch(toy, made, listed, version, audio):
    """torchaudio 2.11.0 is for PyTorch 2.11 and later, and does not say so: an older one lacks its symbols."""
    for found in ('2.10', '2.11', '2.12'):
        add(toy / 'index', 'torch', found)
    add(toy / 'index', 'torchaudio', '2.10.0', 'torch==2.10')
    add(toy / 'index', 'torchaudio', '2.11.0')
    (toy / 'toy-2.11.in').write_text('#   %stoy-2.11.in -o toy-2.11.lock\ntorch==2.11\n%s\n' % (COMMAND, listed))
    files = made(version, 'toy-2.11.eb', EASYCONFIG.replace('1.0', '2.11'))[1]
    assert 'torchaudio==%s ' % audio in files['toy-%s.lock' % version]


def test_no_index(made):
    """What no index has: the version that is named, and a person for the checksum; the newest is not known."""
    text = (CHECKOUT / 'easyconfigs/n/NCCL/NCCL-2.26.6-1-Derecho.eb').read_text()
    change, files = made('2.30.7-1', 'NCCL-2.26.6-1.eb', text)
    assert "version = '2.30.7-1'" in files['NCCL-2.30.7-1.eb']
    # what no file has, so that none is taken
    line = "checksums = ['%s']" % ('0' * 64)
    assert line in files['NCCL-2.30.7-1.eb'] and [line] == [one.split(':')[2].strip() for one in change.by_hand]
    with pytest.raises(UsersProblem, match='look at https://.*, and name it instead of `latest`'):
        made('latest', 'NCCL-2.26.6-1.eb')


def test_wheels_that_are_named(made):
    """No index is asked for wheels that the easyconfig names by their files: it may have others, for another GPU."""
    text = (CHECKOUT / 'easyconfigs/p/PyTorch/PyTorch-2.2.2-Frontier.eb').read_text()
    with pytest.raises(UsersProblem, match='look at https://pytorch.org/, and name it instead of `latest`'):
        made('latest', 'PyTorch-2.2.2-Frontier.eb', text.replace('PyTorch-2.2.2-Frontier.lock', 'none.lock'))


@pytest.mark.parametrize('name', ['torch_mpi-2.0.0-PyTorch-2.13.0-workstation.eb', 'caches-1.0-Frontier.eb',
                                  'proxy-1.0-Frontier.eb'])
def test_of_the_collection(made, name):
    """What is nowhere but in the collection has its versions where the collection is."""
    text = Path(new_version.find(name)).read_text()
    address, = re.findall('^Repository = "(.*)"', (CHECKOUT / 'pyproject.toml').read_text(), re.M)
    with pytest.raises(UsersProblem, match='look at %s, and name it' % re.escape(address)):
        made('latest', name, text)


@pytest.mark.parametrize('name, version, by_hand', [
    ('torch_mpi-2.0.0-PyTorch-2.13.0-workstation.eb', '2.1.0',
     ["for another one change it, and `dependencies`", 'check that this is the PyTorch that the new version needs']),
    ('PyTorch-2.10.0-rocm-7.0-python-3.12-singularity-20260807.eb', '2.11.0', ['versionsuffix =', 'local_tag =']),
    ('PyTorch-26.03-NGC-workstation.eb', '26.05', ['skopeo inspect']),
    ('Python-3.12.14-standalone.eb', '3.12.15', ['local_name =', 'source_urls =', 'checksums =']),
    ('aws-ofi-rccl-1.4.0-Frontier.eb', '1.5.0', ['local_commit =', 'checksums =']),
])
def test_what_a_person_adds(tmp_path, monkeypatch, name, version, by_hand):
    """Each line that does not follow from the version is named."""
    monkeypatch.setenv('PATH', os.defpath)
    change = new_version.Change(new_version.find(name), version, str(tmp_path))
    text = change.make()[change.target]
    lines = change.to_check + change.by_hand
    assert "version = '%s'" % version in text and len(lines) == len(by_hand), lines
    for line, words in zip(lines, by_hand):
        assert words in line


def test_where_it_is_written(toy, made, monkeypatch):
    """What lies elsewhere stays there, and takes no place in the collection; what cannot be written goes to $PWD."""
    name = 'PyTorch-2.15.0-workstation.eb'
    (toy / name).write_text(Path(new_version.find(name)).read_text())
    change = new_version.Change(str(toy / name), None, str(toy / 'work'))
    assert change.place(change.inputs[0]) == str(toy / 'torch-2.15.0-pypi.in')
    monkeypatch.setattr(os, 'access', lambda path, mode: not str(path).startswith(str(CHECKOUT)))
    (toy / 'here').mkdir()
    monkeypatch.chdir(toy / 'here')
    change = new_version.Change(new_version.find(name), None, str(toy / 'work'))
    assert change.place(change.inputs[0]) == str(toy / 'here/torch-2.15.0-pypi.in')
    assert new_version.as_typed(change.target) == str(toy / 'here' / name)


def test_renewed_elsewhere(toy, made, monkeypatch):
    """From a checkout that cannot be written to: the easyconfig goes along, or nothing would read the new locks."""
    (toy / 'toy-1.0.lock').write_text('torch==1.0 --hash=sha256:1\nnumbers-of-toys==5.0 --hash=sha256:2\n')
    monkeypatch.setattr(os, 'access', lambda path, mode: str(path) != str(toy))
    (toy / 'here').mkdir()
    monkeypatch.chdir(toy / 'here')
    change, files = made(None)
    assert sorted(files) == ['toy-1.0.eb', 'toy-1.0.in', 'toy-1.0.lock'] and files['toy-1.0.eb'] == EASYCONFIG
    assert new_version.as_typed(change.target) == str(toy / 'here/toy-1.0.eb')
    # what is new is shown, though nothing is overwritten
    shown = ''.join(line + '\n' for line in change.differences(change.make()))
    assert '-numbers-of-toys==5.0' in shown and '+numbers-of-toys==5.1' in shown
    assert 'same: %s\n' % (toy / 'here/toy-1.0.eb') in shown
    # what the user has there is not overwritten
    (toy / 'here/toy-1.0.in').write_text('mine\n')
    with pytest.raises(UsersProblem, match='toy-1.0.eb cannot be written, and .*here/toy-1.0.in exists'):
        made(None)


def test_companion_in_a_list_of_others(toy, made, capsys):
    """Where no PyTorch is changed, its companions stay: the module below has the same PyTorch as before."""
    (toy / 'Vis-2026.11.in').write_text('#   %sVis-2026.11.in -o Vis-2026.11.lock\ntorchvision==0.1.0\n' % COMMAND)
    change, files = made('2026.12', 'Vis-2026.11.eb', EASYCONFIG.replace("'1.0'", "'2026.11'").replace('toy', 'Vis'))
    assert 'torchvision==0.1.0\n' in files['Vis-2026.12.in'] and 'torchvision==0.1.0 ' in files['Vis-2026.12.lock']
    assert 'torchvision==0.1.0: check whether it goes with the PyTorch that is used' in change.to_check
    assert 'left out' not in capsys.readouterr().out


@pytest.mark.parametrize('place', ['easybuild', 'easybuild/provenance'])
def test_easyconfig_of_an_installation(toy, made, monkeypatch, place):
    """Nothing is written there, where --uninstall would remove it; --outdated names such easyconfigs."""
    provenance = toy / 'software/easybuild/provenance'
    provenance.mkdir(parents=True)
    for name in ('toy-1.0.eb', 'toy-1.0.in'):
        shutil.copy(toy / name, provenance.parent / name)
        shutil.copy(toy / name, provenance / name)
    (toy / 'here').mkdir()
    monkeypatch.chdir(toy / 'here')
    for version in (None, '2.0'):
        change, _ = made(version, 'software/%s/toy-1.0.eb' % place)
        assert {os.path.dirname(path) for path in change.make()} == {str(toy / 'here')}


def test_list_without_a_version(toy, call):
    """Its packages are not made anew, which somebody may expect of a new version."""
    text = (toy / 'toy-1.0.eb').read_text()
    (toy / 'toy-1.0.eb').write_text(text.replace('toy-%(version)s.lock', 'toy.lock'))
    (toy / 'toy.in').write_text((toy / 'toy-1.0.in').read_text().replace('toy-1.0', 'toy'))
    (toy / 'toy.lock').write_text('torch==1.0 --hash=sha256:%s\n' % ('a' * 64))
    assert 'toy.lock: no name has 1.0 in it, so the packages stay as they are' in call('--new-version', '1.9', '-x')


def test_uv_as_the_user_has_it(toy, eb):
    """$UV_CONSTRAINT may keep a module's PyTorch in an environment: locks are those of the indexes."""
    (toy / 'constraints.txt').write_text('torch==1.0\n')
    output = eb('--new-version', 'latest', '-x', toy / 'toy-1.0.eb', env={
        'UV_DEFAULT_INDEX': 'file://%s' % (toy / 'index'), 'UV_CONSTRAINT': str(toy / 'constraints.txt'),
        'UV_EXCLUDE_NEWER': '2001-01-01', 'UV_RESOLUTION': 'lowest'}).stdout
    assert "+version = '2.0'" in output, output


def test_beside_the_collections(toy):
    """A directory whose name only begins as that of the collection's easyconfigs is elsewhere."""
    assert new_version.in_collection(str(CHECKOUT / 'easyconfigs/p/PyTorch/x.eb'))
    assert not new_version.in_collection(str(CHECKOUT / 'easyconfigs-of-ours/x.eb'))


@pytest.mark.parametrize('option', ['-x', '-Dr', '--dry-run-short'])
def test_dry_run(toy, call, option):
    """Shows the same, and writes nothing."""
    before = sorted(toy.iterdir())
    output = call('--new-version', '2.0', option)
    assert "+version = '2.0'" in output and 'Nothing was written, as it is a dry run.' in output
    assert sorted(path for path in toy.iterdir() if path.name != 'prefix') == before


def test_terminated(toy):
    """SIGTERM in the middle, while the index does not answer: uv ends, too, and nothing is left in /tmp."""
    (toy / 'tmp').mkdir()
    environment = dict(os.environ, TMPDIR=str(toy / 'tmp'), UV_DEFAULT_INDEX='file://%s' % (toy / 'index'))
    with socket.create_server(('127.0.0.1', 0)) as silent:
        command = COMMAND + "--overrides <(printf '') --find-links http://127.0.0.1:%d/ toy-1.0.in -o toy-1.0.lock"
        (toy / 'toy-1.0.in').write_text('#   %s\ntorch==1.0\n' % command % silent.getsockname()[1])
        before = sorted(path.name for path in toy.iterdir())
        running = subprocess.Popen([CHECKOUT / 'eb', '--new-version', '2.0', toy / 'toy-1.0.eb'], env=environment,
                                   start_new_session=True)
        silent.settimeout(300)
        try:
            connection, _ = silent.accept()
            children = descendants(running.pid)
            names = [read(child, 'comm') for child in children]
        finally:
            running.terminate()
        assert b'uv\n' in names
        assert running.wait() == 143
        assert not [child for child in children if stat(child)]
    assert sorted(path.name for path in toy.iterdir()) == before and not list((toy / 'tmp').glob('new-version-*'))


@FOR_ROOT
def test_full_disk(toy, call):
    """One line, and no half of a file; the same call goes on when there is room."""
    place = toy / 'disk'
    place.mkdir()
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=64k', 'none', place], check=True)
    try:
        for name in ('toy-1.0.eb', 'toy-1.0.in'):
            shutil.copy(toy / name, place)
        # room for one more of the three files
        (place / 'filling').write_bytes(bytes(4096 * 13))
        output = call('--new-version', '2.0', status=1, easyconfig='disk/toy-1.0.eb')
        assert 'cannot be written: No space left on device. Make room' in output and 'To try it' not in output
        assert not [path for path in place.iterdir() if re.search(r'[.]\d+$', path.name)]
        (place / 'filling').unlink()
        call('--new-version', '2.0', easyconfig='disk/toy-1.0.eb')
        assert (place / 'toy-2.0.eb').exists() and (place / 'toy-2.0.lock').read_text().count('--hash') == 3
    finally:
        subprocess.run(['umount', '--lazy', place], check=True)


def asked_of_pip(monkeypatch, **variables):
    """What the machine's own files do not say."""
    for name in [name for name in os.environ if name.startswith('PIP_')]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    new_version.pip_settings.cache_clear()
    try:
        return new_version.pip_settings()
    finally:
        new_version.pip_settings.cache_clear()


def test_settings_of_pip(monkeypatch, tmp_path):
    """pip's index, certificates and proxy are uv's; its other indexes are not, as locks are the same everywhere."""
    (tmp_path / 'pip.conf').write_text('[global]\nindex-url = https://x/simple\nproxy = http://proxy:3128\n'
                                       'cert = /x.pem\nextra-index-url = https://y/simple\n')
    told = asked_of_pip(monkeypatch, PIP_CONFIG_FILE=str(tmp_path / 'pip.conf'))
    assert told == {'UV_DEFAULT_INDEX': 'https://x/simple', 'ALL_PROXY': 'http://proxy:3128', 'SSL_CERT_FILE': '/x.pem'}


def test_several_files_of_pip(monkeypatch, tmp_path):
    """The user's counts before the site's, wherever they are, and a variable before both, unless it is empty."""
    # comes before /etc in the alphabet, as /ccs/home does
    (tmp_path / 'a/pip').mkdir(parents=True)
    (tmp_path / 'z/pip').mkdir(parents=True)
    (tmp_path / 'a/pip/pip.conf').write_text('[global]\nindex-url = https://user/simple\ncert = ~/user.pem\n'
                                             'trusted-host =\n    a.org\n    b.org\n')
    (tmp_path / 'z/pip/pip.conf').write_text('[global]\nindex-url = https://site/simple\ncert = /site.pem\n'
                                             'proxy = http://site:1\n')
    files = {'XDG_CONFIG_DIRS': str(tmp_path / 'z'), 'XDG_CONFIG_HOME': str(tmp_path / 'a'), 'HOME': str(tmp_path)}
    told = asked_of_pip(monkeypatch, PIP_PROXY='', **files)
    assert told == {'UV_DEFAULT_INDEX': 'https://user/simple', 'ALL_PROXY': 'http://site:1',
                    'SSL_CERT_FILE': str(tmp_path / 'user.pem'), 'UV_INSECURE_HOST': 'a.org b.org'}
    assert asked_of_pip(monkeypatch, PIP_INDEX_URL='https://x', **files)['UV_DEFAULT_INDEX'] == 'https://x'


TRUST = 'mount --bind "$0" /etc/ssl/certs/ca-certificates.crt && exec "$@"'


@FOR_ROOT
def test_certificates_of_the_system(toy, monkeypatch):
    """An index whose certificate the machine trusts, as pip does; where it does not, that is said."""
    certificate = toy / 'certificate.pem'
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-subj', '/CN=localhost', '-days', '2',
                    '-keyout', toy / 'key.pem', '-out', certificate, '-addext', 'subjectAltName=DNS:localhost',
                    '-addext', 'basicConstraints=critical,CA:FALSE'], check=True, stderr=subprocess.DEVNULL)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, toy / 'key.pem')
    for name in ('SSL_CERT_FILE', 'SSL_CERT_DIR', 'PIP_CERT'):
        monkeypatch.delenv(name, raising=False)
    pages = functools.partial(http.server.SimpleHTTPRequestHandler, directory=toy / 'index')
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), pages) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever).start()
        settings = {'UV_DEFAULT_INDEX': 'https://localhost:%d' % server.server_port, 'UV_HTTP_RETRIES': '2',
                    'UV_CACHE_DIR': str(toy / 'cache'), 'PIP_CONFIG_FILE': os.devnull}
        words = ['--new-version', '2.0', toy / 'toy-1.0.eb']
        try:
            said = EB(toy / 'prefix')(*words, env=settings, status=1).stdout
            command = ['unshare', '-m', 'bash', '-c', TRUST, certificate, CHECKOUT / 'eb']
            EB(toy / 'prefix', command)(*words, env=settings)
        finally:
            server.shutdown()
    assert 'could not be reached: this machine does not trust its certificate' in said
    assert (toy / 'toy-2.0.eb').exists()


def test_names_of_locks():
    """Two that differ by their version only are made alike, as a new version's are taken if they are there already."""
    kinds = {}
    for path in CHECKOUT.glob('easyconfigs/?/*/locks/*.in'):
        has = frozenset(re.findall('^(torch(?:vision|audio)?)==', path.read_text(), re.M))
        kinds.setdefault(re.sub(r'[\d.]+', '', path.stem), {}).setdefault(has, []).append(path.name)
    assert not [names for names in kinds.values() if len(names) > 1]


def test_comments_of_inputs():
    """They are copied for a new version: they name no version but their own, or one that the file itself asks for."""
    for path in CHECKOUT.glob('easyconfigs/?/*/locks/*-*.*.*.in'):
        lines = path.read_text().splitlines()
        prose = [line for line in lines if line.startswith('#') and not line.startswith('#   uv ')]
        asked = [line for line in lines if line not in prose]
        known = path.name + ' '.join(asked + [line.replace('.', '') for line in asked])
        for line in prose:
            named = re.findall(r'\d+(?:\.\d+)+', re.sub(r'\S+\.(lock|in|eb)\b', '', line))
            assert not [version for version in named if version not in known and version.replace('.', '') not in known]


def test_lists_that_a_person_compares(made, toy):
    """What was written down from the METADATA of the wheels is not that of another version's."""
    (toy / 'toy-1.0.in').write_text("# What torch 1.0 needs (its wheel's Requires-Dist).\n"
                                    + (toy / 'toy-1.0.in').read_text())
    line, = made('2.0')[0].to_check
    assert line.startswith('toy-2.0.in:1: ') and 'what the wheels of this version ask for' in line


@pytest.mark.parametrize('asked, tag, words', [
    ('numbers-of-toys>5.1', 'py3-none-any', 'its lock lacks numbers-of-toys 5.2'),
    ('numbers-of-toys==5.1', 'py3-none-any', 'its lock lacks nothing'),
    # Bede's nodes are Arm
    ('numbers-of-toys', 'cp311-cp311-manylinux_2_28_x86_64', 'it has no wheel for the Python or the processor'),
])
def test_list_that_an_index_compares(toy, made, asked, tag, words):
    """The pins are those of the older wheels; the index of the newer ones knows what these ask for."""
    name, index = for_system(toy, 'Bede', 'torch==1.0+cu126')
    source = toy / 'toy-1.0.in'
    source.write_text("# What torch needs (its wheel's Requires-Dist).\n%snumbers-of-toys==5.1\n"
                      % source.read_text().replace(' --universal', ' --universal --no-deps'))
    add(index, 'torch', '2.0+cu126', asked)
    page = index / 'torch'
    (page / 'torch-2.0+cu126-py3-none-any.whl').rename(page / ('torch-2.0+cu126-%s.whl' % tag))
    (page / 'index.html').write_text((page / 'index.html').read_text().replace('py3-none-any', tag))
    add(toy / 'index', 'numbers_of_toys', '5.2')
    line, = made('2.0', name)[0].to_check
    assert re.search('what the wheels of this version ask for: %s' % words, line), line


def test_lock_that_is_gone(toy, made):
    """An update of the collection may have removed what somebody's easyconfig names."""
    change, files = made(None, text=EASYCONFIG.replace("['toy", "['gone-1.0.lock', 'toy"))
    assert change.by_hand == ['gone-1.0.lock is missing, and no .in file has the command that makes it']
    assert set(files) == {'toy-1.0.in', 'toy-1.0.lock'}


def test_every_lock_can_be_made_anew():
    """Every .in file says with which command, and the names in it are its own."""
    for path in CHECKOUT.glob('easyconfigs/?/*/locks/*.in'):
        command = new_version.command_of(str(path))
        assert command.endswith(' %s -o %s' % (path.name, path.with_suffix('.lock').name)), path
