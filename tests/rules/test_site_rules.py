"""Each rule of the hooks, through ./eb: what sites decide, what they add, and their own hooks beside ours."""
import os
import subprocess
import tarfile

import pytest
from lumi.lumi_site import needs_root
from small_software import Toys

pytestmark = pytest.mark.slow

# a build from source as far as rules are concerned; no test lets it begin
SOURCE_BUILD = """easyblock = 'EB_PyTorchHPC'
name = 'PyTorch'
version = '1.13.1'
versionsuffix = '-ARCHER2'
homepage = 'https://example.org/'
description = 'never built'
toolchain = SYSTEM
dependencies = [('PrgEnv-gnu', EXTERNAL_MODULE), ('cray-python', EXTERNAL_MODULE)]
lock_files = ['empty.lock']
python_versions = ['3.11']
moduleclass = 'ai'
"""


@pytest.fixture
def toys(eb, tmp_path):
    """Toys for ARCHER2, sources of the test's own."""
    eb.sources = tmp_path / 'sources'
    return Toys(eb, tmp_path, 'ARCHER2', {})


@pytest.fixture
def source_build(tmp_path):
    """The easyconfig of a build from source."""
    (tmp_path / 'empty.lock').write_text('# nothing\n')
    path = tmp_path / 'PyTorch-1.13.1-ARCHER2.eb'
    path.write_text(SOURCE_BUILD)
    return path


def site(directory, text):
    """The environment that names a site's own file."""
    path = directory / 'site.cfg'
    path.write_text(text)
    return {'HPC_SITE_CONFIG': str(path)}


# --- login nodes ----------------------------------------------------------------------------------------------------

def on_login_node(toys):
    """./eb on a host that is called like a login node of ARCHER2."""
    needs_root()
    toys.eb.command = ['unshare', '--uts', 'sh', '-c', 'hostname ln01 && exec "$@"', 'sh'] + toys.eb.command


def test_login_node(toys, source_build):
    """Refused, with the command that does it right; or warned, or neither, as the site chooses."""
    on_login_node(toys)
    output = toys.run(source_build, status=None)
    assert 'ln01 is a login node of ARCHER2' in output
    assert 'eb --system archer2 --rehearse PyTorch-1.13.1-ARCHER2.eb --robot --job' in output
    assert "rule 'no builds on login nodes'" in output and 'Installation of' not in output
    ready = '--stop=ready'
    output = toys.run(source_build, ready, env=site(toys.directory, '[policy]\nlogin_node = warn\n'))
    assert 'WARNING' in output and 'ln01 is a login node' in output
    output = toys.run(source_build, ready, env=site(toys.directory, '[policy]\nlogin_node = allow\n'))
    assert 'login node' not in output


def test_login_node_is_for_the_rest(toys, source_build):
    """What does not compile for hours is no matter there; nor is fetching, nor what a job does on such a host."""
    on_login_node(toys)
    assert 'module load toy' in toys.run(toys.write('toy'))
    assert 'login node' not in toys.run(source_build, '--fetch')
    assert 'login node' not in toys.run(source_build, '--stop=ready', env={'SLURM_JOB_ID': '1'})
    wheel = toys.eb.sources / 'p/PyTorch/PyTorch-1.13.1-ARCHER2-built/0123/torch.whl'
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    assert 'login node' not in toys.run(source_build, '--stop=ready')


def test_too_little_memory(toys, source_build):
    """A host, or a cgroup, with less memory than the largest file needs: the build could not end well."""
    kept = toys.eb.sources / 'p/PyTorch'
    kept.mkdir(parents=True)
    profile = kept / 'PyTorch-1.13.1-ARCHER2-ramgate.json'
    profile.write_text('{"version": 1, "files": {"a": {"seconds": 9, "curve": [9e9], "language": "CXX"}}}')
    output = toys.run(source_build, status=None)
    assert 'and the largest file alone needs' in output and '--robot --job' in output
    profile.unlink()
    needs_root()
    group = '/sys/fs/cgroup/memory/hooks-%d' % os.getpid()
    if not os.path.isdir('/sys/fs/cgroup/memory'):
        pytest.skip("memory cgroups of version 1 are needed")
    os.mkdir(group)
    try:
        subprocess.run(['sh', '-c', 'echo 1G > %s/memory.limit_in_bytes' % group], check=True)
        toys.eb.command = ['sh', '-c', 'echo $$ > %s/cgroup.procs && exec "$@"' % group, 'sh'] + toys.eb.command
        output = toys.run(source_build, status=None)
        assert '1.0 GB, and the largest file alone needs 2.0 GB' in output
    finally:
        os.rmdir(group)


# --- disks ----------------------------------------------------------------------------------------------------------

