"""A Python that needs nothing of the machine: its easyconfig, with a tarball of the same layout, and what uses it."""
import hashlib
import re
import sys
import tarfile

import pytest
from common import CHECKOUT
from small_software import make_wheel, sha256

ORIGINAL = CHECKOUT / 'easyconfigs/p/Python/Python-3.12.14-standalone.eb'
# Debian's, whose library is inside the program: it runs from wherever it lies
VERSION = '%d.%d' % sys.version_info[:2]
TOY = """easyblock = 'LockedWheels'
name = 'toy'
version = '1.0'
homepage = 'https://example.org'
description = 'a toy'
toolchain = SYSTEM
dependencies = [('Python', '3.12.14', '-standalone')]
lock_files = ['toy.lock']
python_versions = ['%s']
sanity_check_commands = ['python -c "import toy"']
moduleclass = 'ai'
""" % VERSION


@pytest.mark.slow
def test_added_where_none_fits(eb, tmp_path):
    """What no Python of this machine fits depends on it, and --robot finds it; what one fits does not."""
    (tmp_path / 'toy.lock').write_text('# nothing\n')
    toy = tmp_path / 'toy-1.0.eb'
    text = TOY.replace("dependencies = [('Python', '3.12.14', '-standalone')]\n", '')
    assert 'standalone' not in text
    toy.write_text(text.replace("['%s']" % VERSION, "['3.12']"))
    path = {'PATH': '/usr/bin:/bin'}
    said = eb(toy, '--robot', '--dry-run-short', env=path).stdout
    assert ORIGINAL.name in said and VERSION in said
    assert 'Python/3.12.14-standalone' in eb(toy, '--missing-modules', env=path).stdout
    toy.write_text(text)
    assert ORIGINAL.name not in eb(toy, '--robot', '--dry-run-short', env=path).stdout


def test_fetched(eb, tmp_path):
    """Under the name that it has on its server, whose address writes + as %2B."""
    tarball = tmp_path / 'server' / re.search(r"'(cpython-\S*x86_64\S*)'", ORIGINAL.read_text()).group(1)
    tarball.parent.mkdir()
    tarball.write_bytes(b'a tarball')
    text = re.sub(r"source_urls = .*", "source_urls = ['%s']" % tarball.parent.as_uri(), ORIGINAL.read_text())
    easyconfig = tmp_path / ORIGINAL.name
    easyconfig.write_text(re.sub(r"'[0-9a-f]{64}'", repr(hashlib.sha256(b'a tarball').hexdigest()), text))
    eb.sources = tmp_path / 'sources'
    said = eb(easyconfig, '--fetch').stdout
    assert (eb.sources / 'p/Python' / tarball.name).read_bytes() == b'a tarball', said


def unimportant(member):
    """What an installation of Debian's has besides."""
    return None if '/dist-packages' in member.name or '__pycache__' in member.name else member


@pytest.mark.slow
def test_installed_and_used(eb, lmod, tmp_path):
    """A module of its own; what is installed with it uses it, and no other Python."""
    tarball = tmp_path / re.search(r"'(cpython-\S*x86_64\S*)'", ORIGINAL.read_text()).group(1)
    with tarfile.open(tarball, 'w:gz', compresslevel=1) as packed:
        for path, name in (('/usr/bin/python', 'bin/python3'), ('/usr/lib/python', 'lib/python' + VERSION),
                           ('/usr/include/python', 'include/python' + VERSION)):
            packed.add(path + VERSION, 'python/' + name, filter=unimportant)
    easyconfig = tmp_path / ORIGINAL.name
    digest = hashlib.sha256(tarball.read_bytes()).hexdigest()
    text = re.sub(r"'[0-9a-f]{64}'", repr(digest), ORIGINAL.read_text())
    # Debian has these in packages of their own
    easyconfig.write_text(text.replace(', venv, ensurepip', ', venv'))
    toy = tmp_path / 'toy-1.0.eb'
    toy.write_text(TOY)
    wheel = make_wheel(tmp_path, 'toy')
    (tmp_path / 'toy.lock').write_text('# made by the test\ntoy==1.0 --hash=sha256:%s\n' % sha256(wheel))
    eb(toy, '--robot=%s' % tmp_path, env={'PIP_FIND_LINKS': str(tmp_path), 'PIP_NO_INDEX': '1',
                                          'EASYBUILD_SOURCEPATH': str(tmp_path)})
    root = eb.prefix / 'software/Python/3.12.14-standalone'
    assert (root / 'include' / ('python' + VERSION) / 'Python.h').is_file()
    said = lmod.run('module use %s; module load toy; python -c "import sys; print(sys.base_prefix)"' % eb.modules)
    assert said.strip() == str(root)
