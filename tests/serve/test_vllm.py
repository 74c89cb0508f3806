"""vLLM itself, for CPUs: installed on PyTorch's module, it serves a tiny model on two nodes of a real Slurm."""
import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
from batch_systems.real_slurm import Slurm, wait_for
from common import ModulesTool, clean_environment, needs_root
from containers import images as containers
from lumi.lumi_site import Place
from on_top.below import BELOW, on_top
from serve.login import SYSTEM, Login, Served, enter, processes

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

MODULE = 'vLLM/0.32.0-cpu-workstation'
# so that it starts soon: nothing is compiled; two nodes that are one machine share its cores
SMALL = ('--max-model-len', '256', '--kv-cache-memory-bytes', '100000000', '--compilation-config.mode', '2',
         '--compilation-config.backend', 'eager')
QUESTION = ('-H', 'Content-Type: application/json', '-d', '{"model": "tiny", "prompt": "Hello", "max_tokens": 8}')


class Real(Login):
    """A login node with the installed module loaded."""

    def __init__(self, directory, eb, more):
        self.directory, self.temporary = directory / 'work', directory / 'temporary'
        self.directory.mkdir()
        self.temporary.mkdir()
        self.temporary.chmod(0o1777)
        self.shell = 'module use %s; module load vLLM || exit 1\n' % eb.modules
        self.lmod = ModulesTool('Lmod')
        variables = self.run('python -c "import json, os; print(json.dumps(dict(os.environ)))"', clean_environment())
        self.environment = dict(json.loads(variables.splitlines()[-1]), TMPDIR=str(self.temporary),
                                VLLM_CPU_OMP_THREADS_BIND='nobind', **more)
        self.program = eb.prefix / 'software' / MODULE / 'bin/pytorch-serve'
        self.run('tiny-model tiny')

    def run(self, commands, env=()):
        return self.lmod.run(self.shell + commands, cwd=self.directory, env=dict(env))


@pytest.fixture(scope='module')
def login(tmp_path_factory):
    needs_root()
    directory = tmp_path_factory.mktemp('vllm')
    with on_top('vLLM-0.32.0-cpu-workstation.eb') as (eb, _), \
            Slurm(directory / 'slurm', nodes=2, cpus=2, memory=8192) as slurm:
        share = eb.prefix / 'software' / MODULE / 'share'
        (share / 'system.cfg').write_text(SYSTEM % ('slurm', 'srun'))
        login = Real(directory, eb, slurm.environment)
        login.slurm, login.prefix = slurm, eb.prefix
        yield login


def shared_memory():
    """Python's, as vLLM's; other tests' programs have others'."""
    return set(Path('/dev/shm').glob('psm_*'))


def test_two_nodes(login):
    """Answers who has the key; after scancel nothing but the log is left."""
    memory = shared_memory()
    served = Served(login, '--nodes', '2', 'tiny', '--', *SMALL)
    key = '@%s/tiny-%s.key' % (login.directory, served.job)
    refuses_without_key(served, key, enter(login.slurm))
    status, answer = served.ask('/completions', '-H', key, *QUESTION,
                                enter=enter(login.slurm))
    assert status == 200 and json.loads(answer)['usage']['completion_tokens'] == 8, answer
    login.slurm.output('scancel', served.job)
    served.process.wait(300)
    wait_for(lambda: not login.slurm.output('squeue', '-h'), "the job's end", 120)
    assert login.files() == ['tiny-%s.out' % served.job]
    wait_for(lambda: not processes(served.key) and not processes(str(login.directory / 'tiny')), "no process", 120)
    assert not list(login.temporary.iterdir()) and shared_memory() <= memory


def refuses_without_key(served, key, where):
    """Each address that vLLM has, also where it asks for no key of its own."""
    status, answer = served.ask('/openapi.json', '-H', key, enter=where, below='')
    assert status == 200
    routes = json.loads(answer)['paths']
    assert {'/v1/completions', '/invocations', '/tokenize'} <= set(routes)
    for path in [*routes, '/openapi.json', '/docs', '/metrics']:
        for method in [*routes.get(path, ()), 'get']:
            status, answer = served.ask(path, '-X', method.upper(), *QUESTION, enter=where, below='')
            assert status == (200 if path == '/health' else 401), (method, path, answer)


def test_limit_larger_than_memory(login):
    """One line, with the option that helps, and no job."""
    called = login.start('tiny', '--', *SMALL, '--max-model-len', '512', '--kv-cache-memory-bytes', '1000000')
    # vLLM's log, with its tracebacks, is the output; ours is the last line
    _, errors = called.communicate(timeout=900)
    assert called.returncode == 1 and 'the limit of 512 tokens needs ' in errors.splitlines()[-1], errors
    assert not login.slurm.output('squeue', '-h', '-t', 'PENDING,RUNNING')


def test_check(login):
    """pytorch-check makes its own model, and asks."""
    output = login.run('pytorch-check vllm')
    assert 'vllm     works: first token after ' in output


def test_check_in_a_container(login, apptainer):
    """As in LUMI's: the image has vLLM, and the module its scripts, which come first."""
    place = Place(tempfile.mkdtemp(prefix='hpc-tests-'))
    try:
        below = login.prefix / 'software' / BELOW / ('lib/python%d.%d/site-packages' % sys.version_info[:2])
        containers.image_of_this_machine(place.store / 'tool.sif', login.prefix / 'software' / MODULE, {
            'PYTHONPATH': below, 'VLLM_CPU_OMP_THREADS_BIND': 'nobind'})
        # what the image would have itself
        bound = ','.join(['/usr', str(login.prefix), os.path.realpath(sys.base_prefix)])
        variables = dict(containers.FOR_ROOT, APPTAINER_BIND=bound, SINGULARITY_BIND=bound)
        place.install(place.easyconfig("import_name = 'torch'\npackage_version = '2.13.0'", 'PyTorch'), env=variables)
        output = ModulesTool('Lmod').run('module use %s; module load PyTorch; run-in-container bash -c "type -P '
                                         'pytorch-serve"; pytorch-check vllm' % place.eb.modules, cwd=login.directory,
                                         env=variables)
        assert '/runscripts/pytorch-serve' in output and 'vllm     works: first token after ' in output
    finally:
        place.remove()
