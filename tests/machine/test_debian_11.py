"""The oldest Linux that is promised: glibc 2.31, Python 3.9, gcc 10, bash 5.1 and an Lmod that is too old (6.6)."""
import fcntl
import os
import re
import shutil
import subprocess

import pytest

from common import CACHE, CHECKOUT, clean_environment, needs_root, stand_in
from hpc_pytorch.stand_ins import make
from torch_mpi.tests.mpi_installation import kept_venv

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

PACKAGES = 'ca-certificates,python3,python3-venv,git,g++,make,libmpich-dev'
# in a mount namespace of its own, so that nothing stays mounted
ENTER = 'mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"; exec chroot "$@"'
STAND_INS = '.local/stand_ins'
# an easyconfig of each system, by its stand-in
REHEARSED = {
    'archer2-2023': 'PyTorch-1.13.1-ARCHER2.eb',
    'bede': 'PyTorch-2.4.0a0-Bede.eb',
    'derecho-2024': 'PyTorch-2.4.0-Derecho.eb',
    'frontier': 'PyTorch-2.10.0-Frontier.eb',
    'lumi': 'PyTorch-2.7.1-rocm-6.2.4-python-3.12-singularity-20250827.eb',
}


@pytest.fixture(scope='module')
def root():
    """A Debian 11, made once, with a copy of the collection that has never been called."""
    needs_root()
    place = CACHE / 'debian-11-mpich'
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(str(place) + '.lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            partial = place.with_name(place.name + '.partial')
            shutil.rmtree(partial, ignore_errors=True)
            subprocess.run(['debootstrap', '--variant=minbase', '--include=' + PACKAGES, 'bullseye', str(partial)],
                           check=True, stdout=subprocess.DEVNULL)
            partial.rename(place)
        collection = place / 'collection'
        shutil.rmtree(collection, ignore_errors=True)
        collection.mkdir()
        files = subprocess.run(['git', 'ls-files', '-z'], cwd=CHECKOUT, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(['tar', 'cf', str(place / 'collection.tar'), '--null', '-T', '-'], cwd=CHECKOUT, check=True,
                       input=files)
        subprocess.run(['tar', 'xf', str(place / 'collection.tar'), '-C', str(collection)], check=True)
        # how this machine reaches the package index
        for name in ('/etc/resolv.conf', '/etc/hosts', '/etc/pip.conf', '/etc/ssl/certs/ca-certificates.crt'):
            if os.path.exists(name):
                shutil.copy(name, str(place) + name)
        yield place


def run(root, *command):
    """What a command prints there."""
    keep = {name: value for name, value in clean_environment().items() if name.startswith(('PIP_', 'http', 'no_proxy'))}
    done = subprocess.run(['unshare', '-m', 'bash', '-c', ENTER, 'bash', str(root), *command],
                          env=dict(keep, HOME='/root', PATH='/usr/sbin:/usr/bin:/sbin:/bin', COLUMNS='1000'),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0 and 'Traceback' not in done.stdout, done.stdout
    return done.stdout


def test_first_call(root):
    """A newer Lmod beside the checkout, where the distribution's is too old; then what it is for."""
    said = run(root, '/collection/eb', 'PyTorch-2.13.0-workstation.eb', '-x')
    assert 'unpacking Lmod' in said and 'DRY RUN' in said
    lmod = '/collection/.local/lmod/usr/share/lmod/lmod'
    said = run(root, 'bash', '-c', 'source %s/init/bash; module --version; module use /tmp; module list' % lmod)
    assert 'Version 8.' in said and 'No modules loaded' in said
    # the second call is satisfied with it
    assert 'unpacking' not in run(root, '/collection/eb', '--version')


def bring_parts(root, state):
    """
    The parts of this machine's stand-in, which are gigabytes to fetch. Links in them lead to programs of that Debian,
    where it has them; a dry run starts none of them but Python, which is that Debian's own.
    """
    stand_in(state)
    for name in make.read_description(state)[0]:
        part = CHECKOUT / STAND_INS / '.parts' / name
        place = root / 'collection' / STAND_INS / '.parts' / name
        if place.exists():
            continue
        if name == 'python':
            run(root, 'python3', '-m', 'venv', '--without-pip', '/%s' % place.relative_to(root))
        else:
            shutil.copytree(part, place, symlinks=True, copy_function=os.link,
                            ignore=shutil.ignore_patterns('.complete'))
        shutil.copy(part / '.complete', place)
        # a part is made again when what it links to is not there
        for link in [path for path in place.rglob('*') if path.is_symlink()]:
            target = os.readlink(link)
            if target.startswith('/') and not (root / target[1:]).exists():
                (root / target[1:]).parent.mkdir(parents=True, exist_ok=True)
                (root / target[1:]).touch()


@pytest.mark.parametrize('state', sorted(REHEARSED))
def test_rehearsal(root, state):
    """Its modules load in their order with the newer Lmod, and the easyblock has looked at all of them."""
    if state != 'lumi':
        # LUMI's needs nothing that a Debian 11 would not have
        bring_parts(root, state)
    said = run(root, '/collection/eb', '--rehearse', REHEARSED[state], '-x')
    system = state.split('-')[0]
    assert 'rehearsing in the test environment of %s: /collection/%s/%s/modules' % (system, STAND_INS, state) in said
    assert 'DRY RUN' in said and 'Build succeeded' in said and 'ignoring error' not in said
    easyconfig = (CHECKOUT / 'easyconfigs/p/PyTorch' / REHEARSED[state]).read_text()
    for module in re.findall(r"\('([^']+)', EXTERNAL_MODULE\)", easyconfig):
        assert re.search('^module load %s$' % re.escape(module), said, re.M), module


def test_ramgate_and_scripts(root):
    """ramgate compiles and runs a build with this gcc; this bash reads every script."""
    (root / 'tmp' / 'build').mkdir(exist_ok=True)
    (root / 'tmp' / 'build' / 'a.c').write_text('int main(void) { return 0; }\n')
    (root / 'tmp' / 'build' / 'Makefile').write_text('a: a.c\n\tgcc -o a a.c\n')
    build = 'cd /tmp/build; rm -f a; PYTHONPATH=/collection/ramgate python3 -m ramgate run --jobs 2 -- make && ./a'
    run(root, 'bash', '-c', build)
    run(root, 'bash', '-c', 'cd /collection; for file in eb hpc_pytorch/scripts/* hpc_pytorch/environments/*; '
                            'do if head -1 $file 2>/dev/null | grep -q bash; then bash -n $file || exit; fi; done')


def test_torch_mpi_compiles(root):
    """With this gcc and this MPI; it is not linked, as the newest PyTorch that this Python could load is older."""
    found = subprocess.run([kept_venv(), '-c', 'import sysconfig, torch; print(torch.__path__[0]); '
                            'print(sysconfig.get_path("include"))'],
                           stdout=subprocess.PIPE, text=True, check=True, env=clean_environment()).stdout.splitlines()
    headers = root / 'tmp' / 'headers'
    shutil.rmtree(headers, ignore_errors=True)
    shutil.copytree(os.path.join(found[0], 'include'), headers / 'torch')
    shutil.copytree(found[1], headers / 'python')
    run(root, 'mpicxx', '-std=c++17', '-Wall', '-fPIC', '-O0', '-c', '-o', '/tmp/all.o', '-I/tmp/headers/torch',
        '-I/tmp/headers/torch/torch/csrc/api/include', '-I/tmp/headers/python', '-DMPICH_SKIP_MPICXX',
        '/collection/torch_mpi/src/all.cpp')
    assert (root / 'tmp' / 'all.o').stat().st_size > 100000
