#!/usr/bin/env python3
"""
packages.py DIRECTORY [PACKAGE ...]: builds whole packages of the registries, one of make, of ninja (CMake) and of
setuptools, in a memory cgroup that plain -j8 does not survive: with -j8, with -j1, with memory / largest compiler
(formula), with -j8 until it fails and then -j1 (seed), and under plain `ramgate run --`. As root; prints a table.

Sources come from where apt's and pip's packages come from, and are kept in the directory.
"""
import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from memory_cgroup import MemoryCgroup  # noqa: E402
from ramgate.processes import own_memory  # noqa: E402

JOBS = 8
PATIENCE = 1500
# name: of Debian's source, or NAME==VERSION on PyPI; configure: None or a command; build: %d is the number of jobs
Package = namedtuple('Package', 'name configure build')
PACKAGES = {
    'make': Package('cppcheck', None, ['make', '-j%d', 'CXXFLAGS=-O0', 'cppcheck']),
    'ninja': Package('yaml-cpp', ['cmake', '-G', 'Ninja', '-S', '.', '-B', 'out', '-DYAML_CPP_BUILD_TESTS=OFF',
                                  '-DCMAKE_BUILD_TYPE=Release'], ['ninja', '-C', 'out', '-j%d']),
    'setuptools': Package('pycryptodome==3.21.0', None,
                          [sys.executable, 'setup.py', 'build_ext', '--force', '-j', '%d']),
}


def fetch(package, directory):
    """The directory of the unpacked source."""
    place = directory / re.sub('=.*', '', package.name)
    if place.exists():
        return unpacked(place)
    place.mkdir(parents=True)
    if '==' in package.name:
        pip = [sys.executable, '-m', 'pip', 'download', '-q', '--no-deps', '--no-binary', place.name]
        subprocess.run(pip + [package.name], cwd=place, check=True)
    else:
        sources = directory / 'sources'
        (sources / 'lists' / 'partial').mkdir(parents=True, exist_ok=True)
        text = Path('/etc/apt/sources.list.d/debian.sources').read_text()
        (sources / 'source.sources').write_text(re.sub('^Types: deb$', 'Types: deb-src', text, flags=re.M))
        get = ['apt-get', '-q', '-o', 'Dir::Etc::sourcelist=/dev/null', '-o', 'Dir::Etc::sourceparts=%s' % sources,
               '-o', 'Dir::State::lists=%s/lists' % sources]
        subprocess.run(get + ['update'], check=True)
        # not all of Debian's own part may be served
        subprocess.run(get + ['source', '--download-only', package.name], cwd=place)
    archive = next(path for path in place.iterdir() if '.tar.' in path.name and 'debian' not in path.name)
    shutil.unpack_archive(archive, place)
    return unpacked(place)


def unpacked(place):
    return next(path for path in place.iterdir() if path.is_dir() and not path.name.startswith('build-'))


class Try:
    """One command in a cgroup; `most`, `largest`: bytes of all its processes, and of one."""

    def __init__(self, command, place, limit, output):
        self.most = self.largest = 0
        cgroup = MemoryCgroup(limit)
        try:
            words = ['sh', '-c', 'echo $$ > %s; exec "$@"' % cgroup.file('cgroup.procs'), 'sh', *map(str, command)]
            process = subprocess.Popen(words, cwd=place, stdout=output, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL)
            timer = threading.Timer(PATIENCE, process.terminate)
            timer.daemon = True
            timer.start()
            while process.poll() is None:
                sizes = [own_memory(pid) for pid in cgroup.processes()]
                self.most, self.largest = max(self.most, sum(sizes)), max([self.largest] + sizes)
                time.sleep(0.1)
            timer.cancel()
            self.ended = process.returncode == 0
            self.killed = cgroup.oom_kills()
        finally:
            cgroup.close()


def measure(what, package, source, commands, limit):
    """Build from scratch with the first command; with the next where one fails."""
    place = source.parent / ('build-' + what)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)
    with open(source.parent / (what + '.log'), 'w') as output:
        if package.configure:
            subprocess.run(package.configure, cwd=place, check=True, stdout=output, stderr=subprocess.STDOUT)
        begin = time.monotonic()
        tries = []
        for command in commands:
            tries.append(Try(command, place, limit, output))
            if tries[-1].ended:
                break
    print('%-10s  %5.0f s  %-7s  %2d killed by the kernel  at most %4.0f MB  load %2.0f' % (
        what, time.monotonic() - begin, 'ended' if tries[-1].ended else 'FAILED', sum(each.killed for each in tries),
        max(each.most for each in tries) / 2 ** 20, os.getloadavg()[0]), flush=True)
    return tries[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('directory', type=Path)
    parser.add_argument('package', nargs='*', default=sorted(PACKAGES), help='make, ninja, setuptools')
    parser.add_argument('--limit', type=int, metavar='MB', help='of the cgroup, as an earlier run found it')
    parser.add_argument('--largest', type=int, metavar='MB', help='compiler, the same')
    parser.add_argument('--policy', action='append', help='-j8, -j1, formula, seed, ramgate (default: all)')
    options = parser.parse_args()
    # cgroups and what is in them go, however this ends
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ['PYTHONPATH'] = os.pathsep.join([str(HERE.parent), os.environ.get('PYTHONPATH', '')])
    for name in options.package:
        package = PACKAGES[name]
        source = fetch(package, options.directory.resolve())
        limit, largest = [(number or 0) * 2 ** 20 for number in (options.limit, options.largest)]

        def build(jobs, *front, package=package):
            return [*front, *(word.replace('%d', str(jobs)) for word in package.build)]

        if not limit:
            plain = measure('unlimited', package, source, [build(JOBS)], 2 ** 40)
            limit, largest = max(plain.most // 2, int(plain.largest * 1.4)), plain.largest
        print('%s (%s): %d MB, the largest compiler %d MB' % (package.name, name, limit >> 20, largest >> 20))
        policies = {
            '-j8': [build(JOBS)],
            '-j1': [build(1)],
            'formula': [build(max(1, limit // largest))],
            'seed': [build(JOBS), build(1)],
            'ramgate': [build(JOBS, sys.executable, '-m', 'ramgate', 'run', '--')],
        }
        for what in options.policy or policies:
            measure(what, package, source, policies[what], limit)


if __name__ == '__main__':
    main()
