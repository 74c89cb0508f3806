"""A site's hook that keeps builds within the memory, for easyblocks that know nothing of ramgate."""
import hashlib
import json
import os
import re
import sys
import tarfile
import textwrap

import pytest
from common import CHECKOUT
from small_software import VERSION, site_hooks

pytestmark = pytest.mark.slow

EASYCONFIG = """easyblock = '{easyblock}'
name = '{name}'
version = '1.0'
homepage = 'https://example.org/'
description = 'a toy'
toolchain = SYSTEM
sources = ['{name}.tar.gz']
checksums = ['{checksum}']
{more}
sanity_check_paths = {{'files': [], 'dirs': ['{directory}']}}
moduleclass = 'tools'
"""
PROGRAM = 'int main(void) { return 0; }\n'
MODULE = """#include <Python.h>
static struct PyModuleDef toy = {PyModuleDef_HEAD_INIT, "compiled"};
PyMODINIT_FUNC PyInit_compiled(void) { return PyModule_Create(&toy); }
"""
CONFIGURE = """#!/bin/sh
echo 'int main(void) { return 0; }' > conftest.c && ${CC:-cc} -c conftest.c -o conftest.o || exit
printf 'all: one\\none: one.c\\n\\tcc -c one.c -o one.o && cc one.o -o one\\n' > Makefile
printf 'install:\\n\\tmkdir -p %s/bin && cp one %s/bin\\n' "${1#--prefix=}" "${1#--prefix=}" >> Makefile
"""
# easyblock: its files, what else is in the easyconfig, a directory of it, and what ramgate must have seen compiled
TOYS = {
    'ConfigureMake': ({'configure': CONFIGURE, 'one.c': PROGRAM}, '', 'bin', 'one.o'),
    'CMakeNinja': ({'one.c': PROGRAM, 'CMakeLists.txt': 'cmake_minimum_required(VERSION 3.16)\nproject(toy C)\n'
                    'add_executable(one one.c)\ninstall(TARGETS one RUNTIME DESTINATION bin)\n'}, '', 'bin', 'one.c.o'),
    'PythonPackage': ({'compiled.c': MODULE, 'setup.py': "from setuptools import Extension, setup\nsetup(name='toy', "
                       "version='1.0', ext_modules=[Extension('compiled', ['compiled.c'])])\n"},
                      "download_dep_fail = True\nuse_pip = True\nsanity_pip_check = False\n"
                      "options = {'modulename': 'compiled'}", 'lib/python%s/site-packages' % VERSION, 'compiled.o'),
}
# the hook of docs/easybuild.rst, for the names above
PAGE = (CHECKOUT / 'docs/easybuild.rst').read_text()
HOOKS = re.search(r'^    from hpc_pytorch.rules import within_memory\n(?:    .*\n|\n)+', PAGE, re.M).group()
HOOKS = textwrap.dedent(HOOKS).replace("('LightGBM', 'TensorFlow')", repr(tuple(TOYS)))


def write(toys, easyblock, files, more, directory):
    """The easyconfig and its source; the software has the easyblock's name."""
    source = toys.eb.sources / easyblock[0].lower() / easyblock
    source.mkdir(parents=True)
    top = toys.directory / easyblock
    top.mkdir()
    for name, text in files.items():
        (top / name).write_text(text)
        (top / name).chmod(0o755)
    archive = source / (easyblock + '.tar.gz')
    with tarfile.open(archive, 'w:gz') as packed:
        packed.add(top, easyblock)
    path = toys.directory / (easyblock + '-1.0.eb')
    path.write_text(EASYCONFIG.format(easyblock=easyblock, name=easyblock, more=more, directory=directory,
                                      checksum=hashlib.sha256(archive.read_bytes()).hexdigest()))
    return path


def test_any_easyblock(toys):
    """Compilers of each ask ramgate, whose report and profile are kept."""
    # without the collection's hooks, nothing else ends ramgate: the next installation would share it
    assert 'within_memory.end(easyblock)' in HOOKS
    environment = site_hooks(toys.directory, HOOKS)
    # an environment's Python that can build wheels
    environment['PATH'] = os.path.dirname(sys.executable) + os.pathsep + os.environ['PATH']
    paths = [write(toys, easyblock, *TOYS[easyblock][:3]) for easyblock in TOYS]
    output = toys.eb(*paths, '--system=workstation', env=environment).stdout
    assert output.count('== ramgate: ') == len(TOYS)
    for easyblock, (_, _, _, compiled) in TOYS.items():
        report = toys.eb.prefix / 'software' / easyblock / '1.0' / 'easybuild/provenance/ramgate/report.json'
        jobs = json.loads(report.read_text())['compilations']
        assert [job for job in jobs if job['file'].endswith(compiled) and job['status'] == 0], jobs
        profile = toys.eb.sources / easyblock[0].lower() / easyblock / ('%s-1.0-ramgate.json' % easyblock)
        assert [name for name in json.loads(profile.read_text())['files'] if name.endswith(compiled)]


def test_an_installation_that_fails(toys):
    """An error of the compiler is one of the build, and ramgate ends; without the hook it is not there."""
    files, more, directory, _ = TOYS['ConfigureMake']
    path = write(toys, 'ConfigureMake', dict(files, **{'one.c': 'this is no C\n'}), more, directory)
    for environment, expected in ((site_hooks(toys.directory, HOOKS), 1), ({}, 0)):
        output = toys.eb(path, '--system=workstation', status=None, env=environment).stdout
        assert 'in build step' in output and output.count('== ramgate: ') == expected, output
