"""./eb --check with a real PyTorch: each check fails when what it watches is broken."""
import contextlib
import glob
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from batch_systems.real_slurm import wait_for
from common import CHECKOUT, SCRIPTS, clean_environment, needs_root

from checks.small_module import NAME, SMALL, small_module
from small_software import sha256

from hpc_pytorch.machine.systems import FOR_JOBS

pytestmark = pytest.mark.slow

EASYCONFIG = """easyblock = 'LockedWheels'
name = 'PyTorch'
version = '2.13.0'
versionsuffix = '-small'
homepage = 'https://example.org'
description = 'a small one'
toolchain = SYSTEM
lock_files = []
python_versions = ['%d.%d']
moduleclass = 'ai'
"""


@pytest.fixture
def module():
    """A module that this test may break."""
    with small_module() as module:
        yield module


def test_all_is_well(module):
    """What was promised is checked, nothing else; references are kept, and a site's margins stay."""
    output, checks = module.check(NAME, '--update')
    assert '%s: 6 of 6 checks passed' % NAME in output
    assert {name.split('=')[1].split()[0] for name in checks} == {
        'import', 'packages', 'gloo', 'contract', 'bandwidth-gloo', 'train'}
    references = module.directory / 'references.json'
    known = json.loads(references.read_text())
    kept = {name: one['values'] for name, one in known['modules'][NAME].items()}
    assert kept['SpeedCheck %what=bandwidth-gloo %nodes=1'].keys() == {'all_reduce_1M', 'broadcast_1M'}
    # as if it had been a thousand times as fast
    train = kept['SpeedCheck %what=train %nodes=1']
    train['total'][0], train['each'][0] = train['total'][0] * 1000, 0.001
    known['margins']['GB/s'] = 0.99
    references.write_text(json.dumps(known))
    reasons = module.reasons('train|bandwidth')
    assert 'total=' in reasons and 'each' not in reasons and 'all_reduce' not in reasons
    module.check('--update', '--name=probe=import')
    assert json.loads(references.read_text())['margins']['GB/s'] == 0.99


@pytest.mark.nightly
def test_server(module):
    """A server's first token and tokens a second, compared with the last good run; one that asks for no key."""
    shutil.copy(SCRIPTS / 'pytorch-serve', module.root / 'bin')
    shutil.copy(CHECKOUT / 'tests/serve/small_vllm', module.root / 'bin/vllm')
    for path in FOR_JOBS:
        shutil.copy(path, module.root / 'share')
    model = module.directory / 'config.json'
    model.write_text('{}')
    tiny_model = module.root / 'bin/tiny-model'
    tiny_model.write_text('#!/bin/sh\nmkdir "$1" && cp %s "$1" && touch "$1/model.safetensors"\n' % model)
    tiny_model.chmod(0o755)
    module.promise("scripts = ['pytorch-serve']")
    output, checks = module.check('--name=probe=vllm', '--update')
    assert '%s: 1 of 1 checks passed' % NAME in output
    (name, found), = checks.items()
    assert found['values']['first_token'][1] == 's' and found['values']['tokens'][1] == 'tokens/s'
    references = module.directory / 'references.json'
    known = json.loads(references.read_text())
    kept = known['modules'][NAME][name]['values']
    # as if it had been slow with the first token and fast with the others, then the other way round
    for factor, slower, other in ((1000, 'tokens=', 'first_token='), (0.001, 'first_token=', 'tokens=')):
        for value, (last, _) in found['values'].items():
            kept[value][0] = last * factor
        references.write_text(json.dumps(known))
        reasons = module.reasons('probe=vllm')
        assert slower in reasons and other not in reasons
    model.write_text('{"asks for no key": true}')
    path = '%s:%s' % (tiny_model.parent, os.environ['PATH'])
    done = subprocess.run(['pytorch-check', 'vllm'], env=dict(clean_environment(), PATH=path), text=True,
                          stdout=subprocess.PIPE)
    assert done.returncode == 1 and 'the server does not refuse a wrong key' in done.stdout


