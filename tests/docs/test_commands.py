"""
Every command that README.rst and docs/ show is tried: here as a dry run on the system's stand-in, or in a test that the
table names. What is not tried is said on the page, right below the block: "Not tried: ...".
"""
import configparser
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys

import pytest
from common import CHECKOUT
from test_docs import DOCS

from hpc_pytorch.machine.systems import FOR_JOBS

# A line -> a test's file and the words in it that try the line.
TRIED = (
    (r'git clone https://example\.org/\S+|cd hpc-pytorch|git pull', 'tests/docs/test_docs.py', 'example.org'),
    (r'\./test [^|]*', '.ci/run', 'test'),
    (r'PYTHONPATH=COLLECTION/ramgate python3 -m ramgate run .*', 'ramgate/tests/conftest.py', "'-m', 'ramgate', 'run'"),
    (r'MPICXX=mpicxx pip install --no-build-isolation .*', 'torch_mpi/tests/test_install.py', 'MPICXX'),
    (r'\./eb --easystack .*', 'tests/checks/test_easystacks.py', "--easystack=%s"),
    (r'for system in .*; do|done|\./eb --system \$system --easystack .*', 'tests/checks/test_easystacks.py', '--robot'),
    (r'\./eb (\S+ )?(--robot )?--job-status', 'tests/small_software.py', '--job-status'),
    (r'srun --jobid JOB --overlap .*', 'tests/scripts/test_pytorch_run.py',
     'srun --jobid JOB --overlap'),
    (r'scancel JOB', 'tests/jobs/test_slurm_jobs.py', "'scancel', job"),
    (r'\./eb --uninstall \S+', 'tests/jobs/test_uninstall.py', '--uninstall'),
    (r'\./eb --check( --update| \S+)?', 'tests/checks/test_on_one_machine.py', '--update'),
    (r'\./eb --check --references .*', 'tests/checks/small_module.py', '--references'),
    (r'\./eb --survey( \S+\.txt)?', 'tests/machine/test_survey.py', '--survey'),
    (r'\./eb --survey --new-system[ =]\S+', 'tests/machine/test_survey.py', '--new-system'),
    (r'\./eb --new-version \S+ \S+\.eb', 'tests/packages/test_new_version.py', '--new-version'),
    (r'\./eb \S+/easybuild/provenance/NAME.eb .*', 'tests/rules/test_provenance.py', 'easybuild/provenance'),
    (r'reframe -C .*|module use /PREFIX/modules/all', 'tests/checks/test_settings.py', "'-C'"),
    (r'module (use|load) \S+', 'tests/workstation/test_workstation.py', 'module load PyTorch'),
    (r'module load (proxy|caches)', 'tests/easyblocks/test_systemsettings.py', 'module load caches'),
    (r'export HPC_CACHES=\S+', 'tests/easyblocks/test_systemsettings.py', 'export HPC_CACHES='),
    (r'module help PyTorch', 'tests/workstation/test_workstation.py', 'module help PyTorch'),
    (r'pytorch-check vllm|tiny-model tiny', 'tests/serve/test_vllm.py', 'tiny-model tiny'),
    (r'pytorch-serve .*', 'tests/serve/test_pytorch_serve.py', "'--nodes', '2', 'tiny'"),
    (r'curl -H @.*', 'tests/serve/login.py', "'curl'"),
    (r'\(umask 077; echo .* > tiny\.key\)', 'tests/serve/test_pytorch_serve.py', '(umask 077; echo'),
    (r'hf download .*', 'tests/serve/test_pytorch_serve.py', 'hf download org/name'),
    (r'export UV_CACHE_DIR=.*|uv venv .*|uv pip install .*|sed .*', 'tests/scripts/test_uv_on_a_module.py',
     'researchers.rst'),
    (r'(srun .*)?pytorch-check( plugin| mpi4py mpi)?', 'tests/workstation/test_workstation.py', 'pytorch-check'),
    (r'torchrun --nproc-per-node=2 \S*train.py.*', 'tests/workstation/test_workstation.py',
     'torchrun --nproc-per-node=2'),
    (r'source /usr/share/lmod/lmod/init/bash', 'tests/workstation/test_workstation.py', 'now and in job scripts'),
    (r'pip install setuptools wheel packaging psutil ninja|pip install --no-build-isolation flash-attn',
     'tests/on_top/test_transformers.py', '--no-build-isolation'),
    (r'extend-venv-activate \S+|source \S+/bin/activate|pip install einops',
     'tests/workstation/test_workstation.py', 'extend-venv-activate'),
    (r'mpiexec -n 2 python mine\.py', 'tests/workstation/test_workstation.py', 'mpiexec .* mine'),
    (r'cp \$EBROOTPYTORCH/examples/train.py \.', 'tests/frontier/test_frontier.py', '$EBROOTPYTORCH/examples/train.py'),
    (r'pytorch-run --nodes [12] .*', 'tests/scripts/test_pytorch_run.py', "slurm('--nodes', '2'"),
    (r'pytorch-jobscript .*> job', 'tests/frontier/test_frontier.py', 'pytorch-jobscript --nodes 2'),
    (r'sbatch (--account=PROJECT )?job', 'tests/frontier/test_frontier.py', 'sbatch'),
    (r'qsub job', 'tests/jobs/test_pbs_jobs.py', 'qsub'),
    (r'export (SBATCH|PBS)_ACCOUNT=PROJECT', 'tests/jobs/test_pbs_jobs.py', 'PBS_ACCOUNT'),
    (r'export EASYBUILD_(HOOKS|CONFIGFILES)=.*', 'tests/packaging/test_packaging.py', 'EASYBUILD_CONFIGFILES'),
    (r'export HPC_SITE_CONFIG=.*', 'tests/rules/test_policy.py', 'HPC_SITE_CONFIG'),
    (r'--job-cores=\S+ --job-target-resource=\S+', 'tests/jobs/test_pbs_jobs.py', '--job-target-resource='),
    (r'mine/bin/python -I -m pip install --no-deps \$PYTORCH_WHEELS/torch-\*.whl',
     'tests/easyblocks/test_pytorchhpc.py', '$PYTORCH_WHEELS/torch-*.whl'),
    (r'mpiexec .* pytorch-bandwidth', 'tests/scripts/test_pytorch_bandwidth.py', 'pytorch-bandwidth'),
    (r'staged=\$\(pytorch-stage\) \|\| exit|eval "\$staged"', 'tests/scripts/test_pytorch_stage.py', 'pytorch-stage'),
    (r'tar -cf (mine|data)\.tar .*', 'tests/scripts/test_pytorch_run.py', 'tar -cf mine.tar'),
    (r'docs/make-reference', 'tests/docs/test_docs.py', 'make-reference'),
    (r'.venv-test/bin/python -m sphinx docs site|xdg-open .*', 'tests/docs/test_docs.py', "'-m', 'sphinx'"),
)
# ./eb EASYCONFIG ...: a dry run here
DRY_RUN = re.compile(r'\./eb [^|$]*\b\w+-[\w.-]+\.eb\b.*')
NOT_DRY = re.compile(r'--job-status|provenance|--new-version')
# A block is no command if this stands below it.
NO_COMMAND = re.compile(r'\.\. (output|a file)|Not tried: ')


