#!/usr/bin/env python3
"""
cgroup2.py KERNEL: tries ramgate under the real memory controller of cgroup version 2, in a virtual machine without a
disk (qemu without KVM, so slowly: minutes). It needs qemu-system-x86, busybox-static and a C compiler; KERNEL is a
distribution's, such as /boot/vmlinuz-*-cloud-amd64.

In the machine: this Python, ramgate, and stand-ins for compilers. Without an argument it is the machine's own program.
"""
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODULES = ('ctypes', 'collections', 'concurrent', 'email', 'encodings', 'importlib', 'json', 'logging', 're', 'urllib')
INIT = """#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
export PYTHONHOME=/python PYTHONPATH=/ PATH=/bin:/python/bin PYTHONDONTWRITEBYTECODE=1
python3 /cgroup2.py
poweroff -f
"""
# there is no compiler in the machine: what is to be compiled is there already
CC = '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp /wrapper "$2"\n'
TOP, MB = '/sys/fs/cgroup', 2 ** 20


# --- outside ----------------------------------------------------------------------------------------------------------

def libraries(path):
    """What a program or a module is linked with."""
    words = subprocess.run(['ldd', path], stdout=subprocess.PIPE, text=True).stdout.split()
    return [word for word in words if word.startswith('/')]


def fill(root):
    """The machine's files."""
    for name in ('bin', 'dev', 'proc', 'sys', 'tmp', 'python/bin', 'python/lib'):
        (root / name).mkdir(parents=True)
    shutil.copy(shutil.which('busybox'), root / 'bin')
    for name in ('sh', 'mount', 'cp', 'poweroff', 'xargs', 'timeout'):
        (root / 'bin' / name).symlink_to('busybox')
    for name, text in (('init', INIT), ('bin/cc', CC)):
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    library = Path(sysconfig.get_paths()['stdlib'])
    copy = root / 'python' / 'lib' / library.name
    copy.mkdir()
    for name in [path.name for path in library.glob('*.py')] + list(MODULES) + ['lib-dynload']:
        if (library / name).is_dir():
            shutil.copytree(library / name, copy / name, ignore=shutil.ignore_patterns('__pycache__', '*test*'))
        else:
            shutil.copy(library / name, copy)
    shutil.copy(os.path.realpath(sys.executable), root / 'python' / 'bin' / 'python3')
    for path in [root / 'python' / 'bin' / 'python3'] + list((copy / 'lib-dynload').glob('*.so')):
        for other in libraries(path):
            (root / os.path.dirname(other).lstrip('/')).mkdir(parents=True, exist_ok=True)
            shutil.copy(other, root / other.lstrip('/'))
    ramgate = HERE.parent / 'ramgate'
    shutil.copytree(ramgate, root / 'ramgate', ignore=shutil.ignore_patterns('__pycache__'))
    shutil.copy(__file__, root)
    for source, program in ((HERE / 'occupy.c', 'bin/occupy'), (ramgate / 'compiler_wrapper.c', 'wrapper')):
        subprocess.run(['cc', '-O1', '-w', '-static', '-o', root / program, source], check=True)


