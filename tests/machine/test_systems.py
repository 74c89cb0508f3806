"""The systems as data: the schema, its errors, and the choice between systems."""
import configparser
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_pytorch import UsersProblem
from hpc_pytorch.machine import systems as system

CHECKOUT = Path(__file__).resolve().parent.parent.parent
SYSTEMS = CHECKOUT / 'systems'
NAMES = sorted(path.parent.name for path in SYSTEMS.glob('*/system.cfg'))
GOOD = """
[system]
title = Test
easyconfig_suffix = Test
architecture = x86_64

[compilers]
c = gcc
cxx = g++

[launcher]
command = srun
two_processes = srun -n 2

[scheduler]
kind = slurm

[node]
cores = 64
memory = 512 GiB
gpus = 2
gpu_cores = 0-31 32-63

[sources]
notes = 2026-08-21 the plugin's release notes
ours = 2026 nobody
    but us

[setting NCCL_NET (old)]
value = AWS Libfabric
reason = the plugin's name
source = notes
when = nccl aws-ofi-nccl<1.13

[setting NCCL_NET]
value = OFI
reason = the plugin's name
source = notes
when = nccl aws-ofi-nccl>=1.13

[setting ALWAYS]
value = a b
reason = a reason
    that goes on
source = ours
"""


def written(tmp_path, text):
    """A system.cfg with this text."""
    path = tmp_path / 'test' / 'system.cfg'
    path.parent.mkdir()
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize('name', NAMES)
def test_every_system_loads(name):
    loaded = system.load(name)
    assert loaded.name == name and loaded.directory == str(SYSTEMS / name)
    for section, schema in system.SCHEMA.items():
        assert section == 'sources' or set(getattr(loaded, section)) == set(schema)
    for variable in loaded.settings + loaded.advice:
        assert len(variable.reason) > 10 and variable.value
    text = (SYSTEMS / name / 'system.cfg').read_text()
    assert all(re.search(r'^(source = %s$|# %s:)' % (word, word), text, re.M) for word in loaded.sources)
    assert {one.source for one in loaded.settings + loaded.advice} <= set(loaded.sources)


@pytest.mark.parametrize('name', NAMES)
def test_facts_have_a_source(name):
    """Whoever doubts a figure must be able to look it up."""
    assert (SYSTEMS / name / 'system.cfg').read_text().startswith('#')


@pytest.mark.parametrize('name', NAMES)
def test_versions_in_conditions(name):
    """They name software of the system's easyconfigs, else they never hold; two values of a variable exclude others."""
    loaded = system.load(name)
    paths = [path for path in (CHECKOUT / 'easyconfigs').rglob('*.eb') if system.is_for(path.name, loaded)]
    easyconfigs = '\n'.join(path.read_text() for path in paths)
    before = {}
    for one in loaded.settings:
        versions = {software for software, relation, _ in one.when if relation}
        for software in versions:
            assert re.search(r"['-]%s['/-]" % re.escape(software), easyconfigs), '%s: %s' % (one.name, software)
        assert before.setdefault(one.name, versions) & versions or before[one.name] is versions, one.name


def test_values_are_typed(tmp_path):
    test = system.load_file(written(tmp_path, GOOD))
    assert test.node['cores'] == 64 and test.node['memory'] == 512 * 2**30
    assert test.node['gpu_cores'] == [list(range(32)), list(range(32, 64))]
    assert test.launcher['two_processes'] == ['srun', '-n', '2']
    assert test.node['temporary_directory'] is None and test.launcher['gpu_options'] == []
    assert test.container['bind_paths'] == []
    assert test.settings[2].reason == 'a reason that goes on'
    assert test.sources == {'notes': ('2026-08-21', "the plugin's release notes"), 'ours': ('2026', 'nobody but us')}
    assert test.settings[2].source == 'ours'


# with EasyBuild's Python: the commands that submit a build and a survey, and what ReFrame knows of the GPUs
SUBMISSIONS = """
import json, sys
from hpc_pytorch.jobs import reframe_settings, requests
from hpc_pytorch.machine import batch_systems, survey, systems
from hpc_pytorch.rules.resource_needs import OTHERS
batch_systems.Slurm.submit = lambda self, command, script: command
requests.build_option = {'job_max_walltime': 24}.get
found = systems.load_file(sys.argv[1])
built = batch_systems.Slurm().command(requests.request_for(found, OTHERS), 'toy', 'mark', 'log', [])
print(json.dumps([built, survey.submit(found, 'log'), reframe_settings.partition(found)['resources']]))
"""


