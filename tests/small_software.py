"""Easyconfigs whose installations take as long, or as much, as a test of jobs wants."""
import re
import time

TOY = """easyblock = 'Toolchain'
name = {name!r}
version = '1.0'
versionsuffix = '-{suffix}'
homepage = 'https://example.org/'
description = 'a toy'
toolchain = SYSTEM
dependencies = [{dependencies}]
postinstallcmds = {commands!r}
moduleclass = 'toolchain'
"""
# so many MiB, with every page touched
OCCUPY = 'python3 -c "import time; x = b\'x\' * ({megabytes} << 20); time.sleep({seconds})"'
# until the test says so
WAIT = "until [ -e {file} ]; do sleep 0.1; done"


class Toys:
    """Easyconfigs for one system in a directory, and ./eb for them."""

    def __init__(self, eb, directory, suffix, environment):
        self.eb, self.directory, self.suffix = eb, directory, suffix
        self.environment = dict(environment)

    def write(self, name, after=(), modules=(), commands=()):
        """Write one; `after`: names of those that it depends on."""
        dependencies = ["(%r, '1.0', '-%s')" % (other, self.suffix) for other in after]
        dependencies += ["(%r, EXTERNAL_MODULE)" % module for module in modules]
        path = self.directory / ('%s-1.0-%s.eb' % (name, self.suffix))
        path.write_text(TOY.format(name=name, suffix=self.suffix, dependencies=', '.join(dependencies),
                                   commands=list(commands)))
        return path

    def run(self, *arguments, status=0, env=(), **options):
        """./eb on the stand-in; what it prints."""
        return self.eb('--rehearse', *arguments, status=status, cwd=self.directory,
                       env=dict(self.environment, **dict(env)), **options).stdout

    def submit(self, easyconfig, *options, **more):
        """--job; the ids of the jobs in their order."""
        output = self.run(easyconfig, '--robot=%s' % self.directory, '--job', *options, **more)
        return re.findall(r'^== \S+ is job (\S+?)(?:,| already|$)', output, re.M)

    def refused(self, easyconfig, *options, **more):
        """--job that submits nothing; what it prints."""
        output = self.run(easyconfig, '--robot=%s' % self.directory, '--job', *options, status=None, **more)
        assert 'ERROR' in output and ' is job ' not in output, output
        return output

    def status(self):
        """--job-status: {module: its lines}."""
        output = self.run('--system=%s' % self.suffix.lower(), '--job-status')
        # the first lines are ./eb's own
        output = output[re.search(r'^\S+/\S+  job ', output, re.M).start():]
        return {part.split('  ')[0]: part for part in re.split(r'\n(?=\S)', output.strip())}

    def wait(self, true, what, seconds=240):
        """Poll --job-status until something is true of it."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.status()
            if true(found):
                return found
            assert time.monotonic() < deadline, '%s: %s' % (what, found)
            time.sleep(0.3)

    def wait_for_end(self):
        """No job waits or runs any more."""
        return self.wait(lambda found: not any(re.search('  (waiting|running)', text.split('\n')[0])
                                               for text in found.values()), "end of the jobs")

    def module(self, name):
        """The module file of a toy."""
        return self.eb.modules / name / ('1.0-%s.lua' % self.suffix)
