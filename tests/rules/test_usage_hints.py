"""What users are told to type once something is installed."""
import pytest

pytestmark = pytest.mark.slow


def test_usage_hints(toys):
    """What a job script needs, and a line for the login node only if the module has the program."""
    output = toys.run(toys.write('toy'), env={'MODULESHOME': '/usr/share/lmod/lmod'})
    block = output[output.index('To use it'):].split('\n\n')[1]
    assert [line.strip() for line in block.splitlines()] == [
        'module use %s' % toys.eb.modules, 'module load toy/1.0-ARCHER2']
    assert 'your_script' not in output
    path = toys.write('trains', commands=['mkdir %(installdir)s/bin', 'touch %(installdir)s/bin/pytorch-run'])
    output = toys.run(path)
    assert 'login node:\n\n    pytorch-run --nodes 2 --time 10 --account PROJECT your_script.py\n' in output
    # its jobs name no project
    output = toys.run(path, '--system=isambard-ai', '--rebuild')
    assert 'login node:\n\n    pytorch-run --nodes 2 --time 10 your_script.py\n' in output
    # the easyconfig on top goes into the same prefix
    path = toys.write('toy').with_name('PyTorch-2.13.0-workstation.eb')
    text = toys.write('toy').read_text().replace("'toy'", "'PyTorch'").replace("'1.0'", "'2.13.0'")
    path.write_text(text.replace('-ARCHER2', '-workstation'))
    assert '.eb --robot --prefix=%s\n' % toys.eb.prefix in toys.run(path).split('For MPI:')[1]
    # a module of vLLM's
    output = toys.run(toys.write('server', commands=['mkdir %(installdir)s/bin',
                                                     'touch %(installdir)s/bin/pytorch-serve']))
    assert '    module load server/1.0-ARCHER2\n    pytorch-serve DIRECTORY\n' in output and 'your_script' not in output


def test_in_a_job(toys):
    """A job has the module path of its submission, in which EasyBuild has put the prefix: no user's shell has that."""
    path = toys.write('toy')
    output = toys.eb(path, '--system=workstation', cwd=toys.directory,
                     env={'MODULEPATH': str(toys.eb.modules), 'HPC_JOB_TURN': 'nid1'}).stdout
    assert 'module use %s\n' % toys.eb.modules in output


@pytest.mark.parametrize('option', ['--robot', '--job'])
def test_installed_in_another_prefix(toys, tmp_path, option):
    """A module of the site's prefix counts as installed, but nothing of it is in one's own: no line says so."""
    path = toys.write('toy')
    toys.run(path)
    # Slurm has no jobs
    program = tmp_path / 'squeue'
    program.write_text('#!/bin/sh\n')
    program.chmod(0o755)
    env = {'MODULEPATH': str(toys.eb.modules), 'PATH': '%s:/usr/bin:/bin' % tmp_path, 'SBATCH_ACCOUNT': 'x01'}
    toys.eb.prefix = tmp_path / 'mine'
    said = toys.eb(path, '--system=archer2', option, cwd=tmp_path, env=env).stdout
    assert 'module use' not in said
    assert ('toy/1.0-ARCHER2 is in another directory of your $MODULEPATH (module show toy/1.0-ARCHER2), not in '
            '%s/mine/modules/all. To install it there, too, add --rebuild' % tmp_path) in said
