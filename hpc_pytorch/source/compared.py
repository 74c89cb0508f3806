"""
A build of PyTorch by upstream's easyblock: CMake's decisions are compared before anything is compiled. A site's hook
(see hooks/site-example.py) calls ``compare_with_cmake``, which puts this program in front of upstream's command:

    compared.py [NAME=VALUE ...] PYTHON -m pip install ...

Standard library only, Python 3.6.
"""
import os
import shlex
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
from hpc_pytorch import UsersProblem  # noqa: E402
from hpc_pytorch.source import build_options, contract  # noqa: E402


def compare_with_cmake(ec):
    """Stop the build of this easyconfig when CMake leaves out what was asked for; for parse_hook."""
    program = [sys.executable, '-I', os.path.realpath(__file__)]
    ec['preinstallopts'] += ' '.join(map(shlex.quote, program)) + ' '


def main(words):
    """Become the command, once CMake's decisions are what was asked for."""
    first = ['=' in word for word in words].index(False)
    command, asked = words[first:], build_options.as_dict(words[:first])
    environment = dict(os.environ, **asked)
    # upstream's way to ask for a BLAS: the kind of it decides
    asked['BLAS'] = contract.BLAS_NAMES.get(asked.get('WITH_BLAS'), asked.get('BLAS', ''))
    route = build_options.route(asked.get('PYTORCH_BUILD_VERSION', '0'))
    if route and route.configure:
        done = subprocess.run([command[0]] + list(route.configure), env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True, errors='replace')
        print(done.stdout)
        if done.returncode:
            raise UsersProblem("CMake could not configure PyTorch (exit status %d)" % done.returncode)
        contract.check(os.getcwd(), done.stdout, asked, asked)
        print("CMake's decisions are what was asked for")
    sys.stdout.flush()
    os.execvpe(command[0], command, environment)


if __name__ == '__main__':
    try:
        main(sys.argv[1:])
    except UsersProblem as problem:
        sys.exit('compared.py: %s' % problem)
