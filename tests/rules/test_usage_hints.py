"""What users are told to type once something is installed."""
import pytest

pytestmark = pytest.mark.slow


def test_usage_hints(toys):
    """Three lines for a job script, with the launcher of the system."""
    output = toys.run(toys.write('toy'), env={'MODULESHOME': '/usr/share/lmod/lmod'})
    block = output[output.index('To use it'):].split('\n\n')[1]
    assert [line.strip() for line in block.splitlines()] == [
        'module use %s' % toys.eb.modules, 'module load toy/1.0-ARCHER2',
        'srun --nodes=1 --ntasks=2 --cpus-per-task=1 python your_script.py']
    # a module of vLLM's
    output = toys.run(toys.write('server', commands=['mkdir %(installdir)s/bin',
                                                     'touch %(installdir)s/bin/pytorch-serve']))
    assert '    module load server/1.0-ARCHER2\n    pytorch-serve DIRECTORY\n' in output and 'your_script' not in output
