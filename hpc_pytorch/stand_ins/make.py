#!/usr/bin/env python3
"""Make the stand-in of a system, or of its state in a year (frontier-2024): a tree of modules with its names and
versions, made of real parts from Debian and PyPI. README.rst explains its files. Prints the directory to `module use`.
"""
import argparse
import configparser
import fcntl
import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
COLLECTION = HERE.parent.parent
SYSTEMS = COLLECTION / 'systems'
STAND_INS = COLLECTION / '.local' / 'stand_ins'
if __name__ == '__main__':
    # a checkout that is only read stays as it is; run with -I, Python does not find the collection
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(COLLECTION))
from hpc_pytorch import UsersProblem, parse, part_directory, write_atomically  # noqa: E402
from hpc_pytorch.machine import commands, distribution_packages, first_packages  # noqa: E402
from hpc_pytorch.machine.collection_files import easyconfig_path, external_modules  # noqa: E402

# What a part is made from: after a change it is made again.
MADE_FROM = ('debian', 'pypi', 'inside', 'links', 'scripts')
KEYS = {
    'part': MADE_FROM + ('about', 'set', 'prepend'),
    'module': ('about', 'part', 'opened_by', 'family', 'sticky', 'loads', 'set', 'prepend'),
    'login': ('modules',),
}
PIP_INSTALL = ('-q', 'install', '--no-compile', '--require-hashes', '--no-deps', '--only-binary=:all:',
               '--disable-pip-version-check', '-r')
MODULE, STICKY, LOGIN = ((HERE / name).read_text() for name in ('module.txt', 'sticky.txt', 'login.txt'))


def descriptions(system='*'):
    """Find the descriptions of a system as it is and as it was, or of all systems: {name: path}, today's first."""
    paths = sorted(SYSTEMS.glob(system + '/stand_in*.cfg'), key=lambda path: (path.parent, path.stem))
    return {path.parent.name + path.stem[len('stand_in'):]: path for path in paths}


def read_sections(path):
    """Read a file of descriptions: {kind: {name: {key: value}}}."""
    parser = parse(path)
    found = {kind: {} for kind in KEYS}
    for section in parser.sections():
        kind, _, name = section.partition(' ')
        if kind not in KEYS:
            raise UsersProblem("%s: unknown section [%s]; known sections: [module NAME], [login]" % (path, section))
        for key in set(parser[section]).difference(KEYS[kind]):
            known = ', '.join(KEYS[kind])
            raise UsersProblem("%s: unknown key %r in [%s]; known keys: %s" % (path, key, section, known))
        found[kind][name] = dict(parser[section])
    return found


def read_description(name):
    """Return the parts that a stand-in uses, its modules, and what a login does."""
    known = descriptions()
    if name not in known:
        raise UsersProblem("there is no test environment of %r; there are: %s" % (name, ', '.join(sorted(known))))
    parts = read_sections(HERE / 'parts.cfg')['part']
    described = read_sections(known[name])
    used = {}
    for module, keys in described['module'].items():
        part = keys.get('part')
        if part and part not in parts:
            raise UsersProblem("[module %s]: parts.cfg has no part %r" % (module, part))
        if part:
            used[part] = parts[part]
    return used, described['module'], described['login'].get('', {})


def pairs(text):
    return [line.split(None, 1) for line in (text or '').splitlines() if line.strip()]


def modules_of(easyconfigs):
    """Return the system's modules that easyconfigs, and those that they depend on, load."""
    found = set()
    queue = [Path(name) for name in easyconfigs]
    for path in queue:
        place = easyconfig_path(str(path))
        if place:
            found.update(external_modules(place))
            text = Path(place).read_text(encoding='utf-8', errors='replace')
            dependencies = re.findall(r"\('([^']+)', '([^']+)'(?:, '([^']+)')?\)", text)
            others = [path.with_name('%s-%s%s.eb' % words) for words in dependencies]
            queue += [other for other in others if other not in queue]
    return found


