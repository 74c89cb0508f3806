"""The command line."""
import subprocess
import sys


def test_help(top):
    for words in ([], ['run']):
        done = subprocess.run([sys.executable, '-m', 'ramgate', *words, '--help'], stdout=subprocess.PIPE, text=True,
                              check=True, cwd=top)
        assert 'run' in done.stdout
    assert '--memory SIZE' in done.stdout and 'example: ramgate run' in done.stdout
    assert len(done.stdout.splitlines()) <= 10


def test_mistakes_are_explained(build):
    assert 'name the command that builds' in build.run(status=2, command=())
    # a variable that is not set
    assert 'expected a size such as 12G' in build.run('--memory', '', status=2)
    assert 'nowhere-to-be-found: not found' in build.run(status=127, command=('nowhere-to-be-found',))
    (build.directory / 'text').write_text('no program')
    assert 'text: not executable' in build.run(status=126, command=('./text',))
