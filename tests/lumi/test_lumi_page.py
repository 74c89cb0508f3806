"""
What LUMI's users do, on a Slurm with nodes like LUMI's: installed with LUMI's easyconfigs from an image with a real
torch, used by a user who is not root. There are no GPUs; all else is as written in the site's documentation.
"""
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

import pytest
from common import CHECKOUT, ModulesTool
from containers import images as containers
from batch_systems.real_slurm import Slurm, free_ports, wait_for

from lumi.lumi_site import Place

pytestmark = pytest.mark.slow
VERSIONS = ['2.1.0-rocm-5.6.1-python-3.10-singularity-20231123', '2.2.0-rocm-5.6.1-python-3.10-singularity-20240209']
OLD, NEW = ('PyTorch/' + version for version in VERSIONS)


@pytest.fixture(scope='module')
def lumi(apptainer):
    """Both easyconfigs installed, unchanged but for the image's checksum and version; modules of LUMI; scripts."""
    image = containers.torch_image()
    checksum = hashlib.sha256(image.read_bytes()).hexdigest()
    place = Place(tempfile.mkdtemp(prefix='hpc-tests-'))
    try:
        for version in VERSIONS:
            name = 'PyTorch-%s.eb' % version
            text = (CHECKOUT / 'easyconfigs/p/PyTorch' / name).read_text()
            assert len(text.splitlines()) < 30
            assert 'checksums = [None]' in text
            text = text.replace("import_name = 'torch'\n", "import_name = 'torch'\npackage_version = ''\n")
            (place.directory / name).write_text(text.replace('[None]', repr([checksum])))
            shutil.copy(image, place.store / re.search(r"'(lumi-.*\.sif)'", text).group(1))
            place.install(place.directory / name, env={'HPC_SYSTEM': ''})
        place.give_to_user()
        stand_in = place.directory / 'stand_in'
        make = [sys.executable, '-I', CHECKOUT / 'hpc_pytorch/stand_ins/make.py', 'lumi', '--into', stand_in]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        place.system_modules = stand_in / 'modules'
        for path in (CHECKOUT / 'tests/lumi/train.py', CHECKOUT / 'tests/lumi/wget'):
            shutil.copy(path, place.home)
        yield place
    finally:
        place.remove()


@pytest.fixture(scope='module')
def slurm(lumi):
    """Four nodes like LUMI's, as far as Slurm knows."""
    with Slurm(lumi.directory / 'slurm', cpus=64, memory=480 << 10, gpus=8, partitions=('small-g', 'standard-g'),
               exclusive=('standard-g',)) as slurm:
        yield slurm


@pytest.fixture
def user(lumi, slurm):
    """A function that runs a script as the user on the login node, and gives back what it printed."""
    def run(script, status=0):
        # as LUMI's Slurm sets it where there are GPUs; this one takes it away, as it has none
        environment = {'HOME': str(lumi.home), 'USER': lumi.user.pw_name, 'SHELL': '/bin/bash',
                       'SINGULARITYENV_ROCR_VISIBLE_DEVICES': '0,1,2,3,4,5,6,7', **slurm.environment}
        # what a user's profile does
        profile = 'module use %s %s\n' % (lumi.system_modules, lumi.eb.modules)
        return ModulesTool('Lmod').run(profile + script, env=environment, user=lumi.user.pw_uid, extra_groups=[],
                                       group=lumi.user.pw_gid, cwd=lumi.home, timeout=400, status=status)
    run.home = lumi.home
    return run


def ranks(output):
    """What train.py printed, by rank."""
    pattern = r'rank (\d+) of (\d+) on (\S+), local (\d+) of (\d+), port (\d+), nodes (\d+), job (\S+), private (\S+)'
    found = {int(match[0]): match for match in re.findall(pattern, output)}
    assert found, output
    return found


def nothing_left(output):
    """Each rank had a directory, and they are gone."""
    found = ranks(output).values()
    places = {rank[8] for rank in found}
    assert len(places) == len(found)
    assert not any(map(os.path.exists, places))


