"""ReFrame's settings made from systems/, pasted into a site's own."""
import subprocess

import pytest
from checks.small_module import small_module
from common import CHECKOUT, LMOD, clean_environment

from hpc_pytorch.jobs import reframe_settings
from hpc_pytorch.machine import batch_systems, systems

REFRAME = CHECKOUT / '.venv-checks/bin/reframe'
# what a job on two nodes asks for, and how it starts its ranks
HEADERS = {
    'archer2': ['#SBATCH --ntasks=2', '#SBATCH --ntasks-per-node=1', '#SBATCH --partition=standard',
                '#SBATCH --qos=standard', '#SBATCH --account=project', '#SBATCH --hint=nomultithread',
                '#SBATCH --distribution=block:block', 'srun --cpus-per-task=128'],
    'bede': ['#SBATCH --gres=gpu:1', '#SBATCH --partition=gh', 'mpirun -np 2 --map-by ppr:1:node --bind-to none'],
    'derecho': ['#PBS -l select=2:mpiprocs=4:ncpus=64:ngpus=4', '#PBS -q main', '#PBS -A project',
                '#PBS -l place=scatter:excl',
                'mpiexec -n 8 --ppn 4 --cpu-bind numa'],
    'frontier': ['#SBATCH --ntasks=16', '#SBATCH --gpus-per-node=8', '#SBATCH --cpus-per-task=7',
                 '--cpus-per-task=7 --gpus-per-node=8 --gpu-bind=none', 'unset SLURM_EXPORT_ENV', 'SLURM_{CONSTRAINT,'],
    'isambard-ai': ['#SBATCH --ntasks=8', '#SBATCH --gpus-per-node=4', '#SBATCH --network=disable_rdzv_get',
                    '--cpus-per-task=72 --gpus-per-node=4 --gpu-bind=none'],
    'lumi': ['#SBATCH --partition=standard-g', '#SBATCH --mem-per-gpu=60G', '--gpus-per-node=8 --gpu-bind=none'],
}


@pytest.fixture(scope='module')
def module():
    """One module for all systems."""
    with small_module() as module:
        # makes ReFrame's environment, too
        module.check('--name=import')
        module.promise("dependencies = [('aws-ofi-nccl', '1.21.1', '-Small')]\n")
        yield module


@pytest.mark.slow
@pytest.mark.parametrize('name', systems.names())
def test_beside_a_sites_own_checks(module, tmp_path, name):
    """The partition is pasted into a site's settings, and its own ReFrame makes the job scripts."""
    system = systems.load(name)
    account = {system.scheduler['account_variable']: 'project'} if system.scheduler['account_variable'] else {}
    text = module.eb('--check', '--settings', env=dict(account, HPC_SYSTEM=name)).stdout
    scope = {}
    exec(text[text.index('# made by'):].split('\n\n')[0], scope)
    own = {'systems': [{'name': 'mine', 'hostnames': ['.*'], 'modules_system': 'lmod',
                        'partitions': scope['site_configuration']['systems'][0]['partitions']}]}
    (tmp_path / 'mine.py').write_text('site_configuration = %r' % own)
    done = subprocess.run(
        [REFRAME, '-C', tmp_path / 'mine.py', '-c', CHECKOUT / 'hpc_pytorch/reframe', '--prefix', tmp_path, '--dry-run',
         '-n', 'train|probe=plugin'], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path,
        env=dict(clean_environment(), MODULEPATH=str(module.eb.modules), LMOD_CMD=LMOD))
    assert done.returncode == 0 and 'PASSED' in done.stdout, done.stdout
    scripts = [path.read_text() for path in tmp_path.glob('stage/mine/compute/builtin/SpeedCheck*/rfm_job.sh')]
    assert len(scripts) == (1 if name == 'workstation' else 3)
    expected = HEADERS.get(name, ['mpiexec -n 1 pytorch-srun'])
    assert any(all(line in text for line in expected) for text in scripts), scripts
    # the plugin: a process on each of two nodes, with GPUs, as the line to type on the page has it
    plugin, = [path.read_text() for path in tmp_path.glob('stage/mine/compute/builtin/WorksCheck*/rfm_job.sh')]
    gpus = [line for line in expected if 'gpu' in line and line.startswith('#SBATCH --g')]
    assert all(line in plugin for line in gpus), plugin
    if system.scheduler['kind'] == 'slurm':
        words = ['#SBATCH --ntasks=2\n', '#SBATCH --ntasks-per-node=1\n', system.launcher['command'] + ' ']
        assert all(word in plugin for word in words), plugin
    elif system.scheduler['kind'] == 'pbs':
        assert 'select=2:mpiprocs=1:' in plugin and ':ngpus=4' in plugin and 'mpiexec -n 2 --ppn 1' in plugin, plugin


@pytest.mark.slow
def test_names_of_modules_tools(module, modules_tool, tmp_path):
    """ReFrame warned of a name that it will not know for long."""
    environ = dict(modules_tool.for_easybuild, HPC_SYSTEM='workstation')
    text = module.eb('--check', '--settings', env=environ).stdout
    (tmp_path / 'settings.py').write_text(text[text.index('# made by'):])
    done = subprocess.run(
        [REFRAME, '-C', 'settings.py', '-c', CHECKOUT / 'hpc_pytorch/reframe', '--list'], text=True, cwd=tmp_path,
        env=dict(clean_environment(), LMOD_CMD=LMOD, **environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and 'deprecated' not in done.stdout, done.stdout


def test_gpus_that_slurm_does_not_count():
    """At many sites whose jobs have whole nodes; Slurm would refuse what asks for GPUs there."""
    system = systems.load('isambard-ai')
    assert '--gpus-per-node=4' in reframe_settings.binding(system)
    system.scheduler['gpus_option'] = None
    assert 'gpu' not in reframe_settings.binding(system)
    request = batch_systems.Request._make([None] * len(batch_systems.Request._fields))
    request = request._replace(cores=4, minutes=5, gpus=4, options=[], refused=[])
    slurm = batch_systems.SCHEDULERS['slurm']
    assert 'gpu' not in ' '.join(slurm.command(request, 'name', 'mark', 'log', []))
    assert '--gres=gpu:4' in slurm.command(request._replace(gpus_option='--gres=gpu:'), 'name', 'mark', 'log', [])


def test_launcher_of_mpich():
    """ReFrame knows it as mpiexec; the options are those of MPICH's."""
    system = systems.load('derecho')
    system.launcher.update(command='mpiexec.hydra', gpu_options=[])
    found = reframe_settings.partition(system)
    assert found['launcher'] == 'mpiexec'
    assert found['extras']['hpc_pytorch']['binding'] == '-ppn {per_node} -bind-to none'


def test_options_of_two_words():
    """ReFrame writes each entry into a line of the script, and puts words without dashes behind select=."""
    system = systems.load('derecho')
    system.scheduler['options'] = ['-P', 'ours', '-W', 'group_list=us']
    assert reframe_settings.partition(system)['access'][-2:] == ['-P ours', '-W group_list=us']


def test_memory_on_nodes_of_pbs_that_are_shared():
    """Many sites give little to jobs that ask for none, or refuse them; whole nodes have theirs."""
    system = systems.load('derecho')
    assert 'mem=' not in str(reframe_settings.partition(system)['access'])
    system.scheduler['nodes_exclusive'] = None
    # nine tenths of 512 GiB; ReFrame puts words without dashes behind select=
    assert 'mem=471859mb' in reframe_settings.partition(system)['access']
