"""A module of a real PyTorch that takes no time to install: hard links to a virtual environment that tests keep."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path

from common import CACHE, CHECKOUT, EB, SCRIPTS, run
from small_software import sha256
from torch_mpi.tests.mpi_installation import kept_venv

NAME = 'PyTorch/2.13.0-small'
MODULE_FILE = '''local root = "%s"
setenv("EBROOTPYTORCH", root)
prepend_path("PATH", pathJoin(root, "bin"))
setenv("OMP_NUM_THREADS", "1")
'''
# so little that every check takes seconds
SMALL = ('-SSpeedCheck.more=bandwidth-gloo:--to 1M --seconds 0.05,'
         'train:--steps 2 --width 64 --batch-size 64')


class Module:
    """The module in a prefix of its own; tests put other files in the place of its files, and never write into them."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.eb = EB(self.directory / 'prefix')
        self.root = self.eb.prefix / 'software' / NAME
        self.env = {}

    def make(self):
        """Install it."""
        self.root.parent.mkdir(parents=True)
        subprocess.run(['cp', '-al', Path(kept_venv()).parent.parent, self.root], check=True)
        for name in ('pytorch-bandwidth', 'pytorch-check', 'pytorch-srun', 'get-master'):
            shutil.copy(SCRIPTS / name, self.root / 'bin')
        (self.eb.modules / 'PyTorch').mkdir(parents=True)
        (self.eb.modules / (NAME + '.lua')).write_text(MODULE_FILE % self.root)
        (self.root / 'easybuild/provenance').mkdir(parents=True)
        packages = {one.metadata['Name']: one.version for one in distributions(path=[str(self.packages)])}
        self.note('provenance.json', {'packages': packages})
        file = self.eb.modules / (NAME + '.lua')
        self.note('module.json', {str(file): sha256(file)})
        self.promise('')
        (self.root / 'share').mkdir(exist_ok=True)
        shutil.copy(CHECKOUT / 'systems/archer2/system.cfg', self.root / 'share')
        return self

    def note(self, name, content):
        """What the installation says of itself."""
        (self.root / 'easybuild/provenance' / name).write_text(json.dumps(content))

    def promise(self, text):
        """What its easyconfig says."""
        (self.root / 'easybuild/provenance/PyTorch-2.13.0-small.eb').write_text(text)

    @property
    def packages(self):
        """Its site-packages."""
        return self.root / ('lib/python%d.%d/site-packages' % sys.version_info[:2])

    def check(self, *arguments, status=0, env=()):
        """./eb --check; what it prints, and the report."""
        report = self.directory / 'report.json'
        # not as other tests call ./eb: what a rank prints may be a traceback
        kept = self.directory / 'references.json'
        references = ['--references', kept] if kept.exists() or '--update' in arguments else []
        call = self.eb.call([SMALL, '--report', report, *references, '--check', *arguments],
                            dict(self.env, **dict(env)), self.directory)
        done = run(timeout=3000, **call)
        assert done.returncode == status, done.stdout
        with report.open() as handle:
            return done.stdout, json.load(handle)['modules'][NAME]

    def reasons(self, name, *arguments, env=()):
        """Why this check, which is named like that, fails now."""
        output, checks = self.check('--name=' + name, *arguments, status=1, env=env)
        failed = [one['reason'] for one in checks.values() if one['result'] == 'fail']
        assert failed, output
        return '\n'.join(failed)


@contextmanager
def small_module():
    """The module, until it is no longer needed; beside the kept one, as hard links do not lead to other disks."""
    CACHE.mkdir(parents=True, exist_ok=True)
    directory = tempfile.mkdtemp(prefix='checks-', dir=CACHE)
    os.chmod(directory, 0o755)
    try:
        yield Module(directory).make()
    finally:
        shutil.rmtree(directory)
