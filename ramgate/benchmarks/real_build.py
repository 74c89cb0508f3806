#!/usr/bin/env python3
"""
real_build.py BUILD DIRECTORY [POLICY ...]: compiles a part of software that nobody here wrote, in a memory cgroup that
holds a quarter of what plain ninja took without one (or 1.25 times the largest compiler), under each policy; prints a
line for each. As root.

Sources come from where apt's and pip's packages come from, and are kept in the directory.
"""
import argparse
import contextlib
import hashlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from memory_cgroup import MemoryCgroup  # noqa: E402
from ramgate.build import make_wrapper  # noqa: E402
from ramgate.processes import own_memory  # noqa: E402

# name: of Debian's source, or NAME==VERSION of a wheel; objects: which of the build's are compiled
Build = namedtuple('Build', 'name archive sha256 options objects')
# for some files (FILES) of a source, without its own
CMAKE_LISTS = '''cmake_minimum_required(VERSION 3.18)
project(part LANGUAGES ${LANGUAGES})
file(GLOB files ../unpacked/${FILES})
add_library(part OBJECT ${files})
target_include_directories(part PRIVATE ${INCLUDES})
'''
CUTLASS = 'cutlass_library/source'
BUILDS = {
    # Fortran and C: tests of LAPACK's eigenvalue routines and of CBLAS
    'lapack': Build('lapack', 'lapack_3.11.0.orig.tar.gz',
                    '4b9ba79bfd4921ca820e83979db76ab3363155709444a787979e81c22285ffa9',
                    ['-DBUILD_TESTING=ON', '-DCBLAS=ON', '-DUSE_OPTIMIZED_BLAS=ON', '-DUSE_OPTIMIZED_LAPACK=ON'],
                    r'^TESTING/EIG/.*/[sdcz]drvs[gt]\w*\.f\.o$|^CBLAS/testing/.*/c_[sdcz]blas3\.c\.o$'),
    # CUDA with templates: CUTLASS's examples of matrix products
    'cutlass': Build('nvidia-cutlass==4.2.0.0', 'nvidia_cutlass-4.2.0.0-py3-none-any.whl',
                     'f9599ada45c7bcb6bf53f7d3f0a7d154183e53451c01bfa59eecd37dd4a693f6',
                     ['-DLANGUAGES=CXX;CUDA', '-DFILES=%s/examples/0[02-8]_*/*.cu' % CUTLASS,
                      '-DINCLUDES=' + ';'.join('../unpacked/%s/%s' % (CUTLASS, part) for part in (
                          'include', 'tools/util/include', 'examples/common')),
                      '-DCMAKE_CUDA_ARCHITECTURES=80', '-DCMAKE_CUDA_FLAGS=--expt-relaxed-constexpr',
                      '-DCMAKE_CUDA_STANDARD=17'], r'\.cu\.o$'),
    # C++ with templates: PyTorch itself, not optimised; the headers are those of Debian's libtorch-dev, installed
    'pytorch': Build('pytorch', 'pytorch_1.13.1+dfsg.orig.tar.xz',
                     'd0355588b8528566d477e6ebf1b4d9d036a6fd75711339f66b27472ce5879dc7',
                     ['-DLANGUAGES=CXX', '-DFILES=*/aten/src/ATen/native/*.cpp', '-DCMAKE_CXX_STANDARD=14',
                      '-DCMAKE_BUILD_TYPE='],
                     r'(Tensor(AdvancedIndexing|Shape|Compare)|(Reduce|Binary|Unary)Ops|Sorting)\.cpp\.o$'),
}
LANGUAGES = ('C', 'CXX', 'CUDA', 'Fortran')
# what crashes again and again is stopped after so many seconds
PATIENCE, SHARE, LARGEST = 1500, 0.25, 1.25


def fetch(build, directory):
    """The path of the archive, once its checksum fits."""
    path = directory / build.archive
    if not path.exists() and '==' in build.name:
        pip = [sys.executable, '-m', 'pip', 'download', '-q', '--no-deps']
        subprocess.run(pip + [build.name], cwd=directory, check=True)
    elif not path.exists():
        sources = directory / 'sources'
        (sources / 'lists' / 'partial').mkdir(parents=True, exist_ok=True)
        text = Path('/etc/apt/sources.list.d/debian.sources').read_text()
        (sources / 'source.sources').write_text(re.sub('^Types: deb$', 'Types: deb-src', text, flags=re.M))
        get = ['apt-get', '-q', '-o', 'Dir::Etc::sourcelist=/dev/null', '-o', 'Dir::Etc::sourceparts=%s' % sources,
               '-o', 'Dir::State::lists=%s/lists' % sources]
        subprocess.run(get + ['update'], check=True)
        # not all of Debian's own part may be served
        subprocess.run(get + ['source', '--download-only', build.name], cwd=directory)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != build.sha256:
        sys.exit('%s has the checksum %s, expected %s' % (path, found, build.sha256))
    return path


