"""
A static package index of wheels that were built here, for all users of a project:

    python -m hpc_pytorch.packages.static_index DIRECTORY WHEEL ...
    pip install --index-url file://DIRECTORY torch

Each wheel is copied into the directory of its package, beside a page that names it with its SHA256, which pip compares.
A wheel that is there already with other bytes is refused: what users have installed by its name must stay what it is.
"""
import html
import os
import shutil
import sys
from pathlib import Path
from urllib.parse import quote

from hpc_pytorch import UsersProblem, part_directory, fsync
from hpc_pytorch.packages.lock_files import sha256_of
from hpc_pytorch.packages.wheel_tags import parse_wheel


def add(directory, wheel):
    """Add a wheel; what users see is never half-made."""
    parsed = parse_wheel(wheel)
    if not parsed or not os.path.isfile(wheel):
        raise UsersProblem("%s is no wheel: expected a file such as torch-2.4.0-cp312-cp312-linux_aarch64.whl" % wheel)
    place = os.path.join(directory, parsed.name)
    target = os.path.join(place, os.path.basename(wheel))
    os.makedirs(place, exist_ok=True)
    if not os.path.exists(target):
        with part_directory(directory) as part:
            part = shutil.copyfile(wheel, os.path.join(part, 'wheel'))
            os.chmod(part, 0o644)
            fsync(part)
            os.rename(part, target)
    elif sha256_of(target) != sha256_of(wheel):
        raise UsersProblem("%s exists already, with other content. Build another version: a wheel's name must not "
                           "mean two things" % target)
    write_page(place)
    return target


def write_page(place):
    """The page of one package, from what is in its directory."""
    lines = ['<!DOCTYPE html>', '<title>%s</title>' % html.escape(os.path.basename(place))]
    for name in sorted(entry for entry in os.listdir(place) if entry.endswith('.whl')):
        digest = sha256_of(os.path.join(place, name))
        lines.append('<a href="%s#sha256=%s">%s</a><br>' % (quote(name), digest, html.escape(name)))
    with part_directory(place) as part:
        page = Path(part, 'index.html')
        page.write_text('\n'.join(lines) + '\n', encoding='utf-8')
        page.chmod(0o644)
        fsync(str(page))
        page.rename(os.path.join(place, 'index.html'))


def main(arguments):
    if len(arguments) < 2:
        sys.exit(__doc__.strip())
    try:
        for wheel in arguments[1:]:
            print("added %s" % add(arguments[0], wheel))
    except (UsersProblem, OSError) as problem:
        sys.exit(str(problem))
    print("to install from it: pip install --index-url file://%s NAME" % quote(os.path.abspath(arguments[0])))


if __name__ == '__main__':
    main(sys.argv[1:])
