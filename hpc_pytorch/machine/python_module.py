"""Print the path of the Python of a system's own module, for login nodes whose python3, which runs this, is too old."""
import os
import shutil
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
from hpc_pytorch import UsersProblem  # noqa: E402
from hpc_pytorch.machine import systems  # noqa: E402
from hpc_pytorch.machine.commands import run  # noqa: E402
from hpc_pytorch.machine.modules import ModulesShell, modules_tool  # noqa: E402

NAMES = ['python3'] + ['python3.%d' % minor for minor in range(14, 8, -1)]
# without the module's variables: the environment that is made of it must work when the module is not loaded
PROBE = 'import sys; print(sys.executable if sys.version_info >= (3, 9) else "")'


def chosen_system(arguments):
    """Choose the system by these arguments of ./eb, $HPC_SYSTEM or the host name."""
    words = '='.join(arguments).split('=')
    option = words[words.index('--system') + 1] if '--system' in words[:-1] else None
    easyconfigs = [word for word in words if word.endswith('.eb')]
    return systems.load(systems.choose(option, os.environ, socket.gethostname(), easyconfigs)[0])


def python_of(names):
    """Return a Python that is new enough and that these modules bring."""
    tool = modules_tool(any_version=True)
    if tool is None:
        raise UsersProblem("found no modules tool to load it with")
    shell = ModulesShell(tool.program)
    problem = shell.load(names)
    if problem:
        raise UsersProblem("this failed: %s" % ' '.join(problem.split()))
    for name in NAMES:
        path = shutil.which(name, path=shell.environ['PATH'])
        answer = run([path, '-I', '-c', PROBE]).stdout.strip() if path else ''
        if os.path.isfile(answer):
            return answer
    raise UsersProblem("found no Python in it that works without the module")


def main(found, *arguments):
    advice = ""
    try:
        names = chosen_system(arguments).system['python_module']
        if not names:
            raise UsersProblem("Install one (such as python3.11), or load a module that has one, and try again")
        advice = "Type: module load %s, and try again. ./eb tried that itself: " % ' '.join(names)
        print(python_of(names))
    except UsersProblem as problem:
        sys.exit("ERROR: Python 3.9 or newer is needed; found: %s. %s%s" % (found, advice, problem))


if __name__ == '__main__':
    main(*sys.argv[1:])
