"""
What Frontier's users do, on a Slurm with nodes like Frontier's: the module installed with Frontier's easyconfig on the
stand-in, PyTorch's CPU wheel in place of the ROCm one.
"""
import os
import random
import re
import signal
import subprocess
import time

import pytest
from batch_systems.real_slurm import wait_for

from frontier.frontier_site import MODULE, site

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

# as the page starts it, with fewer ranks; timeouts, as srun waits for ever for what cannot be
SRUN = 'timeout 1500 srun -N2 -n4 --ntasks-per-node=2 -c7 --export=ALL '
TRAIN = '$EBROOTPYTORCH/examples/train.py '
FREE_PORT = '''
free_port() { python -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }
'''
SHOW = """
import os, torch.distributed as dist
dist.init_process_group('gloo')
names = 'RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT NCCL_SOCKET_IFNAME SLURM_JOB_ID'.split()
os.write(1, ('rank ' + ' '.join(os.environ[name] for name in names) + '\\n').encode())
dist.barrier()
dist.destroy_process_group()
"""


def weights(output):
    """The fingerprint that the training prints at its end."""
    found = re.findall(r'trained on (\d+) ranks \(cpu\); weights (\w{16})', output)
    assert len(found) == 1, output
    return found[0]


def ranks(output):
    """What SHOW printed, by rank."""
    found = {int(line.split()[1]): line.split()[2:] for line in output.splitlines() if line.startswith('rank ')}
    assert sorted(found) == [0, 1, 2, 3], output
    return found


def test_module(frontier):
    """Settings, advice and harmless warnings are told; mpi4py belongs to cray-mpich."""
    output = frontier.run("""
        module help PyTorch 2>&1
        echo "interface $NCCL_SOCKET_IFNAME"
        pytorch-check import gloo mpi4py
        pytorch-check plugin
        ldd "$EBROOTPYTORCH"/lib/python3*/site-packages/mpi4py/MPI*.so
    """)
    for words in ('interface hsn0', 'NCCL_NET_GDR_LEVEL=3', 'NCCL_CROSS_NIC=1', 'errno: 97',
                  'HF_DATASETS_CACHE', 'import   works', 'gloo     works', 'mpi4py   works',
                  'plugin   FAILS', 'nccl was left out: it needs GPUs'):
        assert words in output, words + '\n' + output
    assert re.search(r'libmpich?\.so', output)


def test_mpi_backend():
    """It is built for cray-mpich, too, as the easyconfig has it."""
    with site() as frontier:
        frontier.install(mpi=True)
        output = frontier.run('echo "GPU MPI $MPICH_GPU_SUPPORT_ENABLED"; pytorch-check mpi')
        assert 'GPU MPI 1' in output and 'mpi      works' in output


def test_two_nodes(frontier, tmp_path):
    """A user's script that knows nothing of Slurm."""
    (tmp_path / 'show.py').write_text(SHOW)
    output = frontier.run('%s --exclusive pytorch-srun %s/show.py' % (SRUN, tmp_path))
    found = ranks(output)
    assert [rank[:3] for _, rank in sorted(found.items())] == [['4', '0', '2'], ['4', '1', '2']] * 2
    assert {tuple(rank[3:6]) for rank in found.values()} == {(*found[0][3:5], 'hsn0')}
    assert found[0][3] in frontier.slurm.nodes


def test_two_jobs_on_the_same_nodes(frontier, tmp_path):
    """At the same time; they do not meet."""
    (tmp_path / 'show.py').write_text(SHOW)
    output = frontier.run("""
        nodes=$(sinfo -h -N -o %%N | sort -u | head -2 | paste -sd,)
        show() { %s -w "$nodes" pytorch-srun %s/show.py; }
        show > %s/first & first=$!
        show > %s/second & second=$!
        wait "$first" && wait "$second"; echo "status $?"
    """ % (SRUN, tmp_path, tmp_path, tmp_path))
    assert 'status 0' in output, output
    first, second = [ranks((tmp_path / name).read_text()) for name in ('first', 'second')]
    assert first[0][3] == second[0][3] and first[0][4] != second[0][4]
    assert len({rank[6] for rank in first.values()} | {rank[6] for rank in second.values()}) == 2


def test_torchrun_in_srun(frontier):
    """Says what to do instead, and starts nothing."""
    output = frontier.run(SRUN + 'torchrun --nproc-per-node=2 train.py', status=None)
    assert 'pytorch-srun PROGRAM' in output and 'Traceback' not in output


