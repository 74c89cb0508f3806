"""Lock files that are not whole: nothing that they name, or named once, is passed over."""
import os
import random

import pytest
from common import CHECKOUT, needs_root

from hpc_pytorch import UsersProblem, write_atomically
from hpc_pytorch.packages.lock_files import check_list, read_lock

LOCK = CHECKOUT / 'easyconfigs/p/PyTorch/locks' / 'mpi4py-build.lock'


def test_whole():
    """Each package of a real lock file, with hashes."""
    entries = read_lock(LOCK)
    assert len(entries) == LOCK.read_text().count('==') - LOCK.read_text().count("== '") and all(
        entry.hashes for entry in entries)


@pytest.mark.parametrize('line', ['toy', 'toy @ https://example.org/toy.whl', 'toy==1.0', 'toy==1.0 --hash=sha256:abc',
                                  '-r more.lock', '-e ./toy', '--constraint=more.txt'])
def test_not_locked(tmp_path, line):
    """A line that locks nothing was passed over once, and the package was not installed."""
    path = tmp_path / 'toy.lock'
    path.write_text(line + '\n')
    with pytest.raises(UsersProblem, match='toy.lock is not a complete lock file: expected NAME==.*--generate-hashes'):
        read_lock(path)


def test_a_colleague_renews_it(tmp_path):
    """The others can still read it, whatever the umask; one that they cannot read is named."""
    needs_root()
    path = tmp_path / 'toy.lock'
    path.write_text('toy==1.0\n')
    path.chmod(0o664)
    before = os.umask(0o077)
    try:
        write_atomically(path, 'toy==2.0\n')
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o664
    path.chmod(0o600)
    os.seteuid(65534)
    try:
        with pytest.raises(UsersProblem, match='toy.lock is not a complete lock file: .*Permission denied'):
            read_lock(path)
    finally:
        os.seteuid(0)


def test_empty(tmp_path):
    """What a command that failed leaves of its output is not a lock without packages."""
    path = tmp_path / 'toy.lock'
    path.write_text('')
    with pytest.raises(UsersProblem, match='toy.lock is not a complete lock file: it is empty'):
        read_lock(path)


def test_damaged(tmp_path):
    """Other bytes in it, and it is refused; but where they make a comment, which takes one package away."""
    whole, names = LOCK.read_bytes(), [entry.name for entry in read_lock(LOCK)]
    chance = random.Random(1)
    path = tmp_path / 'damaged.lock'
    for _ in range(300):
        content = bytearray(whole)
        place = chance.randrange(len(content))
        content[place:place + 20] = bytes(chance.randrange(256) for _ in range(20))
        path.write_bytes(content)
        try:
            found = [entry.name for entry in read_lock(path)]
        except UsersProblem:
            continue
        assert len(found) >= len(names) - 1, found


@pytest.mark.parametrize('listed, lacks', [
    ('toy==1.0', ''),
    ('Toy_Box==2', ''),
    ('toy-box[more]==2.0', ''),
    ('toy>=0.5', ''),
    ('other ; python_version < "3.8"', ''),
    ('other', 'other'),
    ('toy>=1.0\nother', 'other'),
    ('other != 1.8', 'other!=1.8'),
    ('other [extra] >= 1, < 3  # why', 'other>=1,<3'),
    ('toy >=0.9, <=1.0, !=1.5\nToy_Box ~= 2.0', ''),
    ('toy==1.*\ntoy-box<3', ''),
    ('toy==1.00\ntoy-box>=1.07.04', ''),
    ('toy<1', 'toy<1'),
    ('toy >=0.9, <1 # as in the .in file before a rebase', 'toy>=0.9,<1'),
    ('toy-box>=2.1', 'toy-box>=2.1'),
    ('toy-box~=2.1', 'toy-box~=2.1'),
    ('toy>=2 ; python_version < "3.12"', ''),
    ('toy==1.5', 'toy==1.5'),
])
def test_list_that_was_changed(tmp_path, listed, lacks):
    """A package that is added to the .in file, or another version, is not installed before its command was run."""
    lock = tmp_path / 'mine.lock'
    hashed = ' --hash=sha256:%s\n' % ('a' * 64)
    lock.write_text('toy==1.0+cpu' + hashed + 'toy-box==2.0.0' + hashed)
    command = '# uv pip compile --no-emit-package torch mine.in -o mine.lock\n'
    (tmp_path / 'mine.in').write_text('%storch==2.14.0\n%s\n' % (command, listed))
    said = ''
    try:
        check_list(str(lock), read_lock(str(lock)))
    except UsersProblem as problem:
        said = str(problem)
    assert said == ('%s lists %s, which its lock file lacks: ./eb --renew EASYCONFIG' % (tmp_path / 'mine.in', lacks)
                    if lacks else '')


