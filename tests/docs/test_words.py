"""Documents and messages keep to the words that CONTRIBUTING.rst has, and proselint finds nothing in them."""
import re
import subprocess
import sys
from pathlib import Path

import pytest
from common import CHECKOUT
from test_docs import DOCS, printed
from test_style import tracked

# What is made from the code, or quotes older words.
MADE = [DOCS / 'reference', DOCS / 'changelog.rst']
WRITTEN = [path for path in tracked()
           if path.suffix == '.rst' and path not in MADE and path.parent not in MADE]


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
    assert found_in(text) == []


def found_in(text):
    """Return those of the words to avoid that a text has."""
    avoided = words_to_avoid()
    assert len(avoided) > 15
    return [words for words in avoided if re.search(r'\b%s\b' % re.escape(words), text)]


def test_messages_have_the_same_words():
    """Errors, help texts, what programs print, and the text of their files."""
    texts = [' '.join(text.split()) for text in printed()]
    texts += [path.read_text() for path in (CHECKOUT / 'hpc_pytorch').glob('*/*.cfg')]
    texts += [path.read_text() for path in (CHECKOUT / 'hpc_pytorch').glob('**/usage.txt')]
    assert [(found_in(text), text[:100]) for text in texts if found_in(text)] == []


# Quotes, dots and accents: documents are typed as code is. Words twice: tables. Decades: there are none. A program's
# name may end in -ly.
LEFT_OUT = re.compile(r'.*: (typography|lexical_illusions|dates_times|misc.phrasal_adjectives)\b')


def test_proselint():
    """Cliches, redundancy, malapropisms and the like."""
    done = subprocess.run([Path(sys.executable).parent / 'proselint', 'check', '-o', 'compact', *WRITTEN],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = re.findall(r'^\S+:\d+:\d+: .*', done.stdout, re.M)
    assert [line for line in found if not LEFT_OUT.match(line)] == []
    assert done.returncode in (0, 1)