def test_changed_packages(module):
    """One that another command has replaced, and one that it has added."""
    info, = module.packages.glob('torch-*.dist-info')
    text = (info / 'METADATA').read_text()
    (info / 'METADATA').unlink()
    (info / 'METADATA').write_text(text.replace('\nVersion: 2.13.0+cpu\n', '\nVersion: 2.14.0+cpu\n'))
    # as `pip install` leaves it in the module's own environment
    added = module.packages / 'rich-13.7.1.dist-info'
    added.mkdir()
    (added / 'METADATA').write_text('Metadata-Version: 2.1\nName: rich\nVersion: 13.7.1\n')
    said = module.reasons('contract')
    assert 'not what was installed:\nrich: none was installed, found 13.7.1\n' in said
    assert '\ntorch: 2.13.0+cpu was installed, found 2.14.0+cpu' in said
    assert said.endswith('./eb PyTorch-2.13.0-small.eb --rebuild --installpath=%s' % module.eb.prefix)


@pytest.mark.nightly
def test_broken_packages(module):
    """A package that does not import any more, and those that were promised."""
    shutil.rmtree(module.packages / 'expecttest')
    (module.packages / 'expecttest.py').write_text('raise OSError("stale file handle")')
    module.promise("collection_packages = ['torch_mpi']\nbuild_from_source = ['mpi4py', 'horovod']\n"
                   "dependencies = [('aws-ofi-nccl', '1.19.2')]")
    reasons = module.reasons('packages|mpi|horovod|plugin')
    for words in ('stale file handle', 'mpi      FAILS', 'mpi4py   FAILS', 'horovod  FAILS', 'it needs GPUs'):
        assert words in reasons


def test_lost_files(module):
    """A package that only others import, a library that the system has, too, each by name."""
    shutil.rmtree(module.packages / 'networkx')
    (next(module.packages.glob('mpmath-*.dist-info')) / 'METADATA').unlink()
    library = next(module.packages.glob('torch/lib/libgomp*'))
    library.unlink()
    said = module.reasons('contract')
    for words in ('mpmath: 1.3.0 was installed, found none', ' files are gone or changed, such as networkx/__init__.py',
                  'torch: 1 files are gone or changed, such as torch/lib/%s' % library.name):
        assert words in said


def test_same_size(module):
    """Another function, four bytes of a library, and another module file, all as large as they were."""
    for name, old, new in (('torch/nn/functional.py', b'torch.relu(', b'torch.tanh('),
                           ('torch/lib/libtorch_cpu.so', b'aten::relu', b'aten::tanh')):
        path = module.packages / name
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data.replace(old, new, 1))
        assert path.stat().st_size == len(data) and path.read_bytes() != data
    file = module.eb.modules / (NAME + '.lua')
    text = file.read_text()
    file.write_text(text.replace('"OMP_NUM_THREADS", "1"', '"OMP_NUM_THREADS", "2"'))
    said = module.reasons('contract')
    assert 'torch: 2 files are gone or changed' in said and '%s is not as it was written' % file in said
    # one without PATH: the reason, and not what is missing for it
    file.write_text(text.replace('prepend_path("PATH"', 'prepend_path("XPATH"'))
    assert 'pytorch-check was not found: does the module still set PATH?' in module.reasons('import')
    # one that loads a module of the system that is gone
    file.write_text(text + 'load("cray-python/3.11")\n')
    assert module.reasons('import').endswith(
        'the module cannot be loaded: The following module(s) are unknown: "cray-python/3.11"')


