"""
./eb --survey: a machine that is as described, and the same with one thing otherwise at a time.

Of machine/inspection.py and new_system.py, too.
"""
import os
import re
import shutil
import socket
import subprocess
import time

import pytest

from common import CHECKOUT, clean_environment, needs_program, slow
from hpc_pytorch import UsersProblem
from hpc_pytorch.machine import batch_systems, commands, inspection, new_system, survey, systems
from hpc_pytorch.machine.modules import ModulesShell, candidates
from ramgate import processes

SYSTEM = """[system]
title = Test
easyconfig_suffix = Surveyed
host_names = %s
login_hosts = %s
architecture = %s
[compilers]
c = testcc
cxx = testCC
[launcher]
command = srun
two_processes = srun -n 2
[scheduler]
kind = slurm
partition = gpu
build_partition = small
nodes_exclusive = yes
[node]
cores = 8
threads_per_core = 2
memory = 512 GiB
gpus = 2
cuda = 12
gpu_architecture = 8.0
gpu_cores = 0-3 4-7
local_storage = /mnt/bb
temporary_directory = /tmp
[network]
interfaces = hsn0 hsn1
[container]
bind_paths = /opt/cray /pfs
""" % (socket.gethostname().lower(), socket.gethostname().lower(), os.uname().machine)
METADATA = "[cuda/12.2.1]\nname = CUDA\nversion = 12.2.1\nprefix = CUDA_HOME\n[mpi]\nname = MPI\nversion = 4.0\n"
# in the form of `sinfo --format=%R|%z|%m|%G|%h|%a`, GPUs written as Frontier's and LUMI's documentation show them
SINFO = "gpu|1:8:2|524288|gpu:a100:2(S:0-1)|EXCLUSIVE|up\nsmall|2:64:2|229376|(null)|NO|up\n"
# what the kernel knows of a GPU: the driver's directory, and the cores next to it
GPU = 'root/proc/driver/nvidia/gpus/0000:%s:00.0'
NEAR = 'root/sys/bus/pci/devices/0000:%s:00.0/local_cpulist'
# as AMD prints it for MI250 nodes in its documentation
NUMA = ("GPU[0]\t\t: (Topology) Numa Node: 0\nGPU[0]\t\t: (Topology) Numa Affinity: 0\n"
        "GPU[1]\t\t: (Topology) Numa Node: 1\n")
PROVIDERS = "cxi:\n    version: 113.0\ntcp:\n    version: 118.0\n"
EASYCONFIG = """dependencies = [
    ('mpi', EXTERNAL_MODULE),
    ('cuda/12.2.1', EXTERNAL_MODULE),
]
"""


class Place:
    """A machine whose files, commands and modules are in one directory."""

    def __init__(self, top):
        self.top, self.root = top, top / 'root'
        self.write('systems/test/system.cfg', SYSTEM)
        self.write('systems/test/external_modules.cfg', METADATA)
        self.write('easyconfigs/t/Test/Test-1.0-Surveyed.eb', EASYCONFIG)
        for name, text in (('sinfo', SINFO), ('fi_info', PROVIDERS), ('testcc', ''), ('testCC', ''), ('srun', ''),
                           ('singularity', '')):
            self.command(name, text)
        self.command('nvidia-smi', '', other='NVIDIA-SMI 535.54  Driver Version: 535.54  CUDA Version: 12.2\n',
                     compute_cap='8.0')
        self.module('mpi/4.0', 'module use %s\n' % (top / 'opened'))
        self.write('opened/cuda/12.2.1', '#%%Module1.0\nsetenv CUDA_HOME %s\n' % top)
        self.write('opened/cuda/12.3.0', '#%Module1.0\n')
        self.command('lscpu', '# Socket,Core\n' + ''.join('0,%d\n' % (number % 8) for number in range(16)))
        for number, bus, cores in ((0, '07', '0-3,8-11'), (1, 'c1', '4-7,12-15')):
            self.write('root/sys/devices/system/node/node%d/cpulist' % number, cores + '\n')
            self.write(NEAR % bus, cores + '\n')
            self.write(GPU % bus + '/information', '')
        self.write('root/proc/meminfo', 'MemTotal:       527942792 kB\n')
        for name in ('sys/class/net/hsn0', 'sys/class/net/hsn1', 'sys/class/cxi/cxi0', 'mnt/bb', 'tmp', 'opt/cray',
                     'pfs', 'home/me'):
            (self.root / name).mkdir(parents=True)
        self.environ = dict(clean_environment(), HOME='/home/me', USER='somebody', MODULEPATH=str(top / 'modules'),
                            PATH=str(top / 'bin'))
        # the machine that this runs on may have any of the others
        (top / 'bin' / 'cat').symlink_to('/bin/cat')

    def write(self, name, text):
        """A file."""
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def command(self, name, text, other=None, compute_cap=None):
        """A command that prints this; `other` without arguments, and what is asked with --query-gpu."""
        words = "cat <<'END'\n%s\nEND\n" % text.rstrip('\n')
        if compute_cap:
            words = 'case "$*" in *compute_cap*) echo %s; exit;; esac\n' % compute_cap + words
        if other:
            words = 'if [ $# = 0 ]; then echo "%s"; exit; fi\n' % other.strip() + words
        self.write('bin/' + name, '#!/bin/sh\n' + words).chmod(0o755)

    def module(self, name, text):
        """A module that can be seen."""
        self.write('modules/' + name, '#%Module1.0\n' + text)

    def replace(self, name, old, new):
        """Change a file."""
        text = (self.top / name).read_text()
        assert old in text
        (self.top / name).write_text(text.replace(old, new))

    def survey(self, job, monkeypatch, only=''):
        """What differs, and all findings; `only` leaves out what loads modules, which takes time, and is not this."""
        monkeypatch.setattr(inspection, 'collection_path', lambda name: str(self.top / name))
        system = systems.load_file(str(self.top / 'systems' / 'test' / 'system.cfg'))
        environ = dict(self.environ, SLURM_JOB_ID='1', SLURMD_NODENAME='n1') if job else self.environ
        machine = inspection.Machine(system, str(self.root), environ)
        findings = [survey.ask(probe, machine) for probe in inspection.PROBES
                    if not only or probe.name == only or probe.name not in LOAD_MODULES]
        findings += survey.about_easyconfigs(machine) if not only or ' of ' in only else []
        return [finding.name for finding in findings if finding.result == survey.DIFFERS], findings


@pytest.fixture
def place(tmp_path):
    """A machine as it is described."""
    return Place(tmp_path)


def without(name):
    """Something that is not there."""
    return lambda place: (place.top / name).rename(place.top / 'gone')


def other(name, old, new):
    """A file that says something else."""
    return lambda place: place.replace(name, old, new)


CFG = 'systems/test/system.cfg'
# these take time
LOAD_MODULES = ('commands', 'container run time')
DIFFERENCES = [
    (0, 'architecture', other(CFG, '\narchitecture = ', '\narchitecture = un')),
    (0, 'host name', other(CFG, 'host_names = ', 'host_names = un')),
    (0, 'login host', other(CFG, 'login_hosts = ', 'login_hosts = un')),
    (0, 'commands', without('bin/testCC')),
    (0, 'commands', without('bin/srun')),
    (0, 'batch system', other(CFG, 'kind = slurm', 'kind = pbs')),
    (0, 'partitions', other('bin/sinfo', 'gpu|1:', 'gpus|1:')),
    (0, 'partitions', other('bin/sinfo', 'small|', 'smaller|')),
    (0, 'whole nodes', other('bin/sinfo', 'EXCLUSIVE', 'NO')),
    (0, 'modules of Test-1.0-Surveyed.eb', without('opened/cuda/12.2.1')),
    (0, 'version of mpi', lambda place: place.module('mpi/5.0', 'module use %s\n' % (place.top / 'opened'))),
    (0, 'prefix of cuda/12.2.1', other('opened/cuda/12.2.1', 'CUDA_HOME', 'CUDA_ROOT')),
    (1, 'cores', other(CFG, 'cores = 8', 'cores = 16')),
    (1, 'threads of a core', other(CFG, 'threads_per_core = 2', 'threads_per_core = 1')),
    (1, 'memory', other('root/proc/meminfo', '527942792', '263942792')),
    (1, 'GPUs', without(GPU % 'c1')),
    (1, 'cores next to GPUs', other(NEAR % 'c1', '4-7', '5-7')),
    (1, 'CUDA of the driver', other('bin/nvidia-smi', 'CUDA Version: 12.2', 'CUDA Version: 11.8')),
    (1, 'interfaces', without('root/sys/class/net/hsn1')),
    (1, 'GPU architecture', other('bin/nvidia-smi', '8.0', '9.0')),
    (1, 'libfabric', other('bin/fi_info', 'cxi:', 'verbs:')),
    (1, 'paths in jobs', without('root/mnt/bb')),
    (1, 'paths in jobs', without('root/tmp')),
    (1, 'paths in jobs', without('root/pfs')),
    (1, 'container run time', without('bin/singularity')),
]


def test_nothing_differs(place, monkeypatch):
    needs_program('tclsh')
    for job in (False, True):
        differ, findings = place.survey(job, monkeypatch)
        assert differ == [], findings
    # the others were asked on a login node
    assert not [one for one in findings if one.result == survey.NOT_ASKED and not one.found.startswith('only')]
    # as system.cfg has them
    assert '0-3,8-11 4-7,12-15' in [one.found for one in findings]


