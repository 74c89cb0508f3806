"""
lost_network.py WAY SEED COMMAND ...: runs a command where there is no network, and a name server that is of no use.

In network and mount namespaces of its own (unshare --map-root-user --net --mount).
"""
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time


def answer(way, question, chance):
    """What it sends back, None for nothing."""
    head = question[:2]
    if way == 'nonsense':
        return bytes(chance.randrange(256) for _ in range(chance.randrange(600)))
    if way == 'late':
        time.sleep(chance.uniform(0, 3))
    if way in ('no such name', 'failure'):
        return head + (b'\x81\x83' if way == 'no such name' else b'\x81\x82') + question[4:6] + bytes(6) + question[12:]
    if way == 'no address':
        return head + b'\x81\x80' + question[4:6] + bytes(6) + question[12:]
    if way == 'another question':
        return bytes(chance.randrange(256) for _ in range(2)) + b'\x81\x80' + question[4:6] + bytes(6) + question[12:]
    if way == 'cut short':
        # wants to be asked by TCP, where nobody listens
        return head + b'\x83\x80' + question[4:6] + bytes(6) + question[12:]
    if way in ('late', 'an address without a server') and question[12:].rstrip(b'\0').find(b'\0\0\x01\0\x01') >= 0:
        end = question.index(b'\0\0\x01\0\x01', 12) + 5
        return (head + b'\x81\x80\0\x01\0\x01' + bytes(4) + question[12:end]
                + b'\xc0\x0c\0\x01\0\x01\0\0\0\x01\0\x04' + bytes([127, 0, 0, 1]))
    if way in ('late', 'an address without a server'):
        return head + b'\x81\x80' + question[4:6] + bytes(6) + question[12:]
    return None


def serve(server, way, chance):
    """Until the program ends."""
    while True:
        question, asker = server.recvfrom(4096)
        said = answer(way, question, chance)
        if said is not None:
            server.sendto(said, asker)


def main(way, seed, *command):
    """The exit status is the command's."""
    subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)
    with tempfile.NamedTemporaryFile('w') as configuration:
        configuration.write('nameserver 127.0.0.1\noptions timeout:1 attempts:1\n')
        configuration.flush()
        subprocess.run(['mount', '--bind', configuration.name, '/etc/resolv.conf'], check=True)
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        if way != 'no name server':
            server.bind(('127.0.0.1', 53))
            threading.Thread(target=serve, args=(server, way, random.Random(int(seed))), daemon=True).start()
        return subprocess.run(command).returncode


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
