"""The broker: whom it serves, its end, and that of the program that started it."""
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ramgate.broker import Broker, listen
from ramgate.estimates import Knowledge
from ramgate.limits import Limits
from ramgate.processes import Tree, descendants
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
    made = [build.source('job%d' % number, 'wait go', 'sleep 0.05') for number in range(6)]
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
        build.source('job%d' % at, 'sleep 300')
    process = build.start('--jobs', '2')
    eventually(lambda: len(list(build.directory.glob('*.o'))) == 2)
    process.kill()
    eventually(lambda: not build.processes(), seconds=20)
    eventually(lambda: not list((build.directory / 'tmp').iterdir()), seconds=10)
    process.communicate(timeout=60)


@pytest.mark.slow
def test_compilers_that_the_broker_held_go_on_without_it(build, eventually):
    """Two that were started by their path, one at a time."""
    (build.directory / 'gcc').symlink_to(shutil.which('sleep'))
    process = build.start('--jobs', '1', command=('sh', '-c', './gcc 8 & ./gcc 8 & wait'))
    eventually(lambda: states(process.pid, 'gcc') == ['S', 'T'])
    os.kill(broker_of(process), signal.SIGKILL)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    build.clean()


def test_a_compiler_that_becomes_another_program(tmp_path, monkeypatch, eventually):
    """A script that begins the real one just when it is held: it has no command line then, and gets its turn."""
    (tmp_path / 'gcc').symlink_to(shutil.which('sleep'))
    process = subprocess.Popen([tmp_path / 'gcc', '60'])
    limits = Limits(2 ** 30, groups=[])
    monkeypatch.setattr('ramgate.broker.command_line', lambda *_: [], raising=False)
    try:
        tree = Tree(process.pid, '/nowhere')
        broker = Broker(limits, Schedule(Knowledge(), 1, limits.tightest(0)), '/', tree)
        while not os.waitpid(process.pid, os.WUNTRACED | os.WNOHANG)[0]:
            broker.watch()
        broker.plan()
        eventually(lambda: os.waitpid(process.pid, os.WCONTINUED | os.WNOHANG)[0])
    finally:
        process.kill()
        process.wait()


def states(root, name):
    """Of the processes of this name below another."""
    found = []
    for pid in descendants(root):
        try:
            words = Path('/proc/%d/stat' % pid).read_text()
        except OSError:
            continue
        if '(%s)' % name in words:
            found.append(words.rpartition(') ')[2][0])
    return sorted(found)


def test_what_a_wrapper_said_before_the_build_ended_is_heard(tmp_path, monkeypatch):
    """Its last compiler belongs to the report, however fast everything ended."""
    limits = Limits(2 ** 30, groups=[])
    schedule = Schedule(Knowledge(), 1, limits.tightest(0))
    reader, writer = os.pipe()
    monkeypatch.chdir(tmp_path)
    with listen('.') as listener, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as wrapper:
        wrapper.connect('socket')
        for message in (b'c/\0gcc\0', b'p0', b'e0 1000\n'):
            wrapper.send(message)
        os.write(writer, b'f')
        Broker(limits, schedule, '/', Tree(os.getpid(), '/')).serve(listener, reader)
    assert schedule.done == 1
    os.close(reader)
    os.close(writer)


# what a compiler wrapper says to start a compiler; prints what it hears
ASK = '''
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asking.settimeout(30)
try:
    asking.connect("socket")
except PermissionError:
    sys.exit("not allowed")
asking.send(b"c/" + bytes(1) + b"gcc" + bytes(1))
os.write(1, asking.recv(1))
'''


@pytest.mark.parametrize('user, status, word', [(0, 0, b'g'), (65534, 1, b'')])
def test_another_user_cannot_ask(as_root, build, eventually, user, status, word):
    build.source('job', 'wait go')
    process = build.start('--jobs', '2')
    eventually(lambda: list(build.directory.glob('*.o')))
    place, = (build.directory / 'tmp').iterdir()
    done = subprocess.run([sys.executable, '-S', '-c', ASK, str(user)], cwd=place, stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout) == (status, word)
    (build.directory / 'go').touch()
    process.communicate(timeout=60)


@pytest.mark.slow
def test_a_long_temporary_directory(build):
    """An address of a socket has 107 letters at most."""
    temporary = build.directory / 'tmp' / ('long' * 40)
    temporary.mkdir()
    made = build.source('job', 'memory 5')
    process = build.start('--report', 'report', TMPDIR=str(temporary))
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    assert made.exists() and len(build.report()['compilations']) == 1
