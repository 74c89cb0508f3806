"""
The modules tool of the user's shell, and modules as a user loads them, one after the other, in an environment apart:
the process's own stays as it is.

Works with Lmod and Environment Modules.
"""
import os
import re
import subprocess


COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
# a newer one than the distribution's
OWN_LMOD = os.path.join(COLLECTION, '.local', 'lmod')
LMOD_PLACES = ('/usr/share/lmod/lmod/libexec/lmod', '/opt/cray/pe/lmod/lmod/libexec/lmod',
               os.path.join(OWN_LMOD, 'usr/share/lmod/lmod/libexec/lmod'))
# Modules tools, best first: EasyBuild's name, syntax of module files, variable that names the program,
# places where it is when the variable is not set.
MODULES_TOOLS = (
    ('Lmod', 'Lua', 'LMOD_CMD', LMOD_PLACES),
    ('EnvironmentModules', 'Tcl', 'MODULES_CMD', ('/usr/lib/x86_64-linux-gnu/modulecmd.tcl',
                                                  '/usr/lib/aarch64-linux-gnu/modulecmd.tcl',
                                                  '/usr/share/Modules/libexec/modulecmd.tcl',
                                                  '/usr/lib64/Modules/modulecmd.tcl')),
)
# How each says its version, and the oldest that will do: EasyBuild wants Lmod 8, and our module files use what
# Environment Modules before 5.1 lack (pushenv).
OLDEST = {'Lmod': (r'Version (\d+)\.(\d+)', (8, 0)),
          'EnvironmentModules': (r'Modules Release (\d+)\.(\d+)', (5, 1))}


def of_this_shell(tool):
    function = os.environ.get('BASH_FUNC_module%%', '')
    if function:
        return ('LMOD' in function) == (tool == 'Lmod')
    # each sets $MODULESHOME; who initialises both has the one that came last
    home = os.environ.get('MODULESHOME')
    return bool(home) and os.environ.get('LMOD_CMD', '').startswith(home + os.sep) == (tool == 'Lmod')


def program_of_modules_tool(any_version=False):
    """The modules tool of the user's shell, else the first here: (name, syntax, variable, program), or None."""
    for tool, syntax, variable, places in sorted(MODULES_TOOLS, key=lambda entry: not of_this_shell(entry[0])):
        for program in (os.environ.get(variable),) + places:
            if program and os.access(program, os.X_OK) and (any_version or new_enough(tool, program)):
                return tool, syntax, variable, program
    return None


def new_enough(tool, program):
    """Whether our module files can be used with this modules tool; Debian 11 and Ubuntu 22.04 have older ones."""
    pattern, oldest = OLDEST[tool]
    answer = subprocess.run([program, 'bash', '--version'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            stdin=subprocess.DEVNULL, universal_newlines=True).stdout
    version = re.search(pattern, answer)
    return bool(version) and tuple(map(int, version.groups())) >= oldest


class ModulesShell(object):
    """What `module` does in a shell that begins with this environment; `environ` has what became of it."""

    def __init__(self, program, environ=None):
        self.program = program
        self.beginning = dict(os.environ if environ is None else environ)
        self.environ = dict(self.beginning)

    def start_again(self):
        self.environ = dict(self.beginning)

    def call(self, *words):
        """One `module` command: whether it went well, and what it printed for people."""
        done = subprocess.run([self.program, 'python'] + list(words), stdin=subprocess.DEVNULL, env=self.environ,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        if words[0] in ('load', 'use', 'unload', 'purge'):
            self.environ = changed(self.environ, done.stdout)
        wrong = done.returncode or re.search(r'\bERROR\b|Lmod has detected the following error', done.stderr)
        return not wrong, done.stderr.strip()

    def load(self, names):
        """Load modules in this order; returns what went wrong, None if nothing did."""
        well, said = self.call('load', *names)
        return None if well else said or "no reason was given"

    @property
    def loaded(self):
        return [name for name in self.environ.get('LOADEDMODULES', '').split(os.pathsep) if name]

    def versions(self, name):
        """The versions of a module that can be loaded now: ['gcc/11.2.0', 'gcc/12.2.0']."""
        base = name.partition('/')[0]
        return [one for one in self.available(base) if one.startswith(base + '/') or one == name]

    def available(self, *names):
        """What can be loaded now, whose name begins with one of these; without them: everything."""
        _, said = self.call('--terse', 'avail', *names)
        return [re.sub(r'\(.*\)|<.*>', '', line.strip()).rstrip('/') for line in said.splitlines()]

    def openers(self, name):
        """What Lmod says must be loaded before a module can be seen: one string for each way."""
        _, said = self.call('spider', name)
        found = re.search(r'You will need to load all module\(s\).*?\n((?:\s*\n| {6}\S.*\n?)+)', said)
        return [line.strip() for line in found.group(1).splitlines() if line.strip()] if found else []


def changed(environ, code):
    """The environment after what a modules tool printed for Python."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    try:
        exec(code, {})
        return dict(os.environ)
    finally:
        os.environ.clear()
        os.environ.update(before)


def first_that_fails(shell, names):
    """
    The first of these modules that cannot be loaded after the ones before it, with what the tool says; None if all can
    be. The shell has the environment in which they are loaded, or the one that the failure was met in.
    """
    shell.start_again()
    # all at once takes a tenth of the time
    if not names or shell.load(names) is None:
        return None
    shell.start_again()
    for name in names:
        said = shell.load([name])
        if said is not None:
            return name, said
    # one after the other they can be loaded
    return None
