"""
Images of every kind: how they make their Python known, what is installed on top of it (make-container-venv), and images
of registries (hpc_pytorch/packages/images.py).
"""
import os
import re
import shutil
import socket
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from batch_systems.real_slurm import Slurm, wait_for
from common import CACHE, CHECKOUT, nightly
from containers import images as containers
from containers import registry
from lumi.lumi_site import Place

pytestmark = pytest.mark.slow
WHEEL = 'hpc_small-1.2-py3-none-any.whl'
MORE = """import_name = 'torch'
package_version = '9.9.0'
venv = True
wrappers = ['python', 'python3', 'pip', 'torchrun']
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
    """A wheel with one module and a command."""
    path = directory / WHEEL
    with zipfile.ZipFile(path, 'w') as wheel:
        wheel.writestr('hpc_small.py', '')
        for name, text in (('METADATA', 'Metadata-Version: 2.1\nName: hpc-small\nVersion: 1.2\n'),
                           ('WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n'),
                           ('RECORD', '')):
            wheel.writestr('hpc_small-1.2.dist-info/' + name, text)


@pytest.fixture(scope='module')
def kinds(apptainer, request):
    """A place with an image of each kind installed, by one call; "conda", as LUMI's tests have, if it is used."""
    used = [kind for kind in containers.KINDS if kind != 'conda' or
            any('[conda' in item.name for item in request.session.items)]
    place = Place(tempfile.mkdtemp(prefix='hpc-tests-'))
    try:
        small_wheel(place.directory)
        easyconfigs = []
        for kind in used:
            below = place.store / ('images-' + kind)
            below.mkdir()
            shutil.copy(containers.python_image(kind), below / ('tool-%s.sif' % kind))
            easyconfigs.append(place.easyconfig(MORE.format(run=kind == 'run'), kind, 'tool-%s.sif' % kind))
        place.install(*easyconfigs)
        place.tcl = place.eb.prefix / 'modules-tcl'
        place.install(*easyconfigs, '--module-only', '--force', '--module-syntax=Tcl',
                      '--installpath-modules=%s' % place.tcl)
        place.give_to_user()
        for kind in used:
            place.as_user('pip install --quiet --no-index --no-deps %s' % (place.directory / WHEEL), kind)
        for _, home in ((place.user, place.home), place.other):
            (home / 'rank.py').write_text(RANK)
        yield place
    finally:
        place.remove()


# Every modules tool and syntax with every family of variables that a runtime may read, and the kinds of images.
WAYS = [('path', 'Lmod', 'Lua', 'SINGULARITY'), nightly('conda', 'Lmod', 'Lua', 'APPTAINER'),
        nightly('venv', 'Lmod', 'Tcl', 'SINGULARITY'), nightly('run', 'Lmod', 'Tcl', 'APPTAINER'),
        ('run', 'Environment Modules', 'Tcl', 'SINGULARITY'),
        nightly('venv', 'Environment Modules', 'Tcl', 'APPTAINER')]
ON_SLURM = [nightly('conda'), nightly('path'), 'venv', 'run']
every_way = pytest.mark.parametrize('kind, tool, syntax, family', WAYS)


@pytest.fixture
def way(kinds, kind, tool, syntax, family):
    """A function that runs a script as the user, after loading the module, with this family of variables alone."""
    modules = kinds.tcl / 'all' if syntax == 'Tcl' else kinds.eb.modules
    alone = 'alone() { unset -v "${!%s@}"; }; alone\n' % ('APPTAINER' if family == 'SINGULARITY' else 'SINGULARITY')

    def run(script, **options):
        return kinds.as_user(alone + script, kind, tool=tool, modules=modules, **options)
    return run


def ranks(output, kind, prefix=None):
    """The numbers of the ranks; all of them ran in the module's environment, on top of the image's packages."""
    lines = [line.split() for line in output.splitlines() if line.startswith('rank ')]
    for line in lines:
        assert line[5] == (prefix or '/user-software/venv/' + kind), output
        assert line[7].startswith(TORCH[kind]), output
        assert line[9] == ('yes' if kind == 'run' else 'None'), output
    return sorted(line[1] for line in lines)


@every_way
def test_torchrun(way, kind):
    """Also called inside: the module's Python runs, and srun is warned of."""
    verb = 'run' if kind == 'run' else 'exec'
    output = way('torchrun --nproc=2 rank.py; singularity -s %s $SIF torchrun --nproc=2 rank.py' % verb)
    assert ranks(output, kind) == ['0', '0', '1', '1']
    step = {'SLURM_STEP_ID': '0', 'SLURM_STEP_NUM_TASKS': '8', 'SLURM_STEP_NUM_NODES': '2', 'SLURM_PROCID': '3'}
    output = way('torchrun --nproc=2 rank.py; echo "status $?"', env=step)
    assert 'pytorch-srun PROGRAM' in output and 'status 2' in output