def test_version_in_a_name_without_a_slash(place, monkeypatch):
    """gcc-13.2.0 at Arizona's Sol: the module that was drafted does not differ from its own version."""
    place.module('gcc-13.2.0', '')
    place.replace('easyconfigs/t/Test/Test-1.0-Surveyed.eb', "('mpi'", "('gcc-13.2.0', EXTERNAL_MODULE),\n    ('mpi'")
    place.replace('systems/test/external_modules.cfg', '[mpi]', '[gcc-13.2.0]\nversion = 13.2.0\n[mpi]')
    assert place.survey(False, monkeypatch, 'modules of Test-1.0-Surveyed.eb')[0] == []


def test_names_in_double_quotes(place, monkeypatch):
    """Who adds a module by hand may write them, or keep the one before as a comment."""
    place.replace('easyconfigs/t/Test/Test-1.0-Surveyed.eb', "('mpi',",
                  "# no: ('mpi/3', EXTERNAL_MODULE),\n    (\"mpi\",")
    findings = place.survey(False, monkeypatch, 'modules of Test-1.0-Surveyed.eb')[1]
    assert 'mpi cuda/12.2.1' in [one.found for one in findings]


@pytest.mark.slow
def test_same_difference_in_two_easyconfigs(place, monkeypatch):
    """Said once, with both names."""
    place.write('easyconfigs/t/Test/Test-2.0-Surveyed.eb', EASYCONFIG)
    differ, findings = place.survey(False, monkeypatch, 'modules of both')
    both = 'Test-1.0-Surveyed.eb, Test-2.0-Surveyed.eb'
    assert differ == [] and findings[-1].name == 'modules of ' + both
    place.module('mpi/5.0', 'module use %s\n' % (place.top / 'opened'))
    differ, findings = place.survey(False, monkeypatch, 'modules of both')
    assert differ == ['version of mpi'] and findings[-1].found == 'mpi/5.0'
    without('opened/cuda/12.2.1')(place)
    assert place.survey(False, monkeypatch, 'modules of both')[0] == ['modules of ' + both]


def test_planted_differences(place, monkeypatch, tmp_path):
    """Each is found by its name, and nothing else is; one that spoils the GPUs' number spoils their cores, too."""
    needs_program('tclsh')
    for number, (job, name, plant) in enumerate(DIFFERENCES):
        other_place = Place(tmp_path / str(number))
        plant(other_place)
        differ, findings = other_place.survey(bool(job), monkeypatch, only=name)
        also = {'GPUs': ['cores next to GPUs']}.get(name, [])
        assert name in differ and set(differ) <= {name, *also}, (name, findings)


def test_compilers_of_a_retired_easyconfig(place, monkeypatch):
    """Compilers are those of today's modules, though a retired easyconfig, whose modules are gone, comes first."""
    needs_program('tclsh')
    place.write('easyconfigs/t/Test/Test-0.1-Surveyed.eb', EASYCONFIG.replace('12.2.1', '11.0'))
    place.write('systems/test/easystack.yaml', 'easyconfigs:\n  - Test-1.0-Surveyed.eb\n')
    place.module('mpi/4.0', 'module use %s\nprepend-path PATH %s\n' % (place.top / 'opened', place.top / 'wrappers'))
    (place.top / 'wrappers').mkdir()
    (place.top / 'bin/testcc').rename(place.top / 'wrappers/testcc')
    assert place.survey(False, monkeypatch, only='commands')[0] == []


def test_easystack_that_was_forgotten(place, monkeypatch):
    """An easyconfig was renamed: what the easystack does not name is retired, and its modules may be gone unseen."""
    monkeypatch.setattr(survey, 'easyconfig_path', lambda name: (place.top / 'easyconfigs/t/Test' / name).exists())
    place.write('systems/test/easystack.yaml', 'easyconfigs:\n  - Test-1.0-Surveyed.eb\n  - Test-0.9-Surveyed.eb:\n')
    differ, findings = place.survey(False, monkeypatch, 'modules of both')
    assert differ == ['easystack.yaml'] and 'Test-0.9-Surveyed.eb' in [one.expected for one in findings]


@pytest.mark.parametrize('name', ['', '../x', 'My System', 'j\xfcrgen', 'x\n', 'a' * 300])
def test_odd_name_of_a_new_system(name):
    with pytest.raises(UsersProblem, match='requires a name of up to 100 lower-case letters'):
        new_system.write_drafts(name, None)