def test_written_today(module):
    """A setting that came or went since the installation, and the site's hook of today, are a note, not a failure."""
    module.promise(EASYCONFIG % sys.version_info[:2])
    easyconfig, = module.root.glob('easybuild/provenance/*.eb')
    module.eb(easyconfig, '--module-only', '--force')
    # an installation removes it in the end
    shutil.rmtree(module.eb.prefix / 'build')
    assert 'written' not in module.check('--name=probe=import')[0]
    file = module.eb.modules / (NAME + '.lua')
    file.write_text(file.read_text() + 'setenv("NCCL_OF_THEN", "1")\n')
    module.note('module.json', {str(file): sha256(file)})
    hooks = module.directory / 'hooks.py'
    hooks.write_text("def module_write_hook(easyblock, path, text):\n    return text + '-- of the site\\n'\n")

    def files():
        return {path: path.lstat().st_mtime for path in module.eb.prefix.rglob('easybuild/**/*')} | {
            path: path.read_text() for path in module.eb.modules.rglob('*.*')}

    before = files()
    output = module.check('--name=probe=import', '--hooks=%s' % hooks)[0]
    assert '1 of 1 checks passed' in output and '''%s would not be written like this today:
  -setenv("NCCL_OF_THEN", "1")
  +-- of the site
To write it again: ./eb %s --module-only --force --installpath=%s
''' % (file, easyconfig, module.eb.prefix) in output, output
    assert files() == before and easyconfig in before
    hidden = file.with_name('.' + file.name)
    file.rename(hidden)
    output = module.eb(SMALL, '--check', 'PyTorch/.2.13.0-small', '--name=probe=import', status=None,
                       cwd=module.directory).stdout
    assert '%s would not be written like this today:\n' % hidden in output, output
    assert ' --module-only --force --hidden --installpath=%s\n' % module.eb.prefix in output
    hidden.rename(file)
    # what cannot be asked costs nothing else
    module.promise(EASYCONFIG % (3, 1))
    output = module.check('--name=probe=import')[0]
    assert '%s was not compared with what would be written today: PyTorch 2.13.0 needs Python 3.1' % NAME in output


@pytest.mark.nightly
def test_missing_library(module):
    """What PyTorch itself wants is gone: the check of the files says so, although nothing can be imported."""
    (module.packages / 'torch/lib/libtorch_python.so').unlink()
    assert 'torch: 1 files are gone or changed, such as torch/lib/libtorch_python.so' in module.reasons('contract')


@pytest.mark.nightly
def test_no_mpi_backend(module):
    """torch_mpi's own reason, and not what PyTorch thinks of it."""
    shutil.copytree(CHECKOUT / 'torch_mpi/python', module.packages / 'torch_mpi')
    for name in ('torch_mpi.pth', 'torch_mpi_hook.py'):
        shutil.copy(CHECKOUT / 'torch_mpi' / name, module.packages)
    # installed, but for the compiled part
    (module.packages / 'torch_mpi/_built.py').write_text("torch_version, compiler = '2.13.0', 'CC'\n")
    module.promise("collection_packages = ['torch_mpi']\n")
    said = module.reasons('probe=mpi')
    assert 'The mpi backend is not available' in said and 'build PyTorch from source' not in said


def test_stopped(module):
    """kill: neither ReFrame nor its ranks go on."""
    call = module.eb.call(['--check', '--name=train', '-SSpeedCheck.more=train:--steps 1000000'], {}, module.directory)
    process = subprocess.Popen(call.pop('args'), **call)

    def ours():
        found = set()
        # Path's own glob stumbles over processes that end meanwhile
        for path in map(Path, glob.glob('/proc/[0-9]*/cmdline')):
            with contextlib.suppress(OSError):
                if str(module.root).encode() in (path.parent / 'environ').read_bytes() and (
                        b'measure.py' in path.read_bytes()):
                    found.add(path)
        return found
    try:
        wait_for(ours, "a rank at work", 600)
    finally:
        process.terminate()
    process.wait(300)
    wait_for(lambda: not ours(), "end of the ranks", 120)