def refusal(tmp_path, list_text, in_lock='', **options):
    """What check_list says of a lock with toy 1.0 alone, beside this .in file; '' if nothing."""
    lock = tmp_path / 'mine.lock'
    lock.write_text('%s\ntoy==1.0 --hash=sha256:%s\n' % (in_lock, 'a' * 64))
    (tmp_path / 'mine.in').write_text(list_text)
    try:
        check_list(str(lock), read_lock(str(lock)), **options)
    except UsersProblem as problem:
        return str(problem)
    return ''


@pytest.mark.parametrize('command, in_lock, pythons, told', [
    ('--universal --python-version 3.11', '', ['3.13', '3.11'], ''),
    ('--python-version 3.11', '', ['3.11', '3.9', '3.10'],
     '3.9, 3.10, too. Leave that out, or write --python-version 3.9 into the command in '),
    # the command was changed, and not run
    ('--python-version 3.10', '#  uv pip compile --python-version=3.12.1 mine.in', ['3.12', '3.11'], '3.11, too. '),
    ('', '', ['3.9'], ''),
])
def test_lock_for_newer_pythons(tmp_path, command, in_lock, pythons, told):
    """What only older Pythons need is not in the lock: it was missing where an older one was used."""
    said = refusal(tmp_path, '#  uv pip compile %s mine.in\ntoy\n' % command, in_lock, pythons=pythons)
    assert ('python_versions has ' + told in said) if told else not said, said


@pytest.mark.parametrize('options, alone, refused', [
    ("--overrides <(printf '%s\\n' torch filelock numpy sympy)", True, True),
    ('--no-emit-package numpy --no-emit-package torch', True, True),
    ("--overrides <(printf '%s\\n' torch filelock numpy sympy)", False, False),
    ("--overrides <(printf '%s\\n' numpy) torch-plots.in", True, False),
])
def test_list_on_top_of_nothing(tmp_path, options, alone, refused):
    """Made with the command of Transformers, it has no NumPy: it was installed, and could not be imported."""
    said = refusal(tmp_path, '#  uv pip compile %s -o mine.lock\ntoy\n' % options, alone=alone)
    assert ('and no module in dependencies has them' in said) == refused and bool(said) == refused, said


@pytest.mark.parametrize('listed, left_out, told', [
    ('numpy<3', 'torch numpy sympy', True),
    ('Typing_Extensions', 'torch typing-extensions', True),
    ('networkx', 'torch numpy\\\n#   networkx', True),
    ('numpydoc', 'torch numpy', False),
    # as pip freeze and `poetry export` write them
    ('scipy==1.16.1\nnumpy==2.3.2 \\\n    --hash=sha256:0\ntorch==2.8.0', 'torch numpy', 'numpy==2.3.2, torch==2.8.0'),
])
def test_what_the_command_leaves_out(tmp_path, listed, left_out, told):
    """To run the command again, as it was told, made the same lock without end."""
    command = "#  uv pip compile --overrides <(printf '%%s\\n' %s) mine.in\n" % left_out
    said = refusal(tmp_path, command + listed + '\n')
    assert 'which its lock file lacks' in said and ('Remove such lines or, ' in said) == bool(told), said
    assert told in (True, False) or 'lists %s, which' % told in said


@pytest.mark.parametrize('options, pythons, refused', [
    ('', ['3.12', '3.11'], True),
    ('--universal', ['3.12', '3.10'], True),
    ('--python-version 3.11', ['3.12', '3.11'], True),
    ('--universal --python-version 3.11', ['3.12', '3.11'], False),
    ('', ['3.11'], False),
])
def test_lock_of_one_python(tmp_path, options, pythons, refused):
    """What only the other ones need is not in the lock."""
    said = refusal(tmp_path, '#  uv pip compile %s mine.in -o mine.lock\ntoy\n' % options, pythons=pythons)
    assert said == ('%s: a lock for Python %s needs --universal and --python-version %s in its command: add them, '
                    'then: ./eb --renew EASYCONFIG' % (tmp_path / 'mine.in', ', '.join(pythons), pythons[-1])
                    if refused else '')