@every_way
def test_environment_of_ones_own(kinds, way, kind):
    """Its packages come before the module's and the image's, in and outside the container; pip writes to it alone."""
    where = "python -c 'import hpc_small, sys, torch; print(sys.argv[1], hpc_small.__file__)'"
    output = way("""
        set -e
        rm -rf mine
        extend-venv-activate mine > /dev/null; cp mine/bin/activate first
        extend-venv-activate mine | tail -n 1; cmp first mine/bin/activate
        module unload %(kind)s
        before=$PATH
        for turn in 1 2; do
            . mine/bin/activate; alone
            [ $turn = 2 ] || pip install --quiet --no-index --no-deps --force-reinstall %(wheel)s
            torchrun --nproc=1 rank.py
            %(where)s outside
            singularity -s %(verb)s $SIF bash -c ". mine/bin/activate; %(where)s inside"
            deactivate
            [ "$PATH" = "$before" ]; [ "$PYTHONPATH" = /users/own ]; [ -z "${!SINGULARITY@}${!APPTAINER@}" ]
        done
        module load %(kind)s; alone
        %(where)s module
        . mine/bin/activate; deactivate; alone
        %(where)s again
        /usr/bin/python3 -m venv --without-pip theirs; extend-venv-activate theirs || echo "refused $?"
        mv mine gone; export SINGULARITYENV_USERS_VENV=$PWD/mine APPTAINERENV_USERS_VENV=$PWD/mine; alone
        pip list || echo "status $?"
        rm -rf gone theirs
    """ % {'kind': kind, 'where': where, 'wheel': kinds.directory / WHEEL, 'verb': 'run' if kind == 'run' else 'exec'},
                 env={'PYTHONPATH': '/users/own'})
    own, modules = '%s/mine' % kinds.home, '/user-software/venv/' + kind
    assert ranks(output, kind, own) == ['0', '0']
    found = dict(re.findall('^(outside|inside|module|again) (/.*)', output, re.M))
    assert found['outside'].startswith(own) and found['inside'].startswith(own), output
    assert found['module'].startswith(modules) and found['again'].startswith(modules), output
    assert 'theirs/bin/python is another Python than the container' in output and 'refused 1' in output
    assert 'the container does not see %s' % own in output and 'status 1' in output


def test_uv_in_an_environment_of_ones_own(kinds):
    """As docs/systems/lumi.rst has it: in the container; outside, the environment has no Python for it."""
    output = kinds.as_user("""
        export XDG_CACHE_HOME=$PWD/cache  # the home that the container knows is none, or is root's
        extend-venv-activate uvs > /dev/null; . uvs/bin/activate; cp %s uvs/bin
        # the small image lacks some
        libraries=$(ldd uvs/bin/uv | grep -o ' /[^ ]*[.]so[^ ]*' | paste -sd, | tr -d ' ')
        export {SINGULARITY,APPTAINER}_BIND=$libraries
        run-in-container uv pip install --offline --no-deps %s 2>&1
        python -c 'import hpc_small, torch; print("found", hpc_small.__file__, torch.__file__)'
        echo "local $(pip list --local --format=freeze | paste -sd ' ')"
        uv pip install --offline hpc-small 2>&1; echo "status $?"
        rm -r uvs cache
    """ % (CHECKOUT / '.venv/bin/uv', kinds.directory / WHEEL), 'venv')
    assert '+ hpc-small==1.2' in output, output
    assert re.search('^found %s/uvs/.* %s' % (kinds.home, TORCH['venv']), output, re.M), output
    assert re.search('^local hpc-small==1.2 pip==[0-9.]+( setuptools==[0-9.]+)?$', output, re.M), output
    assert 'Broken symlink' in output and 'status 2' in output, output


@every_way
def test_help(way, kind):
    """One way to train, and each command in a line."""
    output = way('module help %s/1.0 2>&1' % kind)
    assert output.count('train.py\n\n') == 1 and 'srun ... pytorch-srun train.py' in output
    assert 'singularity %s $SIF' % ('run' if kind == 'run' else 'exec') in output
    for name in ('pytorch-check', 'pytorch-jobscript', 'make-squashfs', 'torchrun', 'conda-python-distributed',
                 'extend-venv-activate'):
        assert output.count(' - %s: ' % name) == 1


def test_commands_of_other_modules(kinds):
    """pytorch-check in the container, pytorch-jobscript outside; the small torch only can be imported."""
    output = kinds.as_user('pytorch-check import; pytorch-jobscript --account project_1 train.py || true', 'venv')
    assert 'import   FAILS' in output and 'numpy' in output, "the small image has none"
    assert 'load the PyTorch module first' in output, "this module is called otherwise"


