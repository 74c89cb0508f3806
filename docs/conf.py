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


def mark_words(app, page, template, context, doctree):
    """Give words in code that fit a phone's line a class, with which they do not break at a hyphen."""
    context['body'] = re.sub('<span class="pre">(?=[^<]{1,36}<)', '<span class="pre whole">', context.get('body', ''))


def setup(app):
    app.connect('html-page-context', mark_words)
