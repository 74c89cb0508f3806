"""
What runs on Bede's Arm nodes besides EasyBuild, run for aarch64 by qemu-user: ramgate with its compiler wrapper, and
the run scripts. Programs that they start are this machine's: qemu hands their start to the kernel.
"""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from common import CACHE, CHECKOUT

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

QEMU, CROSS = 'qemu-aarch64-static', 'aarch64-linux-gnu-gcc'
AARCH64 = 183       # in the header of a program
SCRIPTS = CHECKOUT / 'hpc_pytorch/scripts'
# A C compiler for aarch64 whose programs this kernel can start: the program, and in its place a script that has qemu
# run it, as an entry in binfmt_misc would.
CC = """#!/usr/bin/env bash
set -euo pipefail
while [ "$1" != -o ]; do options+=("$1"); shift; done
%(cross)s "${options[@]}" "${@:3}" -o "$2.arm"
printf '#!/bin/sh\\nexec %(qemu)s "%%s" "$@"\\n' "$2.arm" > "$2"
chmod +x "$2"
cp "$2.arm" "$WRAPPERS"
"""
# A compiler that is killed the first time, as by the kernel when memory is short.
ONCE = """#!/bin/sh
if [ ! -e tried ]; then
    : > tried
    kill -KILL $$
fi
exec gcc "$@"
"""
NINJA = """rule cc
  command = ramgate-cc $compiler -c $in -o $out
build one.o: cc one.c
  compiler = gcc
build two.o: cc two.c
  compiler = gcc
build three.o: cc three.c
  compiler = ./once
"""


@pytest.fixture(scope='module')
def arm():
    """Starts a program for aarch64: a function from its path in Debian's arm64 packages to the words to run."""
    for program, package in ((QEMU, 'qemu-user-static'), (CROSS, 'g++-aarch64-linux-gnu')):
        assert shutil.which(program), "%s is missing: apt-get install %s" % (program, package)
    root = CACHE / 'arm' / 'root'
    if not root.exists():
        subprocess.run([CHECKOUT / 'tests/bede/make-arm-root', root], check=True)
    return lambda path: [shutil.which(QEMU), '-L', str(root), str(root / path)]


def test_ramgate(arm, tmp_path):
    """`ramgate run` by a Python for aarch64, with the wrapper for aarch64; one compiler is killed, and run again."""
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'wrappers').mkdir()
    for path, text in (('bin/cc', CC % {'cross': CROSS, 'qemu': shutil.which(QEMU)}), ('once', ONCE)):
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    for name in ('one', 'two', 'three'):
        (tmp_path / (name + '.c')).write_text('int %s;\n' % name)
    (tmp_path / 'build.ninja').write_text(NINJA)
    path = os.pathsep.join([str(tmp_path / 'bin'), str(Path(sys.executable).parent), os.environ['PATH']])
    done = subprocess.run(
        arm('usr/bin/python3.11') + ['-m', 'ramgate', 'run', '--jobs', '2', '--report', 'report', '--', 'ninja'],
        env=dict(os.environ, PATH=path, PYTHONPATH=str(CHECKOUT / 'ramgate'), WRAPPERS=str(tmp_path / 'wrappers')),
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=1200)
    assert done.returncode == 0, done.stdout
    assert 'FAILED' not in done.stdout and 'Traceback' not in done.stdout, done.stdout
    assert all((tmp_path / (name + '.o')).stat().st_size for name in ('one', 'two', 'three'))
    wrapper = (tmp_path / 'wrappers' / 'ramgate-cc.arm').read_bytes()
    assert int.from_bytes(wrapper[18:20], 'little') == AARCH64
    report = json.loads((tmp_path / 'report' / 'report.json').read_text())
    retries = {compilation['file']: len(compilation['retries']) for compilation in report['compilations']}
    assert retries == {'one.o': 0, 'two.o': 0, 'three.o': 1}


@pytest.fixture
def scripts(tmp_path):
    """The run scripts as a module has them, beside a `python` that shows what it is called with."""
    for name in ('pytorch-srun', 'torchrun', 'get-master'):
        shutil.copy(SCRIPTS / name, tmp_path)
    python = tmp_path / 'python'
    python.write_text('#!/bin/sh\necho "$RANK of $WORLD_SIZE at $MASTER_ADDR:" "$@"\n')
    python.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize('words, variables, says', [
    (['get-master', 'gh[001-002,007]'], {}, ['gh001']),
    (['pytorch-srun', 'train.py', '-v'],
     {'SLURM_PROCID': '1', 'SLURM_STEP_NUM_TASKS': '2', 'SLURM_LOCALID': '0', 'SLURM_NODEID': '1', 'SLURM_JOB_ID': '77',
      'SLURM_STEP_ID': '0', 'SLURM_STEP_TASKS_PER_NODE': '1(x2)', 'SLURM_STEP_NODELIST': 'gh[001-002]',
      'SLURM_JOB_CPUS_PER_NODE': '72(x2)'}, ['1 of 2 at gh001: train.py -v']),
    (['torchrun', '--nproc-per-node=1', 'train.py'], {'RANK': '0', 'WORLD_SIZE': '1', 'MASTER_ADDR': 'here'},
     ['0 of 1 at here: -m torch.distributed.run --nproc-per-node=1 train.py']),
    (['torchrun', 'train.py'], {'SLURM_STEP_ID': '0', 'SLURM_STEP_NUM_TASKS': '2', 'SLURM_STEP_NUM_NODES': '1',
                                'SLURM_PROCID': '0'}, ['srun has started this as task 0 of 2']),
])
def test_run_scripts(arm, scripts, words, variables, says):
    """By a bash for aarch64."""
    done = subprocess.run(arm('bin/bash') + [str(scripts / words[0])] + words[1:],
                          env=dict({'PATH': '%s:/usr/bin:/bin' % scripts, 'TMPDIR': str(scripts)}, **variables),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=60)
    assert done.returncode == (2 if 'srun has' in says[0] else 0), done.stdout
    for line in says:
        assert line in done.stdout, done.stdout