def pages():
    """The pages that people write; the reference is made of the code."""
    return [CHECKOUT / 'README.rst'] + sorted(path for path in DOCS.rglob('*.rst') if path.parent.name != 'reference')


def blocks(path):
    """The literal blocks of a page, with the first line below: [(number of the line, lines, line below)]."""
    lines = path.read_text().split('\n')
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if not (line.startswith('.. code-block::') or line.rstrip().endswith('::') and not line.startswith('..')):
            continue
        begin, margin = number, len(line) - len(line.lstrip())
        while number < len(lines) and (not lines[number].strip()
                                       or len(lines[number]) - len(lines[number].lstrip()) > margin):
            number += 1
        yield begin, lines[begin:number], lines[number] if number < len(lines) else ''


def commands():
    """[(page, line's number, command without its comment)]."""
    found = []
    for path in pages():
        for begin, lines, below in blocks(path):
            if NO_COMMAND.match(below.strip()) or is_job(lines):
                continue
            lines = re.sub(r' \\\n +', ' ', '\n'.join(lines)).split('\n')
            found += [(path, begin + number, re.sub(r'(^|\s+)#\s.*', '', line).strip())
                      for number, line in enumerate(lines, 1)]
    return [one for one in found if one[2]]


def is_job(lines):
    """Whether a block is a job script."""
    return any(line.strip().startswith('#!/bin/bash') for line in lines)


@pytest.mark.parametrize('path, number, command', [
    pytest.param(*one, id='%s:%d' % (one[0].relative_to(CHECKOUT), one[1])) for one in commands()])
def test_somebody_tries_it(path, number, command):
    """A dry run below, or a test that has these words."""
    if DRY_RUN.fullmatch(command) and not NOT_DRY.search(command):
        return
    command = re.sub(r' --prefix=\S+', '', command)
    found = [(place, words) for pattern, place, words in TRIED if re.fullmatch(pattern, command)]
    assert found, "%s, line %d: no test tries: %s" % (path.name, number, command)
    for place, words in found:
        assert words in (CHECKOUT / place).read_text(), (place, words)


def dry_runs():
    """Each once; where they install makes no difference."""
    return sorted({re.sub(r' (--prefix=\S+|--rehearse|--robot)', '', command) for _, _, command in commands()
                   if DRY_RUN.fullmatch(command) and not NOT_DRY.search(command)})


