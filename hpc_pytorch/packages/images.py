"""Container images as files: whether they are whole, where they are kept, and how they come from a registry."""
import os
import re
import struct
from pathlib import Path

from hpc_pytorch import UsersProblem, part_directory, fsync
from hpc_pytorch.machine.commands import run
from hpc_pytorch.packages.lock_files import UNKNOWN

REFERENCE = re.compile(r'docker://(?P<repository>[\w.:/-]+)@(?P<digest>sha256:[0-9a-f]{64})$')


def image_size(path):
    """Return the size that the header of an image promises, or None when this is neither a SIF nor a squashfs image."""
    with open(path, 'rb') as handle:
        header = handle.read(128)
    if header[32:].startswith(b'SIF_MAGIC\0') and len(header) == 128:
        # where the data objects start, and their length
        return sum(struct.unpack_from('<QQ', header, 112))
    if header.startswith(b'hsqs') and len(header) >= 48:
        return struct.unpack_from('<Q', header, 40)[0]
    return None


def check_image(path):
    promised = image_size(path)
    size = os.path.getsize(path)
    if promised is None:
        raise UsersProblem("%s is no container image: its header is neither that of a SIF nor of a squashfs file. "
                           "Was a web page or a pointer to the file downloaded instead?" % path)
    if size < promised:
        raise UsersProblem("the image %s is truncated: %d of %d bytes. Fetch it again." % (path, size, promised))


def images_in(stores):
    """Return the files in these directories and in theirs, the first of a name: {name: path}."""
    found = {}
    for store in stores:
        for path in sorted(Path(store).glob('*')) + sorted(Path(store).glob('*/*')):
            if os.path.isfile(str(path)):
                found.setdefault(path.name, str(path))
    return found


def file_of(reference):
    found = REFERENCE.match(reference)
    if not found:
        raise UsersProblem("expected docker://NAME@sha256:... with 64 digits, found %s; a tag can stand for another "
                           "image tomorrow" % reference)
    if reference.endswith(UNKNOWN):
        raise UsersProblem("%s has no digest yet. This prints it: skopeo inspect --format '{{.Digest}}' "
                           "docker://IMAGE:TAG" % reference)
    name = os.path.basename(found.group('repository'))
    return '%s-%s.sif' % (name, found.group('digest').replace(':', '-'))


def pull(runtime, reference, target):
    """Fetch an image from its registry, whole or not at all; the runtime compares the digest."""
    directory = os.path.dirname(target)
    os.makedirs(directory, exist_ok=True)
    # $HOME and /tmp seldom have room for it
    with part_directory(directory) as partial:
        variables = os.environ.copy()
        for prefix in ('APPTAINER', 'SINGULARITY'):
            variables.setdefault(prefix + '_TMPDIR', partial)
            variables.setdefault(prefix + '_CACHEDIR', partial)
        image = os.path.join(partial, 'image.sif')
        pulled = run([runtime, 'pull', image, reference], env=variables)
        if pulled.returncode or not os.path.isfile(image):
            said = pulled.stdout.strip().splitlines() or ['no output']
            raise UsersProblem("%s could not be fetched: %s. Does the registry have this digest? Fetch it on a machine "
                               "with a network (eb --fetch), and bring %s here." % (reference, said[-1], target))
        fsync(image)
        os.rename(image, target)