def test_refused_options(tmp_path):
    """TACC's Slurm takes no job that names memory or GPUs: neither builds, nor the survey, nor ReFrame's checks do."""
    kind = 'kind = slurm\nnodes_exclusive = yes\nrefused_options = --mem --gpus\noptions = --comment=ours'
    path = written(tmp_path, GOOD.replace('kind = slurm', kind))
    env = {'HPC_PYTORCH_COMMAND': './eb', 'PYTHONPATH': str(CHECKOUT)}
    done = subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', SUBMISSIONS, path], stdout=subprocess.PIPE,
                          env=env, check=True)
    *commands, resources = json.loads(done.stdout)
    for command in commands:
        assert '--nodes=1' in command and not [word for word in command if word.startswith(('--mem', '--gpus'))]
        assert '--comment=ours' in command
    assert resources == [{'name': 'gpus', 'options': []}]
    Path(path).write_text(GOOD)
    done = subprocess.run([str(CHECKOUT / '.venv/bin/python'), '-c', SUBMISSIONS, path], stdout=subprocess.PIPE,
                          env=env, check=True)
    # a survey does not wait for all of a node's memory where nodes are shared
    assert '--mem=1024' in json.loads(done.stdout)[1]


def test_settings_by_feature_and_version(tmp_path):
    test = system.load_file(written(tmp_path, GOOD))

    def names_and_values(*arguments):
        return [(setting.name, setting.value) for setting in test.settings_for(*arguments)]

    always = ('ALWAYS', 'a b')
    assert names_and_values([]) == [always]
    # a version that nobody knows chooses neither
    assert names_and_values(['nccl']) == [always]
    assert names_and_values(['nccl'], {'aws-ofi-nccl': '1.6.0'}) == [('NCCL_NET', 'AWS Libfabric'), always]
    assert names_and_values(['nccl'], {'aws-ofi-nccl': '1.13.0'}) == [('NCCL_NET', 'OFI'), always]
    assert names_and_values(['gpu'], {'aws-ofi-nccl': '1.13.0'}) == [always]


@pytest.mark.parametrize('old, new, words', [
    ('cores = 64', 'core = 64', ["'core'", '[node]', 'did you mean cores?']),
    ('[node]', '[nodes]', ['[nodes]', 'did you mean node?']),
    ('[setting ALWAYS]', '[setings ALWAYS]', ['[setings ALWAYS]', 'did you mean setting']),
    ('[setting ALWAYS]', '[setting]', ['[setting]']),
    ('source = ours', '', ["'source' is missing", '[setting ALWAYS]']),
    ('notes = 2026-08-21 the', 'notes = the', ["notes = the plugin's", 'a date and a document']),
    ('value = a b', 'valeu = a b', ["'value' is missing"]),
    ('title = Test', '', ["'title' is missing", '[system]']),
    ('[launcher]', '[network]', ["'command'", '[network]']),
    ('kind = slurm', 'kind = lsf', ['lsf', 'slurm, pbs or none']),
    ('command = srun', 'command = srun --mpi=pmix', ['srun --mpi=pmix', 'srun, mpiexec, mpiexec.hydra or mpirun']),
    ('cores = 64', 'cores = many', ['cores = many', 'whole number']),
    ('memory = 512 GiB', 'memory = 512', ['memory = 512', '256 GiB']),
    ('memory = 512 GiB', 'memory = 1500 GB', ['memory = 1500 GB', 'in KiB, MiB, GiB or TiB']),
    ('gpu_cores = 0-31 32-63', 'gpu_cores = 0-31', ['1 lists', '2 GPUs']),
    ('gpu_cores = 0-31 32-63', 'gpu_cores = 0-31 32-64', ['64 cores']),
    ('gpu_cores = 0-31 32-63', 'gpu_cores = 0-32 32-63', ['twice']),
    ('gpu_cores = 0-31 32-63', 'gpu_cores = 31-0 32-63', ['31-0']),
    ('when = nccl aws-ofi-nccl<1.13', 'when = ncll', ["'ncll'", 'did you mean nccl?']),
    ('when = nccl aws-ofi-nccl<1.13', 'when = nccl aws-ofi-nccl==1', ['aws-ofi-nccl==1']),
    ('kind = slurm', 'kind = slurm\nkind = pbs', ['kind']),
    ('kind = slurm', 'kind', ['cannot be read']),
    ('title = Test', 'title =', ['one line of text']),
    ('two_processes = srun -n 2', 'two_processes = 2', ['two_processes = 2 in [launcher]', 'expected words']),
    ('kind = slurm', 'kind = slurm\noptions = --export=NONE\n    qos = long',
     ['options = --export=NONE qos = long in [scheduler]', 'words separated by blanks']),
    ('cores = 64', 'cores = 64\nqos = long', ["'qos' in [node]", 'known keys: cores, ', 'belongs to [scheduler]']),
    # what those who edit a draft write
    *[('kind = slurm', 'kind = slurm\n' + wrong, [wrong + ' in [scheduler]', expected]) for wrong, expected in (
        ('qos = normal # the default', 'without a comment'),
        ('options = --export=NONE # as the site wants it', 'without commas or comments'),
        ('options = --export=NONE, --hint=nomultithread', 'without commas or comments'),
        ('gpus_option = --gres=gpu', 'ends in = or :'),
        ('gpus_option = --gpus-per-node=4', 'ends in = or :'),
        ('account_variable = p12345', 'name of an environment variable'),
        ('account_variable = $SBATCH_ACCOUNT', 'name of an environment variable'))],
    ('easyconfig_suffix = Test', 'easyconfig_suffix = my-machine', ['words without dashes']),
    ('architecture = x86_64', 'architecture = arm64', ['such as x86_64 or aarch64']),
    *[('cores = 64', 'cores = 64\ngpu_architecture = ' + wrong, ['such as gfx90a or 8.0'])
      for wrong in ('A100', 'sm_80', '80', '8.0 9.0')],
    *[('title = Test', 'title = Test\nhost_names = ' + wrong, ['patterns separated by blanks'])
      for wrong in ('login1, gpu1', 'gpu[001-128]', 'gpu[1-12]', 'gpu[1-4,7]', 'gpu{1..4}', r'gpu\d+', 'gpu1 # all')],
])
def test_errors_name_file_and_key(tmp_path, old, new, words):
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(UsersProblem) as problem:
        system.load_file(path)
    message = str(problem.value)
    assert '\n' not in message
    for word in [path] + words:
        assert word in message


