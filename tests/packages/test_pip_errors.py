"""What pip printed when it failed, and what the user reads instead."""
import pytest

from hpc_pytorch.packages import pip_errors
from hpc_pytorch.packages.wheel_tags import Python

PYTHON = Python('/usr/bin/python3', '3.12', 'cpython', 'x86_64', '2.36', True)
NO_MATCH = """ERROR: Could not find a version that satisfies the requirement toy==1.0 (from versions: none)
ERROR: No matching distribution found for toy==1.0
"""
# of pip 23.2 and 26.3, with -vv; the reason, and what is to be done
UNREACHED = (
    ("connection error: [Errno 111] Connection refused", "it refuses connections", "pip config list"),
    ("connection error: Failed to resolve IP address for 'index.test' ([Errno -2] Name or service not known)",
     "does not know a host of that name", "eb --fetch"),
    ("connection error: Failed to resolve IP address for 'index.test' "
     "([Errno -3] Temporary failure in name resolution)",
     "no name server answers", "try again later"),
    ("""proxy connection error: ('Unable to connect to proxy', NewConnectionError("HTTPSConnection(host='127.0.0.1', """
     """port=9): Failed to establish a new connection: [Errno 111] Connection refused"))""",
     "the proxy cannot be reached", "$https_proxy"),
    ("There was a problem confirming the ssl certificate: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
     "self-signed certificate (_ssl.c:1006)", "this machine does not trust its certificate", "global.cert FILE"),
    ("connection error: HTTPSConnectionPool(host='index.test', port=443): Max retries exceeded with url: /simple/toy/ "
     "(Caused by NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f>: Failed to "
     "establish a new connection: [Errno 101] Network is unreachable'))", "no route to it", "eb --fetch"),
    ("index.test didn't respond within 15.0 seconds (while establishing a connection)", "in time", "later"),
    ("403 Client Error: Forbidden for url: https://index.test/simple/toy/", "authentication required", "index-url"),
)


@pytest.mark.parametrize('said, reason, remedy', UNREACHED)
def test_unreached(said, reason, remedy, tmp_path):
    """The server without the user's password, why it was not reached, and what to do."""
    output = NO_MATCH + "Could not fetch URL https://me:secret@index.test/simple/toy/: %s - skipping\n" % said
    explained = pip_errors.explain(output, str(tmp_path), PYTHON)
    assert 'index.test: ' in explained and 'secret' not in explained
    assert reason in explained and remedy in explained


def test_reached(tmp_path):
    """An index that was reached, and does not have the package."""
    output = NO_MATCH + "Could not fetch URL https://index.test/simple/toy/: 404 Client Error: Not Found - skipping\n"
    assert 'No index has toy 1.0 for Python 3.12' in pip_errors.explain(output, str(tmp_path), PYTHON)


# of pip's log, for the page of each package
PAGES = """2026-11-26T04:34:40,123 Fetching project page and analyzing links: https://me:secret@index.test/simple/toy/
2026-11-26T04:34:40,123 Getting page https://me:****@index.test/simple/toy/
2026-11-26T04:34:40,123 Fetched page https://me:****@index.test/simple/toy/ as text/html; charset=utf-8
2026-11-26T04:34:40,123   Skipping link: not a file: https://index.test/help (from https://index.test/simple/toy/)
"""
OTHER_VERSION = "  Skipping link: none of the wheel's tags (cp39) are compatible: https://f.test/toy-1.0-cp39-any.whl\n"


def test_web_page(tmp_path):
    """A server that asks to sign in first answers with a page, and status 200: it is no index without the package."""
    explained = pip_errors.explain(NO_MATCH + PAGES, str(tmp_path), PYTHON)
    assert 'index.test: it answered with a web page instead of a list of packages' in explained
    assert "it may ask to sign in" in explained and 'No index has' not in explained and 'secret' not in explained
    explained = pip_errors.explain(NO_MATCH + PAGES + OTHER_VERSION, str(tmp_path), PYTHON)
    assert 'No index has toy 1.0 for Python 3.12' in explained


# of pip's log, of a package that has sources alone, and of one whose build tools are not there
SOURCE = "  Skipping link: No sources permitted for toy: https://f.test/aa/bb/toy-%s.tar.gz (from https://index.test/)\n"
NO_TOOLS = """  error: subprocess-exited-with-error

  \u00d7 Cannot import build backend 'setuptools.build_meta:__legacy__'.
  \u2570\u2500> ModuleNotFoundError: No module named 'setuptools'

  note: This is likely not a problem with pip.
error: metadata-generation-failed

\u00d7 Encountered error while generating package metadata.
\u2570\u2500> toy

note: This is an issue with the package mentioned above, not pip.
hint: See above for details.
"""


def test_source_alone(tmp_path):
    """An index has the package, but no wheel of it, as for what hydra needs: it has to be built."""
    explained = pip_errors.explain(NO_MATCH + SOURCE % '1.0', str(tmp_path), PYTHON)
    assert "leave this one out of python_versions. Else add to the easyconfig: build_from_source = ['toy']" in explained
    assert 'No index has toy 1.0' in pip_errors.explain(NO_MATCH + SOURCE % '1.0.1', str(tmp_path), PYTHON)


def test_invalid_metadata(tmp_path):
    """An old package's wheel is there, but pip refuses it, and its source, too: building it is no way out."""
    ignored = "WARNING: Ignoring version 1.0 of toy since it has invalid metadata:\n"
    explained = pip_errors.explain(ignored + NO_MATCH + SOURCE % '1.0', str(tmp_path), PYTHON)
    assert 'list a newer one' in explained and 'build_from_source' not in explained


def test_build_tools_are_missing():
    """The package and the reason; it was "the package mentioned above", with nothing above."""
    said = pip_errors.last_words(NO_TOOLS)
    assert "No module named 'setuptools'" in said and said.endswith('package metadata. toy')


def test_wheel_with_another_name(tmp_path):
    """A file that only ends as a wheel does was a traceback once."""
    (tmp_path / 'x.whl').touch()
    assert 'No index has toy' in pip_errors.explain(NO_MATCH, str(tmp_path), PYTHON)


FULL = """ERROR: Exception:
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pip/_internal/cli/base_command.py", line 107, in _run_wrapper
    status = _inner_run()
  File "/usr/lib/python3.11/shutil.py", line 258, in copyfile
    while buf := fsrc.read(length):
OSError: [Errno 28] No space left on device
WARNING: There was an error checking the latest version of pip.
"""


def test_exception():
    """Of an exception its last line, which says what happened; the first only says that one did."""
    assert pip_errors.last_words(FULL) == 'OSError: [Errno 28] No space left on device'
    assert pip_errors.FULL.search(FULL)
    assert pip_errors.last_words('WARNING: old\n' + NO_MATCH) == NO_MATCH.splitlines()[-1]


OTHER = """ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package \
versions, please update the hashes. Otherwise, examine the package contents carefully; someone may have tampered with \
them.
    other==2.0 from https://index.test/files/other-2.0-py3-none-any.whl#sha256={got} (from -r /tmp/lock.txt (line 2)):
        Expected sha256 {one}
        Expected     or {two}
             Got        {got}

"""


def test_another_file():
    """The package, the file and all hashes; the lock may be the one that is wrong."""
    hashes = {'one': 'a' * 64, 'two': 'b' * 64, 'got': 'c' * 64}
    said = pip_errors.other_files(OTHER.format(**hashes))
    for words in ('other==2.0', 'other-2.0-py3-none-any.whl', 'the lock file may be', *hashes.values()):
        assert words in said
    assert pip_errors.other_files(NO_MATCH) == ''
