"""What the locks name is fetched, found and kept: nothing that was fetched is lost, and what fails says why."""
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from common import EB, FOR_ROOT
from small_software import make_wheel, sha256

pytestmark = pytest.mark.slow


def names(eb):
    """What lies where the files are fetched to."""
    return sorted(path.name for path in eb.sources.glob('t/toy/toy-1.0-wheels/*'))


def test_wrong_lock_loses_nothing(eb, toy):
    """Wrong hashes in a lock file: package, file, both hashes; what was fetched stays, and serves the right lock."""
    fetched = sorted(path.name for path in toy.wheels)
    eb(toy.easyconfig, '--fetch', env=toy.online)
    lock = toy.folder / 'toy.lock'
    right, wrong = lock.read_text(), 'f' * 64
    lock.write_text(right.replace(sha256(toy.wheels[0]), wrong))
    output = eb(toy.easyconfig, '--fetch', env=toy.online, status=None)
    assert output.returncode != 0 and names(eb) == fetched
    for words in ('toy==1.0', toy.wheels[0].name, wrong, sha256(toy.wheels[0]), 'the lock file may be'):
        assert words in output.stdout.partition('ERROR')[2], output.stdout
    lock.write_text(right)
    eb(toy.easyconfig, '--fetch', env=toy.offline)


@pytest.mark.parametrize('name, value', [('REQUIRE_VIRTUALENV', '1'), ('CONSTRAINT', 'versions.txt')])
def test_what_pip_was_told_for_other_places(eb, toy, tmp_path, name, value):
    """That pip may only work in an environment, and a site's versions: what is locked is fetched all the same."""
    (tmp_path / 'versions.txt').write_text('toy<1\n')
    value = value.replace('versions', str(tmp_path / 'versions'))
    eb(toy.easyconfig, '--fetch', env=dict(toy.online, **{'PIP_' + name: value}))
    assert names(eb)


def test_variants_count_once(eb, toy):
    """Two lines of a lock file for two Pythons are one package."""
    other = make_wheel(toy.index, 'other', '1.9')
    lock = toy.folder / 'toy.lock'
    lock.write_text("".join(
        "%s==%s%s --hash=sha256:%s\n" % (*wheel.name.split('-')[:2], marker, sha256(wheel)) for wheel, marker in (
            (toy.wheels[0], ''), (toy.wheels[1], " ; python_full_version >= '3.0'"),
            (other, " ; python_full_version < '3.0'"))))
    assert 'fetching 2 packages into' in eb(toy.easyconfig, '--fetch', env=toy.online).stdout
    output = eb(toy.easyconfig, "-x", env=toy.offline).stdout
    lines = [line for line in output.splitlines() if line.startswith("  * other")]
    assert lines == ['  * other 1.9 or 2.0']


def test_locks_instead(eb, toy):
    """Where the easyconfig's own index is not reached, the other locks are taken, with a word; also the second time."""
    env = dict(toy.offline, PIP_FIND_LINKS=str(toy.index))
    (toy.folder / 'gone.lock').write_text('toy==1.0+cpu --hash=sha256:%s\n' % ('f' * 64))
    text = toy.easyconfig.read_text().replace("['toy.lock']", "['gone.lock']")
    toy.easyconfig.write_text(
        text + "extra_index_urls = ['http://127.0.0.1:9/simple']\nlock_files_instead = ['toy.lock']\n")
    for options in (['--fetch'], []):
        output = eb(toy.easyconfig, *options, env=env).stdout
        assert 'Cannot reach http://127.0.0.1:9/simple; falling back to your own index' in output
        assert 'PIP_EXTRA_INDEX_URL' in output
    kept = {path.name for path in (eb.prefix / 'software/toy/1.0/easybuild/provenance').glob('*.lock')}
    assert kept == {'gone.lock', 'toy.lock'}
    # what only the first ones have would be missing; what is for another platform is in none
    (toy.folder / 'gone.lock').write_text(''.join(
        'mine==1.0%s --hash=sha256:%s\n'.replace('mine', name) % (marker, 'f' * 64)
        for name, marker in (('toy', '+cpu'), ('mine', ''), ('colorama', " ; sys_platform == 'win32'"))))
    output = eb(toy.easyconfig, '--fetch', '--rebuild', env=env, status=1).stdout
    assert 'lock_files_instead lacks mine, which lock_files has: add it to an .in file' in output