def choose(system, easyconfigs):
    """Choose the state of a system that has most of the modules that easyconfigs load, today's if several do."""
    wanted = modules_of(easyconfigs)

    def matches(name):
        there = ' '.join(read_description(name)[1]) + ' '
        return sum(bool(re.search(r'(^| )%s[/ ]' % re.escape(module), there)) for module in wanted)
    return max(descriptions(system), key=matches, default=system)


def fingerprint(part):
    """Hash what a part depends on: its description and the files that it names."""
    description = ['%s=%s\n' % (key, part.get(key)) for key in MADE_FROM]
    files = [source for _, source in pairs(part.get('scripts'))] + part.get('pypi', '').split()
    contents = [''.join(description).encode()] + [(HERE / name).read_bytes() for name in files]
    return hashlib.sha256(b''.join(contents)).hexdigest()


def is_complete(prefix, part):
    """True if a part was made from this description, and what it links to is still there."""
    mark = prefix / '.complete'
    if not mark.exists() or mark.read_text() != fingerprint(part):
        return False
    return all((prefix / name).exists() for name, _ in pairs(part.get('links')))


def make_part(prefix, part):
    """Make a part from nothing; the file that marks it as complete comes last."""
    print("test environment: making", prefix.name, file=sys.stderr, flush=True)
    remove(prefix)
    if 'pypi' in part:
        install_wheels(prefix, part)
    for name, target in pairs(part.get('links')):
        link(prefix, name, target)
    for name, source in pairs(part.get('scripts')):
        path = prefix / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / source, path)
    prefix.mkdir(exist_ok=True)
    write_atomically(prefix / '.complete', fingerprint(part))


def install_wheels(prefix, part):
    """Install what a lock file pins into an environment of the machine's Python; keep what is `inside` of it."""
    with part_directory(prefix.parent) as temporary:
        environment = Path(temporary, 'environment') if 'inside' in part else prefix
        # ensurepip takes longer than everything else
        wheels = first_packages.pip_wheels()[:1]
        without = ['--without-pip'] if wheels else []
        run(['/usr/bin/python3', '-I', '-m', 'venv', *without, environment], temporary)
        pip = [wheels[0] + '/pip'] if wheels else ['-m', 'pip']
        run([environment / 'bin/python', '-I', *pip, *PIP_INSTALL, HERE / part['pypi']], temporary)
        if 'inside' in part:
            inside, = environment.glob('lib/python3*/site-packages/' + part['inside'])
            inside.rename(prefix)


def link(prefix, name, target):
    """Make a link to a path of the machine or, where the target is relative, to a path in the part."""
    top = Path('/') if target.startswith('/') else prefix
    found = next(top.glob(target.lstrip('/')), None)
    if found is None:
        raise UsersProblem("%s does not exist, but %s should be a link to it" % (target, name))
    path = prefix / name
    path.parent.mkdir(parents=True, exist_ok=True)
    remove(path)
    if top == prefix:
        found = os.path.relpath(found, path.parent)
    path.symlink_to(found)


def run(command, temporary):
    """Run Python without the user's settings of it, quietly unless it fails; pip's (mirrors, proxies) stay."""
    done = commands.run(command, env=dict(os.environ, TMPDIR=temporary))
    if done.returncode:
        lines = done.stdout.splitlines()
        errors = [line for line in lines if line.startswith('ERROR')] or lines[-1:]
        raise UsersProblem("%s failed: %s" % (' '.join(map(str, command)), ' '.join(errors)))


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()


def module_text(name, module, part, prefix, opened):
    """Write a module file; `opened` is the directory of modules that it makes visible, if it does."""
    # Core/gcc of Core/gcc/12.2.0, gcc of gcc/latest
    base, version = re.match(r'([^/]+(?:/[^/\d][^/]*(?=/))*)/?(.*)', name).groups()
    text = MODULE.format(about=module.get('about') or part.get('about', base), base=base)
    if 'family' in module:
        text += 'family %s\n' % module['family']
    if 'sticky' in module:
        text += STICKY % name
    if opened:
        text += 'module use {%s}\n' % opened
    for loaded in module.get('loads', '').split():
        text += 'module load %s\n' % loaded
    python = python_version(prefix)
    for key, command in (('set', 'setenv'), ('prepend', 'prepend-path')):
        for variable, value in pairs(part.get(key)) + pairs(module.get(key)):
            value = value.format(prefix=prefix, version=version, python=python)
            text += '%s %s {%s}\n' % (command, variable, value)
    return text


