"""What users train with, on two nodes of a real Slurm: what it takes the ranks for, and the examples."""
import json
import os
import re
import resource
import runpy
import shutil
import signal
import socket
import subprocess
import textwrap
from functools import partial
from pathlib import Path

import pytest
from batch_systems.real_slurm import Slurm, wait_for
from common import CHECKOUT, clean_environment, needs_root
from torch_mpi.tests.mpi_installation import kept_venv, make_venv_of_trainers

pytestmark = pytest.mark.slow
EXAMPLES = CHECKOUT / 'hpc_pytorch/scripts/examples'
# beside PyTorch; not DeepSpeed, which compiles when it is used on CPUs
PACKAGES = ('accelerate==1.15.0', 'lightning==2.6.6')
# What each takes this rank for, in one process group that the others find: its rank, that on the node, the node's; and
# how many there are of each.
IDENTITY = """
import os, sys, logging
logging.disable(logging.INFO)
import torch.distributed as dist
found = {}
dist.init_process_group('gloo')
found['plain'] = [dist.get_rank(), os.environ['LOCAL_RANK'], os.environ['GROUP_RANK'], dist.get_world_size(),
                  os.environ['LOCAL_WORLD_SIZE'], os.environ['GROUP_WORLD_SIZE']]
import lightning
trainer = lightning.Trainer(accelerator='cpu', num_nodes=int(os.environ['GROUP_WORLD_SIZE']),
                            devices=int(os.environ['LOCAL_WORLD_SIZE']), strategy='ddp', logger=False,
                            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.strategy.setup_environment()
found['lightning'] = [trainer.global_rank, trainer.local_rank, trainer.node_rank, trainer.world_size,
                      trainer.num_devices, trainer.num_nodes]
from accelerate import PartialState
state = PartialState(cpu=True)
found['accelerate'] = [state.process_index, state.local_process_index, None, state.num_processes]
for name, words in found.items():
    os.write(1, ('%s says %s\\n' % (name, ' '.join(map(str, words)))).encode())
dist.barrier()
dist.destroy_process_group()
"""


class Cluster:
    """Two nodes, with PyTorch and the rest in the module's place."""

    def __init__(self, directory, slurm):
        self.directory, self.slurm = directory, slurm
        (directory / 'bin').mkdir()
        for name in ('pytorch-srun', 'get-master'):
            shutil.copy(CHECKOUT / 'hpc_pytorch/scripts' / name, directory / 'bin')
        self.use(kept_venv())

    def use(self, python):
        """Have this Python in the place of the module's."""
        self.path = '%s:%s' % (self.directory / 'bin', os.path.dirname(python))

    def start(self, options, *arguments):
        """Start a program on the nodes."""
        environment = dict(clean_environment(), HOME=str(self.directory), **self.slurm.environment)
        environment['PATH'] = '%s:%s' % (self.path, environment['PATH'])
        return subprocess.Popen(['srun', *options.split(), '-c1', 'pytorch-srun', *map(str, arguments)], text=True,
                                env=environment, cwd=self.directory, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, options, *arguments, status=0):
        """Run it to its end; returns what it printed."""
        running = self.start(options, *arguments)
        output = running.communicate(timeout=1500)[0]
        assert running.returncode == status, output
        return output

    def told_to_leave(self, options, *arguments, there):
        """Run it until something is there, then tell one rank; returns what it printed."""
        running = self.start(options, *arguments)
        wait_for(lambda: there() or running.poll() is not None, "a checkpoint", 1500)
        for name in filter(str.isdigit, os.listdir('/proc')):
            try:
                words = Path('/proc', name, 'cmdline').read_bytes().decode(errors='replace').split('\0')
            except OSError:
                continue
            if words[0] == 'python' and str(arguments[-1]) in words:
                os.kill(int(name), signal.SIGUSR1)
                break
        output = running.communicate(timeout=1500)[0]
        assert running.returncode == 85, output
        return output


@pytest.fixture(scope='module')
def cluster(tmp_path_factory):
    """Two nodes."""
    needs_root()
    directory = tmp_path_factory.mktemp('training')
    with Slurm(directory / 'slurm', nodes=2, memory=8192) as slurm:
        yield Cluster(directory, slurm)


