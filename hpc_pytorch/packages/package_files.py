"""The files of locked packages: links to those in a source path, and downloads, with the user's settings of pip."""
import os
import shlex
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import source_paths
from easybuild.tools.filetools import download_file, mkdir, read_file

from hpc_pytorch import fsync, part_directory
from hpc_pytorch.packages.lock_files import Locked, sha256_of
from hpc_pytorch.packages.pip import LOG, IndexNotReached, Pip
from hpc_pytorch.packages.pip_errors import FULL, NO_MATCH, explain, last_words, other_files, unreached
from hpc_pytorch.packages.progress import progress
from hpc_pytorch.packages.wheel_tags import name_and_version, why_not


def entry_of(path):
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
                if not entry or not os.path.isfile(path) or not os.access(path, os.R_OK):
                    continue
                problem = not_the_locked_one(path, entry)
                if not problem:
                    self.link_to(path)
                else:
                    print_msg("%s is not used: %s. One of the two is damaged or of another version", path, problem,
                              log=self.log)

    def link_to(self, path):
        link = os.path.join(self.directory, os.path.basename(path))
        if not os.path.exists(link):
            os.symlink(path, link)

    def missing_sources(self, entries):
        here = [name_and_version(name) for name in os.listdir(self.directory) if not name.endswith('.whl')]
        return [entry for entry in entries if (entry.name, entry.version) not in here]

    def missing_wheels(self, entries):
        """Return the entries to download; only pip knows which of them their markers admit."""
        linked = os.listdir(self.directory)
        if not entries or linked and self.pip.can_install(entries, self.directory):
            return []
        here = {name_and_version(name) for name in linked if not why_not(name, self.python)}
        return [entry for entry in entries if (entry.name, entry.version) not in here] or entries

    @contextmanager
    def part_of_store(self, entry):
        """Yield a directory for this entry and others, and the first store that can be written to, which keeps them."""
        for store in self.stores:
            with suppress(EasyBuildError):
                mkdir(store, parents=True)
            if os.access(store, os.W_OK | os.X_OK):
                break
        else:
            raise EasyBuildError("%s %s must be fetched, and you cannot write to the source path. Put a directory of "
                                 "yours in front of it: --sourcepath=DIRECTORY:%s", entry.name, entry.version,
                                 shlex.quote(':'.join(source_paths())))
        with part_directory(store) as part:
            yield part, store
            for path in Path(part).glob('*.*'):
                target = os.path.join(store, path.name)
                fsync(str(path))
                # in the place of a damaged one of the same name
                os.replace(str(path), target)
                self.link_to(target)

    def download_wheels(self, entries, extra_index_urls):
        """Download wheels from the user's indexes; if they do not have them, from these, too."""
        extra = ['--extra-index-url=' + url for url in extra_index_urls]
        count = len({entry.name for entry in entries})
        with self.part_of_store(entries[0]) as (part, store):
            with progress("fetching %d packages into %s" % (count, store), self.log):
                result = self.pip.download(entries, part, '--only-binary', ':all:')
                if result.exit_code and extra:
                    result = self.pip.download(entries, part, '--only-binary', ':all:', *extra)
            self.check(result, part, store)

    def download_sources(self, entries, tools):
        """Download sources; pip insists on asking each for its metadata, for which it needs the build tools."""
        with self.part_of_store(entries[0]) as (part, store):
            directory = os.path.join(part, 'tools')
            self.pip.install(tools, self.directory, '--target', directory)
            result = self.pip.download(entries, part, '--no-binary', ':all:', '--no-build-isolation',
                                       environment={'PYTHONPATH': directory})
            self.check(result, part, store)

    def download_release(self, entry, url):
        """Download the source of a package from where its authors release it, under the name that pip looks for."""
        name = '%s-%s.tar.gz' % (entry.name, entry.version)
        with self.part_of_store(entry) as (part, store):
            path = os.path.join(part, name)
            if not download_file(name, url, path):
                raise EasyBuildError("Fetching %s failed. Fetch it by hand, and put it as %s into %s", url, name, store)
            problem = not_the_locked_one(path, entry)
            if problem:
                raise EasyBuildError("%s: %s. Do not use it until you know which of the two is wrong.", url, problem)

    def check(self, result, part, store):
        """Stop if pip has not downloaded all; which index it could not reach is only in its log."""
        if not result.exit_code:
            return
        reason = other_files(result.output) or last_words(result.output)
        path = os.path.join(part, LOG)
        log = read_file(path) if os.path.exists(path) else ''
        if FULL.search(result.output):
            places = store, tempfile.gettempdir()
            reason += "\nMake room in %s and %s, or choose others: --sourcepath, --tmpdir" % places
        else:
            reason += explain(result.output + log, self.directory, self.python)
        if 'metadata-generation-failed' in result.output:
            reason += "\nAdd what it is built with to build_lock_files: on-top-build.lock has setuptools and wheel."
        problem = EasyBuildError
        if NO_MATCH.search(result.output) and unreached(log):
            problem = IndexNotReached
        raise problem("Fetching failed: %s", reason)
