"""What a refusal for want of room leaves behind; the refusals themselves are in test_early_checks.py."""
import subprocess

from common import CHECKOUT, clean_environment

PROGRAM = '''
import sys
from types import SimpleNamespace
from easybuild.tools import config
from easybuild.tools.build_log import EasyBuildError
from hpc_pytorch.rules import disk_space, policy

config.init_build_options()
prefix = sys.argv[1]
disk_space.PLACES = (("build", "--buildpath", lambda: prefix),)
disk_space.room_needed = lambda easyblock: {"build": 2 ** 60}
policy.going_to_install = lambda: True
try:
    disk_space.check_room(SimpleNamespace(installdir=prefix + "/software/toy/1.0"))
except EasyBuildError as error:
    print(error)
'''


def test_no_empty_directory(tmp_path):
    """EasyBuild's fetch step has made the directory of the software; one of an earlier installation stays."""
    toy, other = tmp_path / 'software/toy/1.0', tmp_path / 'software/other/1.0'
    command = [str(CHECKOUT / '.venv/bin/python'), '-c', PROGRAM, str(tmp_path)]
    other.mkdir(parents=True)
    for kept in (False, True):
        toy.mkdir(parents=True)
        if kept:
            (toy / 'file').touch()
        said = subprocess.run(command, cwd=CHECKOUT, env=clean_environment(), stdout=subprocess.PIPE, check=True,
                              text=True).stdout
        assert 'too little room' in said and other.exists()
        assert toy.exists() == toy.parent.exists() == kept
