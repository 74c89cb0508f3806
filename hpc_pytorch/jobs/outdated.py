"""``./eb --outdated``: list what is behind, of this system's easyconfigs and of what the prefix has, each with the
command that renews it. Status 1 if anything is.
"""
import datetime
import glob
import os
import re
import tempfile

from hpc_pytorch import UsersProblem, parse
from hpc_pytorch.machine import systems
from hpc_pytorch.machine.inspection import easyconfigs_of
from hpc_pytorch.machine.versions import PAIRS, release
from hpc_pytorch.packages.images import images_in
from hpc_pytorch.packages.lock_files import older, parse_lock, read_lock
from hpc_pytorch.packages.new_version import Change, as_typed, in_collection, named_file, plain_values, read

# documents of a generation that is kept as it was
RETIRED = re.compile(r'-\d{4}$')
# of an image's release, in its name
DATE = re.compile(r'(?<=-)\d{8}(?!\d)')


def values_of(paths, unknown):
    """Return what easyconfigs say, {path: values}; `unknown` gets errors."""
    found = {}
    for path in paths:
        try:
            text = read(path)
            values = dict({'versionsuffix': ''}, **plain_values(text))
            values['module'] = values['name'] + '/' + values['version'] + values['versionsuffix']
        except (UsersProblem, SyntaxError, KeyError, TypeError) as problem:
            unknown.append("%s: expected an easyconfig with name and version, found: %s" % (path, problem))
            continue
        if in_collection(path) or '\nlock_files = ' in text:
            found[path] = values
    return found


def newest_of_each(known):
    """Return the paths of the newest easyconfig of each software and versionsuffix."""
    newest = {}
    for path, values in known.items():
        rank = release(values['version']), values['versionsuffix']
        key = values['name'], re.sub(r'\d+', '', values['versionsuffix'])
        if key not in newest or rank > newest[key][0]:
            newest[key] = rank, path
    return [path for _, path in newest.values()]


def about_version(path, values):
    """Report a newer version of an easyconfig."""
    with tempfile.TemporaryDirectory(prefix='outdated-') as work:
        version = Change(path, 'latest', work).version
    if version != values['version']:
        yield "{0}: there is {1}: ./eb --new-version {1} {0}".format(as_typed(path), version)


def about_packages(path, unknown):
    """Report newer packages than in the locks of an easyconfig; `unknown` gets locks that cannot be made."""
    name = as_typed(path)
    with tempfile.TemporaryDirectory(prefix='outdated-') as work:
        change = Change(path, None, work)
        made = change.make()
    unknown += ["%s: %s" % (name, problem) for problem in change.by_hand]
    # one that cannot be written beside the old one would go to another place
    locks = {os.path.basename(place): text for place, text in made.items() if place.endswith('.lock')}
    olds = {lock: named_file(path, lock) for lock in sorted(locks)}
    # a mirror may have older packages than the lock
    changed = [lock for lock, old in olds.items()
               if not old or any(older(parse_lock(locks[lock]), read_lock(old)))]
    if changed:
        yield "%s: newer packages in %s: ./eb --renew %s" % (name, ' '.join(changed), name)


def about_images(path, values, stores):
    """Report a later image of the same kind in the site's directories."""
    kind = re.search(r"'([a-z-]+)[^':/]*\.sif'", read(path))
    ours = DATE.search(values.get('local_tag', ''))
    for name, place in images_in(stores).items() if kind and ours else ():
        date = DATE.search(name)
        if date and name.startswith(kind.group(1)) and date.group() > ours.group():
            yield "%s: there is %s: ./eb --new-version VERSION %s" % (values['name'], place, os.path.basename(path))


def about_installed(path, values, modules):
    """Report the newest module in the prefix of what an easyconfig installs, if that would be newer."""
    pattern = re.escape(values['name']) + '/(.+)' + re.escape(values['versionsuffix'])
    found = filter(None, (re.fullmatch(pattern, module) for module in modules))
    newest = max(found, key=lambda match: release(match.group(1)), default=None)
    if newest and release(newest.group(1)) < release(values['version']):
        yield "%s is installed, %s is here: ./eb %s" % (newest.group(), values['version'], as_typed(path))


def about_rebuilding(installed, values, here):
    """Report an installation with other packages than the locks of its easyconfig here, which were renewed since."""
    paths = sorted(glob.glob(glob.escape(os.path.dirname(installed)) + '/*.lock'))
    locks = {path: named_file(here, os.path.basename(path)) for path in paths}
    changed = [os.path.basename(path) for path, lock in locks.items()
               if lock and {entry[:2] for entry in read_lock(lock)} != {entry[:2] for entry in read_lock(path)}]
    if changed:
        yield "%s is installed with other packages than in %s: ./eb --rebuild %s" % (
            values['module'], ' '.join(changed), as_typed(here))


def about_facts(path):
    """Report documents behind a file's settings or versions that were read more than six months ago."""
    limit = (datetime.date.today() - datetime.timedelta(days=183)).isoformat()
    for section, row in parse(path).items():
        dated = row if section == 'sources' else {section: row.get('date', '9')}
        for name, words in dated.items():
            date = words.split()[0]
            if date < limit[:len(date)] and not RETIRED.search(name):
                yield "%s: %s (%s): read it again, and correct value or date" % (path, name, date)


def look(modules, software):
    system = systems.load(os.environ['HPC_SYSTEM'])
    findings, unknown = [], []

    def add(about, path, *more):
        try:
            findings.extend(about(path, *more))
        except UsersProblem as problem:
            unknown.append("%s: %s" % (as_typed(path), problem))

    installed = sorted(glob.glob(glob.escape(software) + '/*/*/easybuild/provenance/*.eb'))
    # those of the collection come first: the same easyconfig may be in both
    known = values_of(easyconfigs_of(system) + installed, unknown)
    newest = newest_of_each(known)
    ours = {os.path.basename(path): path for path in known if in_collection(path)}
    for path, values in known.items():
        if path in newest:
            add(about_version, path, values)
            add(about_images, path, values, system.container['image_search_path'])
            add(about_installed, path, values, modules)
        here = ours.get(os.path.basename(path), path)
        of_today = path in newest or path in ours.values() and not systems.is_retired(path, system)
        if here != path:
            add(about_rebuilding, path, values, here)
        elif of_today and values.get('lock_files'):
            add(about_packages, path, unknown)
    findings += about_facts(os.path.join(system.directory, 'system.cfg'))
    findings += about_facts(PAIRS)
    # of versions and of packages there may be the same reason
    print("%s: not known: %d" % (system.name, len(set(unknown))), *dict.fromkeys(unknown), sep='\n  ')
    print("%s: behind: %d" % (system.name, len(findings)), *findings, sep='\n  ')
    return 1 if findings else 0


def main(arguments):
    from easybuild.tools.config import install_path
    from hpc_pytorch.jobs.uninstall import module_files
    from hpc_pytorch.packages.easybuild_errors import with_prefix

    def all_of_them(names):
        if names:
            raise UsersProblem("--outdated lists what there is for this system: it takes no %s" % ' '.join(names))
        return look(module_files(), install_path('software'))

    return with_prefix(arguments, all_of_them)