def python_version(prefix):
    path = prefix / 'pyvenv.cfg'
    if not path.exists():
        return ''
    return re.search(r'^version\w* = (\S+)', path.read_text(), re.MULTILINE).group(1)


def module_files(target, parts, modules):
    texts = {}
    opened = {opener for module in modules.values() for opener in module.get('opened_by', '').split()}
    for name, module in modules.items():
        part = module.get('part', '')
        opens = target / 'opened' / name if name in opened else None
        try:
            text = module_text(name, module, parts.get(part, {}), target / 'parts' / part, opens)
        except (KeyError, ValueError) as error:
            raise UsersProblem("[module %s]: expected lines `VARIABLE VALUE` in set and prepend, with {prefix}, "
                               "{version} or {python} in the value; found: %s" % (name, error))
        places = ['opened/' + opener for opener in module.get('opened_by', '').split()] or ['modules']
        for place in places:
            texts[target / place / name] = text
    return texts


def metadata_text(system, modules, parts):
    """Write EasyBuild's metadata for modules whose prefix is a fixed path on the real system, and another one here."""
    metadata = configparser.ConfigParser(interpolation=None)
    metadata.read(SYSTEMS / system / 'external_modules.cfg', encoding='utf-8')
    text = '# made by hpc_pytorch/stand_ins/make.py\n'
    for name in metadata.sections():
        part = modules.get(name, {}).get('part')
        if part and metadata[name].get('prefix', '').startswith('/'):
            text += '[%s]\nprefix = %s\n' % (name, parts / part)
    return text


def make(name, target=None):
    """Make or complete a stand-in; returns its directory. Those of a checkout share their parts."""
    parts, modules, login = read_description(name)
    top = target or STAND_INS
    target = target or STAND_INS / name
    for directory in (top / '.parts', target / 'modules', target / 'opened'):
        directory.mkdir(parents=True, exist_ok=True)
    with (top / '.lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / 'parts').is_symlink():
            # earlier versions kept parts here
            remove(target / 'parts')
            (target / 'parts').symlink_to(os.path.relpath(top / '.parts', target))
        make_parts(top / '.parts', parts)
        texts = module_files(target, parts, modules)
        for old in [*target.glob('modules/**/*'), *target.glob('opened/**/*')]:
            if old.is_file() and old not in texts:
                old.unlink()
        system = re.sub(r'-\d{4}$', '', name)
        texts[target / 'external_modules.cfg'] = metadata_text(system, modules, target / 'parts')
        texts[target / 'login'] = LOGIN.format(target=target, loaded=login.get('modules', ''))
        for path, text in texts.items():
            write_atomically(path, text)
    return target


def make_parts(directory, parts):
    missing = [name for name, part in parts.items() if not is_complete(directory / name, part)]
    packages = sorted(set(' '.join(parts[name].get('debian', '') for name in missing).split()))
    if packages and not shutil.which('apt-get'):
        raise UsersProblem("The test environment consists of packages of Debian or Ubuntu, and there is no apt-get. "
                           "Rehearse on such a computer, or in a container of Debian")
    distribution_packages.install(packages)
    for name in missing:
        make_part(directory / name, parts[name])


def main(arguments):
    parser = argparse.ArgumentParser(description="Make a test environment; print its module directory.")
    parser.add_argument('name', help="a system, or its state in a year: frontier-2024")
    parser.add_argument('--into', metavar='DIR', type=Path, help="default: .local/stand_ins/NAME of this checkout")
    options = parser.parse_args(arguments)
    target = options.into.absolute() if options.into else None
    try:
        print(make(options.name, target) / 'modules')
    except (UsersProblem, OSError) as problem:
        sys.exit("ERROR: test environment of %s: %s" % (options.name, problem))


if __name__ == '__main__':
    main(sys.argv[1:])
