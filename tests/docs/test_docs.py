"""The documents build without a warning, the reference is what the code says, and files that they name exist."""
import ast
import html
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import docutils.core
import pytest
import snowballstemmer
from common import CHECKOUT
from test_style import tracked

from hpc_pytorch.machine.python_module import PROBE

DOCS = CHECKOUT / 'docs'
# A path of the collection, as documents write it.
PATH = re.compile(r'(?<![\w./~$}-])(?:%s)/[\w./+-]+' % '|'.join(
    ('docs', 'easyblocks', 'easyconfigs', 'hooks', 'hpc_pytorch', 'ramgate', 'systems', 'tests', 'torch_mpi')))
# Words in capitals stand for something else.
PLACEHOLDER = re.compile(r'(?<![A-Z])(NAME|SYSTEM|VERSION|SUFFIX|EASYCONFIG)(?![A-Z])')


def documents():
    """What people read."""
    return [path for path in tracked() if path.suffix == '.rst' and (path.parent == CHECKOUT or DOCS in path.parents)]


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    """Where the site was built, with what Sphinx said."""
    place = tmp_path_factory.mktemp('site')
    done = subprocess.run([sys.executable, '-m', 'sphinx', '-W', '--keep-going', '-q', '-b', 'html', '-d',
                           str(place / 'doctrees'), str(DOCS), str(place / 'html')],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return place / 'html', done


@pytest.mark.slow
def test_they_build(site):
    """Without a warning: no link inside leads nowhere, no page is missing in the table of contents."""
    pages, done = site
    assert done.returncode == 0 and not done.stdout, done.stdout
    assert (pages / 'reference' / 'parameters.html').exists()


@pytest.mark.slow
def test_text_fits_the_page(site):
    """What commands say of themselves is text, not code."""
    assert '<p>pytorch-check PROBE' in (site[0] / 'reference' / 'commands.html').read_text()


@pytest.mark.slow
def test_options_are_lists(site):
    """Each command's options and columns are terms, which fit a phone; none is in a block of code."""
    page = html.unescape((site[0] / 'reference' / 'commands.html').read_text())
    terms = [re.sub('<.*?>', '', term) for term in re.findall('<dt>(.*?)</dt>', page)]
    for term in ('--rehearse', '--new-version X EASYCONFIG', '--memory SIZE', 'gloo', 'packages', '--dry-run',
                 '$PYTORCH_STAGE_DIR', '$PYTORCH_LOCAL_DIR'):
        assert term in terms, term
    blocks = [re.sub('<.*?>', '', block) for block in re.findall('<pre>(.*?)</pre>', page, re.S)]
    assert [block for block in blocks if re.search(r'^ *\S+(?: \S+)*  +[^#\s]', block, re.M)] == []
    assert './eb [--system NAME] [--rehearse] [any option of EasyBuild] EASYCONFIG ...\n' in blocks


@pytest.mark.nightly
def test_names_break_between_their_parts(site, tmp_path):
    """On a wide screen and a phone: only after - / _ =; and nothing leaves its cell or the page."""
    pages = [str(path.relative_to(site[0])) for path in sorted(site[0].rglob('*.html'))
             if path.name not in ('genindex.html', 'search.html')]
    page = site[0] / 'layout.html'
    page.write_text((Path(__file__).parent / 'layout.html').read_text().replace('PAGES', json.dumps(pages)))
    done = subprocess.run(['chromium', '--headless', '--no-sandbox', '--disable-gpu', '--allow-file-access-from-files',
                           '--user-data-dir=%s' % (tmp_path / 'profile'), '--dump-dom', page.as_uri()],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=300, check=True)
    page.unlink()
    found = json.loads(html.unescape(re.search('<pre>(.*)</pre>', done.stdout, re.S).group(1)))
    assert found['looked'] > 1000 and found['problems'] == []


@pytest.mark.parametrize('path', [path for path in tracked() if DOCS in path.parents and path.suffix == '.rst'],
                         ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_comments_next_to_commands_fit(path):
    """On a screen of 1366 pixels, a line of code has 95 characters; a longer one goes on below the next command."""
    lines = re.findall('^    +[^ #].*  # .*', path.read_text(), re.M)
    assert [line for line in lines if len(line) > 99] == []


def test_the_theme_prints_no_error():
    """Furo puts a red box around a list of contents without this class."""
    for path in documents():
        lists = re.findall(r'\.\. contents::\n((?:   .*\n)*)', path.read_text())
        assert all('this-will-duplicate-information-and-it-is-still-useful-here' in options for options in lists), path


@pytest.mark.parametrize('path', [path for path in tracked() if path.suffix == '.rst'],
                         ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_each_is_whole(path):
    """No table, title or list that is broken: within seconds, and also where Sphinx builds no page of it."""
    said = io.StringIO()
    docutils.core.publish_doctree(path.read_text(), source_path=str(path), settings_overrides={
        'warning_stream': said, 'report_level': 2, 'halt_level': 5, 'syntax_highlight': 'none'})
    # roles and directives of Sphinx's own, and the link that conf.py adds to each page
    assert [line for line in said.getvalue().splitlines() if line.startswith(f'{path}:') and not re.search(
        'Unknown (interpreted|directive|target name: "repository")|No (role|directive) entry', line)] == []


def test_the_reference_is_up_to_date():
    """docs/make-reference has nothing to change."""
    done = subprocess.run([str(DOCS / 'make-reference'), '--check'], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def test_the_reference_needs_ebs_environment(tmp_path):
    """A fresh clone has none: one line instead of a traceback."""
    (tmp_path / 'docs').mkdir()
    shutil.copy(DOCS / 'make-reference', tmp_path / 'docs')
    done = subprocess.run([str(tmp_path / 'docs/make-reference')], stderr=subprocess.PIPE, text=True)
    assert 'type ./eb --version' in done.stderr and done.stderr.count('\n') == 1


@pytest.mark.parametrize('path', documents(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_files_that_are_named_exist(path):
    """In text and in code blocks; a name in capitals stands for any."""
    for name in PATH.findall(path.read_text()):
        name = name.rstrip('.')
        if not PLACEHOLDER.search(name):
            assert (CHECKOUT / name).exists(), name


def test_every_system_has_a_page():
    """Every page is of a system, has the same prerequisites, and says that its machine was not reached."""
    systems = {path.parent.name for path in (CHECKOUT / 'systems').glob('*/system.cfg')}
    pages = {path.stem: ' '.join(path.read_text().split()) for path in (DOCS / 'systems').glob('*.rst')}
    assert set(pages) == systems
    for system, text in pages.items():
        assert ':start-after: .. Begin: prerequisites' in text and '``git clone`` the repository_' in text, system
        assert system == 'workstation' or '**Not yet run on ' in text, system


def test_what_the_first_pages_promise():
    """How many supercomputers, on which nothing has been run yet; and the Python that ./eb asks for, everywhere."""
    systems = {path.parent.name for path in (CHECKOUT / 'systems').glob('*/system.cfg')} - {'workstation'}
    number = 'no one two three four five six seven eight nine ten'.split()[len(systems)]
    for path in (CHECKOUT / 'README.rst', DOCS / 'index.rst'):
        beginning = ' '.join(path.read_text().split())[:700]
        assert 'on %s supercomputers' % number in beginning, path
        assert '**It has not yet been run on the supercomputers themselves**' in beginning, path
    everything = ' '.join(' '.join(map(Path.read_text, documents())).split())
    promised = re.findall(r'``\./eb`` needs Python ([\d.]+) or newer', everything)
    assert set(promised) == {'.'.join(re.search(r'>= \((\d), (\d+)\)', PROBE).groups())}


def printed():
    """What the collection prints: the parts of its texts between what is filled in."""
    texts = [path.read_text() for path in (CHECKOUT / 'hpc_pytorch' / 'scripts').iterdir() if path.is_file()]
    for directory in ('easyblocks', 'hooks', 'hpc_pytorch'):
        for path in (CHECKOUT / directory).rglob('*.py'):
            tree = ast.parse(path.read_text())
            docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            texts += [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)
                      and isinstance(node.value, str) and id(node) not in docstrings]
    parts = [part for text in texts for part in re.split(r'%\S+|\$\{?\w+\}?|\n', text)]
    return {part.strip(' :.("') for part in parts if len(part) >= 18}


MESSAGE = re.compile(r'code-block:: none\n\n((?:    .*\n)+)\n\.\. output: of (?:\./eb|pytorch)')


def test_messages_are_printed_like_that():
    """A message of ours that a page quotes is found in the code."""
    known = printed()
    found = [' '.join(text.split()) for path in documents() for text in MESSAGE.findall(path.read_text())]
    assert len(found) >= 7
    assert [text for text in found if not any(part in text for part in known)] == []


@pytest.mark.slow
def test_errors_are_found_as_they_are_printed(site):
    """Messages on the troubleshooting page are entries of the page of errors; lines of logs are no patterns."""
    text = (DOCS / 'reference' / 'errors.rst').read_text().replace('\\', '').replace('``', '`')
    entries = re.findall('^- (.*)', text, re.M)
    beginnings = [next((part for part in re.split('[A-Z_]{2,}|…', entry) if len(part) > 9), '?') for entry in entries]
    quoted = [' '.join(words.split()) for words in MESSAGE.findall((DOCS / 'troubleshooting.rst').read_text())]
    assert len(quoted) > 6 and len(entries) > 180
    assert [words for words in quoted if not any(begin.strip() in words for begin in beginnings)] == []
    for words in ('third_party/… which is not an existing directory', "No module named 'distutils'",
                  'ERROR: EASYCONFIG: no easyconfig is called NAME'):
        assert words in text


def test_the_address_is_the_same_everywhere():
    """pyproject.toml's; no document has another, nor the placeholder (example.org) after it was filled in."""
    address, = re.findall('^Repository = "(.*)"', (CHECKOUT / 'pyproject.toml').read_text(), re.M)
    readme = (CHECKOUT / 'README.rst').read_text()
    assert 'git clone %s\n' % address in readme and address + '/issues' in readme
    for path in documents():
        assert set(re.findall(r'https://example\.org/[\w-]+', path.read_text())) <= {address}, path


def test_the_readme_is_one_page():
    """Nobody reads more, or scrolls sideways; each system has a row."""
    lines = (CHECKOUT / 'README.rst').read_text().splitlines()
    rows = [line for line in lines if line.startswith('   `')]
    assert len(lines) - len(rows) <= 123 and len(rows) == len(list((CHECKOUT / 'systems').glob('*/system.cfg')))
    assert [line for line in lines if len(line) > 120] == []


# What people type into the site's search, and the page that answers. Sphinx finds pages that have all words.
SEARCHES = (
    ('Grace Hopper', 'new-gpu-system'), ('hierarchical', 'new-gpu-system'), ('uninstall', 'support'),
    ('upgrade', 'support'), ('FAQ', 'troubleshooting'), ('certificate', 'troubleshooting'),
    ('NCCL timeout', 'troubleshooting'), ('permission denied', 'troubleshooting'), ('quota', 'troubleshooting'),
    ('proxy', 'troubleshooting'), ('undefined symbol', 'troubleshooting'), ('out of memory', 'troubleshooting'),
    ('hangs', 'troubleshooting'), ('module not found', 'troubleshooting'), ('stand-in', 'glossary'),
    ('contract', 'easybuild'), ('lock file', 'glossary'), ('survey', 'glossary'), ('resume', 'researchers'),
    ('two versions', 'support'), ('clone', 'index'), ('Ubuntu', 'index'), ('plugin', 'new-gpu-system'),
    ('Slingshot', 'new-gpu-system'), ('flash-attn', 'researchers'), ('Horovod', 'systems/archer2'),
    ('container', 'systems/lumi'), ('MI250X', 'systems/frontier'), ('report', 'troubleshooting'))


@pytest.fixture(scope='module')
def search_index(site):
    """What the site's search looks into."""
    return json.loads((site[0] / 'searchindex.js').read_text()[len('Search.setIndex('):-1])


@pytest.mark.slow
@pytest.mark.parametrize('words', ('lock file', 'survey'))
def test_the_glossary_comes_first(search_index, words):
    """The site's search puts an entry of the index with just these words before any title or text."""
    entries = search_index['indexentries'][words]
    assert [(search_index['docnames'][page], main) for page, _, main in entries] == [('glossary', True)]


@pytest.mark.slow
@pytest.mark.parametrize('words, page', SEARCHES, ids=lambda one: one)
def test_searches_find_their_page(search_index, words, page):
    """As the site's own search: stems of all words but its stop words, in the text or in titles."""
    found = set(search_index['docnames'])
    for word in re.findall(r'\w+', words.lower()):
        stem = snowballstemmer.stemmer('english').stemWord(word)
        hits = set()
        for terms in (search_index['terms'], search_index['titleterms']):
            here = terms.get(stem, terms.get(word, []))
            hits |= {here} if isinstance(here, int) else set(here)
        found &= {search_index['docnames'][hit] for hit in hits} if word not in ('of', 'not', 'out', 'in') else found
    assert page in found
