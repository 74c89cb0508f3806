"""
./eb --job on PBS Pro, of which the tests have a stand-in that runs jobs for real and without a network.

Of job_backends/pbspro.py; which code is behind that is said in test_slurm_jobs.py.
"""
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from common import CHECKOUT, EB, clean_environment
from small_software import OCCUPY, WAIT, Toys, make_wheel
from batch_systems.pbs_stand_in import Pbs

pytestmark = pytest.mark.slow


@pytest.fixture
def pbs(tmp_path):
    """Two nodes, two queues, one project."""
    with Pbs(tmp_path / 'pbs', accounts=['NCAR0001'], queues={'main': 12 * 3600, 'short': 600}) as running:
        yield running


@pytest.fixture
def toys(pbs, eb, tmp_path):
    """Toys for Derecho, with a project that pays."""
    return Toys(eb, tmp_path, 'Derecho', dict(pbs.environment, PBS_ACCOUNT='NCAR0001'))


LOCKED = """easyblock = 'LockedWheels'
name = 'PyTorch'
version = '1.0'
versionsuffix = '-Derecho'
homepage = 'https://example.org/'
description = 'one small package in its place'
toolchain = SYSTEM
dependencies = [('aws-ofi-nccl', '1.0', '-Derecho'), ('conda/latest', EXTERNAL_MODULE)]
lock_files = ['PyTorch-1.0-Derecho.lock']
python_versions = [%r]
sanity_check_commands = ['python -c "import toy"']
moduleclass = 'ai'
"""


def locked_wheels(toys):
    """PyTorch's place in the chain, taken by a package from a lock file; returns where pip finds it."""
    index = toys.directory / 'index'
    index.mkdir()
    wheel = make_wheel(index, 'toy')
    (toys.directory / 'PyTorch-1.0-Derecho.lock').write_text(
        '# made by the test\ntoy==1.0 --hash=sha256:%s\n' % hashlib.sha256(wheel.read_bytes()).hexdigest())
    (toys.directory / 'PyTorch-1.0-Derecho.eb').write_text(LOCKED % ('%d.%d' % sys.version_info[:2]))
    toys.eb.sources = toys.directory / 'sources'
    return {'PIP_CONFIG_FILE': os.devnull, 'PIP_NO_INDEX': '1', 'PIP_FIND_LINKS': str(index)}


def test_derechos_chain(toys, pbs, lmod):
    """NCCL, the plugin, PyTorch, torchvision: in this order, fetched before, installed by jobs without a network."""
    go = toys.directory / 'go'
    toys.write('NCCL', modules=['cuda/12.2.1'], commands=['env > %(installdir)s/environment', WAIT.format(file=go)])
    toys.write('aws-ofi-nccl', after=['NCCL'], modules=['libfabric/1.15.2.0'])
    # the stand-in is made now: later pip has no index
    toys.eb('--rehearse', 'NCCL-2.21.5-1-Derecho.eb', '-D')
    pip = locked_wheels(toys)
    top = toys.write('torchvision', after=['PyTorch'])
    jobs = toys.submit(top, env=dict(pip, A_SECRET='hidden'))
    assert jobs == ['1.pbs', '2.pbs', '3.pbs', '4.pbs']
    assert toys.submit(top, env=pip) == jobs, "submitted twice"
    facts = pbs.jobs()
    assert len(facts) == 4
    assert [facts[job]['depend'] for job in jobs] == [None, 'afterok:1.pbs', 'afterok:2.pbs', 'afterok:3.pbs']
    assert facts['1.pbs']['Account_Name'] == 'NCAR0001' and facts['1.pbs']['queue'] == 'main'
    assert facts['1.pbs']['Resource_List.select'] == '1:ncpus=64:ngpus=4'
    scripts = sorted((toys.eb.prefix / 'software/.jobs').glob('*.sh'))
    assert len(scripts) == 4
    subprocess.run(['shellcheck', *map(str, scripts)], check=True)
    go.touch()
    ended = toys.wait_for_end()
    assert all('  done (' in text for text in ended.values()), ended
    assert lmod.run('module use %s; module show torchvision/1.0-Derecho' % toys.eb.modules)
    logs = [(toys.directory / ('%s-1.0-Derecho-%s.out' % (name, job))).stat().st_mtime for name, job in zip(
        ('NCCL', 'aws-ofi-nccl', 'PyTorch', 'torchvision'), jobs)]
    assert logs == sorted(logs)
    environment = (toys.eb.prefix / 'software/NCCL/1.0-Derecho/environment').read_text()
    assert 'A_SECRET' not in environment and 'PIP_FIND_LINKS' not in environment


