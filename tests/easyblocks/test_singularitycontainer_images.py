"""
Images of every kind: how they make their Python known, what is installed on top of it (make-container-venv), what is
expected of them (check-packages), and images of registries (hpc_pytorch/packages/images.py).
"""
import hashlib
import json
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pytest
from batch_systems.real_slurm import Slurm
from common import CACHE
from containers import images as containers
from containers import registry
from lumi.lumi_site import Place

pytestmark = pytest.mark.slow
WHEEL = 'hpc_small-1.2-py3-none-any.whl'
MORE = """import_name = 'torch'
packages = {{'torch': '9.9.0'}}
venv = True
venv_lock_files = ['small.lock']
wrappers = ['python', 'pip', 'torchrun']
run_image = {run}"""
# what a rank sees, in one write, as ranks share the output
RANK = """import os, sys, hpc_small, torch
os.write(1, ("rank %s local %s prefix %s torch %s init %s\\n" % (
    os.environ["RANK"], os.environ["LOCAL_RANK"], sys.prefix, os.path.dirname(os.path.dirname(torch.__file__)),
    os.environ.get("INITIALISED"))).encode())
"""
TORCH = {'conda': '/opt/miniconda3/envs/pytorch/lib/', 'path': '/opt/miniconda3/envs/pytorch/lib/',
         'venv': '/opt/venv/lib/', 'run': '/opt/venv/lib/'}


def small_wheel(directory):
    """A wheel with one module and a command; gives its lock file's text."""
    path = directory / WHEEL
    with zipfile.ZipFile(path, 'w') as wheel:
        wheel.writestr('hpc_small.py', '')
        for name, text in (('METADATA', 'Metadata-Version: 2.1\nName: hpc-small\nVersion: 1.2\n'),
                           ('WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n'),
                           ('RECORD', '')):
            wheel.writestr('hpc_small-1.2.dist-info/' + name, text)
    return 'hpc-small==1.2 --hash=sha256:%s\n' % hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope='module')
def kinds(apptainer):
    """A place with an image of each kind installed, by one call."""
    place = Place(tempfile.mkdtemp(prefix='hpc-tests-'))
    try:
        (place.directory / 'small.lock').write_text(small_wheel(place.directory))
        place.pip = {'PIP_NO_INDEX': '1', 'PIP_FIND_LINKS': str(place.directory)}
        easyconfigs = []
        for kind in containers.KINDS:
            below = place.store / ('images-' + kind)
            below.mkdir()
            shutil.copy(containers.python_image(CACHE, kind), below / ('tool-%s.sif' % kind))
            easyconfigs.append(place.easyconfig(MORE.format(run=kind == 'run'), kind, 'tool-%s.sif' % kind))
        place.install(*easyconfigs, env=place.pip)
        place.give_to_user()
        (place.home / 'rank.py').write_text(RANK)
        yield place
    finally:
        place.remove()


def ranks(output, kind):
    """The numbers of the ranks; all of them ran in the module's environment, on top of the image's packages."""
    lines = [line.split() for line in output.splitlines() if line.startswith('rank ')]
    for line in lines:
        assert line[5] == '/user-software/venv/' + kind, output
        assert line[7].startswith(TORCH[kind]), output
        assert line[9] == ('yes' if kind == 'run' else 'None'), output
    return sorted(line[1] for line in lines)


@pytest.mark.parametrize('kind', containers.KINDS)
def test_torchrun(kinds, kind):
    """Also called inside: the module's Python runs, and srun is warned of."""
    verb = 'run' if kind == 'run' else 'exec'
    both = 'torchrun --nproc=2 rank.py; singularity -s %s $SIF torchrun --nproc=2 rank.py' % verb
    output = kinds.as_user(both, kind)
    assert ranks(output, kind) == ['0', '0', '1', '1']
    step = {'SLURM_STEP_ID': '0', 'SLURM_STEP_NUM_TASKS': '8', 'SLURM_STEP_NUM_NODES': '2', 'SLURM_PROCID': '3'}
    output = kinds.as_user('torchrun --nproc=2 rank.py; echo "status $?"', kind, env=step)
    assert 'pytorch-srun rank.py' in output and 'status 2' in output


def test_bill_of_materials(kinds):
    """The image's own, if it brings one, and what was installed on top of it, are kept."""
    place = kinds.eb.prefix / 'software/run/1.0/easybuild/provenance'
    assert json.loads((place / 'image-sbom.json').read_text()) == {'bomFormat': 'CycloneDX'}
    assert (place / 'small.lock').exists()
    assert not (kinds.eb.prefix / 'software/venv/1.0/easybuild/provenance/image-sbom.json').exists()


def test_help(kinds):
    """One way to train, and each command in a line."""
    output = kinds.as_user('module help run/1.0 2>&1')
    assert 'srun ... pytorch-srun train.py' in output and 'singularity run $SIF' in output
    for name in ('pytorch-check', 'pytorch-jobscript', 'make-squashfs', 'torchrun', 'conda-python-distributed'):
        assert output.count(' - %s: ' % name) == 1


def test_commands_of_other_modules(kinds):
    """pytorch-check in the container, pytorch-jobscript outside; the small torch only can be imported."""
    output = kinds.as_user('pytorch-check import; pytorch-jobscript --account project_1 train.py || true', 'venv')
    assert 'import   FAILS' in output and 'numpy' in output, "the small image has none"
    assert 'load the PyTorch module first' in output, "this module is called otherwise"


