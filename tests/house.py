"""
Who imports and who names whom; and which tests a change can break, as `./test --changed` asks.

Run as a program it prints those tests: of everything that is not in main, committed or not.
"""
import ast
import functools
import re
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
TESTS = [path for path in sorted((CHECKOUT / 'tests').rglob('test_*.py')) if path.name != 'test_house.py']
# these take no time and look at all files
ALWAYS = ('tests/test_style.py', 'tests/test_house.py', 'tests/easyconfigs/test_easyconfigs.py')
# whatever uses these uses everything: of what is changed here only the tests by name are begun, and the quick ones
EVERYWHERE = ('eb', 'test', 'environments/', 'tests/common.py', 'tests/conftest.py', 'tests/small_software.py',
              'hpc_pytorch/__init__.py', 'hpc_pytorch/machine/launcher.py', 'hpc_pytorch/machine/systems.py',
              'hooks/hpc_pytorch_hooks.py')
# what is tested as a whole; {system}: as in the name of the changed file
WHOLE = (
    (r'torch_mpi/', ['tests/torch_mpi']),
    (r'ramgate/', ['tests/ramgate', 'tests/bede/test_qemu.py']),
    (r'(?:tests/stand_ins|systems)/(?P<system>\w+)/', ['tests/{system}', 'tests/stand_ins/test_stand_ins.py',
                                                       'tests/machine/test_systems.py', 'tests/docs',
                                                       'tests/checks/test_settings.py']),
    (r'tests/stand_ins/', ['tests/stand_ins']),
    (r'(?:easyconfigs|locks)/', ['tests/easyconfigs', 'tests/docs/test_docs.py', 'tests/checks/test_easystacks.py']),
    (r'(?:docs/|README.rst|CONTRIBUTING.rst)', ['tests/docs']),
    (r'(?:checks|docs/tried)/', ['tests/checks']),
    (r'easystacks/', ['tests/checks/test_easystacks.py']),
    (r'hooks/', ['tests/rules/test_site_rules.py']),
    (r'(?:setup.cfg|pyproject.toml|MANIFEST.in)', ['tests/packaging']),
)


def imports(path):
    """The dotted names that a Python file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = 'ramgate' if node.level else None
            yield from ('.'.join(filter(None, [package, node.module, alias.name])) for alias in node.names)


@functools.lru_cache(maxsize=None)
def imported_files(path):
    """The files of the checkout that a file imports."""
    return frozenset(files_of(path))


def files_of(path):
    """They may be listed more than once."""
    for name in imports(path):
        parts = name.replace('easybuild.easyblocks', 'easyblocks').split('.')
        for top in (CHECKOUT, CHECKOUT / 'tests', path.parent):
            for words in (parts, parts[:-1]):
                file = top.joinpath(*words).with_suffix('.py') if words else top
                if file.is_file():
                    yield file


def users(path):
    """This file and all that import it, by way of others, too; what lies beneath everything does not lead on."""
    everything = [file for room in ('hpc_pytorch', 'easyblocks', 'hooks', 'job_backends', 'ramgate', 'tests')
                  for file in (CHECKOUT / room).rglob('*.py')]
    found, new = set(), {path}
    while new:
        found |= new
        leading = {file for file in new if file == path or not place(file).startswith(EVERYWHERE)}
        new = {file for file in everything if leading & imported_files(file)} - found
    return found


def place(path):
    """A file's name from the top of the checkout."""
    return str(path.relative_to(CHECKOUT))


def covering(path):
    """Tests that have a file's name in theirs, import it, or name it."""
    name, stem = place(path), 'test_' + path.stem.replace('-', '_')
    short = path.name if name.startswith(('scripts', 'easyconfigs')) else '/'.join(path.parts[-2:])
    word = r'(?<![\w-])%s(?![\w-])' % re.escape(short)
    return [test for test in TESTS if test.stem == stem or test.stem.startswith(stem + '_')
            or path in imported_files(test) or re.search(word, test.read_text())]


def broken_by(name):
    """The tests, files or directories, that a change of a file can break."""
    path = CHECKOUT / name
    found = {test for pattern, tests in WHOLE if re.match(pattern, name)
             for test in (text.format(**re.match(pattern, name).groupdict()) for text in tests)}
    if path.is_file():
        files = users(path) if path.suffix == '.py' and not name.startswith(EVERYWHERE) else {path}
        found |= {place(test) for file in files for test in ([file] if file in TESTS else covering(file))}
    return {test for test in found if (CHECKOUT / test).exists()}


def changed():
    """The names of all files that are not as in main."""
    def git(*arguments):
        return subprocess.run(['git', *arguments], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True,
                              check=True).stdout.splitlines()
    base, = git('merge-base', 'HEAD', 'main')
    return git('diff', '--name-only', base) + git('ls-files', '--others', '--exclude-standard')


if __name__ == '__main__':
    chosen = set(ALWAYS).union(*map(broken_by, changed()))
    print('\n'.join(sorted(test for test in chosen if not any(test.startswith(other + '/') for other in chosen))))
