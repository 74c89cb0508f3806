"""A real registry of the tests' own, Debian's docker-registry, and images in it, pushed as `docker push` does."""
import gzip
import hashlib
import io
import json
import socket
import subprocess
import tarfile
import urllib.request
from contextlib import contextmanager

from batch_systems.real_slurm import free_ports, wait_for
from common import locked

CONFIGURATION = """version: 0.1
storage: {{filesystem: {{rootdirectory: {directory}/data}}}}
http: {{addr: 127.0.0.1:{port}}}
log: {{level: error}}
"""


def unpacked(cache, *packages):
    """The files of Debian's packages, unpacked for the tests: nothing is installed, nor started by the system."""
    place = cache / packages[0]
    with locked(place):
        if not place.exists():
            partial = place.with_name(packages[0] + '.partial')
            subprocess.run(['rm', '-rf', partial], check=True)
            partial.mkdir(parents=True)
            subprocess.run(['apt-get', '-qq', 'download', *packages], cwd=partial, check=True)
            for file in partial.glob('*.deb'):
                subprocess.run(['dpkg', '-x', file, partial], check=True)
            partial.rename(place)
    return place / 'usr'


@contextmanager
def registry(cache, directory):
    """One that serves while this is entered; gives its address."""
    port, = free_ports(1)
    configuration = directory / 'registry.yml'
    configuration.write_text(CONFIGURATION.format(directory=directory, port=port))
    with open(directory / 'registry.log', 'wb') as log:
        program = unpacked(cache, 'docker-registry') / 'bin/docker-registry'
        server = subprocess.Popen([program, 'serve', configuration], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_for(lambda: socket.socket().connect_ex(('127.0.0.1', port)) == 0, "registry")
        yield '127.0.0.1:%d' % port
    finally:
        server.terminate()
        server.wait(30)


def digest(data):
    """What a registry calls these bytes."""
    return 'sha256:' + hashlib.sha256(data).hexdigest()


def send(method, url, data, kind):
    """A request of the registry's protocol; gives the answer's Location."""
    request = urllib.request.Request(url, data=data, method=method, headers={'Content-Type': kind})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.headers.get('Location')


def push(address, name, root, environment=('MADE_BY=tests',)):
    """Push a directory tree as an image of one layer; gives its digest."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode='w') as tar:
        tar.add(root, arcname='.')
    layer = gzip.compress(archive.getvalue(), 1)
    config = json.dumps({'architecture': 'amd64', 'os': 'linux', 'config': {'Env': list(environment)}, 'rootfs': {
        'type': 'layers', 'diff_ids': [digest(archive.getvalue())]}}).encode()
    base = 'http://%s/v2/%s' % (address, name)
    for blob in (layer, config):
        place = send('POST', base + '/blobs/uploads/', b'', 'application/octet-stream')
        send('PUT', '%s&digest=%s' % (place, digest(blob)), blob, 'application/octet-stream')
    kind = 'application/vnd.docker.distribution.manifest.v2+json'
    manifest = json.dumps({'schemaVersion': 2, 'mediaType': kind, 'config': {
        'mediaType': 'application/vnd.docker.container.image.v1+json', 'size': len(config), 'digest': digest(config)},
        'layers': [{'mediaType': 'application/vnd.docker.image.rootfs.diff.tar.gzip', 'size': len(layer),
                    'digest': digest(layer)}]}).encode()
    send('PUT', base + '/manifests/latest', manifest, kind)
    return digest(manifest)
