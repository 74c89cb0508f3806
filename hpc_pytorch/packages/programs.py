"""Programs that are asked something while EasyBuild installs."""
from easybuild.tools.run import run_shell_cmd


def ask(*command, **options):
    """Run a program without a trace on the terminal; callers look at its exit code and output."""
    return run_shell_cmd(list(command), use_bash=False, fail_on_error=False, hidden=True, output_file=False, **options)
