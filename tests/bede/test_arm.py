"""What is different on Arm: flags, and the errors of the page's troubleshooting."""
import shutil
import subprocess

import pytest
from common import CACHE

from hpc_pytorch.packages import known_errors
from hpc_pytorch.source import build_options

CROSS = 'aarch64-linux-gnu-g++'
# PyTorch 2.6.0's own int4mm_kernel.cpp and its headers, where somebody has put them: how, and what was seen, is in
# systems/bede/stand_in.rst. Upstream corrected the file two days after it had come; the page's commit is from
# between them, so the test takes the correction back.
REAL, HEADERS = CACHE / 'arm' / 'int4mm_kernel.cpp', CACHE / 'arm' / 'include'
CORRECTED = (('uint16x4_t mask = vdup_n_u16(', 'int16x4_t mask = vdup_n_s16('),
             ('uint16x4_t b_masked = ', 'int16x4_t b_masked = '),
             ('vreinterpret_s16_u16(b_masked)', 'b_masked'))
# What PyTorch's kernels do: an unsigned operation on a vector that is signed.
KERNEL = """
#include <arm_neon.h>
uint16x4_t low(int16x4_t values) {
  return vand_u16(values, vdup_n_u16(15));
}
"""


@pytest.mark.parametrize('architecture, compiler, there', [
    ('aarch64', 'gcc', True), ('aarch64', 'clang', False), ('x86_64', 'gcc', False), ('ppc64le', 'gcc', False)])
def test_flags(architecture, compiler, there):
    """GCC on Arm gets them, nobody else."""
    flags = build_options.table_options('2.4.0a0', architecture, compiler)
    assert ('-flax-vector-conversions' in flags.get('CXXFLAGS', '')) == there
    assert flags.get('USE_PRIORITIZED_TEXT_FOR_LD') == ('1' if there else None)


def test_flags_of_other_versions():
    """Those whose files compile without: 1.13 does not know the linker's option, and 2.6 adds its flags itself."""
    def for_arm(version):
        others = build_options.table_options(version, 'x86_64', 'gcc')
        return set(build_options.table_options(version, 'aarch64', 'gcc')).difference(others)

    assert for_arm('1.13.1') == set()
    assert for_arm('2.5.1') == {'CFLAGS', 'CXXFLAGS', 'USE_PRIORITIZED_TEXT_FOR_LD'}
    assert for_arm('2.6.0') == {'USE_PRIORITIZED_TEXT_FOR_LD'}


@pytest.mark.parametrize('banner, family', [
    ('g++ (Debian 12.2.0-14+deb12u1) 12.2.0', 'gcc'), ('gcc (GCC) 12.2.0 20220819 (HPE)', 'gcc'),
    ('aarch64-linux-gnu-g++ (Debian 12.2.0-14) 12.2.0', 'gcc'), ('clang version 17.0.6', 'clang'),
    ('Cray clang version 15.0.1', 'clang'), ('nvc++ 23.9-0 64-bit target', '')])
def test_compiler_family(banner, family):
    """Who a compiler says it is."""
    assert build_options.compiler_family(banner) == family


def real_kernel():
    """PyTorch's file as it was before it was corrected, if it is there; else only what is wrong in it."""
    if not (REAL.exists() and HEADERS.exists()):
        return KERNEL
    text = REAL.read_text()
    for now, before in CORRECTED:
        assert text.count(now) == 1
        text = text.replace(now, before)
    return text


@pytest.mark.slow
@pytest.mark.parametrize('text', [KERNEL, real_kernel()], ids=['small', 'real'])
def test_cross_compiled(tmp_path, text):
    """With the cross compiler: an error without the flags, explained by our table; success with them."""
    assert shutil.which(CROSS), "%s is missing: apt-get install g++-aarch64-linux-gnu" % CROSS
    source = tmp_path / 'int4mm_kernel.cpp'
    source.write_text(text)
    flags = build_options.table_options('2.4.0', 'aarch64', 'gcc')['CXXFLAGS'].split()

    def compile(*options):
        return subprocess.run([CROSS, '-std=c++17', '-c', str(source), '-o', str(tmp_path / 'kernel.o'),
                               '-DCPU_CAPABILITY=DEFAULT', '-DCPU_CAPABILITY_DEFAULT', '-D_GLIBCXX_USE_CXX11_ABI=0',
                               '-I%s' % HEADERS, *options],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    failed = compile()
    assert failed.returncode and '-flax-vector-conversions' in known_errors.explain(failed.stdout), failed.stdout
    done = compile(*flags)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize('message, remedy', [
    ("pytorch/aten/src/ATen/native/cpu/int4mm_kernel.cpp:378:86: error: cannot\n    convert \u2018int16x4_t\u2019 to "
     "\u2018uint16x4_t\u2019\n".replace("cannot\n    ", "cannot "), '-flax-vector-conversions'),
    ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", '--parallel'),
    ("ERROR: torch-2.4.0a0+gitbad8d25-cp312-cp312-linux_aarch64.whl is not a supported wheel on this platform.",
     'load the Python'),
])
def test_page_troubleshooting(message, remedy):
    """Each of the page's errors has one explanation."""
    explanation = known_errors.explain(message)
    assert remedy in explanation and explanation.count('what to do:') == 1
