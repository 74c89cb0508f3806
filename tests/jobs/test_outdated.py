"""./eb --outdated: versions on the indexes, images in the site's directories, modules, documents."""
import datetime
import re
from types import SimpleNamespace

import pytest
from common import CHECKOUT
from small_software import add

from hpc_pytorch import UsersProblem
from hpc_pytorch.jobs import outdated
from hpc_pytorch.machine import versions

BEDE = 'PyTorch-2.6.0-Bede-whl.eb'


@pytest.mark.slow
def test_as_it_is_typed(eb, tmp_path):
    """A newer PyTorch than a site's own that is installed, and old documents; the status tells. Nothing is written."""
    add(tmp_path / 'index', 'torch', '2.15.9')
    prefix = tmp_path / 'prefix'
    (prefix / 'modules/all/PyTorch').mkdir(parents=True)
    (prefix / 'modules/all/PyTorch/2.5.1-Bede-whl.lua').write_text('')
    ours = CHECKOUT / 'easyconfigs/p/PyTorch/PyTorch-2.15.0-workstation.eb'
    installed = prefix / 'software/PyTorch/2.15.0-Bede-site/easybuild/provenance/PyTorch-2.15.0-Bede-site.eb'
    installed.parent.mkdir(parents=True)
    installed.write_text(ours.read_text().replace('-workstation', '-Bede-site'))
    output = eb('--outdated', '--system', 'bede', '--prefix=%s' % prefix, status=1,
                env={'UV_DEFAULT_INDEX': 'file://%s' % (tmp_path / 'index')}).stdout
    assert '{0}: there is 2.15.9: ./eb --new-version 2.15.9 {0}\n'.format(installed) in output
    assert 'PyTorch/2.5.1-Bede-whl is installed, 2.6.0 is here: ./eb %s\n' % BEDE in output
    assert all('  %s\n' % line in output for line in outdated.about_facts(versions.PAIRS)) and 'Traceback' not in output
    assert 'usage: ./eb' not in output
    assert not list(CHECKOUT.glob('easyconfigs/?/*/*2.15.9*'))


def test_of_one_easyconfig(eb):
    """All are looked at: nobody takes the list for that of one."""
    said = eb('--outdated', 'PyTorch-2.13.0-workstation.eb', status=1).stdout
    assert '--outdated lists what there is for this system: it takes no PyTorch-2.13.0-workstation.eb' in said


def test_what_is_not_known(tmp_path, monkeypatch, capsys):
    """Nothing is behind, as no index answered: the last lines count both."""
    def ask(path, version, work):
        raise UsersProblem("no index answers")

    monkeypatch.setattr(outdated, 'Change', ask)
    monkeypatch.setenv('HPC_SYSTEM', 'isambard-ai')
    outdated.look([], str(tmp_path))
    output = capsys.readouterr().out
    assert 'isambard-ai: not known: 2\n  ' in output and output.count(': no index answers\n') == 2
    assert re.search(r'\nisambard-ai: behind: \d+\n', output)


def test_easyconfigs_of_others(tmp_path, monkeypatch, capsys):
    """What else is installed in the prefix need not be ours, or readable: it is named, and the list continues."""
    texts = {'a': b"name = 'a'  # \xff", 'b': b'name = (', 'c': b"version = '1'", 'd': None,
             'e': b"name = 'e'\nversion = '1'", 'f': b"name = 'f'\nversion = 2026.11\nlock_files = ['f.lock']"}
    for name, text in texts.items():
        path = tmp_path / name / '1/easybuild/provenance' / (name + '-1.eb')
        path.parent.mkdir(parents=True)
        path.write_bytes(text) if text else path.symlink_to(tmp_path / 'nowhere')
    for about in ('about_version', 'about_packages'):
        monkeypatch.setattr(outdated, about, lambda *_: [])
    monkeypatch.setenv('HPC_SYSTEM', 'isambard-ai')
    outdated.look([], str(tmp_path))
    output = capsys.readouterr().out
    assert 'isambard-ai: not known: 5\n' in output and 'isambard-ai: behind: ' in output
    for name in 'abcdf':
        assert '/provenance/%s-1.eb: expected an easyconfig with name and version, found: ' % name in output


def lock_of(version):
    return 'toy==%s --hash=sha256:%s\n' % (version, 64 * '7')


def test_in_a_checkout_of_others(tmp_path, monkeypatch):
    """Locks that can only be written elsewhere are compared with those that are there."""
    path = tmp_path / 'toy-1.0.eb'
    path.write_text('x')
    renewed = {'/elsewhere/toy-1.0.eb': 'x', '/elsewhere/toy.in': 'toy\n', '/elsewhere/toy.lock': lock_of('2.0')}
    change = SimpleNamespace(make=renewed.copy, by_hand=['other.lock: no index answers'])
    monkeypatch.setattr(outdated, 'Change', lambda path, version, work: change)
    unknown = []
    said = ['%s: newer packages in toy.lock: ./eb --renew %s' % (path, path)]
    assert list(outdated.about_packages(str(path), unknown)) == said
    assert unknown == ['%s: other.lock: no index answers' % path]
    # a mirror may be older than the lock
    for version, expected in (('1.0', said), ('2.0', []), ('3.0', [])):
        (tmp_path / 'toy.lock').write_text(lock_of(version))
        assert list(outdated.about_packages(str(path), unknown)) == expected


