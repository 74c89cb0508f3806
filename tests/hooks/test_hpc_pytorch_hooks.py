"""The site's own hooks beside ours, and errors that name the hook and the rule."""
import tarfile

import pytest
from common import CHECKOUT
from small_software import Toys, site_hooks

pytestmark = pytest.mark.slow

HOOKS = """
def parse_hook(ec):
    ec['modextravars'] = {'FROM_THE_SITE': ec['name']}

def pre_install_hook(easyblock):
    print('before installing', easyblock.name)

def module_write_hook(easyblock, path, text):
    return text + '-- signed by the site'

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
    module = toys.module('toy').read_text()
    assert 'setenv("FROM_THE_SITE", "toy")' in module and module.endswith('-- signed by the site')
    assert (toys.eb.prefix / 'software/toy/1.0-ARCHER2/easybuild/provenance/provenance.json').exists()


def test_examples(eb, tmp_path):
    """The collection's own examples: a module with PyTorch, settings for RCCL's plugin."""
    examples = {'HPC_SITE_HOOKS': str(CHECKOUT / 'docs' / 'site-example.py')}
    lumi = Toys(eb, tmp_path, 'LUMI', examples)
    lumi.run(lumi.write('aws-ofi-rccl'))
    assert 'setenv("NCCL_SOCKET_IFNAME", "hsn0,hsn1,hsn2,hsn3")' in lumi.module('aws-ofi-rccl').read_text()
    bede = Toys(eb, tmp_path, 'Bede', examples)
    bede.run(bede.write('PyTorch'))
    assert 'nsight-systems/2023.4.1' in bede.module('PyTorch').read_text()


def test_patch_of_the_site(toys):
    """A patch beside the site's hooks is applied, and kept with the provenance: this can be made again."""
    source = toys.directory / 'sources/t/toy'
    source.mkdir(parents=True)
    (toys.directory / 'hello').write_text('hello\n')
    with tarfile.open(source / 'toy.tar.gz', 'w:gz') as packed:
        packed.add(toys.directory / 'hello', 'toy/hello')
    easyconfig = toys.directory / 'toy-1.0-ARCHER2.eb'
    text = toys.write('toy').read_text().replace("'Toolchain'", "'Tarball'")
    easyconfig.write_text(text + "sources = ['toy.tar.gz']\nchecksums = []\nsanity_check_paths = "
                          "{'files': ['hello'], 'dirs': []}\n")
    patch = toys.directory / 'mine' / 'hello.patch'
    patch.parent.mkdir()
    patch.write_text('says more\n--- a/hello\n+++ b/hello\n@@ -1 +1,2 @@\n hello\n+world\n')
    hooks = "def parse_hook(ec):\n    ec['patches'] += [%r]\n" % str(patch)
    toys.run(easyconfig, env=site_hooks(toys.directory, hooks))
    installed = toys.eb.prefix / 'software/toy/1.0-ARCHER2'
    assert (installed / 'hello').read_text() == 'hello\nworld\n'
    assert (installed / 'easybuild/provenance/hello.patch').exists()


@pytest.mark.parametrize('text, words', [
    ("def parse_hook(ec):\n    ec.no_such()\n", ["parse_hook, rule 'of the site, in ", 'AttributeError', 'no_such']),
    ("def parse_hook(ec)\n", ['site_hooks.py', 'cannot be used: SyntaxError', "start_hook, rule"]),
    ("def parse_hok_hook(ec):\n    pass\n", ['parse_hok_hook', "did you mean 'parse_hook'"]),
])
def test_mistakes_in_hooks(toys, text, words):
    """Which hook of which file, and what is wrong with it."""
    environment = site_hooks(toys.directory, text)
    output = toys.eb('--rehearse', toys.write('toy'), status=None, env=environment).stdout
    assert 'Traceback' not in output
    for word in words:
        assert word in output


def test_no_such_hooks(toys):
    output = toys.eb('--rehearse', toys.write('toy'), status=None, env={'HPC_SITE_HOOKS': '/no/such.py'}).stdout
    assert '/no/such.py' in output and 'does not exist' in output and 'Traceback' not in output


def test_rule_that_fails(toys):
    """An unforeseen error names its hook and its rule, too."""
    environment = site_hooks(toys.directory, "from hpc_pytorch.rules import provenance\nprovenance.facts = None\n")
    output = toys.run(toys.write('toy'), status=None, env=environment)
    assert "post_postproc_hook, rule 'provenance', failed: TypeError" in output
