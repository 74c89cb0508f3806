"""A clock that jumps, by hours or by decades, at any moment: README.rst says how to go on for an hour."""
import threading
from pathlib import Path

import pytest
from attacks.attempts import attack
from attacks.target import Target

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
LIBRARY = '/usr/$LIB/faketime/libfaketime.so.1'
YEAR = 365 * 86400


def test_clock(tmp_path):
    """It is installed all the same: nothing is compared with a time that the machine does not have any more."""
    target, now = Target(tmp_path), tmp_path / 'now'
    assert list(Path('/usr/lib').glob('*/faketime/libfaketime.so.1')), "apt-get install libfaketime"
    fake = {'LD_PRELOAD': LIBRARY, 'FAKETIME_TIMESTAMP_FILE': str(now), 'FAKETIME_NO_CACHE': '1',
            'FAKETIME_DONT_FAKE_MONOTONIC': '1'}

    def attempt(chance):
        def jump():
            """Whole or not at all, as a program reads it at any time."""
            partial = tmp_path / 'partial'
            partial.write_text('%+d' % chance.choice([0, chance.uniform(-7200, 7200), chance.uniform(-56, 60) * YEAR]))
            partial.replace(now)

        def jump_on():
            while not over.wait(chance.uniform(0.1, 3)):
                jump()

        target.forget(chance)
        jump()
        over = threading.Event()
        jumping = threading.Thread(target=jump_on)
        jumping.start()
        try:
            target.eb(target.toy.easyconfig, *chance.choice([('--rebuild',), ('--fetch',)]),
                      env=dict(target.online, **fake))
        finally:
            over.set()
            jumping.join()
        target.check()

    attack(attempt, 1)
