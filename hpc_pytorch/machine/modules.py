"""The modules tool of the user's shell, and modules as a user loads them, in an environment of their own."""
import os
import re
import subprocess
from collections import namedtuple

from hpc_pytorch import say
from hpc_pytorch.machine.commands import TERMINAL_CODES, run

COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
# where ./eb unpacks a newer Lmod than the distribution's
OWN_LMOD = os.path.join(COLLECTION, '.local', 'lmod')
LMOD_PLACES = ('/usr/share/lmod/lmod/libexec/lmod', '/opt/cray/pe/lmod/lmod/libexec/lmod',
               os.path.join(OWN_LMOD, 'usr/share/lmod/lmod/libexec/lmod'))
MODULECMD_PLACES = ('/usr/lib/x86_64-linux-gnu/modulecmd.tcl', '/usr/lib/aarch64-linux-gnu/modulecmd.tcl',
                    '/usr/share/Modules/libexec/modulecmd.tcl', '/usr/lib64/Modules/modulecmd.tcl')
# EasyBuild's name, syntax of module files, variable that names the program, and where it is; how it prints its version,
# and the oldest that will do: EasyBuild requires Lmod 8, and our module files use pushenv, which Environment Modules
# before 5.1 lack.
Tool = namedtuple('Tool', 'name syntax variable program version oldest')
LMOD = Tool('Lmod', 'Lua', 'LMOD_CMD', None, r'Version (\d+)\.(\d+)', (8, 0))
ENVIRONMENT_MODULES = Tool('EnvironmentModules', 'Tcl', 'MODULES_CMD', None, r'Modules Release (\d+)\.(\d+)', (5, 1))
# busy file systems take many seconds
SECONDS = 60
HANGS = "it has not answered for %d seconds" % SECONDS


def candidates():
    """List the modules tools that may be here; those that a variable of the user's shell names come first."""
    found = [tool._replace(program=os.environ.get(tool.variable, '')) for tool in (LMOD, ENVIRONMENT_MODULES)]
    # a shell may have both: `module` is a function of the one that came last
    if 'LMOD' not in os.environ.get('BASH_FUNC_module%%', 'LMOD'):
        found.reverse()
    found += [LMOD._replace(program=place) for place in LMOD_PLACES]
    found += [ENVIRONMENT_MODULES._replace(program=place) for place in MODULECMD_PLACES]
    return [tool for tool in found if os.access(tool.program, os.X_OK)]


def modules_tool(any_version=False):
    """Return the modules tool of the user's shell, else the first here that is new enough; None if there is none."""
    return next((tool for tool in candidates() if any_version or new_enough(tool)), None)


def new_enough(tool):
    """True if our module files work with it; Debian 11 and Ubuntu 22.04 have older ones."""
    version = re.search(tool.version, run([tool.program, 'bash', '--version']).stdout)
    return bool(version) and tuple(map(int, version.groups())) >= tool.oldest


class ModulesShell(object):
    """What `module` does in a shell that begins with this environment; `environ` is the environment afterwards."""

    def __init__(self, program, environ=None, hanging=None):
        self.program = program
        self.hanging = set() if hanging is None else hanging
        self.beginning = dict(os.environ if environ is None else environ)
        self.environ = dict(self.beginning)

    def call(self, *words):
        """Run a `module` command; returns whether it succeeded, and what it printed for people."""
        if self.hanging & {words, *words}:
            return False, HANGS
        try:
            # Environment Modules list directories alone, where a site or a user wants that; Lmod fails of a warning
            environ = dict(self.environ, MODULES_AVAIL_INDEPTH='1', LMOD_QUIET='1')
            done = run([self.program, 'python', *words], env=environ, stderr=subprocess.PIPE, timeout=SECONDS)
            self.environ = changed(self.environ, done.stdout) if words[0] == 'load' else self.environ
        except subprocess.TimeoutExpired:
            say("module %s: %s" % (' '.join(words), HANGS))
            self.hanging.add(words[-1] if words[0] == 'load' and len(words) == 2 else words)
            return False, HANGS
        except Exception as problem:
            return False, "a module file prints commands of a shell, which EasyBuild cannot use either: %s" % problem
        said = TERMINAL_CODES.sub('', done.stderr).strip()
        failed = done.returncode or re.search(r'\bERROR:|Lmod has detected the following error', said)
        return not failed, said

    def load(self, names):
        """Load modules in this order; returns what went wrong, None if nothing did."""
        succeeded, said = self.call('load', *names)
        return None if succeeded else said or "no reason was given"

    def add(self, name, replaces=None):
        """Load a module; returns what went wrong, and changes nothing then. Only one that it `replaces` makes room."""
        before, loaded = self.environ, self.loaded
        # Lmod would load it again, and with it the defaults of what it loads, such as cray-mpich
        problem = None if name in loaded else self.load([name])
        gone = [one for one in loaded if one not in self.loaded]
        if gone and not problem and not (replaces and any(map(replaces, gone))):
            problem = "it unloads " + ' '.join(gone)
        if problem:
            self.environ = before
        return problem and "it cannot be loaded: " + problem

    @property
    def loaded(self):
        return list(filter(None, self.environ.get('LOADEDMODULES', '').split(':')))

    def versions(self, name):
        """List the versions of a module that can be loaded now: ['gcc/11.2.0', 'gcc/12.2.0']."""
        base = name.rpartition('/')[0] or name
        return [one for one in self.available(base) if one == name or one.startswith(base + '/')]

    def available(self, *names):
        """List what can be loaded now and begins with one of these names; without names: everything."""
        # without marks of defaults and properties
        lines = re.sub(r'\(.*\)|<.*>', '', self.call('--terse', 'avail', *names)[1]).splitlines()
        # Lmod lists directories, too
        return [line.strip() for line in lines if not line.endswith('/')]


def changed(environ, code):
    """Return the environment after what a modules tool printed for Python."""
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
    """Return the first of these modules that does not load after those before it, and what helps; None if all do."""
    # the shell keeps the environment in which they are loaded, or in which one failed
    shell.environ = dict(shell.beginning)
    # all at once takes a tenth of the time
    if not names or shell.load(names) is None:
        return None
    shell.environ = dict(shell.beginning)
    for name in names:
        said = shell.load([name])
        if said is not None:
            return name, why_missing(shell, name, said)
    return None


def why_missing(shell, name, said):
    """Say what helps with a module that cannot be loaded: its versions here, or the tool's error."""
    versions = shell.versions(name)
    if name in versions:
        return "it exists, but loading it fails: %s" % ' '.join(said.split())
    if versions:
        return "versions of it here: %s" % ', '.join(versions)
    # Environment Modules lack the other
    word = 'spider' if os.path.basename(shell.program) == 'lmod' else 'avail'
    return "no version of it is here (try: module %s %s)" % (word, name)