@pytest.mark.nightly
def test_build_that_lost_something(module):
    """The note of the wheel says what was asked for."""
    (module.root / 'wheels').mkdir()
    (module.root / 'wheels/provenance.json').write_text(json.dumps({'asked': {'USE_MPI': '1', 'USE_GLOO': '1'}}))
    reasons = module.reasons('contract')
    assert 'USE_MPI' in reasons and 'USE_GLOO' not in reasons


def sitecustomize(module, text):
    """Something that happens at each start of Python."""
    (module.packages / 'slow.pth').write_text('import ' + text)


def test_wrong_results(module):
    """A collective that does nothing."""
    sitecustomize(module, "os; os.environ.get('RANK') and __import__('torch.distributed') and setattr("
                          "__import__('sys').modules['torch.distributed'], 'all_reduce', lambda *_, **__: None)")
    reasons = module.reasons('probe=gloo|bandwidth')
    assert 'wrong results' in reasons and 'has a wrong sum' in reasons


@pytest.mark.nightly
def test_full_disk(module):
    """A report that cannot be written is printed; a full prefix is one line before the checks."""
    output = module.eb('--check', '--name=probe=import', '--report', '/dev/full', status=1).stdout
    assert '1 of 1 checks passed' in output and '/dev/full' in output.splitlines()[-1], output
    assert '"result": "pass"' in output
    needs_root()
    place = module.eb.prefix / 'hpc-pytorch-checks'
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=256k', 'none', place], check=True)
    try:
        output = module.eb('--check', '--name=probe=import', status=1).stdout
    finally:
        subprocess.run(['umount', place], check=True)
    assert 'No space left on device. Make room' in output and 'Running' not in output, output


def test_prefix_of_others(module):
    """Another member of the group has checked before, or the prefix can only be read: the way to check nevertheless."""
    needs_root()
    place = module.eb.prefix / 'hpc-pytorch-checks'
    place.mkdir(exist_ok=True)
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'ro', 'none', place], check=True)
    try:
        output = module.eb('--check', status=1).stdout
    finally:
        subprocess.run(['umount', place], check=True)
    assert 'Type: module use %s   and add --prefix=DIRECTORY' % module.eb.modules in output and 'clone' not in output


def test_import_fails(module):
    """A library of PyTorch's own is gone; then there is nothing to start."""
    (module.packages / 'torch/lib/libtorch_cpu.so').unlink()
    output, checks = module.check('--name=import|train', status=1)
    reasons = ' '.join(one['reason'] for one in checks.values())
    assert 'import   FAILS' in reasons and "nothing like '^measured: " in reasons
    # nothing to compare with yet
    assert output.count('There are no references yet (') == 1


def test_nothing_installed(module):
    """What to type, and no traceback."""
    shutil.rmtree(module.eb.modules)
    output = module.eb('--check', status=1).stdout
    assert 'nothing was checked. Found: none' in output and 'module avail PyTorch' in output


@pytest.mark.nightly
def test_words(module):
    """A module behind other options, one that is not there, a prefix in two words, a file that is no report."""
    output = module.eb('--check', '--name=probe=import', NAME).stdout
    assert 'WorksCheck' in output
    output = module.eb('--check', 'PyTorch/9.9', status=1).stdout
    assert 'PyTorch/9.9 is not installed' in output and 'Found: %s' % NAME in output
    output = module.eb('--check', '--installpath', module.directory / 'nowhere', status=1).stdout
    assert 'Found: none, in %s' % (module.directory / 'nowhere') in output
    (module.directory / 'empty.json').write_text('{}')
    output = module.eb('--check', '--references', module.directory / 'empty.json', status=1).stdout
    assert 'empty.json is not a report of ./eb --check' in output
    assert 'none.json cannot be read' in module.eb('--check', '--references', 'none.json', status=1).stdout
    assert 'usage: eb' in module.eb('--check', '--help').stdout
    assert "EasyBuild's own help" not in module.eb('--check', '--help').stdout
