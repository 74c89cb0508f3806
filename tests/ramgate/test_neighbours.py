"""Several ramgates on one host."""
import os
import subprocess
import sys

# says to other ramgates what it is going to take until it has heard one, and for a while longer; prints what it heard
EXCHANGE = """
import sys, time
from ramgate.neighbours import Neighbours
me, heard, end = Neighbours(), {}, time.monotonic() + 30
while (int(sys.argv[2]), "/here") not in heard.values() and time.monotonic() < end:
    heard = me.exchange(int(sys.argv[1]), "/here")
    time.sleep(0.05)
print(sorted(heard.values()))
for _ in range(40):
    me.exchange(int(sys.argv[1]), "/here")
    time.sleep(0.05)
"""


def test_two_ramgates_see_each_other():
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    both = [subprocess.Popen([sys.executable, '-c', EXCHANGE, mine, other], stdout=subprocess.PIPE, text=True, cwd=top)
            for mine, other in (('1111', '2222'), ('2222', '1111'))]
    said = [process.communicate(timeout=60)[0] for process in both]
    # other builds on this machine may be heard, too
    assert "(2222, '/here')" in said[0] and "(1111, '/here')" in said[1]
