"""
The files of locked packages: links to those that a source path has, and downloads of the others.

pip downloads them, so that the mirrors, proxies and caches that the user configured for pip are used.
"""
import os
import shlex
import tempfile
from pathlib import Path

from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import source_paths
from easybuild.tools.filetools import download_file, mkdir

from hpc_pytorch import fsync, part_directory, writable_place
from hpc_pytorch.packages.lock_files import Locked, sha256_of
from hpc_pytorch.packages.pip import Pip
from hpc_pytorch.packages.progress import progress
from hpc_pytorch.packages.wheel_tags import name_and_version, why_not


def entry_of(path):
    """Return a lock file's entry for this wheel or source."""
    name, version = name_and_version(path)
    digest = sha256_of(path)
    return Locked(name, version, frozenset([digest]), '%s==%s --hash=sha256:%s' % (name, version, digest))


def not_the_locked_one(path, entry):
    """Describe a file whose SHA256 is none of the lock file's; None if it is one of them."""
    digest = sha256_of(path)
    if digest in entry.hashes:
        return None
    locked = ' or '.join(sorted(entry.hashes))
    return "its SHA256 is %s, and the lock file of %s %s has %s" % (digest, entry.name, entry.version, locked)


class PackageFiles:
    """A directory of links to all files of one installation; a store is a directory that keeps such files."""

    def __init__(self, python, stores, log):
        self.stores = stores
        self.log = log
        self.python = python
        self.pip = Pip(python)
        self.directory = tempfile.mkdtemp(prefix='wheels-')

    def link(self, entries):
        """Link what the stores have of these entries; report and leave there what is damaged."""
        expected = {}
        for entry in entries:
            key = (entry.name, entry.version)
            # other indexes have other files of the same version
            hashes = entry.hashes.union(expected[key].hashes) if key in expected else entry.hashes
            expected[key] = entry._replace(hashes=hashes)
        for store in self.stores:
            for path in sorted(map(str, Path(store).glob('*.*'))):
                entry = expected.get(name_and_version(path))
                if entry and os.path.isfile(path) and os.access(path, os.R_OK):
                    self.link_file(path, entry)

    def link_file(self, path, entry):
        """Link a file that is the locked one."""
        problem = not_the_locked_one(path, entry)
        if problem:
            print_msg("%s is not used: %s. One of the two is damaged or of another version", path, problem,
                      log=self.log)
        else:
            self.link_to(path)

    def link_to(self, path):
        link = os.path.join(self.directory, os.path.basename(path))
        if not os.path.exists(link):
            os.symlink(path, link)

    def has_source(self, entry):
        """True if the source of an entry is linked; indexes write names in two ways."""
        for name in (entry.name, entry.name.replace('-', '_')):
            if os.path.exists('%s/%s-%s.tar.gz' % (self.directory, name, entry.version)):
                return True
        return False

    def missing_wheels(self, entries):
        """Return the entries to download; only pip knows which of them their markers admit."""
        linked = os.listdir(self.directory)
        if not entries or linked and self.pip.can_install(entries, self.directory):
            return []
        here = {name_and_version(name) for name in linked if not why_not(name, self.python)}
        return [entry for entry in entries if (entry.name, entry.version) not in here] or entries

    def writable_store(self, entry):
        """Return the first store that can be written to, for this entry and others."""
        for store in self.stores:
            try:
                mkdir(store, parents=True)
            except EasyBuildError:
                continue
            if os.access(store, os.W_OK | os.X_OK):
                return store
        raise EasyBuildError("%s %s must be fetched, and you cannot write to the source path. Put a directory of yours "
                             "in front of it: --sourcepath=%s/easybuild/sources:%s",
                             entry.name, entry.version, writable_place(), shlex.quote(':'.join(source_paths())))

    def download_wheels(self, entries, extra_index_urls):
        """Download wheels from the user's indexes; if they do not have them, from these, too."""
        store = self.writable_store(entries[0])
        extra = ['--extra-index-url=' + url for url in extra_index_urls]
        count = len({entry.name for entry in entries})
        with part_directory(store) as part:
            with progress("fetching %d packages into %s" % (count, store), self.log):
                result = self.pip.download(entries, part, '--only-binary', ':all:')
                if result.exit_code and extra:
                    result = self.pip.download(entries, part, '--only-binary', ':all:', *extra)
            self.keep(result, part, store)

    def download_sources(self, entries, tools):
        """Download sources; pip insists on asking each for its metadata, for which it needs the build tools."""
        store = self.writable_store(entries[0])
        with part_directory(store) as part:
            directory = os.path.join(part, 'tools')
            self.pip.install(tools, self.directory, '--target', directory)
            result = self.pip.download(entries, part, '--no-binary', ':all:', '--no-build-isolation',
                                       environment={'PYTHONPATH': directory})
            self.keep(result, part, store)

    def download_release(self, entry, url):
        """Download the source of a package from where its authors release it, under the name that pip looks for."""
        store = self.writable_store(entry)
        name = '%s-%s.tar.gz' % (entry.name, entry.version)
        with part_directory(store) as part:
            path = os.path.join(part, name)
            if not download_file(name, url, path):
                raise EasyBuildError("Fetching %s failed. Fetch it by hand, and put it as %s into %s", url, name, store)
            problem = not_the_locked_one(path, entry)
            if problem:
                raise EasyBuildError("%s: %s. Do not use it until you know which of the two is wrong.", url, problem)
            self.move(part, store)

    def keep(self, result, part, store):
        """Keep what pip has downloaded, if it has downloaded all."""
        if result.exit_code:
            raise self.pip.downloading_error(result.output, part, self.directory, store)
        self.move(part, store)

    def move(self, part, store):
        """Move files to their store, in the place of damaged ones of the same name, and link them."""
        for path in Path(part).glob('*.*'):
            target = os.path.join(store, path.name)
            fsync(str(path))
            os.replace(str(path), target)
            self.link_to(target)
