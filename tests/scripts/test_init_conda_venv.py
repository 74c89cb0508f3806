"""init-conda-venv: whose environments it activates."""
import subprocess

from common import SCRIPTS


def test_only_the_modules_own(tmp_path):
    """The image's command runs, words and all; a virtual environment of the host's stays outside."""
    (tmp_path / 'activate').write_text('echo "activated $1"\n')
    (tmp_path / 'venv' / 'bin').mkdir(parents=True)
    done = subprocess.run(['bash', '-euc', '. "$0"; echo "$PATH"', SCRIPTS / 'init-conda-venv'],
                          env={'PATH': '/usr/bin:/bin', 'WITH_CONDA': 'source %s/activate pytorch' % tmp_path,
                               'VIRTUAL_ENV': str(tmp_path / 'venv')}, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == 'activated pytorch\n/usr/bin:/bin\n'