def configure(name, directory):
    """The build's directory; its objects."""
    build, place = BUILDS[name], directory / name
    if not (place / 'build' / 'build.ninja').exists():
        archive = fetch(build, directory)
        shutil.unpack_archive(archive, place / 'unpacked', 'zip' if archive.suffix == '.whl' else None)
        if '-DFILES=' in ' '.join(build.options):
            source = place / 'part'
            source.mkdir(exist_ok=True)
            (source / 'CMakeLists.txt').write_text(CMAKE_LISTS)
        else:
            source = next((place / 'unpacked').glob('*/CMakeLists.txt')).parent
        wrappers = ['-DCMAKE_%s_COMPILER_LAUNCHER=ramgate-cc' % language for language in LANGUAGES]
        subprocess.run(['cmake', '-G', 'Ninja', '-S', source, '-B', place / 'build', '-DCMAKE_BUILD_TYPE=Release']
                       + wrappers + build.options, check=True, stdout=subprocess.DEVNULL)
    targets = subprocess.run(['ninja', '-t', 'targets', 'all'], cwd=place / 'build', check=True, text=True,
                             stdout=subprocess.PIPE).stdout
    names = [line.partition(': ')[0] for line in targets.splitlines()]
    return place / 'build', sorted(name for name in names if re.search(build.objects, name))


class Run:
    """One command after another in a cgroup."""

    def __init__(self, place, objects, limit):
        self.place, self.objects, self.cgroup = place, objects, MemoryCgroup(limit)
        self.failed = self.restarts = self.most = self.largest = 0
        for name in objects:
            with contextlib.suppress(FileNotFoundError):
                (place / name).unlink()

    def run(self, command, until):
        """Whether everything was compiled; memory is watched meanwhile."""
        def enter():
            with open(self.cgroup.file('cgroup.procs'), 'w') as file:
                file.write(str(os.getpid()))

        with open(self.place / 'output', 'w+') as output:
            process = subprocess.Popen(command + self.objects, cwd=self.place, stdout=output, preexec_fn=enter,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            while process.poll() is None:
                sizes = [own_memory(pid) for pid in self.cgroup.processes()]
                self.most, self.largest = max(self.most, sum(sizes)), max([self.largest] + sizes)
                if time.monotonic() > until:
                    os.killpg(process.pid, 15)
                    process.wait()
                time.sleep(0.1)
            output.seek(0)
            self.failed += output.read().count('FAILED: ')
        return process.returncode == 0

    def complete(self):
        """Whether every object is there."""
        return all((self.place / name).exists() for name in self.objects)


def policies(limit, largest, profile, most):
    """{name: commands, one for each attempt, the last for ever}."""
    def ninja(jobs, *more):
        return ['ninja', '-j%d' % max(1, jobs), *more]

    load = '%.0f' % (os.getloadavg()[0] + len(os.sched_getaffinity(0)))
    ramgate = [sys.executable, '-m', 'ramgate', 'run', '--jobs', str(most), '--profile', str(profile), '--', 'ninja',
               '-j%d' % (4 * most)]
    return {'one': [ninja(most), ninja(1)], 'halving': [ninja(most >> attempt) for attempt in range(5)],
            'load': [ninja(most, '-l', load)], 'fixed': [ninja(int(limit / largest))], 'ramgate': [ramgate],
            'ramgate+profile': [ramgate]}


def measure(name, place, objects, limit, commands):
    """Run one policy; print its line."""
    run, begin, used = Run(place, objects, limit), time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        while not run.run(commands[min(run.restarts, len(commands) - 1)], begin + PATIENCE):
            if time.monotonic() > begin + PATIENCE or run.restarts > len(objects):
                break
            run.restarts += 1
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        print('%-16s %5.0f s  %5.0f s of CPU  %2d failed  %2d times started again  %2d killed by the kernel  at most '
              '%4.0f MB  load %2.0f%s' % (name, time.monotonic() - begin, cpu, run.failed, run.restarts,
                                          run.cgroup.oom_kills(), run.most / 2 ** 20, os.getloadavg()[0],
                                          '' if run.complete() else '  NOT COMPLETE'), flush=True)
    finally:
        run.cgroup.close()
    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('build', choices=sorted(BUILDS))
    parser.add_argument('directory', type=Path)
    parser.add_argument('policy', nargs='*', help='default: all')
    parser.add_argument('--jobs', type=int, default=8, metavar='N', help='as on a machine with so many cores')
    parser.add_argument('--limit', type=int, metavar='MB', help='as an earlier run found it')
    parser.add_argument('--largest', type=int, metavar='MB', help='the same')
    options = parser.parse_args()
    # the cgroup and what is in it goes, however this ends
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = options.directory.resolve()
    (directory / 'bin').mkdir(parents=True, exist_ok=True)
    make_wrapper(str(directory / 'bin'))
    os.environ['PATH'] = '%s:%s' % (directory / 'bin', os.environ['PATH'])
    os.environ['PYTHONPATH'] = str(Path(__file__).resolve().parent.parent)
    place, objects = configure(options.build, directory)
    limit, largest = (options.limit or 0) * 2 ** 20, (options.largest or 0) * 2 ** 20
    if not limit:
        plain = measure('without a limit', place, objects, 2 ** 40, [['ninja', '-j%d' % options.jobs]])
        # nothing at all can be compiled with less than the largest compiler takes
        limit, largest = int(max(plain.most * SHARE, plain.largest * LARGEST)), plain.largest
    print('%s: %d files, %d jobs, %d MB, the largest compiler %d MB' % (
        options.build, len(objects), options.jobs, limit / 2 ** 20, largest / 2 ** 20), flush=True)
    profile = directory / (options.build + '.json')
    found = policies(limit, largest, profile, options.jobs)
    for name in options.policy or found:
        if name == 'ramgate' and profile.exists():
            profile.unlink()
        measure(name, place, objects, limit, found[name])


if __name__ == '__main__':
    main()
