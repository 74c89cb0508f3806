"""inventory.py PROGRAM: what the Python of a module has. Packages; files whose contents are not those that their
package has noted; what PROGRAM prints about PyTorch; and what the loader finds for PyTorch's libraries.
"""
import base64
import collections
import glob
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys


def contents(path):
    found = hashlib.sha256()
    with open(path, 'rb') as handle:
        for part in iter(lambda: handle.read(1 << 20), b''):
            found.update(part)
    return base64.urlsafe_b64encode(found.digest()).decode().rstrip('=')


noted, places = collections.defaultdict(set), {}
for package in importlib.metadata.distributions():
    print('package:', package.metadata['Name'], package.version, package.locate_file(''))
    for file in package.files or []:
        # two packages may have the same file; programs in bin/ may have been replaced by the module's own
        if '..' not in file.parts and '__pycache__' not in file.parts:
            noted[str(file)].add(file.hash.value if file.hash and file.hash.mode == 'sha256' else None)
            places[str(file)] = str(file.locate())
for file, path in sorted(places.items()):
    if not os.path.exists(path) or None not in noted[file] and contents(path) not in noted[file]:
        print('changed:', file)
sys.stdout.flush()
# importing a library that was changed may end the process
subprocess.run([sys.executable, '-c', sys.argv[1]])
torch = importlib.util.find_spec('torch')
if torch:
    subprocess.run(['ldd'] + glob.glob(os.path.dirname(torch.origin) + '/lib/*.so'))