@pytest.mark.nightly
def test_interactive(user):
    """An interactive session in the container, one task with all GPUs, the variables of the page."""
    output = user(r'''
        module load LUMI %s
        echo "same $([ "$SIF" = "$SIFPYTORCH" ] && [ -f "$SIF" ] && echo yes)"
        scripts=$EBROOTPYTORCH/runscripts
        [ "$RUNSCRIPTS $RUNSCRIPTSPYTORCH" = "$scripts $scripts" ] && echo "scripts yes"
        printf '$WITH_CONDA\npip list\n' | singularity -s shell $SIF 2>&1 | grep -E '^torch '
        ls $RUNSCRIPTS
        printf '%%s\n' "srun -N1 -n1 --gpus 8 singularity -s exec \$SIF /runscripts/conda-python-simple \
            -c 'import torch; print(\"I have this many devices:\", torch.cuda.device_count())'" |
            salloc -N1 -pstandard-g -t 30:00
        cpu-mask
    ''' % OLD)
    for line in ('same yes', 'scripts yes', 'I have this many devices: 0', 'conda-python-distributed', 'get-master'):
        assert line in output.splitlines(), output
    assert re.search(r'^torch +2\.', output, re.M)
    assert '0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,0xfe00000000,0xfe0000000000' in output


def test_two_nodes_and_two_jobs_at_once(user):
    """Four ranks on two nodes, and two on the same nodes at the same time, which they do not meet."""
    output = user('''
        module load LUMI %s
        nodes=$(sinfo -h -N -o %%N | sort -u | head -2 | paste -sd,)
        train() { timeout 300 srun -w "$nodes" -N2 "$@" singularity -s exec $SIFPYTORCH \
                      conda-python-distributed -u train.py --steps 20; }
        train -n4 --ntasks-per-node=2 > first & one=$!
        train -n2 > second & two=$!
        wait $one && wait $two; echo "status $?"
        cat first second
    ''' % NEW)
    assert 'status 0' in output, output
    jobs = {}
    for line in output.splitlines():
        for match in ranks(line).values() if line.startswith('rank ') else []:
            jobs.setdefault(match[7], []).append(match)
    assert len(jobs) == 2, output
    first, second = sorted(jobs.values(), key=len, reverse=True)
    assert sorted((int(match[0]), match[1], match[3], match[4], match[6]) for match in first) == [
        (0, '4', '0', '2', '2'), (1, '4', '1', '2', '2'), (2, '4', '0', '2', '2'), (3, '4', '1', '2', '2')]
    assert sorted((int(match[0]), match[1], match[3]) for match in second) == [(0, '2', '0'), (1, '2', '0')]
    for members in first, second:
        assert len({match[5] for match in members}) == 1
    assert {match[2] for match in first} == {match[2] for match in second}, "both jobs are on the same nodes"
    assert first[0][5] != second[0][5]
    for members in jobs:
        nothing_left('\n'.join(line for line in output.splitlines() if ' job %s,' % members in line))


MASKS = ('0x${c}000000000000,0x${c}00000000000000,0x${c}0000,0x${c}000000,'
         '0x${c},0x${c}00,0x${c}00000000,0x${c}0000000000')
JOB = '''#!/bin/bash -e
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
#SBATCH --tasks-per-node={tasks}
#SBATCH --cpus-per-task=7
#SBATCH --output="output_%x_%j.txt"
#SBATCH --partition=standard-g
#SBATCH --mem=480G
#SBATCH --time=00:10:00
#SBATCH --account=project_465000001

module load LUMI  # Which version doesn't matter, it is only to get the container and wget.
module load wget  # Compute nodes don't have wget preinstalled. Version and toolchain don't matter in this example.
module load {module}

# there is no internet in the tests: what is fetched is there already
wget() {{ $HOME/wget "$@"; }}
wget https://example.org/lumi-reframe-tests/mnist/mnist_DDP.py
mkdir -p model ; cd model
wget https://example.org/lumi-reframe-tests/mnist/model/model_gpu.dat
cd ..

export SINGULARITYENV_NCCL_DEBUG=INFO
export SINGULARITYENV_NCCL_DEBUG_SUBSYS=INIT,COLL

c=fe
MYMASKS="{masks}"

srun --cpu-bind=mask_cpu:$MYMASKS \\
  singularity exec $SIFPYTORCH \\
    conda-python-distributed -u mnist_DDP.py --gpu --modelpath model
'''


