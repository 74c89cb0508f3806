"""Every lock file is for every Python of every easyconfig that names it: asked of the package index."""
import re
import subprocess

import pytest
from common import CHECKOUT

from hpc_pytorch.machine import systems
from hpc_pytorch.machine.collection_files import named_file, plain_values
from hpc_pytorch.machine.versions import release
from hpc_pytorch.packages.lock_files import LOCK_PARAMETERS, normal_name, read_lock
from hpc_pytorch.packages.new_version import command_of, option


def promised():
    """{lock: {(Python, processor): packages that are built, whose wheels do not count}}."""
    found = {}
    # of each process that collects tests: choose() would read all of them for each easyconfig
    known = [systems.load(name) for name in systems.names()]
    default = systems.load(systems.DEFAULT)
    for path in sorted(CHECKOUT.glob('easyconfigs/?/*/*.eb')):
        values = plain_values(path.read_text())
        system = next((one for one in known if systems.is_for(str(path), one)), default)
        built = {*map(normal_name, values.get('build_from_source', [])), *values.get('package_urls', {})}
        for parameter in LOCK_PARAMETERS:
            for name in values.get(parameter, []):
                lock = named_file(str(path), name % values)
                for python in values['python_versions']:
                    key = python, system.system['architecture'] or 'x86_64'
                    found.setdefault(lock, {}).setdefault(key, set()).update(built)
    return found


PROMISED = promised()
# locks of easyconfigs, and of ./eb and ./test
SOURCES = sorted([*CHECKOUT.glob('easyconfigs/*/*/locks/*.in'), *CHECKOUT.glob('hpc_pytorch/environments/*.in')])


@pytest.mark.parametrize('lock', sorted(PROMISED), ids=lambda lock: lock.rsplit('/', 1)[1])
def test_made_for_the_oldest(lock):
    """As its .in file says."""
    source = lock.replace('.lock', '.in')
    if named_file(lock, source):
        least = option(command_of(source), '--python-version')
        assert release(least) <= min(release(python) for python, _ in PROMISED[lock])


@pytest.mark.parametrize('source', SOURCES, ids=lambda source: source.name)
def test_made_from_its_in_file(source):
    """Whoever edits an .in file must also run its command."""
    locked = {}
    for entry in read_lock(str(source.with_suffix('.txt' if source.parent.name == 'environments' else '.lock'))):
        locked.setdefault(entry.name, set()).add(entry.version)
    elsewhere = re.findall(r'--no-emit-package[ =](\S+)', source.read_text())
    for name, version in re.findall(r'^([A-Za-z][\w.-]*)(?:\[.*?\])?(?:==([^\s;]+))?', source.read_text(), re.M):
        if name not in elsewhere:
            assert version in locked[normal_name(name)] or not version, name


def test_locks_instead():
    """They have every package of those that they stand for, but for what is for another platform."""
    found = 0
    for path in CHECKOUT.glob('easyconfigs/?/*/*.eb'):
        values = plain_values(path.read_text())
        if values.get('lock_files_instead'):
            found += 1
            entries, instead = [
                [entry for name in values[parameter] for entry in read_lock(named_file(str(path), name % values))]
                for parameter in ('lock_files', 'lock_files_instead')]
            needed = {entry.name for entry in entries if not re.search('sys_platform|platform_', entry.text)}
            assert needed <= {entry.name for entry in instead}, path
    assert found


# the index answers slowly: ./test asks for the smallest lock alone
@pytest.mark.slow
@pytest.mark.parametrize('lock', [
    pytest.param(lock, marks=[] if lock.endswith('/mpich.lock') else [pytest.mark.nightly], id=lock.rsplit('/', 1)[1])
    for lock in sorted(PROMISED)])
def test_resolved(lock, tmp_path):
    """Each package that is not built has a wheel for each of them; those of PyTorch's own index are not asked."""
    for (python, processor), built in PROMISED[lock].items():
        entries = [entry.text for entry in read_lock(lock)
                   if entry.name not in built and not re.search('[+]|rocm', entry.name + entry.version)]
        (tmp_path / 'asked.txt').write_text('\n'.join(entries) + '\n')
        words = ['pip', 'compile', 'asked.txt', '--quiet', '--no-deps', '--only-binary', ':all:', '--generate-hashes',
                 '--python-version', python, '--python-platform', processor + '-manylinux_2_28']
        done = subprocess.run([CHECKOUT / '.venv/bin/uv', *words], cwd=tmp_path, text=True, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE)
        assert done.returncode == 0, (python, processor, done.stderr)
