"""The broker: whom it serves, its end, and that of the program that started it."""
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from common import FOR_ROOT

from ramgate.broker import Broker, listen
from ramgate.estimates import Knowledge
from ramgate.limits import Limits
from ramgate.processes import descendants
from ramgate.schedule import Schedule


def broker_of(process):
    """The broker's process: the child of `ramgate run` that runs the same program."""
    own = Path('/proc/%d/cmdline' % process.pid).read_bytes()
    for pid in descendants(process.pid):
        try:
            if Path('/proc/%d/cmdline' % pid).read_bytes() == own:
                return pid
        except OSError:
            pass
    return None


def test_the_broker_dies_and_the_build_goes_on(build, eventually):
    made = [build.job('job%d' % number, 'wait go', 'sleep 0.05') for number in range(6)]
    process = build.start('--jobs', '3')
    eventually(lambda: len(list(build.directory.glob('*.o'))) == 3)
    os.kill(broker_of(process), signal.SIGKILL)
    (build.directory / 'go').touch()
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    assert all(path.read_text().startswith('object of') for path in made)
    build.clean()


@pytest.mark.slow
def test_a_killed_ramgate_leaves_nothing_running(build, eventually):
    for at in range(4):
        build.job('job%d' % at, 'sleep 300')
    process = build.start('--jobs', '2')
    eventually(lambda: len(list(build.directory.glob('*.o'))) == 2)
    process.kill()
    process.communicate(timeout=60)
    eventually(lambda: not build.processes())


@pytest.fixture
def broker(tmp_path):
    """A broker in a thread, and the directory of its socket."""
    reader, writer = os.pipe()
    limits = Limits(2 ** 30, groups=[])
    schedule = Schedule(Knowledge(), 1, limits.tightest(0))
    listener = listen(str(tmp_path))
    thread = threading.Thread(target=Broker(listener, reader, limits, schedule, '/').serve)
    thread.start()
    yield tmp_path
    os.write(writer, b'f')
    thread.join()
    listener.close()
    os.close(reader)
    os.close(writer)


# asks to start a job, as a launcher does; says what it heard
ASK = '''
import os, socket, struct, sys
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
asking = socket.socket(socket.AF_UNIX)
asking.settimeout(30)
asking.connect("socket")
data = b"/" + bytes(1) + b"gcc" + bytes(1)
try:
    asking.sendall(b"j" + struct.pack("=I", len(data)) + data)
    os.write(1, asking.recv(1))
except ConnectionError:
    pass
'''


@FOR_ROOT
@pytest.mark.parametrize('user, word', [(0, b'g'), (65534, b'')])
def test_another_user_s_job_is_not_taken(broker, user, word):
    broker.chmod(0o755)
    (broker / 'socket').chmod(0o777)
    done = subprocess.run([sys.executable, '-S', '-c', ASK, str(user)], cwd=broker, stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout) == (0, word)


def test_a_long_temporary_directory(build):
    """An address of a socket has 107 letters at most."""
    temporary = build.directory / 'tmp' / ('long' * 40)
    temporary.mkdir()
    made = build.job('job', 'memory 5')
    build.write()
    for launcher in ('ramgate-cc', sys.executable + ' -m ramgate.launcher'):
        build.write(launcher)
        done = subprocess.run([sys.executable, '-m', 'ramgate', 'run', '--report', 'report', '--', 'ninja'],
                              cwd=build.directory, env=dict(build.environment(), TMPDIR=str(temporary)),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        assert done.returncode == 0, done.stdout
        assert len(build.report()['jobs']) == 1
        made.unlink()