@pytest.mark.parametrize('who', ['packed', 'another user'])
def test_pip_does_not_leave_the_virtual_environment(kinds, who):
    """Where it cannot be written, pip says so, and puts nothing into ~/.local."""
    output = kinds.as_user('''
        mkdir -p ~/.local
        %s
        module unload path; module load path
        pip install --no-index --find-links %s --force-reinstall hpc-small 2>&1; echo "status $?"
        find ~/.local -name 'hpc_small*'
        unmake-squashfs > /dev/null 2>&1
        rm -f $CONTAINERROOT/user-software.squashfs $CONTAINERROOT/user-software.unpacked
    ''' % ('make-squashfs > /dev/null' if who == 'packed' else 'chmod -R a-w $CONTAINERROOT/user-software',
           kinds.directory), 'path')
    subprocess.run(['chmod', '-R', 'u+w', kinds.eb.prefix / 'software/path/1.0/user-software'], check=True)
    assert 'status 1' in output and ('Read-only' in output or 'Permission denied' in output), output
    assert 'hpc_small.py' not in output[output.index('status 1'):]


@pytest.mark.parametrize('more, says', [
    ("packages = {'torch': '9.8.0'}", 'expected torch 9.8.0, and found 9.9.0+small'),
    ("packages = {'numpy': '2.0'}", 'there is no numpy'),
    ("wrappers = ['accelerate']", 'the image has no accelerate'),
])
def test_what_the_image_has_not(kinds, more, says):
    """Seen when it is installed."""
    output = kinds.install(kinds.easyconfig(more, 'wrong', 'tool-path.sif'), status=None)
    assert 'ERROR' in output and says in output


@pytest.fixture(scope='module')
def slurm(kinds):
    """Two nodes."""
    with Slurm(kinds.directory / 'slurm', nodes=2, cpus=8) as slurm:
        yield slurm


@pytest.mark.parametrize('kind', containers.KINDS)
def test_on_slurm(kinds, slurm, kind):
    """Two nodes, two jobs at once; pytorch-srun gives ranks to a script written for torchrun."""
    script = 'timeout 200 srun -N2 -n4 --ntasks-per-node=2 pytorch-srun rank.py'
    both = '%s > first & one=$!; %s > second & wait $one && wait $!; echo "status $?"; cat first; echo; cat second'
    output = kinds.as_user(both % (script, script), kind, env=slurm.environment)
    assert 'status 0' in output
    for job in output.split('\n\n'):
        assert ranks(job, kind) == ['0', '1', '2', '3'], output


def test_packed_while_a_job_runs(kinds, slurm):
    """Late imports and new processes of the job find what they found before."""
    (kinds.home / 'late.py').write_text(
        'import os, subprocess, time\nopen("started", "w").close()\n'
        'while not os.path.exists("go"): time.sleep(0.1)\nimport hpc_small\nprint("late import", hpc_small.__file__)\n')
    output = kinds.as_user('''
        rm -f go started
        inside='run-in-container python'
        srun -n1 bash -c "$inside late.py; $inside -c 'import hpc_small; print(1234)'" > out 2>&1 &
        until [ -e started ]; do sleep 0.1; done
        make-squashfs > /dev/null; touch go; wait $!; cat out
        unmake-squashfs > /dev/null; rm $CONTAINERROOT/user-software.squashfs $CONTAINERROOT/user-software.unpacked
    ''', 'conda', env=slurm.environment)
    assert 'late import /user-software/venv/conda/' in output and '1234' in output, output


# -- registries

def test_image_of_a_registry(place):
    """Fetched once, kept by digest; without the registry it is there all the same, and another digest is refused."""
    place.eb.sources = place.directory / 'sources'
    containers.small_root(place.directory / 'root')
    local = dict(APPTAINER_NOHTTPS='1', SINGULARITY_NOHTTPS='1')
    with registry.registry(CACHE, place.directory) as address:
        digest = registry.push(address, 'hpc/small', place.directory / 'root')
        source = 'docker://%s/hpc/small@%s' % (address, digest)
        easyconfig = place.easyconfig(image=source)
        place.install(easyconfig, env=local)
        wrong = place.install(place.easyconfig(image=source[:-64] + '0' * 64), '--force', status=None, env=local)
        assert 'could not be fetched' in wrong and 'eb --fetch' in wrong
        tag = place.install(place.easyconfig(image='docker://%s/hpc/small:latest' % address), '--force', status=None)
        assert 'names no image by its digest' in tag
    kept = place.eb.sources / 't/Tool' / ('small-%s.sif' % digest.replace(':', '-'))
    assert kept.exists() and len(list(kept.parent.iterdir())) == 1
    place.install(place.easyconfig(image=source), '--force', env=local)
    place.give_to_user()
    assert place.as_user('run-in-container bash -c \'echo "made by $MADE_BY"\'', 'Tool').endswith('made by tests\n')
    kept.unlink()
    offline = place.install(place.easyconfig(image=source), '--force', status=None, env=local)
    assert 'could not be fetched' in offline and str(kept) in offline


def test_reading_without_sources(place):
    """An easyconfig without sources can be looked at: only installing it is refused."""
    path = Path(place.easyconfig())
    lines = path.read_text().splitlines()
    path.write_text('\n'.join(line for line in lines if not line.startswith(('sources', 'checksums'))) + '\n')
    place.install(path, '--inject-checksums', '--force')
    assert 'names no image' in place.install(path, status=None)
