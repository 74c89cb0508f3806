"""Names that nobody answers for, or answers wrongly: README.rst says how to go on for an hour."""
import sys
import time
from pathlib import Path

import pytest
from attacks.attempts import attack
from attacks.target import Target
from common import CHECKOUT

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
HOST = 'index.test'
# what a name server does instead of answering
WAYS = ('silence', 'nonsense', 'no such name', 'failure', 'no address', 'late', 'an address without a server',
        'another question', 'cut short', 'no name server')


def test_dns(tmp_path):
    """Said in words, with the host's name, before anybody gives up waiting; nothing is installed, and nothing lost."""
    target = Target(tmp_path)
    program = Path(__file__).with_name('lost_network.py')
    network = dict(target.toy.offline, PIP_INDEX_URL='https://%s/simple' % HOST, PIP_RETRIES='1',
                   PIP_DEFAULT_TIMEOUT='5')

    def attempt(chance):
        target.forget(chance)
        fetched = len(list(target.eb.sources.glob('t/toy/*/*.whl'))) == 2
        way = chance.choice(WAYS)
        whole, target.eb.command = target.eb.command, [
            'unshare', '--map-root-user', '--net', '--mount', sys.executable, str(program), way,
            str(chance.randrange(10 ** 6)), str(CHECKOUT / 'eb')]
        begin = time.monotonic()
        try:
            done = target.eb(target.toy.easyconfig, '--fetch', env=network, status=None)
        finally:
            target.eb.command = whole
        assert time.monotonic() - begin < 300, way
        if fetched:
            assert done.returncode == 0, done.stdout
        else:
            assert done.returncode != 0 and HOST in done.stdout.partition('could be reached:')[2], (way, done.stdout)
        target.check_fetch()

    attack(attempt, 1)
