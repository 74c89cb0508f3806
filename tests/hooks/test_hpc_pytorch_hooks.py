"""The site's own hooks beside ours, and errors that name the hook and the rule."""
import pytest

pytestmark = pytest.mark.slow

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
    ("def parse_hok_hook(ec):\n    pass\n", ['no hook called parse_hok_hook', 'did you mean parse_hook?']),
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
