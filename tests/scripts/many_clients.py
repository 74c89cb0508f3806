"""
many_clients.py CLIENTS: the first rank's store, and connections as other ranks have them; prints how many it serves.

By hand, 4,000 were served on 2026-11-24, started by pytorch-srun with a limit of 1,024 open files.
"""
import os
import subprocess
import sys

from torch.distributed import TCPStore

# each says who it is, and waits for an answer, as torch's own client does (VALIDATE, PING)
CLIENTS = """
import resource, socket, struct, sys
resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)
made = []
for number in range(int(sys.argv[2])):
    one = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    one.sendall(struct.pack('<BI', 0, 0x3C85F7CE))
    one.sendall(struct.pack('<BI', 13, number))
    assert one.recv(4) == struct.pack('<I', number), number
    made.append(one)
print(len(made), flush=True)
sys.stdin.read()
"""
store = TCPStore('127.0.0.1', 0, None, True, wait_for_workers=False)
clients = subprocess.Popen([sys.executable, '-c', CLIENTS, str(store.port), sys.argv[1]], stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, text=True)
served = clients.stdout.readline().strip()
assert len(os.listdir('/proc/self/fd')) > int(sys.argv[1]) and store.add('alive', 1) == 1
clients.communicate()
print('served', served)
