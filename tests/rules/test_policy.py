"""What a site decides about problems, through ./eb; tests of each policy are beside what it is about."""
import pytest
from small_software import site

pytestmark = pytest.mark.slow


@pytest.mark.parametrize('text, words', [
    ('[policy]\nlogin_node = perhaps\n', ['site.cfg', 'expected refuse, warn or allow']),
    ('[policy]\nlogin_nod = warn\n', ["unknown key 'login_nod'", 'did you mean login_node?']),
    ('[polcy]\n', ['unknown section [polcy]', 'did you mean policy?']),
    # sites had rules there until they became hooks
    ('[rule x]\nsoftware = toy\nreason = r\nmodules = y\n', ['unknown section [rule x]', 'docs/site-example.py']),
    ('policy\n', ['cannot be read']),
])
def test_mistakes(toys, text, words):
    """One message that names the file, what was expected, and the hook, before anything else."""
    output = toys.run(toys.write('toy'), status=None, env=site(toys.directory, text))
    for word in words + ["(start_hook, rule 'the site's policies')"]:
        assert word in output


def test_no_such_file(toys):
    output = toys.run(toys.write('toy'), status=None, env={'HPC_SITE_CONFIG': '/no/such/file'})
    assert '/no/such/file cannot be read: No such file or directory' in output
