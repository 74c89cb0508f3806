"""Commands of the machine that are asked something."""
import subprocess


def run(command, **options):
    """Run a command without input; `stdout` has what it prints, errors too; `options` are those of subprocess."""
    settings = {
        'stdin': subprocess.DEVNULL,
        'stdout': subprocess.PIPE,
        'stderr': subprocess.STDOUT,
        'universal_newlines': True,
        # some modules print Latin-1
        'errors': 'backslashreplace',
    }
    settings.update(options)
    return subprocess.run(command, **settings)
