"""ramgate-cc in Python, for machines without a C compiler to compile launcher.c with; that file explains the frames."""
import fcntl
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import tempfile

TAIL, ATTEMPTS_ALONE = 65536, 3
CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Line:
    """To the broker; without one everything is silent."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # an address is short, a path is not
            place = os.open(os.path.dirname(path), os.O_PATH)
            self.socket.connect('/proc/self/fd/%d/%s' % (place, os.path.basename(path)))
            os.close(place)
        except OSError:
            self.lose()

    def lose(self):
        """The broker has gone."""
        self.socket = None

    def tell(self, kind, data):
        """Send a frame."""
        try:
            if self.socket:
                self.socket.sendall(kind + struct.pack('=I', len(data)) + data)
        except OSError:
            self.lose()

    def read(self, length):
        """So many bytes."""
        data = b''
        while self.socket and len(data) < length:
            try:
                more = self.socket.recv(length - len(data))
            except OSError:
                more = b''
            data += more
            if not more:
                self.lose()
        return data

    def hear(self):
        """The broker's next word: a letter (empty where it has gone) and text."""
        head = self.read(5)
        data = self.read(struct.unpack('=I', head[1:])[0]) if self.socket else b''
        return (head[:1], data) if self.socket else (b'', b'')


def run(command, output, broker):
    """Run the command in its own process group; the exit status as a shell gives it."""
    def same(one, other):
        try:
            return os.path.sameopenfile(one, other)
        except OSError:
            return False

    together = same(1, 2)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    caught = []
    before = {number: signal.signal(number, lambda number, _: caught.append(number)) for number in CAUGHT}
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer)
    job = os.fork()
    if job == 0:
        try:
            os.setpgid(0, 0)
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(-1)
            os.dup2(output, 2)
            if together:
                os.dup2(output, 1)
            os.environ['RAMGATE_JOB'] = '1'
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, ('ramgate-cc: %s: %s\n' % (command[0], error.strerror)).encode())
        finally:
            os._exit(127)
    try:
        os.setpgid(job, job)
    except OSError:
        pass
    broker.tell(b'p', str(job).encode())
    while True:
        done, status = os.waitpid(job, os.WNOHANG)
        if done:
            break
        ready = select.select([reader] + ([broker.socket] if broker.socket else []), [], [])[0]
        if reader in ready:
            os.read(reader, 512)
        if broker.socket in ready:
            broker.lose()
            os.killpg(job, signal.SIGCONT)
        while caught:
            os.killpg(job, caught.pop(0))
            os.killpg(job, signal.SIGCONT)
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)
    os.close(reader)
    os.close(writer)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def fail(text):
    """Print the broker's line."""
    sys.stderr.write(os.fsdecode(text) + '\n')
    return 1


def main():
    """As main() of launcher.c."""
    command, path = sys.argv[1:], os.environ.get('RAMGATE_SOCKET')
    if not command:
        sys.stderr.write('usage: ramgate-cc COMMAND ...: run a compiler within the memory that `ramgate run` watches\n')
        return 2
    if not path or 'RAMGATE_JOB' in os.environ:
        try:
            os.execvp(command[0], command)
        except OSError as error:
            sys.stderr.write('ramgate-cc: %s: %s\n' % (command[0], error.strerror))
            return 127
    broker = Line(path)
    broker.tell(b'j', b''.join(os.fsencode(word) + b'\0' for word in [os.getcwd()] + command))
    turn = None
    for attempt in range(1, 1000):
        with tempfile.TemporaryFile() as output:
            kind, data = broker.hear()
            if kind == b'x':
                return fail(data)
            if not kind and turn is None:
                turn = open(path + '.turn', 'a')
                fcntl.flock(turn, fcntl.LOCK_EX)
            code = run(command, output.fileno(), broker)
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            output.seek(0)
            written = output.read()
            broker.tell(b'e', b'%d %d %d\n' % (code, used.ru_maxrss, (used.ru_utime + used.ru_stime) * 1000)
                        + (written[-TAIL:] if code else b''))
            kind, data = broker.hear() if code else (b'd', b'')
            if kind == b'x':
                return fail(data)
            if kind == b'r' or (not kind and code == 137 and attempt < ATTEMPTS_ALONE):
                if data and os.path.lexists(data) and stat.S_ISREG(os.lstat(data).st_mode):
                    os.unlink(data)
                continue
            sys.stderr.flush()
            while written:
                written = written[os.write(2, written):]
            return code


if __name__ == '__main__':
    sys.exit(main())