def test_two_locks_that_differ(eb, toy):
    """Before anything is fetched; variants for several Pythons, and for other platforms, may be in one lock only."""
    one, two = [toy.folder / name for name in ('toy.lock', 'more.lock')]
    toy.easyconfig.write_text(toy.easyconfig.read_text().replace("['toy.lock']", "['toy.lock', 'more.lock']"))
    line = 'other==%s%s --hash=sha256:' + 'f' * 64 + '\n'
    one.write_text(one.read_text() + line % ('1.8', " ; python_full_version < '3.0'"))
    two.write_text(line % ('1.8', '') + line.replace('other', 'toy') % ('9', " ; sys_platform == 'win32'"))
    assert 'Installing would stop' not in eb(toy.easyconfig, '-x', env=toy.offline).stdout
    two.write_text(line % ('1.7', ''))
    output = eb(toy.easyconfig, '-x', env=toy.offline).stdout
    assert 'other is 1.8 or 2.0 in toy.lock, and 1.7 in more.lock: write one version' in output[output.index('[SUCC'):]
    output = eb(toy.easyconfig, '--fetch', env=toy.online, status=1).stdout
    assert '1.7 in more.lock' in output and 'fetching' not in output.replace('fetching files', '')


class Index(BaseHTTPRequestHandler):
    """An index whose first file is not sent before the test says so."""

    def log_message(self, *_):
        """Tests print nothing."""

    def do_GET(self):
        """A page with all files, or a file."""
        path = self.server.index / self.path.split('/')[-1]
        if not path.is_file():
            names = [wheel.name for wheel in self.server.index.iterdir()]
            content = ''.join('<a href="/%s">%s</a>' % (name, name) for name in names).encode()
        else:
            content, first = path.read_bytes(), not self.server.asked.is_set()
            self.server.asked.set()
            assert not first or self.server.go_on.wait(600)
        self.send_response(200)
        self.send_header('Content-Type', 'application/zip' if path.is_file() else 'text/html')
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def test_two_fetch_at_once(eb, toy):
    """A second call took what the first was downloading to for what a killed one had left, and removed it."""
    server = ThreadingHTTPServer(('127.0.0.1', 0), Index)
    server.index, server.asked, server.go_on = toy.index, threading.Event(), threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    network = dict(toy.offline, PIP_INDEX_URL='http://127.0.0.1:%d/simple' % server.server_port, PIP_NO_CACHE_DIR='1',
                   PIP_DEFAULT_TIMEOUT='600')
    left = eb.sources / 't/toy/toy-1.0-wheels' / ('part-%s=%d=x' % (os.uname().nodename, 2 ** 22 + 1))
    left.mkdir(parents=True)
    first = eb.started(toy.easyconfig, '--fetch', env=network)
    assert server.asked.wait(600)
    eb(toy.easyconfig, '--fetch', env=network)
    assert not left.exists() and len(names(eb)) == 3
    server.go_on.set()
    output = first.communicate()[0]
    server.shutdown()
    server.server_close()
    assert first.returncode == 0, output
    assert names(eb) == sorted(wheel.name for wheel in toy.wheels)


@pytest.fixture
def disk(tmp_path):
    """A small file system of the test's own."""
    place = tmp_path / 'a disk'
    place.mkdir()
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=4M', 'none', str(place)], check=True)
    yield place
    subprocess.run(['umount', str(place)], check=True)


@FOR_ROOT
def test_read_only_source_path(eb, toy, disk):
    """What it has is used, what is missing is fetched to a path in front of it; too little room there is said."""
    writable = eb.sources
    eb.sources = disk
    with (disk / 'fill').open('wb') as fill, pytest.raises(OSError):
        for _ in range(4097):
            os.write(fill.fileno(), bytes(1024))
    output = eb(toy.easyconfig, '--fetch', env=toy.online, status=None).stdout
    assert 'No space left on device' in output and 'Make room in %s' % disk in output
    (disk / 'fill').unlink()
    (disk / 't/toy/toy-1.0-wheels').mkdir(parents=True, exist_ok=True)
    (disk / 't/toy/toy-1.0-wheels' / toy.wheels[0].name).write_bytes(toy.wheels[0].read_bytes())
    subprocess.run(['mount', '-o', 'remount,ro', str(disk)], check=True)
    output = eb(toy.easyconfig, '--fetch', env=toy.online, status=None).stdout
    assert "--sourcepath=DIRECTORY:'%s'" % disk in output and 'other 2.0' in output
    eb.sources = '%s:%s' % (writable, disk)
    assert 'fetching 1 packages into %s' % writable in eb(toy.easyconfig, env=toy.online).stdout
    eb.sources = '%s:%s' % (disk, writable)
    eb(toy.easyconfig, '--rebuild', env=toy.offline)


def test_unfit_prefix(toy, tmp_path):
    """A blank broke the build of an MPI package after minutes, a quote the module; bash left a ~: refused, quoted."""
    for name in ('with blank', 'with\'quote', '~'):
        output = EB(tmp_path / name)(toy.easyconfig, env=toy.online, status=None)
        assert output.returncode != 0 and 'contains a blank, a quote, a ~ or a similar character' in output.stdout