def test_refused(toys, pbs):
    """A project that is not known, a queue's limit, no such queue: what PBS says and what to do; nothing is left."""
    toys.write('base')
    easyconfig = toys.write('toy', after=['base'])
    output = toys.refused(easyconfig, env={'PBS_ACCOUNT': ''})
    assert 'export PBS_ACCOUNT=PROJECT' in output
    output = toys.refused(easyconfig, env={'PBS_ACCOUNT': 'NCAR0002'})
    assert 'Invalid account' in output and 'export PBS_ACCOUNT=PROJECT' in output
    output = toys.refused(easyconfig, '--job-target-resource=partition=short')
    assert 'Job violates queue' in output and 'walltime=' in output
    assert 'Unknown queue' in toys.refused(easyconfig, '--job-target-resource=partition=nowhere')
    # the second of two is refused: the first, which was taken, is given back
    toys.write('toy', after=['base'])
    pbs.fail('qrls', 1)
    assert 'cannot connect to server' in toys.refused(easyconfig)
    assert {job['job_state'] for job in pbs.jobs().values()} == {'F'}
    assert not list((toys.eb.prefix / 'software/.jobs').glob('*.json'))


def test_server_away(toys, pbs):
    """qsub fails once: tried again. qstat does not answer: nothing is submitted twice in the dark."""
    easyconfig = toys.write('toy', commands=[WAIT.format(file=toys.directory / 'go')])
    pbs.fail('qsub', 1)
    assert toys.submit(easyconfig) == ['1.pbs']
    pbs.hang('qstat')
    with ThreadPoolExecutor() as both:
        output, found = both.submit(toys.refused, easyconfig), both.submit(toys.status)
    assert 'qstat has not answered for' in output.result() and 'submitted before as job 1.pbs' in output.result()
    assert '  unknown (qstat has not answered' in found.result()['toy/1.0-Derecho']
    (pbs.directory / 'hang-qstat').unlink()
    assert len(pbs.jobs()) == 1
    (toys.directory / 'go').touch()
    assert '  done' in toys.wait_for_end()['toy/1.0-Derecho']
    # the server is not there at all
    pbs.fail('qsub', 99)
    toys.write('other')
    assert 'cannot connect to server' in toys.refused(toys.directory / 'other-1.0-Derecho.eb')


def test_failures(toys, pbs):
    """Too much memory, too little time, an error: each explained, with its log; what depends on it is deleted."""
    toys.write('large', commands=[OCCUPY.format(megabytes=600, seconds=60)])
    top = toys.write('top', after=['large'])
    toys.submit(top, '--job-target-resource=memory=400M')
    toys.submit(toys.write('broken', commands=['echo "No space left on device"; exit 1']))
    found = toys.wait_for_end()
    text = found['large/1.0-Derecho']
    assert '  failed (exit status -27' in text and 'more memory than the job had (400 MiB)' in text
    assert 'job killed: mem' in text and '--job-target-resource=memory=' in text
    assert Path(re.search(r'log: (\S+)', text).group(1)).exists()
    assert '  cancelled' in found['top/1.0-Derecho'] and 'large/1.0-Derecho is not there' in found['top/1.0-Derecho']
    assert '  failed' in found['broken/1.0-Derecho'] and 'the disk is full' in found['broken/1.0-Derecho']
    # PBS has forgotten them: their own files still tell
    pbs.forget()
    assert 'the disk is full' in toys.status()['broken/1.0-Derecho']


def test_node_fails(toys, pbs):
    """A node goes down under a build: the job is started again, finds its own old lock, and ends well."""
    begun, go = toys.directory / 'begun', toys.directory / 'go'
    easyconfig = toys.write('patient', commands=['touch %s' % begun, WAIT.format(file=go)])
    toys.submit(easyconfig)
    deadline = time.monotonic() + 120
    while not begun.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pbs.node_down('deg0001')
    go.touch()
    assert '  done' in toys.wait_for_end()['patient/1.0-Derecho']
    assert pbs.job('1')['run_count'] == 2 and pbs.job('1')['exec_host'].startswith('deg0002')
    assert toys.module('patient').exists()
    assert not list((toys.eb.prefix / 'software/.locks').iterdir())


