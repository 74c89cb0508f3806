"""So many attempts at something, each with a chance of its own."""
import os
import random
import time


def attack(attempt, times):
    """So many attempts at least, each with a chance of its own; none may fail."""
    first, end = int(os.environ.get('ATTACK_FIRST', 0)), time.monotonic() + float(os.environ.get('ATTACK_SECONDS', 0))
    tried, fallen = 0, []
    while tried < times or time.monotonic() < end:
        number = first + tried
        tried += 1
        try:
            attempt(random.Random(number))
        except Exception as error:
            fallen.append('ATTACK_FIRST=%d: %s: %s' % (number, type(error).__name__, error))
            print('\n' + fallen[-1], flush=True)
    print('\n%d tried, %d held' % (tried, tried - len(fallen)), flush=True)
    assert not fallen, '\n'.join(fallen[:10])