@pytest.mark.slow
@pytest.mark.parametrize('command', dry_runs())
def test_dry_run(eb, command):
    """EasyBuild knows the options, the easyconfig and, on the stand-in, all of its modules."""
    words = shlex.split(command)[1:]
    workstation = ['--rehearse'] * ('workstation' not in command)
    output = eb(*words, '--robot', '-D', *workstation).stdout
    name, = [word for word in words if word.endswith('.eb')]
    assert re.search(r'\[[ xRF]\] \S*/%s ' % re.escape(name), output), output


SYSTEMS = [path for path in sorted(DOCS.glob('systems/*.rst')) if path.stem != 'workstation']


@pytest.mark.parametrize('path', SYSTEMS, ids=lambda path: path.stem)
def test_job_scripts(path, tmp_path):
    """The one on each page is what pytorch-run submits, with the page's last words and the module that it loads."""
    jobs = ['\n'.join(line[4:] for line in lines).strip() + '\n' for _, lines, _ in blocks(path) if is_job(lines)]
    called = [command for page, _, command in commands() if page == path and command.startswith('pytorch-run')][-1]
    system = 'systems/%s/system.cfg' % path.stem
    shared = [('share', path) for path in [system] + FOR_JOBS]
    for name, source in [('bin', 'hpc_pytorch/scripts/pytorch-run')] + shared:
        (tmp_path / name).mkdir(exist_ok=True)
        shutil.copy(CHECKOUT / source, tmp_path / name)
    module = re.search(r'module load (PyTorch/\S+)', path.read_text()).group(1)
    done = subprocess.run([sys.executable, '-I', tmp_path / 'bin/pytorch-run', '--dry-run',
                           *shlex.split(called)[1:]], env={'LOADEDMODULES': module}, check=True,
                          stdout=subprocess.PIPE, text=True)
    assert jobs == [done.stdout], "the job script of this page:\n" + done.stdout
    # the module of that name has the program
    easyconfig = next(CHECKOUT.glob('easyconfigs/*/*/%s.eb' % module.replace('/', '-'))).read_text()
    assert 'SingularityContainer' in easyconfig or 'pytorch-jobscript' in easyconfig


@pytest.mark.parametrize('path', SYSTEMS, ids=lambda path: path.stem)
def test_options_of_srun(path):
    """What jobs of the system need, a line that asks srun for a job has, too; but for the user's own environment."""
    system = configparser.ConfigParser(interpolation=None, delimiters=('=',))
    system.read(CHECKOUT / 'systems' / path.stem / 'system.cfg')
    needed = {option for option in system['scheduler'].get('options', '').split() if option != '--export=NONE'}
    for line in [command for page, _, command in commands() if page == path and command.startswith('srun ')]:
        assert not needed - set(line.split()), line


@pytest.mark.parametrize('path', SYSTEMS, ids=lambda path: path.stem)
def test_what_is_printed(path):
    """The lines that an installation ends with, with a place that is fit."""
    system = configparser.ConfigParser(interpolation=None, delimiters=('=',))
    system.read(CHECKOUT / 'systems' / path.stem / 'system.cfg')
    text = path.read_text()
    assert system.has_option('installation', 'prefix'), "%s: where users can install" % path.stem
    assert '--prefix=' + system['installation']['prefix'] in text
    assert '    module use %s/modules/all\n' % system['installation']['prefix'].replace('$USER', 'me') in text


def test_the_chart_is_true():
    """docs/make-chart has nothing to change; bars are as long as their figures, from zero on."""
    chart = runpy.run_path(str(DOCS / 'make-chart'))
    figures = chart['figures']()
    picture = (DOCS / 'pictures' / 'memory.svg').read_text()
    assert picture == chart['draw'](figures)
    bars = re.findall(r'<rect[^>]* x="(\d+)" y="\d+" width="([\d.]+)".*?class="value"[^>]*>(\d+)<', picture)
    assert len(bars) == len(figures) and len({left for left, _, _ in bars}) == 1
    scales = [float(width) / int(value) for _, width, value in bars]
    assert max(scales) < 1.01 * min(scales)


@pytest.mark.parametrize('picture', sorted((DOCS / 'pictures').iterdir()), ids=lambda path: path.name)
def test_pictures_fit_a_phone(picture):
    """Narrow enough that their text is readable, and with colours for dark pages."""
    text = picture.read_text()
    assert int(re.search(r'viewBox="0 0 (\d+) ', text).group(1)) <= 420
    assert min(map(int, re.findall(r'font(?:-size)?: (\d+)px', text))) >= 13
    assert 'prefers-color-scheme: dark' in text


def test_pictures_have_a_text():
    """Each that a document names is there, and has an alternative for who cannot see it."""
    for path in pages():
        for name, below in re.findall(r'^\.\. image:: (\S+)\n(.*)', path.read_text(), re.M):
            assert os.path.exists(path.parent / name), (path, name)
            assert below.strip().startswith(':alt: '), (path, name)