@pytest.mark.parametrize('times', [1, 20])
def test_killed_again_and_again(frontier, tmp_path, times):
    """Killed in mid-epoch: the end is the same as undisturbed. A rank on each node will do."""
    run = SRUN.replace('-n4 --ntasks-per-node=2', '-n2 --ntasks-per-node=1')
    options = '--epochs %d --samples 4096 --batch-size 16 --save-every 8 --snapshots ' % (2 + times // 2)
    expected = weights(frontier.run('%s pytorch-srun %s %s' % (run, TRAIN, options + str(tmp_path / 'undisturbed'))))
    snapshots = tmp_path / 'snapshots'
    chance = random.Random(1)
    script = 'exec %s pytorch-srun %s %s' % (run, TRAIN, options + str(snapshots))
    kills = 0
    while kills < times:
        known = newest(snapshots)
        output = tmp_path / 'output'
        with output.open('w') as handle:
            training = start(frontier, script, handle)
            # it is at work when there is a new snapshot, and a moment later anywhere between two of them
            wait_for(lambda: newest(snapshots) != known or training.poll() is not None, "a snapshot", 1500)
            time.sleep(chance.uniform(0, 0.05))
            kill_a_rank(frontier, snapshots, chance)
            status = training.wait(1500)
        assert status != 0, "it came to its end after %d kills: make it longer\n%s" % (kills, output.read_text())
        kills += 1
    final = frontier.run('%s pytorch-srun %s %s' % (run, TRAIN, options + str(snapshots)))
    assert 'resuming after step' in final
    assert weights(final) == expected == ('2', expected[1])


def newest(snapshots):
    """The name of the newest snapshot."""
    names = sorted(path.name for path in snapshots.glob('snapshot-*.pt')) if snapshots.is_dir() else []
    return names[-1] if names else None


def start(frontier, script, output):
    """Start a script as frontier.run does, without waiting for it."""
    load = 'source /usr/share/lmod/lmod/init/bash\nmodule use %s %s\nmodule load %s\n' % (
        frontier.system_modules, frontier.eb.modules, MODULE)
    environment = dict({'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', 'HOME': str(frontier.directory)},
                       **frontier.slurm.environment)
    return subprocess.Popen(['bash', '-c', load + script], env=environment, cwd=frontier.directory,
                            stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def kill_a_rank(frontier, snapshots, chance):
    """One of the ranks of this training, at random, with a signal that nobody can catch; Slurm then ends the others."""
    found = []
    for name in os.listdir('/proc'):
        try:
            with open('/proc/%s/cmdline' % name, 'rb') as handle:
                words = handle.read().decode(errors='replace').split('\0')
        except OSError:
            continue
        if words[0] == 'python' and str(snapshots) in words:
            found.append(int(name))
    if found:
        os.kill(chance.choice(found), signal.SIGKILL)


def test_damaged_snapshot(frontier, tmp_path):
    """A snapshot that cannot be read is not used; half-written ones are written again."""
    snapshots = tmp_path / 'snapshots'
    run = 'MASTER_ADDR=127.0.0.1 RANK=0 WORLD_SIZE=1 GLOO_SOCKET_IFNAME=lo python %s --samples 512 --save-every 4 ' \
          '--snapshots %s --epochs ' % (TRAIN, snapshots)
    port = FREE_PORT + 'export MASTER_PORT=$(free_port)\n'
    frontier.run(port + run + '1')
    first, last = sorted(snapshots.iterdir())
    last.write_bytes(last.read_bytes()[:-1])
    (snapshots / '.snapshot').write_text('half')
    output = frontier.run(port + run + '1')
    assert '%s is damaged' % last in output and str(first) in output
    assert not (snapshots / '.snapshot').exists()


def test_job_script(frontier, tmp_path):
    """The job script that pytorch-jobscript writes, as it is but for the stand-in's modules."""
    output, job = tmp_path / 'output', tmp_path / 'job'
    frontier.run("""
        pytorch-jobscript --nodes 2 --time 5 --account project --ranks-per-node 1 \\
            $EBROOTPYTORCH/examples/train.py --epochs 1 --snapshots %s/s > %s
        sed -i 's|^module use |source /usr/share/lmod/lmod/init/bash; module use %s |' %s
        job=$(sbatch --parsable --get-user-env=0 -o %s %s)
        until [ -z "$(squeue -h -j "$job" 2>/dev/null)" ]; do sleep 0.2; done
    """ % (tmp_path, job, frontier.system_modules, job, output, job), env={'MASTER_PORT': ''})
    text = output.read_text()
    assert 'trained on 2 ranks' in text, text + job.read_text()


def test_staged(frontier, tmp_path):
    """A job on two nodes with sbcast: what it touches of the shared path is at most a tenth."""
    traces = tmp_path / 'traces'
    traces.mkdir()
    trace = 'strace -f -e trace=file -o %s/%s-$SLURM_PROCID python -c "import torch"'
    job = tmp_path / 'job'
    job.write_text("""#!/bin/bash
        set -e
        unset SLURM_EXPORT_ENV
        source /usr/share/lmod/lmod/init/bash
        module use {system} {own}
        module load {module}
        import() {{ srun -N2 -n2 --ntasks-per-node=1 bash -c "$1"; }}
        import '{before}'
        export PYTORCH_LOCAL_DIR={local}
        staged=$(pytorch-stage)
        eval "$staged"
        import '{after}'
        srun -N2 -n4 -c1 pytorch-srun "$EBROOTPYTORCH/examples/train.py" --epochs 1 --snapshots {here}/s
        echo finished
    """.format(system=frontier.system_modules, own=frontier.eb.modules, module=MODULE, local=tmp_path / 'disk',
               before=trace % (traces, 'before'), after=trace % (traces, 'after'), here=tmp_path))
    (tmp_path / 'disk').mkdir()
    output = tmp_path / 'output'
    frontier.run("""
        job=$(sbatch --parsable -N2 --ntasks-per-node=2 --export=NONE --get-user-env=0 -o %s %s)
        until [ -z "$(squeue -h -j "$job" 2>/dev/null)" ]; do sleep 0.2; done
    """ % (output, job))
    text = output.read_text()
    assert 'finished' in text, text
    assert 'each node reads' not in text
    counts = {name: sum(str(frontier.root) in line for path in traces.glob(name + '-*') for line in path.open())
              for name in ('before', 'after')}
    assert counts['before'] > 1000
    assert counts['after'] <= counts['before'] / 10, counts