def outside(kernel):
    """Start the machine and show what it says."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / 'root'
        fill(root)
        files = subprocess.run(['find', '.'], cwd=root, stdout=subprocess.PIPE, check=True).stdout
        with open(Path(directory) / 'files', 'wb') as archive:
            subprocess.run(['busybox', 'cpio', '-o', '-H', 'newc'], cwd=root, input=files, stdout=archive, check=True,
                           stderr=subprocess.DEVNULL)
        # a busy host gives the machine's timer no time to be checked in
        return subprocess.call(
            ['qemu-system-x86_64', '-machine', 'pc,accel=tcg', '-cpu', 'max', '-m', '1200', '-smp', '1', '-nographic',
             '-no-reboot', '-nodefaults', '-serial', 'stdio', '-kernel', kernel, '-initrd', archive.name, '-append',
             'console=ttyS0 psi=1 quiet panic=-1 no_timer_check'] + os.environ.get('QEMU_OPTIONS', '').split())


# --- inside -----------------------------------------------------------------------------------------------------------

def write(path, text):
    """Write one setting of a cgroup."""
    with open(os.path.join(TOP, path), 'w') as file:
        file.write(str(text))


def read(path):
    """Read one setting of a cgroup."""
    with open(os.path.join(TOP, path)) as file:
        return file.read()


def group(name, **settings):
    """A new one, with the memory controller for those in it."""
    os.makedirs(os.path.join(TOP, name))
    for key, value in settings.items():
        write('%s/memory.%s' % (name, key.replace('_', '.')), value)
    return name


def start(name, command):
    """A build in a cgroup, in a session of its own; (exit status, what it said, seconds)."""
    def enter():
        write(name + '/cgroup.procs', os.getpid())

    begin = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=enter, text=True,
                          start_new_session=True)
    return done.returncode, done.stdout, time.monotonic() - begin


def build(jobs, megabytes, tool='occupy'):
    """A build tool and its jobs: each grows to so much within a second or two, and stays there for as long."""
    lines = '\n'.join('/tmp/%d.o - 2:%d 4:%d' % (job, megabytes * 1024, megabytes * 1024) for job in range(jobs))
    with open('/tmp/jobs', 'w') as file:
        file.write(lines + '\n')
    return ['sh', '-c', 'xargs -P 8 -n 4 %s </tmp/jobs && echo complete' % tool]


def under_ramgate(command):
    """The same, within the memory."""
    return ['python3', '-m', 'ramgate', 'run', '--jobs', '8', '--'] + command


def events(name):
    """The counters of memory.events that are not 0."""
    words = read(name + '/memory.events').split()
    return ' '.join('%s=%s' % pair for pair in zip(words[::2], words[1::2]) if pair[1] != '0')


def tell(what, name, found):
    """Print a line for each."""
    status, output, seconds = found
    print('%s: exit status %d, %.0f s, %s; memory.events: %s; peak %d MB' % (
        what, status, seconds, 'complete' if 'complete' in output else 'NOT complete', events(name),
        int(read(name + '/memory.peak')) // MB), flush=True)
    for line in output.splitlines():
        if 'ramgate' in line:
            print('    ' + line, flush=True)


def inside():
    """Run the builds in the machine, and print what came of each."""
    print('Linux', os.uname().release, flush=True)
    write('cgroup.subtree_control', '+memory')
    group('user', max=200 * MB)
    write('user/cgroup.subtree_control', '+memory')
    name = group('user/session')
    looked = ('from ramgate.limits import Limits; l = Limits(); c = l.tightest(0); '
              'print("limit up the tree:", c.limit >> 20, "MB", c.name)')
    print(start(name, ['python3', '-c', looked])[1], end='', flush=True)
    # the kernel kills single jobs
    tell('plain, 8 x 50 MB in 200', name, start(name, build(12, 50)))
    name = group('user/ours')
    tell('ramgate, 8 x 50 MB in 200', name, start(name, under_ramgate(build(12, 50, 'ramgate-cc occupy'))))
    # a group kill takes the build tool with it
    name = group('together', max=200 * MB, oom_group=1)
    tell('plain, memory.oom.group', name, start(name, build(12, 50)))
    name = group('together2', max=200 * MB, oom_group=1)
    tell('ramgate, memory.oom.group', name, start(name, under_ramgate(build(12, 50, 'ramgate-cc occupy'))))
    # above memory.high nobody is killed, and everybody is slowed down
    name = group('high', high=150 * MB)
    tell('ramgate, memory.high', name, start(name, under_ramgate(build(12, 50, 'ramgate-cc occupy'))))
    print('pressure:', read(name + '/memory.pressure').replace('\n', '; '), flush=True)
    name = group('high2', high=150 * MB)
    tell('plain, memory.high', name, start(name, ['timeout', '120'] + build(12, 50)))
    print('pressure:', read(name + '/memory.pressure').replace('\n', '; '), flush=True)


if __name__ == '__main__':
    sys.exit(outside(sys.argv[1]) if len(sys.argv) > 1 else inside())