# --- EasyBuild from elsewhere ---------------------------------------------------------------------------------------

def from_pip(directory):
    """`pip install .` beside EasyBuild; returns the command and what it needs in its environment."""
    environment = directory / 'venv'
    subprocess.run([str(CHECKOUT / 'environments/make-environment'), str(environment),
                    str(CHECKOUT / 'environments/eb.txt')], env=clean_environment(), check=True,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    source = directory / 'source'
    shutil.copytree(CHECKOUT, source, ignore=shutil.ignore_patterns('.git', '.venv*', '.local', 'build', '__pycache__'))
    subprocess.run([str(environment / 'bin/python'), '-m', 'pip', 'install', '--quiet', '--no-index',
                    '--no-build-isolation', str(source)], env=clean_environment(), check=True, stdin=subprocess.DEVNULL)
    package, = environment.glob('lib/python3*/site-packages/hpc_pytorch')
    return environment / 'bin/eb', {'EB_PYTHON': str(environment / 'bin/python')}, package


def from_module(directory):
    """The site's own module: a tree on $PATH and $PYTHONPATH, and behind it the collection's checkout."""
    tree = directory / 'EasyBuild'
    site, = (CHECKOUT / '.venv').glob('lib/python3*/site-packages')
    shutil.copytree(site / 'easybuild', tree / 'lib/easybuild', ignore=shutil.ignore_patterns('__pycache__'))
    shutil.copytree(CHECKOUT / '.venv/easybuild/scripts', tree / 'easybuild/scripts')
    (tree / 'bin').mkdir()
    shutil.copy(CHECKOUT / '.venv/bin/eb', tree / 'bin/eb')
    shutil.copytree(site / 'rich', tree / 'lib/rich')
    return tree / 'bin/eb', {'PYTHONPATH': '%s:%s' % (tree / 'lib', CHECKOUT / '.local/site'),
                             'EB_PYTHON': shutil.which('python3', path='/usr/bin')}, CHECKOUT


@pytest.mark.parametrize('place', [from_pip, from_module])
def test_eb_from_elsewhere(place, toys, pbs):
    """Plain eb, from pip or from the site's module: backend and hooks work, and jobs find the same eb."""
    command, environment, top = place(toys.directory)
    where = toys.directory / 'where.cfg'
    where.write_text('[DEFAULT]\nCOLLECTION = %s\n' % top)
    modules = CHECKOUT / '.local/stand_ins/derecho/modules'
    environment.update(
        EASYBUILD_CONFIGFILES='%s,%s' % (top / 'systems/derecho/easybuild.cfg', where),
        EASYBUILD_HOOKS=str(top / 'hooks/hpc_pytorch_hooks.py'), EASYBUILD_MODULES_TOOL='Lmod',
        LMOD_CMD='/usr/share/lmod/lmod/libexec/lmod', MODULEPATH=str(modules), PATH='%s:%s' % (
            command.parent, pbs.environment['PATH']), EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES='1')
    easyconfig = toys.write('toy', modules=['cuda/12.2.1'])
    eb = EB(toys.directory / 'prefix', command=['eb'])
    output = eb(easyconfig, '--job', env=dict(environment, PBS_ACCOUNT=''), status=None).stdout
    assert 'export PBS_ACCOUNT=PROJECT' in output
    output = eb(easyconfig, '--job', env=dict(environment, PBS_ACCOUNT='NCAR0001')).stdout
    assert '== toy/1.0-Derecho is job 1.pbs' in output and 'python3 -m hpc_pytorch.jobs.status' in output
    deadline = time.monotonic() + 120
    while pbs.job('1')['job_state'] != 'F':
        assert time.monotonic() < deadline
        time.sleep(0.1)
    log = (toys.directory / 'toy-1.0-Derecho-1.pbs.out').read_text()
    assert pbs.job('1')['Exit_status'] == 0, log
    # what our hooks say at the end
    assert 'module load toy/1.0-Derecho' in log
    assert (toys.eb.prefix / 'software/toy/1.0-Derecho/easybuild/provenance/provenance.json').exists()