def test_as_torchrun(cluster):
    """All that torchrun sets on two nodes with three ranks and one, compared with torchrun's own."""
    # each rank into a file of its own: srun breaks long lines, and puts other ranks' between the parts
    show = cluster.directory / 'show.py'
    show.write_text('import json, os, sys\n'
                    'with open(os.path.join(sys.argv[1], os.environ["RANK"]), "x") as shown:\n'
                    '    json.dump(dict(os.environ), shown)\n')
    theirs, ours = cluster.directory / 'theirs', cluster.directory / 'ours'
    theirs.mkdir()
    ours.mkdir()
    python = Path(cluster.path.split(':')[1], 'python')
    with socket.create_server(('127.0.0.1', 0)) as free:
        port = free.getsockname()[1]
    before = clean_environment()
    torchrun = [python, '-m', 'torch.distributed.run', '--nnodes=2', '--master-addr=127.0.0.1',
                '--master-port=%d' % port]
    groups = [subprocess.Popen([*torchrun, '--node-rank=%d' % node, '--nproc-per-node=%d' % ranks, show, theirs],
                               env=before) for node, ranks in enumerate((3, 1))]
    assert [group.wait(1500) for group in groups] == [0, 0]
    cluster.run('-N2 -n4 -m plane=3', show, ours)
    # where they meet, what torchrun does beside starting them, and the cores of a rank
    own = {'MASTER_ADDR', 'MASTER_PORT', 'TORCHELASTIC_RUN_ID', 'TORCHELASTIC_USE_AGENT_STORE', 'OMP_NUM_THREADS',
           'TORCHELASTIC_ERROR_FILE', 'TORCHELASTIC_SIGNALS_TO_HANDLE', 'TORCHELASTIC_HEALTH_CHECK_PORT'}
    assert sorted(os.listdir(theirs)) == sorted(os.listdir(ours)) == ['0', '1', '2', '3']
    for rank in os.listdir(theirs):
        environment, found = json.loads((theirs / rank).read_text()), json.loads((ours / rank).read_text())
        added = {name: value for name, value in environment.items() if before.get(name) != value and name not in own}
        assert {'RANK', 'GROUP_WORLD_SIZE', 'ROLE_NAME'} <= set(added)
        assert added == {name: found.get(name) for name in added}