@every_way
def test_pip_does_not_leave_the_virtual_environment(kinds, way, kind):
    """Where it cannot be written, as it is packed or another user's, pip says so, and puts nothing into ~/.local."""
    install = 'pip install --no-index --find-links %s --force-reinstall hpc-small 2>&1; echo "status $?"; ' \
              'find ~ -name "hpc_small*"\n' % kinds.directory
    outputs = [way(install, other=True), way("""
        make-squashfs > /dev/null
        module unload %s; module load %s; alone
        %s
        unmake-squashfs > /dev/null 2>&1
        rm -f $CONTAINERROOT/user-software.squashfs $CONTAINERROOT/user-software.unpacked
    """ % (kind, kind, install))]
    for output in outputs:
        assert 'status 1' in output and ('Read-only' in output or 'Permission denied' in output), output
        assert 'hpc_small' not in output[output.index('status 1'):], output


def test_what_the_image_has_not(kinds):
    """Seen when it is installed."""
    output = kinds.install(kinds.easyconfig("wrappers = ['accelerate']", 'wrong', 'tool-path.sif'), status=None)
    assert 'ERROR' in output and 'the image has no accelerate' in output


@pytest.fixture(scope='module')
def slurm(kinds):
    """Two nodes."""
    with Slurm(kinds.directory / 'slurm', nodes=2, cpus=8) as slurm:
        yield slurm


@pytest.mark.parametrize('kind', ON_SLURM)
def test_on_slurm(kinds, slurm, kind):
    """Two nodes, two users with two jobs each, all at once: pytorch-srun and torchrun."""
    both = """
        timeout 300 srun -N2 -n4 --ntasks-per-node=2 pytorch-srun rank.py > first & one=$!
        timeout 300 srun -N2 -n2 --ntasks-per-node=1 torchrun --nproc=2 rank.py > second 2> warned & two=$!
        wait $one && wait $two; echo "status $?"; cat first; echo; cat second
    """
    with ThreadPoolExecutor() as pool:
        outputs = list(pool.map(lambda other: kinds.as_user(both, kind, env=slurm.environment, other=other),
                                (False, True)))
    for output in outputs:
        assert 'status 0' in output, output
        first, second = output.split('\n\n')
        # the small torch numbers the ranks of a node
        assert (ranks(first, kind), ranks(second, kind)) == (['0', '1', '2', '3'], ['0', '0', '1', '1']), output


LATE = """import os, time
open("started", "w").close()
while not os.path.exists("go"): time.sleep(0.1)
import hpc_small
print("late import", hpc_small.__file__)
"""


@pytest.mark.parametrize('kind', ON_SLURM)
def test_packed_and_unpacked_while_a_job_runs(kinds, slurm, kind):
    """Late imports and new processes of another user's job find what they found before."""
    _, home = kinds.other
    (home / 'late.py').write_text(LATE)
    job = """
        rm -f go started
        inside='run-in-container python'
        srun -n1 bash -c "$inside late.py; $inside -c 'import hpc_small; print(1234)'" 2>&1
    """
    for command in ('make-squashfs', 'unmake-squashfs'):
        with ThreadPoolExecutor() as pool:
            output = pool.submit(kinds.as_user, job, kind, env=slurm.environment, other=True)
            wait_for((home / 'started').exists, "start of the job")
            try:
                kinds.as_user(command, kind)
            finally:
                # or the job waits for ever
                (home / 'go').touch()
            assert 'late import /user-software/venv/' + kind in output.result() and '1234' in output.result()
        (home / 'started').unlink()
    for name in ('squashfs', 'unpacked'):
        (kinds.eb.prefix / 'software' / kind / '1.0' / ('user-software.' + name)).unlink()


# -- registries

def test_image_of_a_registry(place):
    """Fetched once, kept by digest; without the registry it is there all the same, and another digest is refused."""
    place.eb.sources = place.directory / 'sources'
    # what a call that was killed has left
    (place.eb.sources / ('t/Tool/part-%s=999999999=x' % socket.gethostname())).mkdir(parents=True)
    containers.small_root(place.directory / 'root')
    local = dict(APPTAINER_NOHTTPS='1', SINGULARITY_NOHTTPS='1')
    with registry.registry(CACHE, place.directory) as address:
        digest = registry.push(address, 'hpc/small', place.directory / 'root')
        source = 'docker://%s/hpc/small@%s' % (address, digest)
        easyconfig = place.easyconfig(image=source)
        place.install(easyconfig, env=local)
        wrong = place.install(place.easyconfig(image=source[:-64] + 'f' * 64), '--force', status=None, env=local)
        assert 'could not be fetched' in wrong and 'eb --fetch' in wrong
        zeros = place.install(place.easyconfig(image=source[:-64] + '0' * 64), '-x', status=None)
        assert 'has no digest yet. This prints it: skopeo inspect' in zeros
        tag = place.install(place.easyconfig(image='docker://%s/hpc/small:latest' % address), '--force', status=None)
        assert 'expected docker://NAME@sha256' in tag
    kept = place.eb.sources / 't/Tool' / ('small-%s.sif' % digest.replace(':', '-'))
    assert kept.exists() and len(list(kept.parent.iterdir())) == 1
    place.install(place.easyconfig(image=source), '--force', env=local)
    place.give_to_user()
    assert place.as_user('run-in-container bash -c \'echo "made by $MADE_BY"\'', 'Tool').endswith('made by tests\n')
    kept.unlink()
    offline = place.install(place.easyconfig(image=source), '--force', status=None, env=local)
    assert 'could not be fetched' in offline and str(kept) in offline


