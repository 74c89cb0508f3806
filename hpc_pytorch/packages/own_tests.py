"""
PyTorch's own tests, where an easyconfig asks for a list of them: `pytorch_tests`.

They run in EasyBuild's test step, in a directory with what is going to be installed; what fails is told, and nothing is
installed. Of wheels only some tests can be run, as only these come with them.
"""
import fnmatch
import json
import os
import signal
import subprocess
from collections import Counter

from hpc_pytorch import UsersProblem

# List -> files below PyTorch's test directory. A version lacks some.
LISTS = {
    'core': ('test_torch.py', 'test_tensor_creation_ops.py', 'test_indexing.py', 'test_reductions.py', 'test_linalg.py',
             'test_autograd.py', 'test_nn.py', 'test_optim.py', 'test_serialization.py'),
    'distributed': ('distributed/test_store.py', 'distributed/test_c10d_common.py', 'distributed/test_c10d_gloo.py',
                    'distributed/test_c10d_nccl.py', 'distributed/test_distributed_spawn.py'),
}
HERE = os.path.dirname(os.path.abspath(__file__))
# The files whose tests wheels have in torch.testing -> the file that runs them.
IN_WHEELS = {'distributed/test_distributed_spawn.py': os.path.join(HERE, 'wheel_distributed.py')}
# One file's time; a test of torch.distributed starts processes that import PyTorch, which takes seconds.
MINUTES = 120
# Pattern of tests -> why their failing says nothing about what was built.
KNOWN_FAILURES = {
    '*.test_serialization_2gb_file': "it writes 2 GB to the temporary directory",
    '*.test_download_url_to_file': "it wants the internet",
}
OUTCOMES = ('passed', 'failed', 'not counted')


def files(which, tree=None):
    """[(name, path)] of the list's tests that are here, in the source tree or in what wheels carry."""
    paths = [(name, os.path.join(tree, 'test', name) if tree else IN_WHEELS.get(name, '')) for name in LISTS[which]]
    found = [(name, path) for name, path in paths if os.path.isfile(path)]
    if not found:
        raise UsersProblem("pytorch_tests: %s has none of the list '%s'%s" % (
            tree or "a wheel", which, "" if tree else ": wheels have some of 'distributed', source trees have all. To "
            "install what is built already and not tested: --skip-test-step"))
    return found


def environment(packages, place):
    """What a test's process sees: PyTorch from there, and what PyTorch's run_test.py says of processes and files."""
    for directory in ('barrier', 'test_dir', 'init_dir'):
        os.makedirs(os.path.join(place, directory), exist_ok=True)
    return dict(os.environ, PYTHONPATH=packages, PYTHONNOUSERSITE='1', BACKEND='gloo', WORLD_SIZE='2', TEMP_DIR=place,
                # else the last line of each failure is about this variable
                PYTORCH_PRINT_REPRO_ON_FAILURE='0',
                # with it they want what PyTorch's own CI has installed
                CI='')


def run(python, packages, place, name, path, arguments=(), minutes=MINUTES):
    """Run one file; {test: (outcome, why)}, its output is `place`/NAME.txt."""
    results = os.path.join(place, name.replace('/', '-'))
    variables = environment(packages, place)
    command = [python, '-s', os.path.join(HERE, 'record_tests.py'), results, path] + list(arguments)
    # not those of a build that was interrupted
    open(results, 'w').close()
    with open(results + '.txt', 'wb') as output:
        process = subprocess.Popen(command, env=variables, cwd=os.path.dirname(path), stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            ended = process.wait(minutes * 60)
        except subprocess.TimeoutExpired:
            ended = "it was stopped after %g minutes" % minutes
        finally:
            # what it started is of no use without it
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except OSError:
                pass
            process.wait()
    with open(results, encoding='utf-8') as lines:
        lines = [json.loads(line) for line in lines]
    last = {test: how for test, how, _ in lines}
    found = {test: known(test, 'failed' if how == 'begun' else how, why) for test, how, why in lines}
    if 'begun' in last.values() or isinstance(ended, str) or ended and 'failed' not in last.values():
        # whatever comes after it did not run: a failure of the file
        found[name] = ('failed', ended if isinstance(ended, str) else "its exit status is %s" % ended)
    elif not found:
        found[name] = ('not counted', "it has no tests for this machine")
    return found


def known(test, how, why):
    """The outcome, as it counts."""
    reasons = [reason for pattern, reason in KNOWN_FAILURES.items() if fnmatch.fnmatch(test, pattern)]
    return ('not counted', "failed, as is known: %s" % reasons[0]) if how == 'failed' and reasons else (how, why)


def table(found):
    """{file: {test: (outcome, why)}} as lines for the log: numbers, then each test that did not pass."""
    lines = ['%-45s %7s %7s %12s' % (('file',) + OUTCOMES)]
    for name, tests in found.items():
        count = Counter(how for how, _ in tests.values())
        lines.append('%-45s %7d %7d %12d' % ((name,) + tuple(count[how] for how in OUTCOMES)))
    return lines + ['%s: %s: %s' % (how, test, why) for tests in found.values()
                    for test, (how, why) in sorted(tests.items()) if how != 'passed']


def verdict(found, allowed):
    """What is wrong with these outcomes; None if nothing is."""
    count = Counter(how for tests in found.values() for how, _ in tests.values())
    cut = [name for name, tests in found.items() if tests.get(name, ('',))[0] == 'failed']
    if cut or not count['passed']:
        return "%s did not run to the end" % ', '.join(cut) if cut else "none passed"
    return "%d failed, and max_failed_tests is %d" % (count['failed'], allowed) if count['failed'] > allowed else None
