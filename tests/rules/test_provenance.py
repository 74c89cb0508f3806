"""What an installation says about where it comes from, and that it can be made again from just that."""
import getpass
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from common import CHECKOUT, EB, clean_environment
from small_software import Toy, sha256, site_hooks

pytestmark = pytest.mark.slow


@pytest.fixture
def eb(tmp_path):
    """./eb with its own prefix and its own source path."""
    runner = EB(tmp_path / 'prefix')
    runner.sources = tmp_path / 'sources'
    return runner


def test_enough_to_rebuild(eb, tmp_path):
    """The files in the installation validate, are complete, and install the same somewhere else."""
    (tmp_path / 'first').mkdir()
    toy = Toy(tmp_path / 'first')
    (toy.folder / 'toy.in').write_text('# what it was made from\n')
    with open(toy.easyconfig, 'a') as handle:
        handle.write("postinstallcmds = ['env > %(installdir)s/environment']\n")
    eb(toy.easyconfig, env=dict(toy.online, UV_INDEX='https://me:S3cret@localhost:9', HF_TOKEN='S3cret', SEEN='seen'))
    provenance = eb.prefix / 'software/toy/1.0/easybuild/provenance'
    report, = provenance.parent.glob('*_test_report.md')
    assert 'seen' in report.read_text() and 'S3cret' not in report.read_text()
    facts = json.loads((provenance / 'provenance.json').read_text())
    assert facts['packages'] == dict(path.name.split('-')[:2] for path in toy.wheels)
    assert (facts['module'], facts['system'], facts['easyconfig']) == ('toy/1.0', 'workstation', 'toy-1.0.eb')
    assert facts['user'] == getpass.getuser() and facts['host'] == os.uname().nodename and facts['job'] is None
    assert facts['compilers']['c'].startswith('gcc: gcc')
    assert set(facts['files']) == {'toy-1.0.eb', 'toy.in', 'toy.lock'}
    for name, digest in facts['files'].items():
        assert hashlib.sha256((provenance / name).read_bytes()).hexdigest() == digest

    kept = tmp_path / 'kept'
    shutil.copytree(provenance, kept)
    for path in (toy.easyconfig, toy.folder / 'toy.lock'):
        path.unlink()
    shutil.rmtree(eb.prefix)
    shutil.rmtree(eb.sources)
    again = EB(tmp_path / 'elsewhere')
    again.sources = tmp_path / 'other sources'
    again(kept / facts['easyconfig'], '--robot', env=dict(toy.online, HPC_SYSTEM=facts['system']))
    made = json.loads((again.prefix / 'software/toy/1.0/easybuild/provenance/provenance.json').read_text())
    assert (made['packages'], made['files']) == (facts['packages'], facts['files'])


NOTE = '''
import os, sys
from types import SimpleNamespace
from easybuild.tools import config
from hpc_pytorch.rules import provenance

config.init_build_options({"module_only": True})
os.chdir(sys.argv[1])
if os.getuid() == 0:
    os.setuid(65534)
provenance.note_module(SimpleNamespace(mod_filepath='1.0.lua', installdir='toy'))
'''


@pytest.fixture
def place():
    """A directory that others can enter, too."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def test_note_of_a_module_where_nothing_can_be_written(place):
    """A site has --read-only-installdir: a module that is written alone is noted, and the right to write ends again."""
    module, note = place / '1.0.lua', place / 'toy/easybuild/provenance/module.json'
    module.write_text('new')
    note.parent.mkdir(parents=True)
    note.write_text('{}')
    if os.getuid() == 0:
        for path in (note, note.parent):
            os.chown(path, 65534, 65534)
    note.chmod(0o444)
    note.parent.chmod(0o555)
    subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', NOTE, str(place)], cwd=CHECKOUT,
                   env=clean_environment(), check=True)
    assert json.loads(note.read_text()) == {'1.0.lua': sha256(module)}
    assert note.parent.stat().st_mode & 0o777 == 0o555 and list(note.parent.iterdir()) == [note]


def test_module_only_leaves_it_alone(eb, tmp_path):
    """--module-only writes a module, and does not claim to have installed anything."""
    toy = Toy(tmp_path)
    eb(toy.easyconfig, env=toy.online)
    path = eb.prefix / 'software/toy/1.0/easybuild/provenance/provenance.json'
    before = path.read_text()
    module = path.with_name('module.json')
    module.unlink()
    eb(toy.easyconfig, '--module-only', '--force', env=toy.online)
    assert path.read_text() == before
    # but what the module file is
    (file, digest), = json.loads(module.read_text()).items()
    assert file.endswith('/toy/1.0.lua') and digest == sha256(file)
    hooks = site_hooks(tmp_path, "def pre_module_hook(self):\n    raise OSError('no module today')\n")
    done = eb(toy.easyconfig, '--module-only', '--force', status=None, env=dict(toy.online, **hooks))
    assert 'no module today' in done.stdout, done.stdout
    # the one before
    assert sha256(file) == digest