def test_index_that_does_not_answer(tmp_path, monkeypatch, capsys):
    """Nobody knows the next version of a site's own list, or of wheels whose index is away: packages are compared."""
    path = tmp_path / 'Stack/1/easybuild/provenance/Stack-2026.10-site.eb'
    path.parent.mkdir(parents=True)
    path.write_text("name = 'Stack'\nversion = '2026.10'\nlock_files = ['Stack-2026.10.lock']\n")
    path.with_name('Stack-2026.10.lock').write_text(lock_of('1.0'))

    def ask(path, version, work):
        if version == 'latest':
            raise UsersProblem("only an index that is away knows the newest version")
        return SimpleNamespace(make=lambda: {'/x/Stack-2026.10.lock': lock_of('2.0')}, by_hand=[])

    monkeypatch.setattr(outdated, 'Change', ask)
    monkeypatch.setattr(outdated, 'easyconfigs_of', lambda system: [])
    monkeypatch.setenv('HPC_SYSTEM', 'isambard-ai')
    assert outdated.look([], str(tmp_path)) == 1
    output = capsys.readouterr().out
    assert 'not known: 1\n' in output and '%s: newer packages in Stack-2026.10.lock: ./eb --renew ' % path in output


def test_all_of_today(tmp_path, monkeypatch, capsys):
    """Packages of older easyconfigs that are still in use are compared, too; those of another year are not."""
    compared = []
    monkeypatch.setattr(outdated, 'about_version', lambda *_: [])
    monkeypatch.setattr(outdated, 'about_packages', lambda path, *_: compared.append(path) or [])
    monkeypatch.setenv('HPC_SYSTEM', 'derecho')
    outdated.look([], str(tmp_path))
    names = {path.rpartition('/')[2] for path in compared}
    assert {'PyTorch-2.7.1-Derecho-whl.eb', 'PyTorch-2.14.0-Derecho-whl.eb'} <= names
    assert 'PyTorch-2.4.0-Derecho.eb' not in names and len(names) == len(compared)


def test_renewed_since(tmp_path, monkeypatch, capsys):
    """What was installed before a lock was renewed, perhaps by an update of the collection, keeps its packages."""
    name = 'Transformers-5.23.0-workstation.eb'
    ours = CHECKOUT / 'easyconfigs/t/Transformers' / name
    lock = ours.parent / 'locks/Transformers-5.23.0.lock'
    installed = tmp_path / 'Transformers/5.23.0-workstation/easybuild/provenance' / name
    installed.parent.mkdir(parents=True)
    installed.write_text(ours.read_text())
    for about in ('about_version', 'about_packages'):
        monkeypatch.setattr(outdated, about, lambda *_: [])
    monkeypatch.setenv('HPC_SYSTEM', 'workstation')
    line = 'Transformers/5.23.0-workstation is installed with other packages than in %s: ./eb --rebuild %s\n' % (
        lock.name, name)
    for text, said in ((lock.read_text(), False), (lock.read_text().replace('tqdm==', 'tqdm==0.'), True)):
        (installed.parent / lock.name).write_text('# made with other options\n' + text)
        outdated.look([], str(tmp_path))
        assert (line in capsys.readouterr().out) == said
    (installed.parent / lock.name).write_text('tqdm\n')
    outdated.look([], str(tmp_path))
    assert 'not known: 1\n  %s: ' % installed in capsys.readouterr().out


def test_older_modules(tmp_path):
    """One that stays beside a newer one is not behind; an easyconfig that is not ours is named by its path."""
    values = {'name': 'toy', 'version': '2.0', 'versionsuffix': '-Bede'}
    path = str(tmp_path / 'toy-2.0-Bede.eb')
    modules = ['toy/0.9-Bede', 'toy/1.0-Bede', 'toy/3.0', 'other/1.0-Bede']
    line, = outdated.about_installed(path, values, modules)
    assert line == 'toy/1.0-Bede is installed, 2.0 is here: ./eb ' + path
    assert not list(outdated.about_installed(path, values, modules + ['toy/2.0-Bede']))


def test_facts(tmp_path):
    """Those of more than six months ago, but not of a generation that is kept as it was."""
    new = datetime.date.today().isoformat()
    (tmp_path / 'system.cfg').write_text('[sources]\nold = 2020-01-31 page\nkept-2020 = 2020 page\nnew = %s x\n' % new)
    (tmp_path / 'pairs.cfg').write_text('[a pair]\ndate = 2020-02-01\n[another]\ndate = %s\n' % new)
    found = [*outdated.about_facts(str(tmp_path / 'system.cfg')), *outdated.about_facts(str(tmp_path / 'pairs.cfg'))]
    assert [re.search(': (.*):', line).group(1) for line in found] == ['old (2020-01-31)', 'a pair (2020-02-01)']


def test_images(tmp_path):
    """A later one of the same kind."""
    names = ['lumi-multitorch-torch-u24r70f21m50t211-20991231_1.sif',
             'lumi-multitorch-full-u24r70f21m50t211-20991231_1.sif',
             'lumi-multitorch-torch-u24r70f21m50t210-20260101_1.sif', 'lumi-multitorch-torch-latest.sif']
    for name in names:
        (tmp_path / name).write_text('')
    path = CHECKOUT / 'easyconfigs/p/PyTorch/PyTorch-2.10.0-rocm-7.0-python-3.12-singularity-20260807.eb'
    values = outdated.plain_values(path.read_text())
    found, = outdated.about_images(str(path), values, [str(tmp_path)])
    assert names[0] in found


def test_newest_of_each():
    """An older generation is not behind: there is a newer one."""
    names = ['PyTorch-2.4.0-Derecho.eb', 'PyTorch-2.9.1-Derecho.eb', 'PyTorch-2.7.1-Derecho-whl.eb']
    paths = [str(CHECKOUT / 'easyconfigs/p/PyTorch' / name) for name in names]
    assert sorted(outdated.newest_of_each(outdated.values_of(paths, []))) == sorted(paths[1:])
