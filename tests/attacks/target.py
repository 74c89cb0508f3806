"""An installation that has to come out of each attack whole."""
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from common import EB, ModulesTool
from small_software import Toy, sha256


class Target:
    """A toy, and ./eb that installs it on what is attacked."""

    def __init__(self, folder, command=None, place=None):
        """`place`: where everything is written to."""
        self.toy, self.place = Toy(folder), place or folder
        self.eb = EB(self.place / 'prefix', command)
        self.eb.sources = self.place / 'sources'
        self.online = dict(self.toy.online)

    def duration(self):
        """The seconds that an installation takes here and now."""
        begin = time.monotonic()
        self.eb(self.toy.easyconfig, env=self.online)
        return time.monotonic() - begin

    def forget(self, chance):
        """Something of what earlier attempts have left, or all of it."""
        for name in chance.choice([(), ('prefix',), ('sources',), ('prefix', 'sources')]):
            shutil.rmtree(self.place / name, ignore_errors=True)

    def started(self, *arguments, env=(), **more):
        """A process of ./eb, and the file that has its output; who is left of a killed one keeps no pipe open."""
        output = tempfile.TemporaryFile('w+')
        call = self.eb.call([self.toy.easyconfig, *arguments], dict(self.online, **dict(env)), self.toy.folder)
        return subprocess.Popen(**dict(call, stdout=output, start_new_session=True, **more)), output

    def check(self):
        """What was fetched is whole; a next call ends well, and what is loaded then works."""
        self.check_fetched()
        self.eb(self.toy.easyconfig, '--rebuild', env=self.online, cwd=self.toy.folder)
        self.check_fetched()
        assert not list(Path(self.eb.prefix, 'software', '.locks').iterdir())
        self.check_module()

    def modules(self):
        """The module file, if there is one."""
        return list(self.eb.modules.glob('toy/1.0*'))

    def check_module(self):
        """What is installed can be used."""
        ModulesTool('Lmod').run("module use %s; module load toy; python -c 'import toy, other'" % self.eb.modules)

    def check_fetch(self):
        """What was fetched is whole; what is missing can be fetched, and nothing else lies around then."""
        self.check_fetched()
        self.eb(self.toy.easyconfig, '--fetch', env=self.online, cwd=self.toy.folder)
        self.check_fetched()
        assert not list(self.eb.sources.glob('t/toy/*/part-*'))

    def check_fetched(self):
        """Whatever has a wheel's name is that wheel."""
        locked = {path.name: sha256(path) for path in self.toy.wheels}
        for path in self.eb.sources.glob('t/toy/toy-1.0-wheels/*.whl'):
            assert sha256(path) == locked[path.name], path