def test_gpus_of_amd(place, monkeypatch):
    (place.top / 'bin' / 'nvidia-smi').unlink()
    place.command('rocm-smi', NUMA)
    assert place.survey(True, monkeypatch, only='GPUs')[0] == []
    place.command('rocm-smi', NUMA.replace('Node: 1', 'Node: 0'))
    assert place.survey(True, monkeypatch, only='GPUs')[0] == ['cores next to GPUs']
    # one image for all nodes has the commands of both
    place.command('nvidia-smi', 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver')
    shutil.rmtree(place.root / 'proc/driver')
    assert 'No such file' in [one.found for one in place.survey(True, monkeypatch, 'GPUs')[1] if one.name == 'GPUs'][0]
    place.write('root/dev/kfd', '')
    assert place.survey(True, monkeypatch, only='GPUs')[0] == ['cores next to GPUs']
    # a machine with one memory
    place.command('rocm-smi', NUMA.replace('Node: 1', 'Node: -1').replace('Node: 0', 'Node: -1'))
    place.write('root/sys/devices/system/cpu/online', '0-15\n')
    differ, findings = place.survey(True, monkeypatch, only='GPUs')
    assert differ == [] and [one.found for one in findings if one.name == 'GPUs'] == ['2']


def test_newer_driver(place, monkeypatch):
    """From 610 on, nvidia-smi calls it otherwise, as public logs show."""
    place.replace('bin/nvidia-smi', 'Driver Version: 535.54  CUDA Version: 12.2',
                  'KMD Version: 610.43.02     CUDA UMD Version: 13.3')
    findings = place.survey(True, monkeypatch, only='CUDA of the driver')[1]
    assert [one.found for one in findings if one.name == 'CUDA of the driver'] == ['13.3']


def test_queues_of_pbs(place, monkeypatch):
    (place.top / 'bin' / 'sinfo').unlink()
    place.replace(CFG, 'kind = slurm', 'kind = pbs')
    # as PBS Pro's reference guide shows `qstat -Q -f`
    place.command('qstat', "Queue: gpu\n    queue_type = Execution\n    resources_max.walltime = 12:00:00\n"
                           "    enabled = True\n\nQueue: small\n    queue_type = Execution\n")
    assert place.survey(False, monkeypatch, only='partitions')[0] == []
    place.replace('bin/qstat', 'Queue: small', 'Queue: large')
    assert place.survey(False, monkeypatch, only='partitions')[0] == ['partitions']


def test_warnings_of_slurm(place, monkeypatch):
    """What sinfo says besides is no partition."""
    place.command('sinfo', 'sinfo: warning: slurm.conf is older than the controller\n' + SINFO)
    found = {one.name: one.result for one in place.survey(False, monkeypatch, only='partitions')[1]}
    assert found['partitions'] == found['whole nodes'] == survey.SAME


@pytest.mark.parametrize('ends', ['echo "Unable to contact slurm controller"; exit 1', slow('exec sleep 20')])
def test_command_that_fails_or_hangs(place, monkeypatch, ends):
    """It is asked once, though several questions need it."""
    monkeypatch.setattr(inspection, 'PATIENCE', 2, raising=False)
    log = place.write('log', '')
    place.write('bin/sinfo', '#!/bin/sh\necho asked >> %s\nPATH=/bin:/usr/bin\n%s\n' % (log, ends))
    found = {one.name: one for one in place.survey(False, monkeypatch, only='partitions')[1]}
    assert found['partitions'].found == found['whole nodes'].found
    assert re.match('sinfo: (Unable to contact|no answer for)', found['partitions'].found)
    assert log.read_text().count('asked') <= 1


def test_lscpu_that_prints_nothing(place, monkeypatch):
    place.command('lscpu', '')
    found = {one.name: one for one in place.survey(True, monkeypatch, only='cores')[1]}
    assert found['cores'].found == found['threads of a core'].found == 'lscpu names no cores'


def test_memory_that_the_site_keeps(place, monkeypatch):
    """A draft takes what Slurm gives to jobs, and is the same afterwards."""
    place.replace('bin/sinfo', '524288', '400000')
    for described, differ in (('390 GiB', []), ('512 GiB', []), ('300 GiB', ['memory'])):
        place.write(CFG, SYSTEM.replace('memory = 512 GiB', 'memory = ' + described))
        assert place.survey(True, monkeypatch, only='memory')[0] == differ


def test_gpus_that_are_not_there(place, monkeypatch):
    """Of a node whose driver does not answer, in a job: they are expected."""
    shutil.rmtree(place.root / 'proc/driver')
    (place.top / 'bin/nvidia-smi').unlink()
    differ, findings = place.survey(True, monkeypatch, only='GPUs')
    assert differ == ['GPUs']
    assert [one.found for one in findings if one.name == 'GPUs'] == ['there is no rocm-smi']
    # nor has a draft any, though this may be taken for a system with GPUs
    machine = inspection.Machine(systems.load('lumi'), str(place.root), dict(place.environ, SLURMD_NODENAME='n1'))
    place.command('sinfo', 'small|2:64:2|229376|(null)|NO|up')
    assert new_system.describe('the-eighth', machine, [])['node gpus'][0] in (None, 0)


def test_partition_with_nodes_of_two_kinds(place):
    """The sizes are those of nodes with GPUs, in whichever order sinfo lists them."""
    first, second = 'gpu|2:32:1|524288|gpu:a100:4|NO|up', 'gpu|2:16:1|131072|(null)|NO|up'
    for lines in (first, second), (second, first):
        place.command('sinfo', '\n'.join(lines))
        machine = inspection.Machine(systems.load('workstation'), str(place.root), place.environ)
        assert machine.partitions()['gpu'] == {'cores': 64, 'threads': 1, 'memory': 512 << 30, 'gpus': 4,
                                               'gpu_kind': 'a100:', 'exclusive': False, 'up': True}


def test_sizes_are_for_people(place, monkeypatch):
    place.replace('root/proc/meminfo', '527942792', '263942792')
    memory, = [one for one in place.survey(True, monkeypatch, only='memory')[1] if one.name == 'memory']
    assert (memory.found, memory.expected) == ('251.7 GB', '512.0 GB')


def test_no_names_are_given_away(place, monkeypatch):
    findings = place.survey(False, monkeypatch, only='architecture')[1]
    findings.append(survey.Finding('x', survey.NOTED, '/home/me/a somebody', ''))
    text = survey.without_names(survey.table(findings), place.environ)
    assert '/home/me' not in text and 'somebody' not in text and '$HOME/a $USER' in text
    # a short name is a part of words
    assert survey.without_names('paths of pat', {'USER': 'pat'}) == 'paths of $USER'


def test_as_it_is_typed(tmp_path):
    """On this machine, for a system that it is not: a table, also in a file, status 1; nothing is written elsewhere."""
    answer = tmp_path / 'survey.txt'
    done = subprocess.run([str(CHECKOUT / 'eb'), '--system', 'lumi', '--survey', str(answer)], text=True, cwd=tmp_path,
                          env=dict(clean_environment(), HOME=str(tmp_path)), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 1 and 'Traceback' not in done.stdout, done.stdout
    assert 'differs    host name' in done.stdout and 'not asked' in done.stdout
    assert 'LUMI' in done.stdout and 'on a login node' in done.stdout
    assert answer.read_text() in done.stdout and len(answer.read_text().splitlines()) > 20
    # Lmod and pip's compilers leave dot files in $HOME
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith('.')] == ['survey.txt']


@pytest.mark.parametrize('words', [['--new_system=cirrus'], ['one.txt', 'two.txt'], ['--job', '--new-system=cirrus']])
def test_unknown_words(monkeypatch, capsys, words):
    """Not a survey in the place of what was meant."""
    monkeypatch.setenv('HPC_SYSTEM', 'archer2')
    monkeypatch.setattr(survey, 'PROBES', None)
    monkeypatch.setattr(survey, 'submit', None)
    with pytest.raises(SystemExit):
        survey.main(['--survey', *words])
    said = capsys.readouterr().err
    assert words[-1].partition('=')[0] in said and '[--job | --new-system NAME]' in said


@pytest.mark.parametrize('more', [[], ['--job']])
def test_file_that_cannot_be_written(monkeypatch, tmp_path, more):
    """It is found out before the survey, or the job, has taken a minute."""
    monkeypatch.setenv('HPC_SYSTEM', 'archer2')
    monkeypatch.setattr(survey, 'PROBES', None)
    with pytest.raises(UsersProblem, match='/no/such.txt cannot be written'):
        survey.main(['--survey', '/no/such.txt', *more])
    with pytest.raises(UsersProblem, match='cannot be written: name a file'):
        survey.main(['--survey', str(tmp_path), *more])


def test_file_of_another_kind(monkeypatch, tmp_path):
    """The survey is written to FILE: it may be taken for what is to be surveyed."""
    monkeypatch.setenv('HPC_SYSTEM', 'archer2')
    monkeypatch.setattr(survey, 'PROBES', [])
    monkeypatch.setattr(survey, 'about_easyconfigs', lambda _: [])
    (tmp_path / 'system.cfg').write_text('[system]\n')
    (tmp_path / 'letter').write_text('Dear support,\n' + 9 * 'and\n' + 'ARCHER2, in a job (hpc-pytorch 2.0.0):\n')
    for name in ('system.cfg', 'letter', 'PyTorch-2.13.0-ARCHER2-whl.eb'):
        with pytest.raises(UsersProblem, match='writes its answers to FILE, and .*%s is no earlier survey' % name):
            survey.main(['--survey', str(tmp_path / name)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ['letter', 'system.cfg']
    # nor by a job
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'survey-archer2.txt').write_text('notes\n')
    with pytest.raises(UsersProblem, match='survey-archer2.txt is no earlier survey'):
        survey.main(['--survey', '--job'])
    # its own file is written again, and a device has nothing to lose
    for path in (tmp_path / 'answers', tmp_path / 'answers', os.devnull):
        assert survey.main(['--survey', str(path)]) == 0


def test_script_of_the_job(tmp_path, monkeypatch):
    """A file may be called as it likes; the job sees the modules that `module use` has added here."""
    monkeypatch.setenv('HPC_PYTORCH_COMMAND', 'bash -c \'echo "$MODULEPATH" "$0" > "$1"\'')
    monkeypatch.setenv('MODULEPATH', '/opt/modules:/my own/modules')
    path = str(tmp_path / 'my $HOME; survey')
    subprocess.run(['bash', '-c', survey.job_script(path)], check=True, env={'MODULEPATH': '/opt/modules'})
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [
        ('my $HOME; survey', '/opt/modules:/my own/modules --survey\n')]


def test_job_with_the_python_of_a_module(tmp_path, monkeypatch):
    """EasyBuild's finds its library by what its module sets, which jobs are not given: ./eb did not start there.

    Jobs get what a known error says to export.
    """
    monkeypatch.setenv('LD_LIBRARY_PATH', '/of/python')
    monkeypatch.setenv('SLURM_MPI_TYPE', 'pmix')
    exports = ' '.join(batch_systems.exports_for_jobs())
    assert 'LD_LIBRARY_PATH' not in exports and 'export SLURM_MPI_TYPE=pmix' in exports
    python = tmp_path / 'python3'
    python.write_text('#!/bin/sh\n[ "$LD_LIBRARY_PATH" = /of/python ]\n')
    python.chmod(0o755)
    monkeypatch.setattr(batch_systems.sys, 'executable', str(python))
    assert 'export LD_LIBRARY_PATH=/of/python' in batch_systems.exports_for_jobs()


@pytest.fixture
def cray(tmp_path):
    """A machine with modules: {directory: {module: what it opens}}; gives a function that makes it."""
    def make(**directories):
        for directory, modules in directories.items():
            for name, opens in modules.items():
                path = tmp_path / directory / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if opens.startswith('/'):
                    opens = 'module use %s%s' % (tmp_path, opens)
                path.write_text('#%%Module1.0\n%s\n' % opens)
        environ = dict(os.environ, MODULEPATH=str(tmp_path / 'top'))
        return inspection.Machine(systems.load('workstation'), environ=environ)
    return make


@pytest.mark.slow
def test_draft_takes_a_compiler_that_has_an_mpi(cray):
    """Not the newest, of compilers and of programming environments; what is left out is named, and why."""
    machine = cray(
        top={'PrgEnv-gnu/8.6.0': '/gnu', 'gcc/15.1': '', 'cudatoolkit/25.1_12.8': '', 'cudatoolkit/24.11_12.6': '',
             'rocm/7.0': 'error "no driver"'},
        gnu={'gcc-native/14.2': '/empty', 'gcc-native/13.3': '/gcc13'},
        empty={'other/1.0': ''},
        gcc13={'cray-mpich/8.1.30': '', 'openmpi/5.0': ''})
    chosen, left_out = new_system.modules_of(machine)
    assert [one[0] for one in chosen] == ['PrgEnv-gnu/8.6.0', 'gcc-native/13.3', 'cray-mpich/8.1.30',
                                          'cudatoolkit/25.1_12.8']
    assert left_out == ['gcc/15.1: no MPI can be loaded with it', 'gcc-native/14.2: no MPI can be loaded with it',
                        'openmpi/5.0: cray-mpich is there', 'rocm/7.0: CUDA is there']
    names = 'cudatoolkit/25.1_12.8', 'gcc/15.1', 'openmpi/5.0.3-cuda_12.4'
    assert [new_system.software_version(name) for name in names] == ['12.8', '15.1', '5.0.3']
    texts = new_system.drafts('the-eighth', machine)
    assert '# Left out: openmpi/5.0: cray-mpich is there\n' in texts['systems/the-eighth/external_modules.cfg']
    assert '[cudatoolkit/25.1_12.8]\nname = CUDA\nversion = 12.8\n' in texts['systems/the-eighth/external_modules.cfg']


@pytest.mark.slow
def test_draft_replaces_the_programming_environment_of_login(cray, tmp_path):
    """Crays load PrgEnv-cray at login."""
    needs_program('tclsh')
    opens = 'module unload PrgEnv-cray\nmodule use %s/gnu' % tmp_path
    machine = cray(top={'PrgEnv-cray/8.6.0': '', 'PrgEnv-gnu/8.6.0': opens},
                   gnu={'gcc-native/13.3': '', 'cray-mpich/8.1.30': ''})
    shell = machine.modules_shell()
    assert shell.load(['PrgEnv-cray']) is None
    machine.environ = shell.environ
    chosen, left_out = new_system.modules_of(machine)
    assert [one[0] for one in chosen] == ['PrgEnv-gnu/8.6.0', 'gcc-native/13.3', 'cray-mpich/8.1.30']
    assert [line.partition(':')[0] for line in left_out] == ['PrgEnv-cray/8.6.0']


@pytest.mark.slow
def test_draft_of_a_site_with_easybuilds_modules(cray):
    """An MPI's module loads its own compiler, in the place of a newer one; names have the toolchain behind a dash."""
    needs_program('tclsh')
    mpi = 'OpenMPI/4.1.6-GCC-13.2.0'
    machine = cray(top={'GCC/14.2.0': 'conflict OldGCC', 'GCC/13.2.0': '', mpi: 'module switch GCC GCC/13.2.0',
                        'OpenMPI/5.0.8-GCC-15.2.0': 'module load GCC/15.2.0', 'CUDA/compat/12.4.1': ''})
    chosen, left_out = new_system.modules_of(machine)
    assert [one[0] for one in chosen] == ['GCC/13.2.0', mpi, 'CUDA/compat/12.4.1']
    assert left_out[0] == 'GCC/14.2.0: no MPI can be loaded with it'
    assert left_out[1].startswith('OpenMPI/5.0.8-GCC-15.2.0: it cannot be loaded')
    assert [new_system.software_version(one[0]) for one in chosen] == ['13.2.0', '4.1.6', '12.4.1']


@pytest.mark.slow
def test_draft_says_why_a_compiler_is_left_out(cray):
    """A broken module's own error; one that only writes of errors is none. The newest, however versions are written."""
    needs_program('tclsh')
    machine = cray(top={'gcc/14.2': 'setenv {', 'gcc/13.2': 'puts stderr "after an ERROR, write to the helpdesk"',
                        'openmpi/latest': '', 'openmpi/4.1.5_ucx1.14': '', 'openmpi/4.1.4': '', 'cuda/cuda-12.4': ''})
    chosen, left_out = new_system.modules_of(machine)
    assert [one[0] for one in chosen] == ['gcc/13.2', 'openmpi/4.1.5_ucx1.14', 'cuda/cuda-12.4']
    assert len(left_out) == 1 and left_out[0].startswith('gcc/14.2: it cannot be loaded: ')
    assert 'missing close-brace' in left_out[0]
    assert [new_system.software_version(one[0]) for one in chosen] == ['13.2', '4.1.5', '12.4']
    assert new_system.software_version('gcc/default') == 'default'


def test_draft_tries_no_compilers_that_it_does_not_take(cray):
    """Sites with twenty compilers and their MPIs waited for minutes."""
    needs_program('tclsh')
    chosen, left_out = new_system.modules_of(cray(top={'gcc/14.2': '', 'gcc/13.2': 'error "older"', 'openmpi/5.0': ''}))
    assert [one[0] for one in chosen] == ['gcc/14.2', 'openmpi/5.0'] and not left_out


@pytest.mark.parametrize('modules, mpi', [
    slow(['gnu12/12.2.0', 'openmpi4/4.1.6', 'cuda/12.4'], 'OpenMPI'),  # OpenHPC
    (['compiler/gnu/14.2', 'mpi/openmpi/5.0-gnu-14.2', 'devel/cuda/12.8'], 'OpenMPI'),  # bwHPC
    slow(['gcc/13.1.0', 'openmpi4/gcc/4.1.5', 'cuda12.2/toolkit/12.2.2'], 'OpenMPI'),  # Bright Cluster Manager
    slow(['GCC/13.2.0', 'OpenMPI/4.1.6-GCC-13.2.0', 'CUDA/12.4.0'], 'OpenMPI'),  # EasyBuild
    (['gcc/13.2.0-gcc-11.4.0-abc1234', 'openmpi/5.0.3-gcc-13.2.0-4bc1234', 'cuda/12.4.1-gcc-13.2.0-5de6789'],
     'OpenMPI'),  # Spack
    slow(['gcc/13.2.0', 'hpcx-mpi/2.20', 'cuda/12.4.0'], 'HPCX'),
    slow(['gcc/13.2.0', 'mpich/4.2', 'cuda/12.4.0'], 'MPICH'),
    slow(['gcc/13.2.0', 'mpi/mpich-x86_64', 'cuda/12.4.0'], 'MPICH'),  # Red Hat
    slow(['gcc/13.2.0', 'impi/2021.11.0', 'cuda/12.4.0'], 'impi'),
    (['gcc/13.2.0', 'mpi/2021.12', 'cuda/12.4.0'], 'impi'),  # as Intel calls it
    (['gcc-toolset/14', 'ompi/4.1.6', 'cudatoolkit/12.8'], 'OpenMPI'),  # Red Hat's compilers
    (['gcc13/13.1.0', 'openmpi4/gcc/4.1.5', 'cuda12.2/toolkit/12.2.2'], 'OpenMPI'),  # NCHC
    (['compilers/gcc/14.2.0', 'mpi/gcc/openmpi/5.0.7', 'libs/cuda/12.8.1'], 'OpenMPI'),  # Manchester
    (['comp/gcc/14.1.0', 'lib/openmpi/5.0.4', 'lib/cuda/12.6'], 'OpenMPI'),  # TRUBA
    (['gcc/12.4.0-gcc-8.5.0', 'mpi/openmpi-4.1.7-gcc-12.4.0', 'libs/nvidia-cuda/12.8.0/bin'], 'OpenMPI'),
    (['gcc', 'intelmpi', 'cuda'], 'impi'),
    (['gnu/12.3.0', 'mpi/latest', 'cuda/12.4.0'], 'impi'),
    slow(['gcc/13.2.0', 'mpi/hpcx', 'cuda/12.4.0'], 'HPCX'),
    slow(['gcc/13.2.0', 'mpi/hpcx-v2.18', 'cuda/12.4.0'], 'HPCX'),
    slow(['gcc/13.2.0', 'mpi/openmpi', 'cuda/12.4.0'], 'OpenMPI'),
])
def test_draft_knows_names_of_other_sites(cray, modules, mpi):
    needs_program('tclsh')
    others = 'cuda12.2/blas/12.2.2', 'apps/gcc/gromacs/2024.3'
    chosen, left_out = new_system.modules_of(cray(top=dict.fromkeys([*modules, *others], '')))
    assert [(name, software) for name, software, _ in chosen] == list(zip(modules, ('GCC', mpi, 'CUDA')))
    assert not left_out and '# No module' not in new_system.easyconfig_text('x', chosen, 'slurm', {})
    for name, version in zip(modules, ('13.2.0', '5.0.3', '12.4.1')):
        assert new_system.software_version(name) == version or '-gcc-' not in modules[2]


def test_version_of_a_module_whose_name_goes_on():
    """Some sites have a compiler or Spack's hash behind the version, others the version last."""
    names = ('openmpi/5.0.6/gcc-13.2.0', 'cuda/12.8/gnu14.2', 'gcc/10.2.0/6pv46so', 'openmpi/gcc/64/4.1.5', 'gcc/13',
             'mpi/openmpi-4.1.7-gcc-12.4.0')
    assert list(map(new_system.software_version, names)) == ['5.0.6', '12.8', '10.2.0', '4.1.5', '13', '4.1.7']


def test_draft_takes_no_hpcx_for_debugging(cray):
    """HPC-X has modules of its own, one beside the other."""
    needs_program('tclsh')
    names = ['hpcx-%s/2.20' % word for word in ('debug', 'debug-ompi', 'mt-ompi', 'prof', 'stack')] + ['hpcx/2.20']
    chosen, _ = new_system.modules_of(cray(top=dict.fromkeys(names + ['gcc/13.2.0'], '')))
    assert [name for name, _, _ in chosen] == ['gcc/13.2.0', 'hpcx/2.20']


@pytest.mark.parametrize('mpis, chosen', [
    (['openmpi/4.1.7--nvhpc--25.3', 'openmpi/4.1.6--gcc--12.2.0-cuda-12.2'], 'openmpi/4.1.6--gcc--12.2.0-cuda-12.2'),
    slow(['openmpi/intel/5.0.8', 'openmpi/gcc/5.0.3'], 'openmpi/gcc/5.0.3'),
    (['openmpi/arm23/5.0.8', 'openmpi/4.1.8-iccifort-2020.4', 'openmpi/icc19/4.1.7', 'openmpi/4.1.5'], 'openmpi/4.1.5'),
    slow(['openmpi/5.0.5-intel', 'openmpi/5.0.5-nvidia25.1', 'openmpi/5.0.6-aocc', 'openmpi/4.1.5'], 'openmpi/4.1.5'),
    slow(['mpich/4.3-oneapi', 'impi/2021.15.0-intel-compilers-2025.1.1'], 'impi/2021.15.0-intel-compilers-2025.1.1'),
])
def test_draft_takes_no_mpi_of_another_compiler(cray, mpis, chosen):
    """Trees without a hierarchy have those of all compilers; Intel's MPI has wrappers of GCC."""
    needs_program('tclsh')
    found, left_out = new_system.modules_of(cray(top=dict.fromkeys(['gcc/12.2.0', 'nvhpc/25.3', *mpis], '')))
    assert [name for name, _, _ in found] == ['gcc/12.2.0', chosen]
    assert {line.partition(':')[0] for line in left_out if 'for another compiler' in line} == set(mpis) - {chosen}


def test_draft_takes_the_mpi_of_its_compiler(cray):
    """Of several with one version, which load no compiler of their own."""
    needs_program('tclsh')
    for loaded, version in (('', '13.2.0'), ('gcc/8.5.0', '8.5.0')):
        machine = cray(top=dict.fromkeys(['%s%s' % (name, one) for one in ('13.2.0', '8.5.0')
                                          for name in ('gcc/', 'openmpi/5.0.5-gcc-')], ''))
        shell = machine.modules_shell()
        assert not loaded or shell.load([loaded]) is None
        machine.environ = shell.environ
        chosen, _ = new_system.modules_of(machine)
        assert [name for name, _, _ in chosen] == ['gcc/' + version, 'openmpi/5.0.5-gcc-' + version]


@pytest.mark.slow
def test_draft_takes_a_compiler_that_has_an_mpi_of_its_own(cray):
    """Not the newest, because HPC-X and Intel's MPI can be loaded with it, as with each compiler."""
    needs_program('tclsh')
    mpi = 'OpenMPI/5.0.3-GCC-13.3.0'
    others = ['HPCX/2.14', 'impi/2021.15.0', 'OpenMPI/5.0.7-intel-compilers-2025.1.1']
    machine = cray(top=dict({mpi: 'module switch GCC GCC/13.3.0', 'GCC/14.2.0': '', 'GCC/13.3.0': ''},
                            **dict.fromkeys(others, '')))
    chosen, left_out = new_system.modules_of(machine)
    assert [name for name, _, _ in chosen] == ['GCC/13.3.0', mpi]
    assert left_out[0] == 'GCC/14.2.0: no MPI can be loaded with it'


def test_draft_takes_what_is_loaded(cray):
    """Also where modules allow several at once; in its order, as CUDA may open an MPI."""
    needs_program('tclsh')
    names = ['gnu14/14.1', 'openmpi5/5.0.3', 'openmpi4/4.1.6', 'mpich/4.2', 'cudatoolkit/12.9', 'cuda/12.2', 'rocm/6.4']
    machine = cray(top=dict.fromkeys(['gnu12/12.2.0', *names], ''))
    for loaded in (['gnu12/12.2.0', 'openmpi4/4.1.6', 'cuda/12.2'], ['gnu12/12.2.0', 'mpich/4.2', 'rocm/6.4'],
                   ['gnu12/12.2.0', 'cuda/12.2', 'openmpi4/4.1.6']):
        machine.environ = dict(os.environ, MODULEPATH=machine.environ['MODULEPATH'])
        shell = machine.modules_shell()
        assert shell.load(loaded) is None
        machine.environ = shell.environ
        chosen, left_out = new_system.modules_of(machine)
        assert [name for name, _, _ in chosen] == loaded and not [line for line in left_out if 'loaded here' in line]


def test_draft_keeps_the_mpi_that_is_not_the_default(cray, tmp_path):
    """A programming environment that is loaded again would load its default."""
    needs_program('tclsh')
    machine = cray(top={'PrgEnv-gnu/8.6.0': 'module use %s/gnu\nmodule load cray-mpich' % tmp_path},
                   gnu={'gcc-native/14.2': '', 'cray-mpich/8.1.30': '', 'cray-mpich/9.0.1': ''})
    shell = machine.modules_shell()
    assert shell.load(['PrgEnv-gnu']) is shell.load(['cray-mpich/8.1.30']) is None
    machine.environ = shell.environ
    assert [name for name, _, _ in new_system.modules_of(machine)[0]] == [
        'PrgEnv-gnu/8.6.0', 'gcc-native/14.2', 'cray-mpich/8.1.30']


def test_draft_keeps_the_mpi_that_is_not_the_cray_s(cray, place):
    """Some Crays load a GCC and Open MPI of their own at login: its programming environment would bring another MPI."""
    needs_program('tclsh')
    machine = cray(top={'PrgEnv-gnu/8.6.0': 'module load cray-mpich', 'gcc/13.3': '', 'cray-mpich/9.0.1': '',
                        'openmpi/5.0.5': 'conflict cray-mpich'})
    shell = machine.modules_shell()
    assert shell.load(['gcc', 'openmpi']) is None
    machine.environ = shell.environ
    chosen, left_out = new_system.modules_of(machine)
    assert [name for name, _, _ in chosen] == ['gcc/13.3', 'openmpi/5.0.5']
    assert 'PrgEnv-gnu/8.6.0: openmpi/5.0.5 is loaded, an MPI of another kind' in left_out
    assert described(place, [('PrgEnv-gnu/8.6.0', 'PrgEnv-gnu', 'craype'), *chosen])['mpi_c'] == 'mpicc'


@pytest.mark.slow
def test_draft_replaces_the_compiler_of_login(cray, tmp_path):
    """Sites load Intel's or NVIDIA's at login; the MPI is then the one below GCC."""
    needs_program('tclsh')
    opens = 'module unload nvidia\nmodule use %s/gnu' % tmp_path
    machine = cray(top={'nvidia/24.7': '/nvidia', 'gcc/14.2.0': opens, 'gcc/13.2.0': opens},
                   nvidia={'openmpi/5.0.5': ''}, gnu={'openmpi/5.0.5': ''})
    shell = machine.modules_shell()
    assert shell.load(['nvidia', 'openmpi']) is None
    machine.environ = shell.environ
    chosen, left_out = new_system.modules_of(machine)
    assert [name for name, _, _ in chosen] == ['gcc/14.2.0', 'openmpi/5.0.5']
    assert left_out == ["nvidia/24.7: PyTorch's wheels are built with GCC; another compiler was not tried"]


def test_draft_replaces_the_mpi_of_login(cray):
    """Sites load MVAPICH at login, which was not tried; not each GCC has an Open MPI."""
    needs_program('tclsh')
    machine = cray(top={'mvapich/3.0': '', 'gcc/13.2.0': '', 'gcc/12.3.0': '',
                        'openmpi/5.0.2': 'module unload mvapich\nconflict gcc/13.2.0'})
    shell = machine.modules_shell()
    assert shell.load(['mvapich']) is None
    machine.environ = shell.environ
    chosen, left_out = new_system.modules_of(machine)
    assert [name for name, _, _ in chosen] == ['gcc/12.3.0', 'openmpi/5.0.2']
    assert [line.partition(':')[0] for line in left_out] == ['gcc/13.2.0', 'mvapich/3.0']


def test_draft_names_what_it_does_not_know(cray):
    """Programming environments, compilers and MPIs that were not tried are left out, and why."""
    needs_program('tclsh')
    others = ['PrgEnv-aocc/8.5.0', 'PrgEnv-intel/8.5.0', 'PrgEnv-nvidia/8.5.0', 'nvhpc/24.5']
    machine = cray(top=dict.fromkeys(['gcc/13.2.0', 'mvapich2/2.3.7', *others], ''))
    shell = machine.modules_shell()
    assert shell.load(['nvhpc']) is None
    machine.environ = shell.environ
    chosen, left_out = new_system.modules_of(machine)
    assert [one[0] for one in chosen] == ['gcc/13.2.0']
    # not once more, as one to add
    assert not [line for line in left_out if 'loaded here' in line]
    (compilers, why), = [line.split(': ') for line in left_out if 'PrgEnv' in line]
    assert sorted(compilers.split()) == others and why.startswith("PyTorch's wheels are built with GCC")
    assert [line for line in left_out if line.startswith('mvapich2/2.3.7: this MPI was not tried')]


def test_draft_without_modules(cray):
    """As in a shell that has not read the login's files."""
    machine = cray(top={'gcc/13': '', 'openmpi/5.0': ''})
    machine.environ['MODULEPATH'] = ''
    assert new_system.modules_of(machine) == ([], ['$MODULEPATH is empty: type bash -l'])


def test_draft_for_another_batch_system():
    """Its programs that write job scripts are left out, and why."""
    for kind, there in (('none', False), ('pbs', True)):
        text = new_system.easyconfig_text('x', [('openmpi/5.0', 'OpenMPI', 'openmpi')], kind, {})
        assert ("'pytorch-run'" in text) == there and ('# Neither Slurm nor PBS was found' in text) != there


def test_draft_without_mpi(cray, place):
    """Said, as the easyconfig is for one; of an MPI whose module is called otherwise, the mpicc, and what starts it."""
    needs_program('tclsh')
    mpicc = place.write('bin/mpicc', '#!/bin/sh\n')
    mpicc.chmod(0o755)
    machine = cray(top={'gcc/13': '', 'mpifileutils/0.11': '', 'sw/openmpi/5': 'prepend-path PATH %s' % mpicc.parent})
    machine.environ['PATH'] = '/nowhere'
    chosen, left_out = new_system.modules_of(machine)
    assert left_out == ['an MPI: no module that is called like one can be loaded']
    assert 'load them. Then remove this draft, and draft again' in new_system.easyconfig_text('x', chosen, 'slurm', {})
    shell = machine.modules_shell()
    assert shell.load(['gcc', 'sw/openmpi']) is None
    machine.environ = shell.environ
    chosen, left_out = new_system.modules_of(machine)
    loaded = 'sw/openmpi/5: loaded here; add those without which others are not found'
    assert loaded in left_out and left_out[-1].startswith('%s: no module of it was recognised' % mpicc)
    text = new_system.easyconfig_text('x', chosen, 'slurm', {}, left_out)
    assert '[\n    # %s\n    # %s\n' % (loaded, left_out[-1]) in text


def test_draft_beside_an_mpi_that_it_does_not_know(cray, place):
    """Another MPI, whose module could be loaded, was taken without a word; the distribution's is there everywhere."""
    needs_program('tclsh')
    mpicc = place.write('bin/mpicc', '#!/bin/sh\n')
    mpicc.chmod(0o755)
    machine = cray(top={'gcc/13': '', 'openmpi/5.0': '', 'openmpi-gpu/5.0': 'prepend-path PATH %s' % mpicc.parent})
    for loaded, named in (['gcc/13', 'openmpi-gpu/5.0'], True), (['gcc/13', 'openmpi/5.0', 'openmpi-gpu/5.0'], False):
        shell = machine.modules_shell()
        assert shell.load(loaded) is None
        machine.environ = shell.environ
        chosen, left_out = new_system.modules_of(machine)
        assert [name for name, _, _ in chosen] == ['gcc/13', 'openmpi/5.0']
        assert left_out[-1].startswith('%s: no module of it was recognised' % mpicc) is named, left_out


def test_draft_of_a_host_in_capitals():
    """Its own pattern fits it."""
    assert systems.host_matches('NODE-01.cluster', new_system.pattern_of('NODE-01.cluster').split())


def test_draft_that_was_interrupted(monkeypatch, tmp_path):
    """As by a full disk: the same call writes the rest; what somebody has changed is not overwritten."""
    (tmp_path / 'systems').mkdir()
    monkeypatch.setattr(new_system, 'collection_path', lambda name: str(tmp_path / name))
    monkeypatch.setattr(new_system, 'drafts', lambda *_: {'systems/x/a.cfg': 'first\n', 'systems/x/b.cfg': 'second\n'})
    (tmp_path / 'systems/x').mkdir()
    (tmp_path / 'systems/x/a.cfg').write_text('first\n')
    assert new_system.write_drafts('x', None) == ['systems/x/a.cfg', 'systems/x/b.cfg']
    (tmp_path / 'systems/x/b.cfg').write_text('corrected\n')
    with pytest.raises(UsersProblem, match='systems/x/b.cfg already exists; not overwritten'):
        new_system.write_drafts('x', None)


def test_draft_names_a_python(tmp_path):
    """The module that is loaded, where python3 is that of SLES 15."""
    (tmp_path / 'usr/bin').mkdir(parents=True)
    python = tmp_path / 'usr/bin/python3'
    python.write_text('#!/bin/sh\necho\n')
    python.chmod(0o755)
    environ = dict(os.environ, LOADEDMODULES='PrgEnv-gnu/8.5.0:cray-python/3.11.7')
    found = new_system.python_module(inspection.Machine(systems.load('workstation'), str(tmp_path), environ))
    assert found == ('cray-python/3.11.7', 'loaded here')
    for name in ('Python/3.12.3-GCCcore-13.3.0', 'miniconda3/24.7', 'Anaconda3/2024.02', 'lang/Python/3.11',
                 'python3.9/3.9.18', 'apps/python', None):
        others = dict(environ, LOADEDMODULES=':'.join(['GCCcore/13.3.0', 'pythia/8', *filter(None, [name])]))
        found = new_system.python_module(inspection.Machine(systems.load('workstation'), str(tmp_path), others))
        assert found == (name, 'loaded here' if name else 'none with a usual name was loaded here')
    python.write_text('#!/bin/sh\necho %s\n' % python)
    found = new_system.python_module(inspection.Machine(systems.load('workstation'), str(tmp_path), environ))
    assert found == (None, 'python3 is new enough')


def test_draft_has_the_cores_of_gpus(place):
    """As the driver says, without hardware threads; none where two GPUs share cores."""
    machine = inspection.Machine(systems.load('workstation'), str(place.root), place.environ)
    assert new_system.gpu_cores(machine, 2, 8)[0] == '0-3 4-7'
    assert new_system.describe('the-eighth', machine, [])['node gpu_cores'][0] == '0-3 4-7'
    assert new_system.core_word([0, 1, 2, 5, 7, 8]) == '0-2,5-5,7-8'
    place.replace(NEAR % 'c1', '4-7,12-15', '0-3,8-11')
    assert new_system.gpu_cores(machine, 2, 8)[0] is None


@pytest.mark.parametrize('threads, near, cores', [(2, ['0-7', '8-15'], 8), (2, ['0-15'], 8), (1, ['0-3', '4-7'], 4)])
def test_draft_leaves_out_cores_that_it_cannot_number(place, threads, near, cores):
    """Threads of a core side by side, as in virtual machines; or sinfo has fewer cores than this host: ./eb stopped."""
    place.command('lscpu', '# Socket,Core\n' + ''.join('0,%d\n' % (number // threads) for number in range(16)))
    shutil.rmtree(place.top / 'root/proc/driver')
    for bus, those in zip(('07', 'c1'), near):
        place.write(GPU % bus + '/information', '')
        place.write(NEAR % bus, those + '\n')
    machine = inspection.Machine(systems.load('workstation'), str(place.root), place.environ)
    assert new_system.gpu_cores(machine, len(near), cores)[0] is None


def test_draft_leaves_no_cores_idle(place):
    """As where the memory of half of the cores has no GPU: jobs get only cores that are named beside one."""
    place.replace(NEAR % '07', '0-3,8-11', '0-3')
    place.replace(NEAR % 'c1', '4-7,12-15', '8-11')
    machine = inspection.Machine(systems.load('workstation'), str(place.root), place.environ)
    assert new_system.gpu_cores(machine, 2, 16)[0] is None
    assert new_system.gpu_cores(machine, 2, 16)[1].count('many cores are next to none')


def test_job_with_part_of_the_node(place, monkeypatch):
    """nvidia-smi names only the job's GPU and cores there; the others are the machine's, too."""
    topology = '\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0\t0\n'
    place.replace('bin/nvidia-smi', '/sh\n', "/sh\nif [ $1. = topo. ]; then echo '%s'; exit; fi\n"
                  "case $* in *bus_id*) echo 00000000:07:00.0; exit; esac\n" % topology)
    (place.top / 'bin/sinfo').unlink()
    assert place.survey(True, monkeypatch, only='GPUs')[0] == []
    found = described(place, PBS_JOBID='1')
    assert (found['gpus'], found['gpu_cores']) == ('2', '0-3 4-7')


def test_broken_module(place, monkeypatch):
    """One that is there and fails: in its own words. In an easyconfig of an earlier state it is only noted."""
    needs_program('tclsh')
    text = 'the licence server of cuda is 100% \\033\\[31mgone\\033\\[0m: käputt'
    place.write('opened/cuda/12.2.1', '#%Module1.0\nerror "' + text + '"\n')
    name = 'modules of Test-1.0-Surveyed.eb'
    differ, findings = place.survey(False, monkeypatch, name)
    said, = [finding.found for finding in findings if finding.name == name]
    assert name in differ and 'cuda/12.2.1: it exists, but loading it fails: ' in said
    # how others than English letters come out is a matter of the tool
    assert 'the licence server of cuda is 100% gone: k' in said and said.isprintable()
    place.write('systems/test/easystack.yaml', 'easyconfigs:\n  - Test-2.0-Surveyed.eb\n')
    differ, findings = place.survey(False, monkeypatch, name)
    assert name not in differ and [one for one in findings if one.name == name][0].found == said


def test_module_that_warns(tmp_path):
    """As one that is to be removed: Lmod loads it, and says that it failed."""
    (tmp_path / 'gcc').mkdir()
    (tmp_path / 'gcc/12.lua').write_text('LmodWarning("it is to be removed in May")\n')
    program = next(tool.program for tool in candidates() if tool.name == 'Lmod')
    shell = ModulesShell(program, dict(clean_environment(), MODULEPATH=str(tmp_path)))
    assert shell.load(['gcc/12']) is None and shell.loaded == ['gcc/12']
    assert shell.load(['gcc/13']) is not None


@pytest.mark.parametrize('cuda, module, version, there, absent', [
    (None, 'OpenMPI', '2.13.0', "features = ['mpi']", 'processors alone'),
    ('13', 'CUDA', '2.15.0', "lock_files = ['torch-2.15.0-pypi.lock', 'mpi4py.lock']", 'whl/cpu'),
    ('13', 'CUDA', '2.15.0', "features = ['gpu', 'nccl', 'mpi']", 'processors alone'),
    ('12', 'CUDA', '2.13.0', 'PyTorch-2.11.0-IsambardAI-whl.eb (aarch64)', "'gpu'"),
    (None, 'CUDA', '2.13.0', 'PyTorch-2.15.0-workstation.eb', "'gpu'"),
    (None, 'ROCm', '2.13.0', 'PyTorch-2.10.0-Frontier.eb', "'gpu'"),
])
def test_easyconfig_for_the_gpus(cuda, module, version, there, absent):
    """With MPI, and with CUDA where the driver takes PyPI's; else it says what to take."""
    text = new_system.easyconfig_text('the-eighth', [('some/1.0', module, 'part')], 'slurm', {'node cuda': (cuda, '')})
    assert text.startswith('# No module of an MPI') == (module != 'OpenMPI')
    compile(text, 'easyconfig', 'exec')
    assert "version = '%s'" % version in text and "versionsuffix = '-theeighth'" in text
    assert "collection_packages = ['torch_mpi']" in text and "dependencies = [\n    ('some/1.0', EXTERNAL" in text
    assert there in text and absent not in text and 'ARCHER2' not in text
    # for pytorch-check plugin
    assert "'pytorch-bandwidth'" in text


LATIN_1 = """
import io, sys
sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='iso-8859-1')
from hpc_pytorch import start
sys.exit(start.main())
"""


@pytest.mark.slow
def test_draft_of_an_eighth_system(tmp_path):
    """Of a machine with a dash in its name; it fits the schema, and rehearses without a change."""
    copy = tmp_path / 'collection'
    shutil.copytree(CHECKOUT, copy, symlinks=True,
                    ignore=shutil.ignore_patterns('.git', '.venv*', '.local', 'benchmarks', '__pycache__'))
    # its links lead to the collection beside it: a link to .venv would let drafts be written to the checkout
    shutil.copytree(CHECKOUT / '.venv', copy / '.venv', symlinks=True, copy_function=os.link)
    for name, text in (('gcc/12.9', 'module use %s' % (tmp_path / 'opened')), ('gcc/9.1', ''), ('other/1', '')):
        (tmp_path / 'modules' / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / 'modules' / name).write_text('#%Module1.0\n' + text + '\n')
    (tmp_path / 'opened' / 'openmpi').mkdir(parents=True)
    (tmp_path / 'opened' / 'openmpi' / '4.1.8').write_text('#%Module1.0\n')

    def eb(*arguments, status=0, **more):
        done = subprocess.run([str(copy / 'eb'), *arguments], cwd=tmp_path, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=dict(clean_environment(), COLUMNS='10000', **more))
        assert done.returncode == status and 'Traceback' not in done.stdout, done.stdout
        return done.stdout

    said = eb('--survey', '--new-system', 'the-eighth', MODULEPATH=str(tmp_path / 'modules'))
    assert 'systems/the-eighth/system.cfg' in said
    text = (copy / 'systems' / 'the-eighth' / 'system.cfg').read_text()
    loaded = systems.load_file(str(copy / 'systems' / 'the-eighth' / 'system.cfg'))
    assert loaded.node['cores'] and loaded.node['memory'] and text.count('# (') > 5
    # every key is there to be filled in, and what could not be asked says why
    keys = {key for section in systems.SCHEMA.values() for key in section}
    assert keys == set(re.findall(r'^(?:# )?(\w+) = ', text, re.M))
    assert re.search(r'^# cuda = \(newest CUDA .*; could not be asked: there is no nvidia-smi\)$', text, re.M)
    easyconfig = (copy / 'easyconfigs/p/PyTorch/PyTorch-2.13.0-theeighth.eb').read_text()
    assert 'for the MPI of the-eighth."""' in easyconfig
    assert easyconfig.index('gcc/12.9') < easyconfig.index('openmpi/4.1.8')
    assert 'module load openmpi/4.1.8' in eb('--rehearse', 'PyTorch-2.13.0-theeighth.eb', '-x',
                                             '--prefix=%s' % (tmp_path / 'prefix'))
    # a terminal of Latin-1 has no such apostrophe
    description = copy / 'systems/the-eighth/system.cfg'
    description.write_text(text.replace('title = ', 'title = The group’s '))
    done = subprocess.run([copy / '.venv/bin/python', '-c', LATIN_1, '--system=the-eighth', '--survey', 'report'],
                          env=dict(clean_environment(), PYTHONPATH=str(copy)), cwd=tmp_path, stdout=subprocess.PIPE)
    assert b'group\\u2019s' in done.stdout and 'group’s' in (tmp_path / 'report').read_text()
    configuration = copy / 'systems/the-eighth/easybuild.cfg'
    configuration.write_text(configuration.read_text() + '\n[config]\n[config]\n')
    error = eb('--system=the-eighth', '--show-config', status=1).splitlines()[-1]
    assert error.startswith("ERROR: EasyBuild's configuration cannot be read (") and "section 'config'" in error, error


# what real machines print: partitions of MIG slices and Intel's GPUs, one that is down, GPUs that Slurm does not count
REAL = """debug|2:32:1|257000|(null)|NO|up
gpu|2:32+:2|1031000+|gpu:nvidia_a100-sxm4-80gb:4(S:0-3)|NO|up
mig|2:32:2|1031000|gpu:nvidia_a100_1g.10gb:28(S:0-3),gpu:1g.5gb:7|NO|up
pvc|2:48:1|1000000|gpu:pvc:8|EXCLUSIVE|up
old|2:64:2|515000|gpu:v100:8|NO|down
"""


def described(place, modules=(), **environ):
    """The draft's values, without where they come from."""
    machine = inspection.Machine(systems.load('workstation'), str(place.root), dict(place.environ, **environ))
    values = new_system.describe('the-eighth', machine, modules)
    return {key.split()[1]: value for key, (value, _) in values.items()}


def test_draft_takes_whole_gpus_of_a_partition_that_is_up(place):
    """With the cores that Slurm counts there, whatever threads this login node's have."""
    place.command('sinfo', REAL)
    found = described(place)
    assert [found[key] for key in ('partition', 'cores', 'threads_per_core', 'gpus')] == ['gpu', 64, 2, 4]
    # or jobs would get any GPUs: slices of MIG, or those of another node
    assert found['gpus_option'] == '--gpus-per-node=nvidia_a100-sxm4-80gb:'
    # or ranks would get half of the cores that their job asks for
    assert found['options'] == '--hint=nomultithread'
    place.command('sinfo', 'old|2:32:1|515000|(null)|NO|up')
    found = described(place)
    assert 'options' not in found and found['memory'] == '502 GiB'
    # what Slurm says where nobody told it
    place.command('sinfo', 'old|2:32:1|1|(null)|NO|up')
    assert described(place)['memory'] not in ('0 GiB', '502 GiB')


@pytest.mark.parametrize('name', ['derecho', 'frontier', 'isambard-ai'])
def test_modules_of_pytorch_first(name):
    """With those the commands are there; the modules of the NCCL plugin, first by name, may bring no MPI."""
    assert '/PyTorch-' in inspection.easyconfigs_of(systems.load(name))[0]


def test_machine_without_a_batch_system(place):
    """Its node is this one: no job is needed to ask for it."""
    machine = inspection.Machine(systems.load('workstation'), str(place.root), place.environ)
    memory, = (survey.ask(probe, machine) for probe in survey.PROBES if probe.name == 'memory')
    assert memory.result == survey.NOTED and memory.found


@pytest.mark.parametrize('gpus, counted', [
    ('a100_10g:28,gpu:a100_3g:4', 0), ('h100-1g:7', 0), ('a100_20gb:2', 0), ('a100_40g:4', 4), ('a100-80gb:8', 8),
    ('v100_16g:4', 4), ('rtx3080_10g:4', 4)])
def test_slices_with_names_of_the_site(place, gpus, counted):
    """No whole A100 has so little memory, which other GPUs have."""
    place.command('sinfo', 'gpu|2:32:1|515000|gpu:%s|NO|up' % gpus)
    machine = inspection.Machine(systems.load('workstation'), str(place.root), place.environ)
    assert machine.partitions()['gpu']['gpus'] == counted


def test_draft_in_a_job(place):
    """Of the job's own partition, and with the GPUs that are seen where Slurm does not count them."""
    place.command('sinfo', REAL.replace('gpu:v100:8|NO|down', '(null)|EXCLUSIVE|up'))
    job = {'SLURM_JOB_ID': '1', 'SLURM_JOB_PARTITION': 'old'}
    found = described(place, **job, SLURMD_NODENAME='n1')
    assert [found[key] for key in ('partition', 'cores', 'threads_per_core', 'gpus')] == ['old', '8', '2', '2']
    assert 'gpus_option' not in found
    assert [found[key] for key in ('nodes_exclusive', 'gpu_architecture', 'gpu_cores')] == [
        'yes', '8.0', '0-3 4-7']
    # salloc's shell is on the login node at most sites, whose cores and memory say nothing
    found = described(place, **job)
    assert [found[key] for key in ('partition', 'cores', 'threads_per_core', 'memory')] == ['old', 128, 2, '502 GiB']


def test_draft_in_a_partition_of_several_kinds(place):
    """Of the job's own node, not of the one with most GPUs."""
    line = 'gpu|1:8:2|524288|gpu:%s|NO|up'
    place.command('sinfo', '\n'.join([line % 'rtx2080ti:8', line % 'a100:2']))
    place.replace('bin/sinfo', '/sh\n', "/sh\ncase $* in *--nodes=n1) echo '%s'; exit; esac\n" % line % 'a100:2')
    job = {'SLURM_JOB_ID': '1', 'SLURM_JOB_PARTITION': 'gpu'}
    found = [described(place, **job, **more) for more in ({}, {'SLURMD_NODENAME': 'n1'})]
    assert [(one['gpus'], one['gpus_option']) for one in found] == [
        (8, '--gpus-per-node=rtx2080ti:'), (2, '--gpus-per-node=a100:')]
    for gpus in ('4(S:0-3)', 'tesla:2,gpu:kepler:2'):
        place.command('sinfo', line % gpus)
        assert described(place, **job)['gpus_option'] == '--gpus-per-node='


def test_draft_of_a_queue_that_is_open(place):
    """And takes jobs of users: the one to which this job was submitted, from which it may have been sent to another."""
    (place.top / 'bin' / 'sinfo').unlink()
    place.command('qstat', "Queue: old\n    queue_type = Execution\n    enabled = False\n    started = True\n\n"
                           "Queue: small\n    queue_type = Execution\n    from_route_only = True\n\n"
                           "Queue: gpu\n    queue_type = Execution\n    enabled = True\n    started = True\n")
    assert described(place)['partition'] == 'gpu'
    assert described(place, PBS_JOBID='1.pbs', PBS_QUEUE='small', PBS_O_QUEUE='old')['partition'] == 'old'


@pytest.mark.parametrize('modules, said, command', [
    ([], None, 'mpiexec'),
    ([('cray-mpich/9.0', 'cray-mpich', 'cray-mpich')], 'mpirun (Open MPI) 5.0.3', 'mpiexec'),
    ([('openmpi/5.0', 'OpenMPI', 'openmpi')], None, 'mpirun'),
    ([('hpcx/2.20', 'HPCX', 'openmpi')], None, 'mpirun'),
    ([('MPICH/4.0.2', 'MPICH', 'cray-mpich')], None, 'mpiexec.hydra'),
    ([('impi/2021.15', 'impi', 'cray-mpich')], None, 'mpiexec.hydra'),
    ([('gcc/13', 'GCC', 'gcc')], 'mpirun (Open MPI) 5.0.3', 'mpirun'),
    ([], 'HYDRA build details:\n    Version:                                 4.0.2', 'mpiexec.hydra'),
    ([], 'Intel(R) MPI Library for Linux* OS, Version 2021.19.0 Build 20260929', 'mpiexec.hydra'),
])
def test_draft_starts_ranks_as_the_mpi_does(place, modules, said, command):
    """MPICH's mpiexec knows no option of PALS's. The MPI is that of a module, else of the PATH; Slurm has srun."""
    if said:
        place.command('mpirun', said)
    assert described(place, modules)['command'] == 'srun'
    (place.top / 'bin' / 'sinfo').unlink()
    found = described(place, modules)
    assert (found['command'], found['two_processes']) == (command, command + ' -n 2')


def test_draft_of_a_slurm_without_partitions(place):
    """Those of the others are hidden."""
    place.command('sinfo', '')
    machine = inspection.Machine(systems.load('workstation'), str(place.root), place.environ)
    values = new_system.describe('x', machine, [])
    assert values['scheduler partition'] == (
        None, "could not be asked: the batch system names no partition or queue")


def test_grid_engine_is_no_pbs(place):
    """It has a qstat, too, which does not know the question."""
    (place.top / 'bin' / 'sinfo').unlink()
    place.write('bin/qstat', '#!/bin/sh\necho "error: Unknown option -Q"\nexit 1\n').chmod(0o755)
    machine = inspection.Machine(systems.load('workstation'), str(place.root), place.environ)
    assert machine.batch_system() == 'pbs'
    place.command('qconf', '')
    assert machine.batch_system() == 'none'


def test_draft_knows_the_compilers(place):
    """cc belongs to Cray's programming environment; elsewhere MPI's may be in a module alone."""
    assert described(place, [('OpenMPI/5.0.3', 'OpenMPI', 'openmpi')])['mpi_c'] == 'mpicc'
    place.command('mpicc', '')
    assert described(place, [('PrgEnv-gnu/8.6.0', 'PrgEnv-gnu', 'nothing')])['mpi_c'] == 'cc'


def test_architecture_of_the_gpus(place):
    """The oldest of NVIDIA's; of AMD's without processors, which are in the list."""
    machine = inspection.Machine(systems.load('workstation'), str(place.root), place.environ)
    place.command('nvidia-smi', '10.0\n7.0\n9.0')
    assert machine.GPU_architecture() == '7.0'
    place.command('nvidia-smi', 'Field "compute_cap" is not a valid field to query.')
    machine.outputs.clear()
    with pytest.raises(inspection.NotAsked, match='names no architecture'):
        machine.GPU_architecture()
    (place.top / 'bin/nvidia-smi').unlink()
    place.command('rocm_agent_enumerator', 'gfx000\ngfx942\ngfx942')
    assert machine.GPU_architecture() == 'gfx942'


@pytest.mark.slow
def test_draft_with_categories_and_what_is_loaded(cray, tmp_path):
    """EasyBuild's categorized names; what users load first is a comment in the draft. ROCm is not for CUDA's."""
    needs_program('tclsh')
    names = 'compiler/GCC/13.3.0', 'mpi/OpenMPI/5.0.3-GCC-13.3.0', 'system/CUDA/12.6.0'
    machine = cray(top={'2024': '/opened'}, opened=dict.fromkeys([*names, 'rocm/6.3'], ''))
    shell = machine.modules_shell()
    assert shell.load(['2024', names[0]]) is None
    machine.environ = shell.environ
    chosen, left_out = new_system.modules_of(machine)
    assert [one[0] for one in chosen] == list(names)
    assert left_out == ['rocm/6.3: CUDA is there',
                        '2024: loaded here; add those without which others are not found']
    text = new_system.easyconfig_text('x', chosen, 'slurm', {}, left_out)
    assert "[\n    # %s\n    ('compiler/GCC/13.3.0', EXTERNAL_MODULE),\n" % left_out[1] in text
    # where users have loaded ROCm, its commands are on the PATH
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'bin/rocm-smi').symlink_to('/bin/true')
    machine.environ['PATH'] = '%s:%s' % (tmp_path / 'bin', os.environ['PATH'])
    chosen, left_out = new_system.modules_of(machine)
    assert chosen[-1] == ('rocm/6.3', 'ROCm', 'rocm') and left_out[0] == 'system/CUDA/12.6.0: ROCm is there'


@pytest.mark.parametrize('values, there', [
    ({'cuda': '13', 'gpu_architecture': '7.0'}, '# PyTorch-2.7.1-Derecho-whl.eb, with wheels for CUDA 12.6'),
    ({'cuda': '13', 'gpu_architecture': '7.5'}, "version = '2.15.0'"),
    ({'cuda': '13', 'gpu_architecture': '10.0'}, "version = '2.15.0'"),
    ({'cuda': '12', 'gpu_architecture': '9.0'}, 'for CUDA 12\n'),
    ({'cuda': '12', 'gpu_architecture': '10.0'}, './eb --new-version 2.10.0 PyTorch-2.7.1-Derecho-whl.eb'),
    ({'gpus': 4}, 'draft again on a node with GPUs'),
    ({'gpus': 4, 'gpu_architecture': 'gfx942'}, 'PyTorch-2.10.0-Frontier.eb'),
    ({'gpus': 0}, "version = '2.13.0'"),
])
def test_wheels_for_the_gpus(values, there):
    """CUDA 13 has no code for GPUs before Turing; where nobody knows the GPUs, the draft names what to do."""
    text = new_system.easyconfig_text('x', [], 'slurm', {'node ' + key: (value, '') for key, value in values.items()})
    assert there in text and ('processors alone' in text) == ("version = " not in there)


def test_cuda_13_is_that_of_the_workstation():
    """The draft's parameters are those of the easyconfig that it names, with MPI."""
    text = (CHECKOUT / 'easyconfigs/p/PyTorch/PyTorch-2.15.0-workstation.eb').read_text()
    ours = new_system.DATA['CUDA 13']
    for key in ('version', 'python_versions'):
        assert '\n%s = %s\n' % (key, ours[key]) in text
    assert "\nlock_files = %s\n" % ours['lock_files'].replace(", 'mpi4py.lock'", '') in text


@pytest.mark.slow
def test_children_of_a_command_that_hangs(tmp_path):
    """They end with it: a module's shell has started something."""
    with pytest.raises(subprocess.TimeoutExpired):
        commands.run(['sh', '-c', 'sleep 600 & echo $! > %s; wait' % (tmp_path / 'pid')], timeout=2)
    pid = int((tmp_path / 'pid').read_text())
    deadline = time.monotonic() + 60
    while processes.stat(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes.stat(pid)


@pytest.mark.slow
def test_survey_that_is_terminated(tmp_path):
    """A command that hangs ends with it, and what it has started; it says so."""
    sinfo = tmp_path / 'sinfo'
    # late: on a busy machine it runs while Popen, which a signal would interrupt, has not yet returned
    sinfo.write_text('#!/bin/sh\nsleep 600 &\nsleep 0.5\necho $! > %s/pid\nwait\n' % tmp_path)
    sinfo.chmod(0o755)
    environ = dict(clean_environment(), HOME=str(tmp_path), PATH='%s:%s' % (tmp_path, os.environ['PATH']))
    with subprocess.Popen([str(CHECKOUT / 'eb'), '--survey'], cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not ((tmp_path / 'pid').exists() and (tmp_path / 'pid').read_text()):
            time.sleep(0.05)
        process.terminate()
        assert process.stderr.read().endswith('eb: the survey was stopped by SIGTERM\n')
        assert process.wait() == 130
    # it was sent SIGKILL; the kernel may take a moment where others want the processors
    deadline = time.monotonic() + 60
    while processes.stat(int((tmp_path / 'pid').read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_modules_that_are_listed_in_depth(tmp_path):
    """Where the user, or the site, lets Environment Modules list directories alone."""
    program = tmp_path / 'modulecmd'
    program.write_text('#!/bin/sh\n[ "$MODULES_AVAIL_INDEPTH" != 0 ] || { echo gcc/ >&2; exit; }\necho gcc/13.2 >&2\n')
    program.chmod(0o755)
    shell = ModulesShell(str(program), dict(os.environ, MODULES_AVAIL_INDEPTH='0'))
    assert shell.available() == ['gcc/13.2'] and shell.environ['MODULES_AVAIL_INDEPTH'] == '0'
