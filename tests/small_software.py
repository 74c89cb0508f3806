"""Small software for tests: wheels, and easyconfigs whose installations take as long, or as much, as a test wants."""
import base64
import hashlib
import os
import re
import sys
import time
import zipfile
from pathlib import Path
from urllib.parse import quote

VERSION = '%d.%d' % sys.version_info[:2]

TOY = """easyblock = 'Toolchain'
name = {name!r}
version = '1.0'
versionsuffix = '-{suffix}'
homepage = 'https://example.org/'
description = 'a toy'
toolchain = SYSTEM
dependencies = [{dependencies}]
postinstallcmds = {commands!r}
moduleclass = 'toolchain'
"""
# so many MiB, with every page touched
OCCUPY = 'python3 -c "import time; x = b\'x\' * ({megabytes} << 20); time.sleep({seconds})"'
# until the test says so
WAIT = "until [ -e {file} ]; do sleep 0.1; done"


class Toys:
    """Easyconfigs for one system in a directory, and ./eb for them."""

    def __init__(self, eb, directory, suffix, environment):
        self.eb, self.directory, self.suffix = eb, directory, suffix
        self.environment = dict(environment)

    def write(self, name, after=(), modules=(), commands=()):
        """Write one; `after`: names of those that it depends on."""
        dependencies = ["(%r, '1.0', '-%s')" % (other, self.suffix) for other in after]
        dependencies += ["(%r, EXTERNAL_MODULE)" % module for module in modules]
        path = self.directory / ('%s-1.0-%s.eb' % (name, self.suffix))
        path.write_text(TOY.format(name=name, suffix=self.suffix, dependencies=', '.join(dependencies),
                                   commands=list(commands)))
        return path

    def run(self, *arguments, status=0, env=(), **options):
        """./eb on the stand-in; what it prints."""
        return self.eb('--rehearse', *arguments, status=status, cwd=self.directory,
                       env=dict(self.environment, **dict(env)), **options).stdout

    def submit(self, easyconfig, *options, **more):
        """--job; the ids of the jobs in their order."""
        output = self.run(easyconfig, '--robot=%s' % self.directory, '--job', *options, **more)
        return re.findall(r'^== \S+ is job (\S+?)(?:,| already|$)', output, re.M)

    def refused(self, easyconfig, *options, **more):
        """--job that submits nothing; what it prints."""
        output = self.run(easyconfig, '--robot=%s' % self.directory, '--job', *options, status=None, **more)
        assert 'ERROR' in output and ' is job ' not in output, output
        return output

    def status(self):
        """--job-status: {module: its lines}."""
        output = self.run('--system=%s' % self.suffix.lower(), '--job-status')
        # the first lines are ./eb's own
        output = output[re.search(r'^\S+/\S+  job ', output, re.M).start():]
        return {part.split('  ')[0]: part for part in re.split(r'\n(?=\S)', output.strip())}

    def wait(self, true, what, seconds=900):
        """Poll --job-status until something is true of it."""
        deadline = time.monotonic() + seconds
        while True:
            begin = time.monotonic()
            found = self.status()
            if true(found):
                return found
            assert time.monotonic() < deadline, '%s: %s' % (what, found)
            # the jobs need the processors, too
            time.sleep(max(0.3, time.monotonic() - begin))

    def wait_for_end(self):
        """No job waits or runs any more."""
        return self.wait(lambda found: not any(re.search('  (waiting|running)', text.split('\n')[0])
                                               for text in found.values()), "end of the jobs")

    def module(self, name):
        """The module file of a toy."""
        return self.eb.modules / name / ('1.0-%s.lua' % self.suffix)


