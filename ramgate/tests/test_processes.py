"""Memory of process groups."""
import os
import subprocess
import sys

from ramgate.processes import in_groups, own_memory


def test_memory_of_a_group_counts_its_whole_tree():
    script = 'import os,time; os.fork(); data = bytearray(b"x" * 50000000); os.write(1, b"there\\n"); time.sleep(60)'
    process = subprocess.Popen([sys.executable, '-S', '-c', script], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout.readline() + process.stdout.readline() == b'there\n' * 2
        memory = sum(map(own_memory, in_groups([process.pid])[process.pid]))
        assert 100e6 < memory < 160e6
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()
