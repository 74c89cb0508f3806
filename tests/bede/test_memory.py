"""
The page's two runs, 16 jobs until the memory is used up and then one, against one unattended run of ramgate: in a
memory cgroup, which has a quarter of what 16 jobs with heavy files want. Jobs are real processes that hold memory and
wait.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from common import CHECKOUT, FOR_ROOT

# as in PyTorch's tree: among many files a directory of heavy ones; seconds and MB, of which the test makes less
LIGHT, HEAVY = (10, 150), (30, 1200)
FILES = ['%s%d.o' % (name, number) for name, count in (('core/core_', 16), ('kernels/flash_', 20), ('ops/op_', 44))
         for number in range(count)]
MEMORY = '%dM' % (16 * HEAVY[1] / 4)


@pytest.mark.nightly
@pytest.mark.slow
@FOR_ROOT
def test_three_times_as_fast_as_the_page(tmp_path):
    """Nothing fails, nobody has to be there, and it is done in less than a third of the time."""
    rows = ['%d,0,%d,%s' % ((HEAVY if 'kernels' in name else LIGHT) + (name,)) for name in FILES]
    (tmp_path / 'trace.csv').write_text('\n'.join(['user_s,sys_s,peak_mb,file'] + rows) + '\n')
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ['PATH']])
    done = subprocess.run([CHECKOUT / 'ramgate/benchmarks/replay.py', 'trace.csv', '--cores', '16', '--memory', MEMORY,
                           '--shrink-memory', '10', '--shrink-time', '30', '--policy', 'ramgate', 'seed',
                           '--json', 'result.json'], cwd=tmp_path, timeout=300, env=dict(os.environ, PATH=path),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    print(done.stdout)
    watched, page = json.loads((tmp_path / 'result.json').read_text())['results']
    assert watched['complete'] and watched['failures'] == 0
    assert page['failures'] and page['restarts'] == 1 and page['kernel kills'], done.stdout
    assert page['seconds'] >= 3 * watched['seconds'], done.stdout
