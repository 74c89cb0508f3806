"""Documents keep to the words that CONTRIBUTING.rst has, and proselint finds nothing in them."""
import re
import subprocess
import sys
from pathlib import Path

import pytest
from common import CHECKOUT
from test_docs import DOCS, documents

# What is made from the code, or quotes older words.
MADE = [DOCS / 'reference', DOCS / 'changelog.rst']
WRITTEN = [path for path in documents() if not any(made in (path, path.parent) for made in MADE)]


def words_to_avoid():
    """The right column of the table in CONTRIBUTING.rst."""
    table = (CHECKOUT / 'CONTRIBUTING.rst').read_text().partition('     - Not\n')[2].partition('\n\n')[0]
    rows = re.findall(r'   \* - .*\n     - (.*)', table)
    return [words for row in rows for words in row.split(', ')]


@pytest.mark.parametrize('path', WRITTEN, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_one_word_for_one_thing(path):
    """Also where a line ends within the words."""
    text = ' '.join(path.read_text().split())
    if path.name == 'CONTRIBUTING.rst':
        text = re.sub(r'\* - Write - Not .* A docstring begins', '', text)
    avoided = words_to_avoid()
    assert len(avoided) > 15
    assert [words for words in avoided if re.search(r'\b%s\b' % re.escape(words), text)] == []


# Quotes, dots and accents: documents are typed as code is. Words twice: tables, and numbers of a grid.
LEFT_OUT = re.compile(r'.*: (typography|lexical_illusions)\b')


def test_proselint():
    """Cliches, redundancy, malapropisms and the like."""
    done = subprocess.run([Path(sys.executable).parent / 'proselint', 'check', '-o', 'compact', *WRITTEN],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert [line for line in done.stdout.splitlines() if not LEFT_OUT.match(line)] == []
    assert done.returncode in (0, 1)
