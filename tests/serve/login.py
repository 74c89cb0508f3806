"""A login node with vLLM's module, or with a small program in the place of vLLM; and what was started on it."""
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import small_software
from common import SCRIPTS, clean_environment, needs_program

from hpc_pytorch.machine.systems import FOR_JOBS

SYSTEM = small_software.SYSTEM
LAUNCHERS = {'pbs': 'mpirun'}
MODULE = """prepend_path("PATH", "%s/bin")
setenv("PYTHONPATH", "%s/torch-for-%s")
setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
"""
# what PyTorch says of the node
TORCH = """class version:
    cuda, hip = %s, None
class cuda:
    device_count = staticmethod(lambda: 0)
"""


def processes(word):
    """Processes whose environment or words have this word."""
    found = []
    for path in [*Path('/proc').glob('[0-9]*/environ'), *Path('/proc').glob('[0-9]*/cmdline')]:
        try:
            if word.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            pass
    return found


def enter(slurm):
    """The words to start something where the nodes are, with their names."""
    return ['nsenter', '--net=/proc/%d/ns/net' % slurm.network.pid, 'unshare', '--mount', 'sh', '-c',
            'mount --bind "$1" /etc/hosts && shift && exec "$@"', 'sh', slurm.directory / 'hosts']


class Login:
    """A login node with the module loaded."""

    def __init__(self, directory, kind, environment, torch='cpu'):
        self.directory = directory / 'work'
        self.temporary = directory / 'temporary'
        installed = directory / 'installed'
        for path in (self.directory, self.temporary, installed / 'bin', installed / 'share',
                     directory / 'modules/vLLM'):
            path.mkdir(parents=True)
        self.temporary.chmod(0o1777)
        for name in ('pytorch-serve', 'pytorch-srun', 'get-master'):
            shutil.copy(SCRIPTS / name, installed / 'bin')
        shutil.copy(Path(__file__).with_name('small_vllm'), installed / 'bin/vllm')
        (installed / 'bin/python').symlink_to(sys.executable)
        # ./test quick installs none
        (installed / 'bin/mpirun').symlink_to(shutil.which('mpirun.openmpi') or '/usr/bin/mpirun.openmpi')
        for name, version in (('cpu', None), ('gpu', '13.0')):
            place = installed / ('torch-for-' + name)
            place.mkdir()
            (place / 'torch.py').write_text(TORCH % repr(version))
        (installed / 'share/system.cfg').write_text(SYSTEM % (kind, LAUNCHERS.get(kind, 'srun')))
        for path in FOR_JOBS:
            shutil.copy(path, installed / 'share')
        (directory / 'modules/vLLM/1.0.lua').write_text(MODULE % (installed, installed, torch))
        (directory / 'modules/PyTorch').mkdir()
        (directory / 'modules/PyTorch/1.0.lua').touch()
        self.program = installed / 'bin/pytorch-serve'
        more = dict(environment)
        path = '%s:%s' % (installed / 'bin', more.pop('PATH', os.environ['PATH']))
        self.environment = dict(clean_environment(), HOME=str(self.directory), LOADEDMODULES='PyTorch/1.0:vLLM/1.0',
                                MODULEPATH=str(directory / 'modules'), TMPDIR=str(self.temporary), PATH=path,
                                PYTHONPATH=str(installed / ('torch-for-' + torch)), **more)
        self.model()

    def model(self, name='tiny', **config):
        """A directory that looks like a model."""
        (self.directory / name).mkdir()
        (self.directory / name / 'config.json').write_text(json.dumps(config))
        (self.directory / name / 'model.safetensors').touch()

    def start(self, *arguments, session=False):
        return subprocess.Popen([sys.executable, self.program, *arguments], env=self.environment, text=True,
                                cwd=self.directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, start_new_session=session)

    def __call__(self, *arguments):
        """(exit status, standard output, standard error)."""
        called = self.start(*arguments)
        output, errors = called.communicate(timeout=900)
        assert 'Traceback' not in output + errors, output + errors
        return called.returncode, output, errors

    def files(self):
        return sorted(path.name for path in self.directory.iterdir() if path.is_file())


class Served:
    """What pytorch-serve has started, when it has printed the address."""

    def __init__(self, login, *arguments):
        self.process = login.start(*arguments)
        self.printed = ''
        for line in self.process.stdout:
            self.printed += line
            found = re.search(r'serves at (\S+)\nkey: (\S+)', self.printed)
            if found and line.startswith('key: ' if '--here' in arguments else 'to end it: '):
                self.url, self.key = found.groups()
                break
        else:
            raise AssertionError(self.printed + self.process.stderr.read())
        # what comes after it must not fill the pipe
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    @property
    def job(self):
        return re.search(r'or (?:scancel|qdel) (\S+)', self.printed).group(1)

    def ask(self, path, *words, enter=(), below='/v1'):
        """curl's status and answer, from where the nodes are."""
        needs_program('curl')
        address = self.url[:-len('/v1')] + below + path
        done = subprocess.run([*enter, 'curl', '-s', '--noproxy', '*', '-w', '\n%{http_code}', *words, address],
                              stdout=subprocess.PIPE, text=True, check=True)
        answer, _, status = done.stdout.rpartition('\n')
        return int(status), answer