def test_more_ranks_than_open_files(cluster):
    """
    A store of few open files resets further connections: pytorch-srun raises the limit.

    The usual limit is 1,024. The store looks each client's name up, which takes 0.1 s where no name server answers.
    """
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    done = subprocess.run([cluster.directory / 'bin/pytorch-srun', Path(__file__).with_name('many_clients.py'), '100'],
                          env=dict(clean_environment(), OMPI_COMM_WORLD_RANK='0', OMPI_COMM_WORLD_SIZE='1',
                                   OMPI_COMM_WORLD_LOCAL_RANK='0', OMPI_COMM_WORLD_LOCAL_SIZE='1',
                                   PATH='%s:%s' % (cluster.path, os.environ['PATH'])),
                          preexec_fn=few, timeout=1500, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.stdout.endswith('served 100\n'), done.stdout


@pytest.mark.nightly
def test_identity(cluster):
    """All agree who a rank is."""
    cluster.use(kept_venv('training', partial(make_venv_of_trainers, packages=PACKAGES)))
    (cluster.directory / 'identity.py').write_text(IDENTITY)
    output = cluster.run('-N2 -n4 --ntasks-per-node=2', 'identity.py')
    for name, known in (('plain', 6), ('lightning', 6), ('accelerate', 4)):
        found = sorted(re.findall('^%s says (.*)$' % name, output, re.M))
        expected = [[str(rank), str(rank % 2), str(rank // 2), '4', '2', '2'][:known] for rank in range(4)]
        for words in expected:
            words[2] = words[2] if known == 6 else 'None'
        assert found == [' '.join(words) for words in expected], output


# each start trains for one epoch, of 100 steps
LIGHTNING = """
import os
import lightning, torch
from lightning.pytorch.callbacks import ModelCheckpoint
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
    def training_step(self, batch, number):
        return self.layer(batch[0]).square().mean()
    def on_train_start(self):
        os.write(1, b'begins at step %d\\n' % self.global_step)
    def on_train_epoch_end(self):
        self.trainer.should_stop = True
model = Model()
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(200, 1)))
"""


@pytest.mark.nightly
def test_lightning_resumes(cluster):
    """The lines of the page for researchers, started twice."""
    cluster.use(kept_venv('training', partial(make_venv_of_trainers, packages=PACKAGES)))
    page = (CHECKOUT / 'docs/researchers.rst').read_text()
    lines = re.search(r'Lightning resumes.*?code-block:: python\n\n(.*?)\n\n\S', page, re.S).group(1)
    (cluster.directory / 'resumes.py').write_text(LIGHTNING + textwrap.dedent(lines))
    for step in (0, 100):
        output = cluster.run('-N2 -n2', 'resumes.py')
        assert output.count('begins at step %d\n' % step) == 2, output


# Rank 1 leaves out the third of its collectives. NCCL's watchdog, which would write what the recorder knows when time
# is up, needs GPUs: the ranks write it themselves, where it would.
LEFT_OUT = """
import datetime, os
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=5))
rank = dist.get_rank()
for number in range(3):
    if (rank, number) != (1, 2):
        try:
            dist.all_reduce(torch.ones(4))
        except RuntimeError:
            print('waited in vain')
with open(os.environ['TORCH_FR_DUMP_TEMP_FILE'] + str(rank), 'wb') as dump:
    dump.write(_dump_fr_trace())
os._exit(1)
"""


def test_flight_recorder(cluster):
    """pytorch-srun switches PyTorch's own recorder on, and pytorch-run says what it knows."""
    (cluster.directory / 'left_out.py').write_text(LEFT_OUT)
    outputs = cluster.directory / 'outputs'
    outputs.mkdir()
    told = 'HPC_RANK_OUTPUTS=%s,EBVERSIONPYTORCH=2.13.0' % outputs
    cluster.run('-N2 -n2 --export=ALL,' + told, 'left_out.py', status=1)
    # those with a dot are pytorch-srun's own
    names = sorted(path.name for path in outputs.glob('[!.]*'))
    assert names == ['nccl-trace-0', 'nccl-trace-1', 'rank-0.out', 'rank-1.out']
    told = runpy.run_path(str(CHECKOUT / 'hpc_pytorch/share/endings.py'))['missed_collectives'](str(outputs))
    assert list(told) == ["rank 1 did not reach collective 3 of default_pg, all_reduce; rank 0 waited in it, at %s, "
                          "line 10" % (cluster.directory / 'left_out.py')]


def losses(output):
    """The lines of the loss curve."""
    return re.findall(r'^step \d+, loss .*$', output, re.M)


@pytest.mark.nightly
def test_fsdp(cluster, tmp_path):
    """Told to leave on two nodes, it goes on on one: its losses are those of an undisturbed run."""
    train = [EXAMPLES / 'train_fsdp.py', '--save-every', '10', '--steps']
    left = cluster.told_to_leave('-N2 -n2', *train, 5000, '--checkpoints', tmp_path / 'a',
                                 there=lambda: list(tmp_path.glob('a/step-*/.metadata')))
    begun = losses(left)
    steps = int(begun[-1].split()[1].rstrip(',')) + 20
    gone_on = cluster.run('-N1 -n1', *train, steps, '--checkpoints', tmp_path / 'a')
    assert 'resuming after step %d, on 1 ranks' % (steps - 20) in gone_on
    undisturbed = losses(cluster.run('-N2 -n2', *train, steps, '--checkpoints', tmp_path / 'b'))
    numbers = [[float(line.split()[-1]) for line in lines] for lines in (begun + losses(gone_on), undisturbed)]
    # on another number of ranks numbers are added up in another order
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-3) and len(numbers[1]) == steps // 10
    assert numbers[1][-1] < 0.9 * numbers[1][0]
    assert len(list(tmp_path.glob('b/step-*'))) <= 3


def test_short():
    """Each can be read in one go, and knows nothing of a batch system."""
    for path in EXAMPLES.glob('*_*.py'):
        text = path.read_text()
        assert text.count('\n') < 150 and 'SLURM' not in text and 'PBS' not in text, path.name