@pytest.mark.parametrize('line', [
    'host_names = login[1-4] cx3-15-[0-9] *.gpu.site nid[!5-9][0-9] x[01]',
    'reason = ticket # 7',
    'options = --constraint=a,b --nodelist=gpu[001-128]',
])
def test_values_that_look_odd(tmp_path, line):
    section = {'host_names': 'system', 'reason': 'installation', 'options': 'scheduler'}[line.split()[0]]
    text = GOOD + '[installation]\n'
    loaded = system.load_file(written(tmp_path, text.replace('[%s]' % section, '[%s]\n%s' % (section, line))))
    assert getattr(loaded, section)[line.split()[0]]


def test_unreadable_file(tmp_path):
    with pytest.raises(UsersProblem, match='No such file'):
        system.load_file(str(tmp_path / 'system.cfg'))


@pytest.mark.parametrize('option, environ, host, easyconfigs, name, reason', [
    ('bede', {'HPC_SYSTEM': 'lumi'}, 'ln01', ['A-1-Derecho.eb'], 'bede', '--system'),
    (None, {'HPC_SYSTEM': 'lumi'}, 'ln01', ['A-1-Derecho.eb'], 'lumi', '$HPC_SYSTEM'),
    (None, {}, 'ln01', ['A-1-Derecho.eb'], 'archer2', 'ln01'),
    (None, {}, 'deg0012', [], 'derecho', 'deg0012'),
    (None, {}, 'login04.frontier.olcf.ornl.gov', [], 'frontier', 'login04'),
    (None, {}, 'frontier00001', [], 'frontier', 'frontier00001'),
    (None, {}, 'UAN02', [], 'lumi', 'UAN02'),
    # the name of a compute node fits ARCHER2 and LUMI: the easyconfig decides
    (None, {}, 'nid001234', ['PyTorch-1.13.1-ARCHER2.eb'], 'archer2', 'PyTorch-1.13.1-ARCHER2.eb'),
    (None, {}, 'nid001234', ['x-singularity-1.eb'], 'lumi', 'x-singularity-1.eb'),
    (None, {}, 'nid001234', [], 'workstation', 'the host name (it fits archer2 and lumi)'),
    (None, {'HPC_SYSTEM': ''}, 'laptop', ['/a/b/PyTorch-2.4.0-Derecho.eb'], 'derecho', 'PyTorch-2.4.0-Derecho.eb'),
    (None, {}, 'laptop', ['PyTorch-2.6.0-Bede-whl.eb'], 'bede', 'PyTorch-2.6.0-Bede-whl.eb'),
    (None, {}, 'laptop', ['PyTorch-2.1.0-rocm-5.6.1-python-3.10-singularity-20231123.eb'], 'lumi', 'singularity'),
    (None, {}, 'laptop', ['PyTorch-2.2.2-Frontier.eb', 'a-1-Frontier.eb'], 'frontier', 'PyTorch-2.2.2-Frontier.eb'),
    (None, {}, 'laptop', ['PyTorch-2.13.0-workstation.eb'], 'workstation', 'workstation.eb'),
    (None, {}, 'laptop', ['zlib-1.3.eb'], 'workstation', 'default'),
    (None, {}, 'laptop', [], 'workstation', 'default'),
])
def test_choice(option, environ, host, easyconfigs, name, reason):
    chosen, why = system.choose(option, environ, host, easyconfigs)
    assert chosen == name
    assert reason in why and '\n' not in why


