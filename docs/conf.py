"""Sphinx's configuration: `./test tests/docs` builds this with warnings as errors."""
import os
import re
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))

project = 'hpc-pytorch'
author = 'The authors of hpc-pytorch'
with open(os.path.join(HERE, os.pardir, 'hpc_pytorch', '__init__.py'), encoding='utf-8') as handle:
    release = version = re.search(r"^VERSION = '(.*)'", handle.read(), re.M).group(1)

with open(os.path.join(HERE, os.pardir, 'pyproject.toml'), encoding='utf-8') as handle:
    repository = re.search(r'^Repository = "(.*)"', handle.read(), re.M).group(1)
rst_epilog = '.. _repository: %s\n' % repository

# the pages of commands and errors are made of the code
subprocess.run([os.path.join(HERE, 'make-reference'), '--built'], check=True)

extensions = ['sphinx_copybutton', 'sphinx_design']
# most blocks are commands: not Python
highlight_language = 'bash'
copybutton_exclude = '.linenos, .gp'

html_theme = 'furo'
html_static_path = ['static']
html_css_files = ['site.css']
html_show_copyright = False
html_title = 'PyTorch on supercomputers'
# two dashes are an option, not a long one
smartquotes = False
nitpicky = True


# Where long names continue on the next line: after these, but before no digit of a version or date.
PART_ENDS = re.compile(r'(?<=\w)((?:[-_](?!\d)|[/=]+)(?=\S))')
DATE = re.compile(r'\b20\d\d-\d\d-\d\d\b')
# So many characters of code fit a line of a phone, and a cell of a table.
PHONE, CELL = 36, 16


def split_names(app, page, template, context, doctree):
    """Let long names in code and in tables continue on the next line between their parts, and nowhere else."""
    def code(found):
        begin, name, end = found.groups()
        if len(name) <= fits:
            return found.group()
        return '<span class="name">%s</span>' % (begin + PART_ENDS.sub(r'\1' + end + '<wbr>' + begin, name) + end)

    def text(found):
        return DATE.sub(r'<span class="pre">\g<0></span>', PART_ENDS.sub(r'\1<wbr>', found.group()))

    parts = re.split('(<table.*?</table>)', context.get('body', ''), flags=re.S)
    for number, part in enumerate(parts):
        fits = CELL if number % 2 else PHONE
        # names that are no code: in cells, in titles and in terms
        tags = ('td', 'p') if number % 2 else ('h1', 'h2', 'h3', 'dt')
        part = re.sub('(<span class="pre">)([^<]+)(</span>)', code, part)
        parts[number] = re.sub('|'.join('(?<=<%s>)[^<]+' % tag for tag in tags), text, part)
    context['body'] = ''.join(parts)


def setup(app):
    app.connect('html-page-context', split_names)
