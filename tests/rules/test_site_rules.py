"""What sites decide and add, through ./eb."""
import tarfile

import pytest
from common import CHECKOUT
from small_software import Toys, site

pytestmark = pytest.mark.slow


def test_examples(eb, tmp_path):
    """The collection's own examples, in a site's file: settings for RCCL's plugin, a module with PyTorch."""
    examples = {'HPC_SITE_CONFIG': str(CHECKOUT / 'hooks' / 'site-example.cfg')}
    lumi = Toys(eb, tmp_path, 'LUMI', examples)
    lumi.run(lumi.write('aws-ofi-rccl'))
    assert 'setenv("NCCL_SOCKET_IFNAME", "hsn0,hsn1,hsn2,hsn3")' in lumi.module('aws-ofi-rccl').read_text()
    bede = Toys(eb, tmp_path, 'Bede', examples)
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
    ('[rule x]\nsoftware = toy\nreason = r\npatches = no.patch\n', ['[rule x]', 'found no patch']),
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