def test_job_script(user):
    """The example of the page; with one rank on each of two nodes instead of eight on four, as two cores have to do."""
    job = user.home / 'job.sh'
    job.write_text(JOB.format(tasks=1, module=NEW, masks=MASKS))
    number = user('sbatch --parsable job.sh').strip().splitlines()[-1]
    wait_for(lambda: 'JobState=COMPLETED' in user('scontrol show job %s' % number) or
             'JobState=FAILED' in user('scontrol show job %s' % number), "end of the job", 400)
    output = (user.home / ('output_job.sh_%s.txt' % number)).read_text()
    found = ranks(output)
    assert sorted(found) == list(range(2))
    assert {(match[1], match[4], match[6]) for match in found.values()} == {('2', '1', '2')}
    assert 'debug INFO' in output
    nothing_left(output)


def test_train(user):
    """What the page says under "Train", typed on the login node; two of the GPUs in all, as two cores have to do."""
    page = (CHECKOUT / 'docs/systems/lumi.rst').read_text()
    commands = re.findall(r'^    ((?:cp|pytorch-run) .*train\.py.*)$', page, re.M)
    assert len(commands) == 3, commands
    # the last job has the packages of the environment that is active
    commands.insert(2, """extend-venv-activate mine && . mine/bin/activate || exit 1
        python -c 'import sysconfig; open(sysconfig.get_path("purelib") + "/own.py", "x")'
        sed -i "1i import own" train.py
    """)
    commands = '\n'.join(commands).replace('--nodes 1', '--nodes 1 --gpus 2').replace('--nodes 2', '--nodes 2 --gpus 1')
    commands = commands.replace('--epochs 10', '--epochs 2')
    output = user('mkdir example; cd example; module load LUMI %s\n' % NEW + commands.replace(
        'pytorch-run', 'pytorch-run --partition small-g'))
    assert [line.split(';')[0] for line in output.splitlines() if line.startswith('trained on')] == [
        'trained on 2 ranks (cpu)', 'trained on 2 ranks (cpu)'], output
    assert {'one-node', 'snapshots'} <= set(os.listdir(user.home / 'example'))


def test_without_launcher(user):
    """In a batch script without srun nothing waits for ranks that nobody starts."""
    output = user('module load LUMI %s\nsalloc -n4 singularity -s exec $SIF conda-python-distributed x.py\n'
                  'echo "status $?"' % NEW)
    assert 'no launcher started this' in output and 'status 1' in output


def test_cancelled(user):
    """scancel: Python ends, and no directory of a rank stays."""
    (user.home / 'sleep.py').write_text('import os, time\nopen(os.environ["RANK"] + ".ready", "w").write(os.environ['
                                        '"MIOPEN_USER_DB_PATH"])\ntime.sleep(1000)\n')
    user('module load LUMI %s\nrm -f *.ready\nsbatch -n2 --wrap "srun singularity -s exec $SIF '
         'conda-python-distributed sleep.py"' % NEW)
    ready = [user.home / name for name in ('0.ready', '1.ready')]
    wait_for(lambda: all(path.exists() and path.read_text() for path in ready), "start of the ranks", 120)
    places = [path.read_text() for path in ready]
    assert all(map(os.path.isdir, places))
    user('scancel -u $USER')
    wait_for(lambda: not any(map(os.path.exists, places)), "end of the directories")


@pytest.mark.nightly
@pytest.mark.parametrize('start', [
    'torchrun --no-python --nproc-per-node=2', 'mpirun.openmpi --oversubscribe -n 2 singularity -s exec $SIF'])
def test_torchrun_and_mpirun(user, start):
    """The other launchers, real: torchrun in the container, Open MPI outside."""
    found = ranks(user('module load %s\n%s conda-python-distributed -u train.py' % (NEW, start)))
    assert sorted(found) == [0, 1] and found[1][1] == '2' and found[1][3] == '1'