def test_full_disk(toys):
    """Too little room in the build directory: said before anything is unpacked; the site may only warn."""
    needs_root()
    place = toys.directory / 'small'
    place.mkdir()
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=50M', 'none', str(place)], check=True)
    try:
        output = toys.run(toys.write('toy'), '--buildpath=%s' % (place / 'build'), status=None)
        assert 'The build directory %s has too little room: ' % place in output
        assert ' MB are free, and 100.0 MB are needed' in output
        assert '--buildpath' in output and not toys.module('toy').exists()
        output = toys.run(toys.write('toy'), '--buildpath=%s' % (place / 'build'),
                          env=site(toys.directory, '[policy]\nfree_space = warn\n'))
        assert 'WARNING' in output and toys.module('toy').exists()
    finally:
        subprocess.run(['umount', str(place)], check=True)


def test_quota(toys):
    """The file system has room, and the quota does not: a real one, of a subvolume."""
    needs_root()
    place, image = toys.directory / 'disk', toys.directory / 'image'
    place.mkdir()
    with open(image, 'wb') as handle:
        handle.truncate(2 ** 30)
    subprocess.run(['mkfs.btrfs', '--quiet', str(image)], check=True)
    subprocess.run(['mount', '-o', 'loop', str(image), str(place)], check=True)
    try:
        for command in (['quota', 'enable', place], ['subvolume', 'create', place / 'mine'],
                        ['qgroup', 'limit', '60M', place / 'mine']):
            subprocess.run(['btrfs'] + [str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
        output = toys.run(toys.write('toy'), '--buildpath=%s' % (place / 'mine'), status=None)
        assert 'too little room: your quota there does not allow it, and 100.0 MB are needed' in output
        toys.run(toys.write('toy'), '--buildpath=%s' % place)
    finally:
        subprocess.run(['umount', str(place)], check=True)


# --- what sites add -------------------------------------------------------------------------------------------------

def test_our_rules(eb, tmp_path):
    """The collection's own: settings for RCCL's plugin on LUMI, a module with PyTorch on Bede."""
    lumi = Toys(eb, tmp_path, 'LUMI', {})
    lumi.run(lumi.write('aws-ofi-rccl'))
    assert 'setenv("NCCL_SOCKET_IFNAME", "hsn0,hsn1,hsn2,hsn3")' in lumi.module('aws-ofi-rccl').read_text()
    bede = Toys(eb, tmp_path, 'Bede', {})
    bede.run(bede.write('PyTorch'))
    assert 'nsight-systems/2023.4.1' in bede.module('PyTorch').read_text()


def test_sites_rules(toys):
    """A site's own: a patch, a module, an option, settings; one of our rules is replaced by its name."""
    source = toys.directory / 'sources/t/toy'
    source.mkdir(parents=True)
    (toys.directory / 'hello').write_text('hello\n')
    with tarfile.open(source / 'toy.tar.gz', 'w:gz') as packed:
        packed.add(toys.directory / 'hello', 'toy/hello')
    easyconfig = toys.directory / 'toy-1.0-ARCHER2.eb'
    text = toys.write('toy').read_text().replace("'Toolchain'", "'Tarball'")
    easyconfig.write_text(text + "sources = ['toy.tar.gz']\nchecksums = []\nsanity_check_paths = "
                          "{'files': ['hello'], 'dirs': []}\n")
    mine = toys.directory / 'mine'
    mine.mkdir()
    (mine / 'hello.patch').write_text('says more\n--- a/hello\n+++ b/hello\n@@ -1 +1,2 @@\n hello\n+world\n')
    environment = site(mine, """
[rule more]
software = t*y
version = >=0.9 <1.1
system = archer2
patches = hello.patch
modules = cray-fftw
options = postinstallcmds: date>%(installdir)s/stamp
features = gpu mpi
reason = a test

[rule other versions]
software = toy
version = >=1.1
modules = no-such-module
reason = does not apply

[rule other systems]
software = toy
system = lumi frontier
modules = no-such-module
reason = does not apply
""")
    toys.run(easyconfig, env=environment)
    installed = toys.eb.prefix / 'software/toy/1.0-ARCHER2'
    assert (installed / 'hello').read_text() == 'hello\nworld\n'
    assert (installed / 'stamp').exists()
    assert 'cray-fftw' in toys.module('toy').read_text()
    # with the patch, what is installed can be made again
    assert (installed / 'easybuild/provenance/hello.patch').exists()


@pytest.mark.parametrize('text, words', [
    ('[policy]\nlogin_node = perhaps\n', ['site.cfg', 'expected refuse, warn or allow']),
    ('[polcy]\n', ['unknown section [polcy]', 'did you mean policy?']),
    ('[rule x]\nsoftware = toy\nreason = r\nmodule = y\n', ["unknown key 'module'", 'did you mean modules?']),
    ('[rule x]\nsoftware = toy\nreason = r\nversion = 1.0\n', ['expected bounds such as >=1.13 <2.1']),
    ('[rule x]\nsoftware = toy\nreason = r\noptions = a b\n', ['expected the name of a parameter']),
    ('[rule x]\nsoftware = toy\nreason = r\noptions = no_such: b\n', ['[rule x]', 'has no list called no_such']),
    ('[rule x]\nsoftware = toy\nreason = r\npatches = no.patch\n', ['[rule x]', 'there is no patch']),
    ('[rule x]\nsoftware = toy\n', ["'reason' is missing in [rule x]"]),
])
def test_mistakes_in_rules(toys, text, words):
    """One line that names the file, the rule, what was expected, and the hook."""
    output = toys.run(toys.write('toy'), status=None, env=site(toys.directory, text))
    for word in words + ["(parse_hook, rule 'the site's rules' of hpc_pytorch_hooks.py)"]:
        assert word in output


def test_no_such_file(toys):
    """$HPC_SITE_CONFIG names nothing."""
    output = toys.run(toys.write('toy'), status=None, env={'HPC_SITE_CONFIG': '/no/such/file'})
    assert '/no/such/file cannot be read: No such file or directory; $HPC_SITE_CONFIG names it' in output


# --- the site's own hooks -------------------------------------------------------------------------------------------

HOOKS = """
def parse_hook(ec):
    ec['modextravars'] = {'FROM_THE_SITE': ec['name']}

def pre_install_hook(easyblock):
    print('before installing', easyblock.name)

def end_hook():
    print('the site says goodbye')
"""


def configuration_file(path, directory):
    """A configuration file of the user's that names the hooks."""
    (directory / 'mine.cfg').write_text('[override]\nhooks = %s\n' % path)
    return [], {'EASYBUILD_CONFIGFILES': str(directory / 'mine.cfg')}


@pytest.mark.parametrize('named', [
    lambda path, _: (['--hooks=%s' % path], {}),
    lambda path, _: ([], {'EASYBUILD_HOOKS': str(path)}),
    lambda path, _: ([], {'HPC_SITE_HOOKS': str(path)}),
    configuration_file,
], ids=['option', 'variable', 'our variable', 'configuration file'])
def test_both(toys, named):
    """However the site's hooks are named, both files are used."""
    hooks = toys.directory / 'our_site.py'
    hooks.write_text(HOOKS)
    options, environment = named(hooks, toys.directory)
    output = toys.run(toys.write('toy'), *options, env=environment)
    assert 'before installing toy' in output and 'the site says goodbye' in output
    assert 'module load toy/1.0-ARCHER2' in output
    assert 'setenv("FROM_THE_SITE", "toy")' in toys.module('toy').read_text()
    assert (toys.eb.prefix / 'software/toy/1.0-ARCHER2/easybuild/provenance/provenance.json').exists()


@pytest.mark.parametrize('text, words', [
    ("def parse_hook(ec):\n    ec.no_such()\n", ["parse_hook of the site's hooks in", 'AttributeError', 'no_such']),
    ("def parse_hook(ec)\n", ["The site's hooks in", 'cannot be read: SyntaxError', "start_hook, rule"]),
    ("def parse_hok_hook(ec):\n    pass\n", ['there is no hook called parse_hok_hook', 'did you mean parse_hook?']),
])
def test_mistakes_in_hooks(toys, text, words):
    """Which hook of which file, and what is wrong with it."""
    hooks = toys.directory / 'our_site.py'
    hooks.write_text(text)
    output = toys.eb('--rehearse', toys.write('toy'), status=None, env={'HPC_SITE_HOOKS': str(hooks)}).stdout
    for word in words:
        assert word in output


def test_rule_that_fails(toys):
    """An error that nobody has foreseen names its hook and its rule, too."""
    hooks = toys.directory / 'our_site.py'
    hooks.write_text("from hpc_pytorch.rules import provenance\nprovenance.facts = None\n")
    output = toys.run(toys.write('toy'), status=None, env={'HPC_SITE_HOOKS': str(hooks)})
    assert "post_postproc_hook, rule 'provenance' of hpc_pytorch_hooks.py, could not be followed: TypeError" in output


# --- what to type ---------------------------------------------------------------------------------------------------

def test_what_to_type(toys):
    """Three lines for a job script, with the launcher of the system."""
    output = toys.run(toys.write('toy'), env={'MODULESHOME': '/somewhere'})
    block = output[output.index('To use it'):].split('\n\n')[1]
    assert [line.strip() for line in block.splitlines()] == [
        'module use %s' % toys.eb.modules, 'module load toy/1.0-ARCHER2',
        'srun --nodes=1 --ntasks=2 --cpus-per-task=1 python your_script.py']
