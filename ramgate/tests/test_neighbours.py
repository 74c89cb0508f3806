"""Several ramgates on one host."""
import os
import subprocess
import sys

from ramgate import neighbours

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


def test_the_same_process_number_in_two_containers():
    """Both are process 1 of their namespace, and of one network."""
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    both = [subprocess.Popen(['unshare', '--user', '--map-root-user', '--pid', '--fork', '--mount-proc', sys.executable,
                              '-c', EXCHANGE, mine, other], stdout=subprocess.PIPE, text=True, cwd=top)
            for mine, other in (('3333', '4444'), ('4444', '3333'))]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert "(4444, '/here')" in said[0] and "(3333, '/here')" in said[1]


def test_without_a_socket_there_are_no_neighbours(monkeypatch):
    """As in a sandbox that forbids them: the build goes on."""
    def forbidden(*_):
        raise PermissionError('no sockets here')

    monkeypatch.setattr(neighbours.socket, 'socket', forbidden)
    assert neighbours.Neighbours().exchange(5, '/') == {}
