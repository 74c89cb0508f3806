"""
Other bytes in each file that is read: it is read all the same, or refused in words; never a traceback.

test_bytes.py runs this with the Python of ./eb, as some of the readers need EasyBuild.
"""
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / 'tests')]
from attacks.attempts import attack  # noqa: E402

from hpc_pytorch import UsersProblem  # noqa: E402
from hpc_pytorch.jobs import records  # noqa: E402
from hpc_pytorch import start  # noqa: E402
from hpc_pytorch.machine import batch_systems, inspection, systems  # noqa: E402
from hpc_pytorch.packages import built_wheels, images, lock_files, pip_errors, wheel_tags  # noqa: E402
from hpc_pytorch.rules import installation_locks, policy, provenance  # noqa: E402
from hpc_pytorch.source import contract  # noqa: E402
from ramgate import estimates  # noqa: E402
from ramgate.limits import Problem  # noqa: E402

FACTS = {'name': 'PyTorch', 'options': ['USE_MPI=1']}
NOTE = {'facts': FACTS, 'source': '/tmp', 'cmake_output': '', 'asked': {'USE_MPI': '1'}, 'sha256': '0' * 64}
RECORD = {'name': 'PyTorch/2.0', 'module': 'PyTorch/2.0', 'job': '12', 'token': 'abc', 'user': 'me', 'time': 1,
          'scheduler': 'slurm', 'after': ['11'], 'log': '/tmp/log', 'easyconfig': 'PyTorch-2.0.eb', 'minutes': 90,
          'memory': 2 ** 30}
PROFILE = {'version': 1, 'files': {'a.cpp': {'seconds': 1.5, 'curve': [10.0, 300.5], 'language': 'CXX'}}}
SIF = b'#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0' + bytes(80) + bytes([128, 0, 0, 0, 0, 0, 0, 0]) * 2
PIP_SAYS = """  Could not fetch URL https://index.test/simple/toy/: connection error: refused - skipping
ERROR: No matching distribution found for toy==1.0
    toy==1.0 from https://index.test/toy-1.0.whl:
        Expected sha256 %s
             Got        %s
""" % ('a' * 64, 'b' * 64)
PYTHON = wheel_tags.Python('/usr/bin/python3', '3.12', 'cpython', 'x86_64', '2.36', True)
CACHE = """CMAKE_BUILD_TYPE:STRING=Release
USE_MPI:BOOL=ON
-- ******** Summary ********
--   USE_MPI               : ON
-- Added CUDA NVCC flags for: -gencode;arch=compute_80,code=sm_80
"""


def find_left(path):
    """As the easyblock does."""
    shutil.copy(path, path.with_name(built_wheels.INTERRUPTED))
    left = built_wheels.read_interrupted(path.parent)
    return left and (built_wheels.differences(FACTS, left['facts']), left['source'], left['cmake_output'])


def find_built(path):
    """As the easyblock does."""
    where = path.parent / built_wheels.identity(FACTS)
    where.mkdir(exist_ok=True)
    shutil.copy(path, where / built_wheels.NOTE)
    (where / 'x.whl').touch()
    note = built_wheels.read_note(where)
    return built_wheels.find([path.parent], FACTS), note and note['asked'].items()


def read_record(path):
    """As --job-status does, before it asks the batch system."""
    record = records.read_record(path)
    return record and (record['time'] + 1, records.number_of(record['job']), record['name'] + record['easyconfig'],
                       [job in {} for job in record['after']], record['log'] + record['module'],
                       batch_systems.SCHEDULERS[record['scheduler']])


def read_metadata(path):
    """What is installed, as it is written down."""
    place = path.parent / 'lib/python3.11/site-packages/toy-1.0.dist-info'
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, place / 'METADATA')
    return json.dumps(provenance.packages(str(path.parent)), sort_keys=True)


def read_summary(path):
    """CMakeCache.txt, and what CMake prints."""
    return contract.read_cache(path), contract.read_summary(path.read_text(errors='replace'))


def read_policy(path):
    """Of a site."""
    os.environ['HPC_SITE_CONFIG'] = str(path)
    return policy.read()


def read_image(path):
    """Before it is copied."""
    return images.check_image(str(path))


def read_lock_note(path):
    """The name of a note beside an installation's lock."""
    name = path.read_bytes().translate(None, b'/\0')[:200]
    note = path.parent / 'locks' / ('x.lock' + name.decode('utf-8', 'surrogateescape'))
    shutil.rmtree(note.parent, ignore_errors=True)
    note.parent.mkdir()
    note.touch()
    # of a job the batch system would be asked
    return [owner[-1] or installation_locks.is_stale(*owner)
            for owner in installation_locks.owners(str(note.parent / 'x.lock'))]