def test_another_version_in_the_image(place):
    """The easyconfig's version is that of the package in the image, unless it says otherwise; nothing is left."""
    shutil.copy(containers.python_image('path'), place.store / 'small.sif')
    more = "import_name = 'torch'\n"
    wrong = place.install(place.easyconfig(more, image='small.sif'), status=None)
    assert 'the image has version 9.9.0, the easyconfig says 1.0; if that is right' in wrong
    assert not list(place.eb.modules.glob('Tool/*'))
    for version in ('9.9.0', ''):
        place.install(place.easyconfig(more + "package_version = '%s'" % version, image='small.sif'), '--force')


@pytest.mark.nightly
def test_nvidias_image(place):
    """Its easyconfig, changed only to a registry of the tests' own, on a system with NVIDIA's GPUs."""
    place.eb.sources = place.directory / 'sources'
    root = place.directory / 'root'
    containers.small_torch(root, containers.python_root(root, 'path'))
    name = 'PyTorch-26.03-NGC-workstation.eb'
    with registry.registry(CACHE, place.directory) as address:
        digest = registry.push(address, 'nvidia/pytorch', root,
                               ['PATH=/opt/miniconda3/envs/pytorch/bin:/usr/bin:/bin'])
        text, found = re.subn('nvcr.io/nvidia/pytorch@sha256:[0-9a-f]{64}', '%s/nvidia/pytorch@%s' % (address, digest),
                              (CHECKOUT / 'easyconfigs/p/PyTorch' / name).read_text())
        assert found == 1
        (place.directory / name).write_text(text)
        place.install(place.directory / name, env={'APPTAINER_NOHTTPS': '1', 'HPC_SYSTEM': 'derecho'})
    place.give_to_user()
    output = place.as_user('basename "$SIF"; python -c "import torch; print(torch.__version__)"; run-in-container '
                           'nvidia-smi', 'PyTorch', env=nvidias_program(place))
    assert output.startswith('pytorch-%s.sif\n' % digest.replace(':', '-'))
    assert '\n9.9.0\n' in output and output.endswith('NVIDIA\n')


def nvidias_program(place):
    """The environment of a machine with a program of NVIDIA's driver, which --nv mounts in the container."""
    program = place.directory / 'driver/nvidia-smi'
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho NVIDIA\n')
    program.chmod(0o755)
    return {'PATH': '%s:%s' % (program.parent, os.environ['PATH'])}


@pytest.mark.parametrize('system, nvidia', [
    ('derecho', True), nightly('bede', True), nightly('workstation', True), ('lumi', False)])
def test_gpus_of_nvidia(place, system, nvidia):
    """As system.cfg says, either family of variables asks for --nv; the user can say no."""
    place.install(place.easyconfig(), env={'HPC_SYSTEM': system})
    place.give_to_user()
    start = 'singularity -s exec $EBROOTTOOL/tool.sif nvidia-smi 2> /dev/null || echo nothing\n'
    output = place.as_user("""
        unset ${!SINGULARITY@}; %(start)s
        module unload Tool; module load Tool; unset ${!APPTAINER@}; %(start)s
        module unload Tool; export SINGULARITY_NV=0 APPTAINER_NV=0; module load Tool; %(start)s
    """ % {'start': start}, 'Tool', env=nvidias_program(place))
    assert output.split() == (['NVIDIA', 'NVIDIA', 'nothing'] if nvidia else ['nothing'] * 3)


def test_reading_without_sources(place):
    """An easyconfig without sources can be looked at: only installing it is refused."""
    path = Path(place.easyconfig())
    lines = path.read_text().splitlines()
    path.write_text('\n'.join(line for line in lines if not line.startswith(('sources', 'checksums'))) + '\n')
    place.install(path, '--inject-checksums', '--force')
    assert 'names no image' in place.install(path, status=None)