def sha256(path):
    """The SHA256 of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def make_wheel(folder, name, version='1.0', tag='py3-none-any', text='here = __file__\n', requires=()):
    """A real wheel of one module."""
    path = folder / ('%s-%s-%s.whl' % (name, version, tag))
    info = '%s-%s.dist-info' % (name, version)
    files = {
        '%s.py' % name: text,
        info + '/METADATA': 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n%s' % (
            name, version, ''.join('Requires-Dist: %s\n' % one for one in requires)),
        info + '/WHEEL': 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: %s\n' % tag,
    }
    record = ''
    for key, value in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(value.encode()).digest()).rstrip(b'=').decode()
        record += '%s,sha256=%s,%d\n' % (key, digest, len(value))
    files[info + '/RECORD'] = record + info + '/RECORD,,\n'
    with zipfile.ZipFile(path, 'w') as archive:
        for key, value in files.items():
            archive.writestr(key, value)
    return path


# a small system.cfg: the kind of its batch system, and the command that starts ranks
SYSTEM = """[system]
title = Here
[scheduler]
kind = %s
partition = main
[node]
cores = 2
[launcher]
command = %s
"""


LOCKED = """easyblock = 'LockedWheels'
name = 'toy'
version = '1.0'
homepage = 'https://example.org'
description = 'a toy'
toolchain = SYSTEM
lock_files = ['toy.lock']
python_versions = [%r]
sanity_check_commands = ['python -c "import toy, other"']
moduleclass = 'ai'
"""


class Toy:
    """A software of two packages, its lock, and an index that is only a directory."""

    def __init__(self, folder):
        self.index = folder / 'index'
        self.index.mkdir()
        self.folder = folder
        self.easyconfig = folder / 'toy-1.0.eb'
        self.wheels = [make_wheel(self.index, 'toy'), make_wheel(self.index, 'other', '2.0')]
        self.write()

    def write(self, python=VERSION):
        """Write the lock as the wheels are now, and the easyconfig."""
        lines = ['%s==%s --hash=sha256:%s\n' % (*path.name.split('-')[:2], sha256(path)) for path in self.wheels]
        (self.folder / 'toy.lock').write_text('# made by the test\n' + ''.join(lines))
        self.easyconfig.write_text(LOCKED % python)

    @property
    def online(self):
        """The user's configuration of pip: a mirror that has everything."""
        return {'PIP_CONFIG_FILE': os.devnull, 'PIP_NO_INDEX': '1', 'PIP_FIND_LINKS': str(self.index),
                'PIP_EXTRA_INDEX_URL': ''}

    @property
    def offline(self):
        """No index at all, as on a compute node."""
        return {'PIP_CONFIG_FILE': os.devnull, 'PIP_INDEX_URL': 'http://127.0.0.1:9/simple', 'PIP_RETRIES': '0',
                'PIP_FIND_LINKS': '', 'PIP_EXTRA_INDEX_URL': ''}


def site(directory, text):
    """The environment that names a site's own policies."""
    path = directory / 'site.cfg'
    path.write_text(text)
    return {'HPC_SITE_CONFIG': str(path)}


def site_hooks(directory, text):
    """The environment that names a site's own hooks."""
    path = directory / 'site_hooks.py'
    path.write_text(text)
    return {'HPC_SITE_HOOKS': str(path)}


def add(index, name, version, *requires, python='>=3.8'):
    """A wheel in an index of packages, which is a directory."""
    path = index.parent / ('%s-%s-py3-none-any.whl' % (name, version))
    with zipfile.ZipFile(path, 'w') as archive:
        info = '%s-%s.dist-info/' % (name, version)
        archive.writestr(info + 'METADATA', 'Metadata-Version: 2.1\nName: %s\nVersion: %s\nRequires-Python: %s\n%s' % (
            name, version, python, ''.join('Requires-Dist: %s\n' % line for line in requires)))
        archive.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        archive.writestr(info + 'RECORD', '')
    # as indexes have it: a page for each package, with the hash of each file
    place = index / name.replace('_', '-')
    place.mkdir(parents=True, exist_ok=True)
    path.rename(place / path.name)
    links = ['<a href="%s#sha256=%s">%s</a>' % (quote(file.name), sha256(file), file.name)
             for file in sorted(place.glob('*.whl'))]
    (place / 'index.html').write_text(''.join(links))
