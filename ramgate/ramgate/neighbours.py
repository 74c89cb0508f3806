"""
Several ramgates on one host tell each other, once a second, how much memory their jobs are still going to take.

Each has a datagram socket with an abstract name, so nothing lies in the file system. The name is random, as process
numbers are the same in several containers and nobody else is to take it first; the kernel says who sent a message, and
only those of the same user (or of root) are believed. Where that cannot be had, a build goes on without neighbours.
"""
import binascii
import os
import socket
import struct
import time

NAME = '\0ramgate-claim-'
LISTED = '@ramgate-claim-'
EVERY, FORGET = 1.0, 5.0
CREDENTIALS = struct.Struct('3i')


class Neighbours:
    """The other ramgates."""

    def __init__(self):
        self.heard, self.next, self.name = {}, 0.0, NAME + binascii.hexlify(os.urandom(8)).decode()
        try:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self.socket.setblocking(False)
            self.socket.bind(self.name)
        except OSError:
            self.socket = None

    def exchange(self, claim, scope, now=None):
        """
        Tell the others that we are going to take `claim` bytes in the cgroup `scope`; what they said: {socket: (bytes,
        scope)}.
        """
        if not self.socket:
            return {}
        now = now or time.monotonic()
        self.listen(now)
        if now >= self.next:
            self.next = now + EVERY
            message = ('%d %s' % (claim, scope)).encode()
            for name in self.others():
                try:
                    self.socket.sendto(message, name)
                except OSError:
                    pass
        return {name: said[1:] for name, said in self.heard.items() if now - said[0] < FORGET}

    def listen(self, now):
        """Take in what has come."""
        while True:
            try:
                data, extra, _, name = self.socket.recvmsg(8192, socket.CMSG_SPACE(CREDENTIALS.size))
            except OSError:
                return
            who = [CREDENTIALS.unpack(value[:CREDENTIALS.size]) for level, kind, value in extra
                   if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS]
            claim, _, scope = data.decode(errors='replace').partition(' ')
            if who and who[0][1] in (0, os.getuid()) and claim.isdigit():
                self.heard[name] = (now, int(claim), scope)

    def others(self):
        """The sockets of all other ramgates of this host."""
        own = self.name.replace('\0', '@')
        try:
            with open('/proc/net/unix') as file:
                names = {line.split()[-1] for line in file if LISTED in line}
        except OSError:
            return []
        return ['\0' + name[1:] for name in names if name.startswith(LISTED) and name != own]
