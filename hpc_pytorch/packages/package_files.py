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

from hpc_pytorch import part_directory, fsync
from hpc_pytorch.packages.lock_files import Locked, sha256_of
from hpc_pytorch.packages.pip import Pip
from hpc_pytorch.packages.progress import progress
from hpc_pytorch.packages.wheel_tags import name_and_version, why_not


def entry_of(path):
    """What a lock file would say of this wheel or source."""
    name, version = name_and_version(path)
    digest = sha256_of(path)
    return Locked(name, version, frozenset([digest]), '%s==%s --hash=sha256:%s' % (name, version, digest))


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
            expected.setdefault((entry.name, entry.version), set()).update(entry.hashes)
        for store in self.stores:
            for path in sorted(map(str, Path(store).glob('*.*'))):
                hashes = expected.get(name_and_version(path))
                if hashes and os.path.isfile(path) and os.access(path, os.R_OK):
                    self.link_file(path, hashes)

    def link_file(self, path, hashes):
        """Link a file unless its SHA256 is not one of these."""
        name, version = name_and_version(path)
        link = os.path.join(self.directory, os.path.basename(path))
        digest = sha256_of(path)
        if digest not in hashes:
            print_msg("%s is not used: its SHA256 is %s, and the lock file of %s %s has %s. One of the two is damaged "
                      "or of another version", path, digest, name, version, ' or '.join(sorted(hashes)), log=self.log)
        elif not os.path.exists(link):
            os.symlink(path, link)

    def has_source(self, entry):
        names = ['%s-%s.tar.gz' % (name, entry.version) for name in (entry.name, entry.name.replace('-', '_'))]
        return any(name in names for name in os.listdir(self.directory))

    def missing_wheels(self, entries):
        """The entries to download; only pip knows which of them their markers admit."""
        linked = os.listdir(self.directory)
        if not entries or linked and self.pip.can_install(entries, self.directory):
            return []
        here = {name_and_version(name) for name in linked if not why_not(name, self.python)}
        return [entry for entry in entries if (entry.name, entry.version) not in here] or entries

    def writable_store(self, entry):
        """The first store that can be written to, for this entry and others."""
        for store in self.stores:
            try:
                mkdir(store, parents=True)
            except EasyBuildError:
                continue
            if os.access(store, os.W_OK | os.X_OK):
                return store
        raise EasyBuildError("%s %s must be fetched, and you cannot write to the source path. Put a directory of yours "
                             "in front of it: --sourcepath=$HOME/easybuild/sources:%s",
                             entry.name, entry.version, shlex.quote(':'.join(source_paths())))

    def download_wheels(self, entries, extra_index_urls):
        """Download wheels from the user's indexes; if they do not have them, from these, too."""
        store = self.writable_store(entries[0])
        extra = []
        for url in extra_index_urls:
            extra += ['--extra-index-url', url]
        count = len({entry.name for entry in entries})
        with part_directory(store) as part:
            with progress("fetching %d packages into %s" % (count, store), self.log):
                result = self.pip.download(entries, part, '--only-binary', ':all:')
                if result.exit_code and extra:
                    result = self.pip.download(entries, part, '--only-binary', ':all:', *extra)
            if result.exit_code:
                raise self.pip.downloading_error(result.output, part, self.directory, store)
            self.keep(part, store)

    def download_sources(self, entries, tools):
        """Download sources; pip insists on asking each for its metadata, for which it needs the build tools."""
        store = self.writable_store(entries[0])
        with part_directory(store) as part:
            directory = os.path.join(part, 'tools')
            self.pip.install(tools, self.directory, '--target', directory)
            result = self.pip.download(entries, part, '--no-binary', ':all:', '--no-build-isolation',
                                       environment={'PYTHONPATH': directory})
            if result.exit_code:
                raise self.pip.downloading_error(result.output, part, self.directory, store)
            self.keep(part, store)

    def download_release(self, entry, url):
        """Download the source of a package from where its authors release it, under the name that pip looks for."""
        store = self.writable_store(entry)
        name = '%s-%s.tar.gz' % (entry.name, entry.version)
        with part_directory(store) as part:
            path = os.path.join(part, name)
            if not download_file(name, url, path):
                raise EasyBuildError("Fetching %s failed. Fetch it by hand, and put it as %s into %s", url, name, store)
            if sha256_of(path) not in entry.hashes:
                raise EasyBuildError("%s: its SHA256 is %s, and the lock file of %s %s has %s. Do not use it until you "
                                     "know which of the two is wrong.", url, sha256_of(path), entry.name,
                                     entry.version, ' or '.join(sorted(entry.hashes)))
            self.keep(part, store)

    def keep(self, part, store):
        """Move what was downloaded to its store, in the place of a damaged file of the same name."""
        for path in Path(part).glob('*.*'):
            target = os.path.join(store, path.name)
            fsync(str(path))
            os.replace(str(path), target)
            link = os.path.join(self.directory, path.name)
            if not os.path.exists(link):
                os.symlink(target, link)