def read_pip(path):
    """What pip printed."""
    said = path.read_text(errors='replace')
    return pip_errors.last_words(said), pip_errors.other_files(said), pip_errors.explain(said, str(path.parent), PYTHON)


# a file, and what reads it
READERS = {
    'lock': ((CHECKOUT / 'easyconfigs/p/PyTorch/locks' / 'mpi4py-build.lock').read_bytes(), lock_files.read_lock),
    'system.cfg': ((CHECKOUT / 'systems' / 'lumi' / 'system.cfg').read_bytes(), systems.load_file),
    'site.cfg': (b'[policy]\nlogin_node = warn\nfree_space = allow\n', read_policy),
    'unfinished': (json.dumps(NOTE).encode(), find_left),
    'built': (json.dumps(NOTE).encode(), find_built),
    'record': (json.dumps(RECORD).encode(), read_record),
    'ramgate': (json.dumps(PROFILE).encode(),
                lambda path: estimates.Knowledge(str(path)).estimate('a.cpp', 'CXX').peak),
    'image': (SIF, read_image),
    'metadata': (b'Metadata-Version: 2.1\nName: toy\nVersion: 1.0\nLicense: MIT\n', read_metadata),
    'cmake': (CACHE.encode(), read_summary),
    'owner': (b'.owner=host=123=456=', read_lock_note),
    'pip': (PIP_SAYS.encode(), read_pip),
    'easystack': (b'easyconfigs:\n  - PyTorch-1.13.1-ARCHER2.eb\n',
                  lambda path: start.easyconfigs_in(['--easystack=%s' % path])),
    'easyconfig': ((CHECKOUT / 'easyconfigs/p/PyTorch/PyTorch-1.13.1-ARCHER2.eb').read_bytes(),
                   inspection.external_modules),
    'name': (b'torch-2.4.0+cu121-cp312-cp312-manylinux_2_28_x86_64.whl', lambda path: wheel_tags.why_not(
        path.read_bytes().decode(errors='replace'), PYTHON)),
}

# What attacks have found: each ended in a traceback once.
FOUND = (
    ('easyconfig', b'\xff'),
    ('metadata', b'Version: 1.0\n'), ('metadata', b'Name: toy\n'),
    ('owner', b'.owner=host'), ('owner', b'.owner=host=pid=456='),
    ('record', b'5'), ('record', b'null'), ('record', b'{"token": "abc"}'),
    ('record', json.dumps(dict(RECORD, time=None)).encode()),
    ('record', json.dumps(dict(RECORD, scheduler='x')).encode()),
    ('record', json.dumps({name: value for name, value in RECORD.items() if name != 'job'}).encode()),
    ('ramgate', b'{"version": 1, "files": {"a.cpp": {"seconds": "9", "curve": [1.0], "language": "CXX"}}}'),
    ('pip', b'Could not fetch URL https://[x/: said\nERROR: No matching distribution found for toy==1.0'),
)


def damage(content, chance):
    """A few other bytes, more or fewer of them, often of the same kind; now and then the end is missing."""
    damaged = bytearray(content)
    for _ in range(chance.randrange(1, 4)):
        begin = chance.randrange(len(damaged) + 1)
        damaged[begin:begin + chance.randrange(30)] = bytes(
            chance.choice([chance.randrange(256), chance.choice(content)]) for _ in range(chance.randrange(30)))
    if content[:1] == b'{' and chance.random() < 0.5:
        # what is JSON all the same says more about its reader
        damaged = json.dumps(other_value(json.loads(content), chance)).encode()
    return damaged[:chance.choice([len(damaged), chance.randrange(len(damaged) + 1)])]


def other_value(value, chance):
    """The same JSON with another value somewhere in it, or with one that is missing."""
    if not isinstance(value, dict) or not value or chance.random() < 0.2:
        return chance.choice([None, 0, -1, 1e400, 'x', '', [], ['x'], [None], {}, {'x': 1}, True, '9' * 30])
    name = chance.choice(sorted(value))
    rest = {key: entry for key, entry in value.items() if key != name}
    return rest if chance.random() < 0.3 else dict(rest, **{name: other_value(value[name], chance)})


def main():
    """One attempt after the other, each at another file."""
    with tempfile.TemporaryDirectory() as directory:
        def read(name, content):
            path = Path(directory) / name
            path.write_bytes(content)
            try:
                READERS[name][1](path)
            except (UsersProblem, Problem) as problem:
                assert str(problem)
            except Exception as error:
                raise AssertionError('%s: %r in %r' % (name, error, content[:1000])) from error

        def attempt(chance):
            name = chance.choice(sorted(READERS))
            read(name, damage(READERS[name][0], chance))

        for name, content in FOUND:
            read(name, content)
        attack(attempt, 100 * len(READERS))


if __name__ == '__main__':
    main()