@pytest.mark.parametrize('option, environ, words', [
    ('archer', {}, ['--system', "'archer'", 'did you mean archer2?', 'workstation']),
    (None, {'HPC_SYSTEM': 'Frontier'}, ['$HPC_SYSTEM', "'Frontier'", 'did you mean frontier?']),
    ('', {}, ['--system']),
    ('../systems/lumi', {}, ['--system']),
])
def test_choice_of_no_system(option, environ, words):
    with pytest.raises(UsersProblem) as problem:
        system.choose(option, environ, 'laptop', [])
    assert all(word in str(problem.value) for word in words)


def test_easyconfigs_of_two_systems():
    with pytest.raises(UsersProblem, match='archer2.*derecho'):
        system.choose(None, {}, 'laptop', ['PyTorch-1.13.1-ARCHER2.eb', 'PyTorch-2.4.0-Derecho.eb'])


def test_no_easyconfig_belongs_to_two_systems():
    systems = [system.load(name) for name in NAMES]
    for path in (CHECKOUT / 'easyconfigs').rglob('*.eb'):
        assert len([one for one in systems if system.is_for(path.name, one)]) <= 1, path.name


def test_choosing_imports_nothing_heavy():
    """This runs in every start of ./eb."""
    code = ('import sys; sys.path.insert(0, sys.argv[1]); import hpc_pytorch.machine.systems as s; '
            's.choose(None, {}, "x", []); '
            'print([name for name in ("subprocess", "easybuild", "email", "logging", "ssl") if name in sys.modules])')
    answer = subprocess.run([sys.executable, '-I', '-S', '-c', code, str(CHECKOUT)], stdout=subprocess.PIPE, text=True,
                            check=True)
    assert answer.stdout == '[]\n'


@pytest.mark.parametrize('rocm, expected', [
    ('5.6.1', {'NCCL_NET_GDR_LEVEL': '3'}), ('6.2.4', {'NCCL_NET_GDR_LEVEL': '3'}),
    ('7.0', {'FI_MR_CACHE_MONITOR': 'userfaultfd'}), ('7.2', {'FI_MR_CACHE_MONITOR': 'userfaultfd'}),
])
def test_lumi_by_rocm(rocm, expected):
    """With ROCm 7 the level may make jobs hang (laifs-container-recipes issue 30); another setting is advised."""
    found = system.load('lumi').settings_for(['container', 'gpu', 'nccl'], {'rocm': rocm})
    assert {one.name: one.value for one in found} == dict(expected, NCCL_SOCKET_IFNAME='hsn0,hsn1,hsn2,hsn3')


def test_masks_of_lumi():
    """The page's --cpu-bind=mask_cpu, derived from gpu_cores."""
    masks = ['0x%x' % sum(1 << core for core in cores) for cores in system.load('lumi').node['gpu_cores']]
    assert masks == ['0xfe000000000000', '0xfe00000000000000', '0xfe0000', '0xfe000000', '0xfe', '0xfe00',
                     '0xfe00000000', '0xfe0000000000']


def test_proxies_are_off_until_asked_for():
    frontier = system.load('frontier')
    assert not [one for one in frontier.settings_for(['gpu', 'nccl', 'mpi']) if 'proxy' in one.name]
    assert len([one for one in frontier.settings_for(['proxy']) if 'proxy' in one.name]) == 5


@pytest.mark.parametrize('name', NAMES)
def test_easybuild_reads_the_configuration(eb, name):
    done = eb('--system=%s' % name, '--show-full-config')
    assert str(SYSTEMS / name / 'easybuild.cfg') in done.stdout
    metadata = SYSTEMS / name / 'external_modules.cfg'
    if metadata.exists():
        assert str(metadata) in done.stdout


@pytest.mark.parametrize('name', [path.parent.name for path in sorted(SYSTEMS.glob('*/external_modules.cfg'))])
def test_metadata_is_consistent(name):
    """cray-mpich is one of cray-mpich/8.1.27 and others, and they say the same."""
    metadata = configparser.ConfigParser(interpolation=None)
    metadata.read(str(SYSTEMS / name / 'external_modules.cfg'))
    for base in metadata.sections():
        said = [dict(metadata[section]) for section in metadata.sections() if section.startswith(base + '/')]
        assert not said or dict(metadata[base]) in said