@pytest.mark.nightly
def test_torchrun_on_two_nodes(user):
    """PyTorch's own torchrun, one on each node, of two jobs at once."""
    output = user('''
        module load %s
        nodes=$(sinfo -h -N -o %%N | sort -u | head -2 | paste -sd,)
        train() { timeout 300 srun -w "$nodes" -p small-g -N2 -n2 --ntasks-per-node=1 \
                      torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint "${nodes%%%%,*}:$1" \
                               --rdzv-id "$1" train.py; }
        train %d > first 2>&1 & one=$!
        train %d > second 2>&1 & two=$!
        wait $one && wait $two; echo "status $?"
        cat first; echo "second:"; cat second
    ''' % (NEW, *free_ports(2)))
    assert 'status 0' in output, output
    for part in output.split('second:'):
        found = ranks(part)
        assert sorted(found) == [0, 1, 2, 3] and {match[6] for match in found.values()} == {'2'}, output


def test_rm_sif(user):
    """The user gives the space back: the site's own image is used; signals reach a running Python all the same."""
    output = user('''
        module load %s; first=$SIF
        rm $SIF
        module unload PyTorch; module load %s
        [ "$first" != "$SIF" ] && echo other
        python -c 'import torch; print("torch from", __import__("os").environ["SINGULARITY_CONTAINER"])'
    ''' % (OLD, OLD))
    assert 'other' in output.splitlines()
    assert 'torch from %s/store/lumi-pytorch' % user.home.parent in output


PACKAGE = '''
from setuptools import setup
setup(name='hpc-tests-package', version='1.2', packages=['hpc_tests_package'],
      entry_points={'console_scripts': ['hpc-tests-command = hpc_tests_package:main']})
'''


@pytest.mark.nightly
def test_virtual_environment(user):
    """pip installs from outside; packed into one file it is there as well, and cannot be written; unpacked it can."""
    source = user.home / 'package' / 'hpc_tests_package'
    source.mkdir(parents=True)
    (source / '__init__.py').write_text('def main():\n    print("command of", __file__)\n')
    (source.parent / 'setup.py').write_text(PACKAGE)
    subprocess.run(['chown', '-R', containers.USER, source.parent], check=True)
    output = user('''
        module load %s
        pip install --no-index --no-build-isolation --no-deps ./package > pip.log 2>&1; cat pip.log
        run-in-container hpc-tests-command
        start-shell -c 'python -c "import torch, hpc_tests_package; print(torch.__file__)"'
        make-squashfs && ls $CONTAINERROOT
        module unload PyTorch; module load %s
        list-packages | grep hpc-tests
        pip uninstall -y hpc-tests-package 2>&1 | grep -o 'Read-only file system' | head -1
        unmake-squashfs
        module unload PyTorch; module load %s
        pip uninstall -y hpc-tests-package
        list-packages | grep -c hpc-tests
    ''' % (NEW, NEW, NEW), status=1)
    place = '/user-software/venv/pytorch/lib/python3.11/site-packages/hpc_tests_package/__init__.py'
    assert 'command of ' + place in output, output
    assert '/opt/miniconda3/envs/pytorch/' in output
    assert re.search(r'^hpc-tests-package +1\.2', output, re.M)
    assert 'user-software.squashfs' in output.split()
    assert 'Read-only file system' in output
    assert 'Successfully uninstalled' in output
    assert output.rstrip().endswith('\n0')


def test_signal_through_srun_and_container(user):
    """What srun gets is what Python gets."""
    (user.home / 'handler.py').write_text(
        'import signal, sys, time\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))\n'
        'open("handler.ready", "w").close()\nwhile True: time.sleep(0.1)\n')
    output = user('''
        module load %s; rm -f handler.ready
        srun -n1 singularity -s exec $SIF conda-python-distributed handler.py &
        until [ -e handler.ready ]; do sleep 0.1; done
        kill -USR1 $!; wait $!; echo "status $?"
    ''' % NEW)
    assert 'status 7' in output
