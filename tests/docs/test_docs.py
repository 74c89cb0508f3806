"""The documents build without a warning, the reference is what the code says, and files that they name exist."""
import io
import re
import subprocess
import sys

import docutils.core
import pytest
from common import CHECKOUT
from test_style import tracked

DOCS = CHECKOUT / 'docs'
# A path of the collection, as documents write it.
PATH = re.compile(r'(?<![\w./~$}-])(?:%s)/[\w./+-]+' % '|'.join(
    ('docs', 'easyblocks', 'easyconfigs', 'hooks', 'hpc_pytorch', 'ramgate', 'systems', 'tests', 'torch_mpi')))
# Words in capitals stand for something else.
PLACEHOLDER = re.compile(r'(?<![A-Z])(NAME|SYSTEM|VERSION|SUFFIX|EASYCONFIG)(?![A-Z])')


def documents():
    """What people read."""
    return [path for path in tracked() if path.suffix == '.rst' and (path.parent == CHECKOUT or DOCS in path.parents)]


def test_they_build(tmp_path):
    """Without a warning: no link inside leads nowhere, no page is missing in the table of contents."""
    done = subprocess.run([sys.executable, '-m', 'sphinx', '-W', '--keep-going', '-q', '-b', 'html', '-d',
                           str(tmp_path / 'doctrees'), str(DOCS), str(tmp_path / 'html')],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0 and not done.stdout, done.stdout
    assert (tmp_path / 'html' / 'reference' / 'parameters.html').exists()


@pytest.mark.parametrize('path', [path for path in tracked() if path.suffix == '.rst' and DOCS not in path.parents],
                         ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_others_are_whole(path):
    """Those that Sphinx does not build: no table, title or list that is broken."""
    said = io.StringIO()
    docutils.core.publish_doctree(path.read_text(), settings_overrides={'warning_stream': said, 'report_level': 2})
    # roles and directives of Sphinx's own
    assert [line for line in said.getvalue().splitlines() if line.startswith('<string>:') and not
            re.search('Unknown (interpreted|directive)|No (role|directive) entry', line)] == []


def test_the_reference_is_up_to_date():
    """docs/make-reference has nothing to change."""
    done = subprocess.run([str(DOCS / 'make-reference'), '--check'], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize('path', documents(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_files_that_are_named_exist(path):
    """In text and in code blocks; a name in capitals stands for any."""
    for name in PATH.findall(path.read_text()):
        name = name.rstrip('.')
        if not PLACEHOLDER.search(name):
            assert (CHECKOUT / name).exists(), name


def test_every_system_has_a_page():
    """And every page is of a system."""
    systems = {path.parent.name for path in (CHECKOUT / 'systems').glob('*/system.cfg')}
    assert {path.stem for path in (DOCS / 'systems').glob('*.rst')} == systems
