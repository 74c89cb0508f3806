"""Installing containers: where images come from, what is refused, and that nothing half-made is left."""
import functools
import hashlib
import http.server
import os
import re
import shlex
import shutil
import subprocess
import threading
from contextlib import contextmanager

import pytest
from containers import images as containers

pytestmark = pytest.mark.slow


def installed(place, name='Tool'):
    """The prefix of what was installed."""
    return place.eb.prefix / 'software' / name / '1.0'


def refused(place, easyconfig, *options, **more):
    """The last message of an installation that has to fail, and to leave neither module nor files."""
    output = place.install(easyconfig, *options, status=None, **more)
    assert 'ERROR' in output, output
    assert not list(place.eb.prefix.glob('modules/all/*/1.0*')), output
    assert not list(place.eb.prefix.glob('software/*/1.0/*')), output
    return output[output.rindex('ERROR'):]


def sha256(path):
    """The checksum of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- where the image comes from

def test_from_store_and_second_software(place):
    """All names derive from the software's: another container is another easyconfig, and nothing else."""
    image = place.store / 'tool.sif'
    easyconfig = place.easyconfig("wrappers = ['ls', 'sort']", name='Tensor-Flow', checksum=sha256(image))
    output = place.install(easyconfig)
    assert 'run-in-container COMMAND ARGUMENT' in output and 'your_script.py' not in output, "it may have no Python"
    root, checksum = installed(place, 'Tensor-Flow'), sha256(image)
    # by somebody who overwrites it in place, as rsync --inplace does
    with image.open('r+b') as handle:
        handle.write(bytes(9))
    assert sha256(root / 'tool.sif') == checksum != sha256(image)
    place.give_to_user()
    output = place.as_user('''
        echo "$SIFTENSORMINFLOW=$SIF $RUNSCRIPTSTENSORMINFLOW=$RUNSCRIPTS"
        printf 'b\\na\\n' | sort
        ls /runscripts
        type -P ls
        readlink "$(type -P ls)"
    ''', 'Tensor-Flow')
    assert '%s/tool.sif=%s/tool.sif %s/runscripts=%s/runscripts' % ((root,) * 4) in output
    assert '\na\nb\n' in output and '\nget-master\n' in output
    assert '%s/bin/ls' % root in output and 'run-in-container' in output


def test_from_source_path_before_store(place):
    """A file of the user's own goes before the site's."""
    (place.store / 'tool.sif').rename(place.directory / 'tool.sif')
    (place.store / 'tool.sif').write_text('something else')
    place.install(place.easyconfig())
    assert (installed(place) / 'tool.sif').exists()
    assert {'system.cfg', 'launchers.cfg'} <= {path.name for path in (installed(place) / 'share').iterdir()}


def test_from_url(place):
    """Fetched once, and only used when it is what it should be."""
    class Quiet(http.server.SimpleHTTPRequestHandler):
        """Says nothing."""
        def log_message(self, *_):
            """To nobody."""

    served = place.directory / 'served'
    place.store.rename(served)
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Quiet, directory=str(served)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        place.eb.sources = place.directory / 'sources'
        url = "source_urls = ['http://127.0.0.1:%d/']" % server.server_port
        wrong = place.easyconfig(url, checksum='f' * 64)
        assert 'Checksum verification' in refused(place, wrong)
        shutil.rmtree(place.eb.sources)
        place.install(place.easyconfig(url, checksum=sha256(served / 'tool.sif')))
    finally:
        server.shutdown()
        server.server_close()
    assert (installed(place) / 'tool.sif').exists()


def test_left_in_place(place):
    """`copy_image = False` takes no space; the module names the site's image, also when only it is made again."""
    easyconfig = place.easyconfig('copy_image = False')
    place.install(easyconfig)
    assert not list(installed(place).glob('*.sif'))
    module, = (place.eb.modules / 'Tool').iterdir()
    text = module.read_text()
    place.install(easyconfig, '--module-only', '--force')
    assert module.read_text() == text
    place.give_to_user()
    assert place.as_user('echo "$SIF"; run-in-container true 2> /dev/null && echo fine', 'Tool').split() == [
        '%s/tool.sif' % place.store, 'fine']


def test_extended_dry_run_without_the_image(place):
    """It succeeds, and says that installing would not."""
    easyconfig = place.easyconfig()
    assert 'Installing would stop here' not in place.install(easyconfig, '-x')
    (place.store / 'tool.sif').unlink()
    output = place.install(easyconfig, '-x')
    assert 'Installing would stop here: the image' in output
    assert 'the image tool.sif' in output[output.index('[SUCCESS]'):], "in its last lines, too"


def test_extended_dry_run_without_the_digest(place):
    """Zeros, as --new-version writes them, are named in the last lines."""
    output = place.install(place.easyconfig(image='docker://localhost:9/tool@sha256:' + '0' * 64), '-x')
    assert output[output.index('[SUCCESS]'):].count('has no digest yet') == 1


def test_extended_dry_run(place):
    """-x changes nothing and comes to its end."""
    output = place.install(place.easyconfig("venv = True\nwrappers = ['ls']"), '-x')
    assert 'setenv("SIFTOOL"' in output
    assert 'MISSING' not in output and 'ignoring error' not in output
    assert not installed(place).exists()


# -- what is refused

def test_tampered(place):
    """An image that has another checksum."""
    image = place.store / 'tool.sif'
    checksum = sha256(image)
    with image.open('r+b') as handle:
        handle.seek(5000)
        handle.write(b'xxxx')
    assert 'Checksum verification' in refused(place, place.easyconfig(checksum=checksum))


def test_truncated(place):
    """Seen without a checksum, as the header tells the size; of a squashfs file and of a SIF."""
    image = place.store / 'tool.sif'
    sif = place.directory / 'real.sif'
    subprocess.run(['apptainer', '-s', 'sif', 'new', sif], check=True)
    options = '--datatype 4 --partfs 1 --parttype 2 --partarch 2 --groupid 1'.split()
    subprocess.run(['apptainer', '-s', 'sif', 'add', *options, sif, image], check=True)
    easyconfig = place.easyconfig()
    for whole in (image, sif):
        data = whole.read_bytes()
        image.write_bytes(data[:len(data) // 2])
        message = refused(place, easyconfig)
        assert 'is truncated' in message and str(len(data) // 2) in message
        image.write_bytes(data)
        place.install(easyconfig, '--force')
        shutil.rmtree(place.eb.prefix)


def test_no_image(place):
    """What is no image is refused by its content, whatever it is called."""
    for content in (b'', b'<html>Log in first</html>', b'hsqs', b'version https://git-lfs.github.com/spec/v1\n' * 9):
        (place.store / 'tool.sif').write_bytes(content)
        assert 'is no container image' in refused(place, place.easyconfig())


def test_name_typo_and_missing_store(place):
    """The message says where was looked, what is there, and what to do."""
    message = refused(place, place.easyconfig(image='tol.sif'))
    assert 'Similar names: tool.sif.' in message and 'HPC_IMAGE_SEARCH_PATH' in message
    shutil.rmtree(place.store)
    message = refused(place, place.easyconfig())
    assert '%s (no such directory)' % place.store in message


def test_bad_data(place):
    """An easyconfig that cannot be meant so."""
    assert 'names no image' in refused(place, without_sources(place))
    assert "'/a,b'" in refused(place, place.easyconfig("bind_paths = ['/a,b']"))
    assert "'scratch'" in refused(place, place.easyconfig("bind_paths = ['scratch']"))
    for name in ('get-master', 'bash', '../x', 'a b'):
        assert repr(name) in refused(place, place.easyconfig('wrappers = [%r]' % name))


def without_sources(place):
    """An easyconfig that names no image."""
    path = place.easyconfig()
    lines = path.read_text().splitlines()
    path.write_text('\n'.join(line for line in lines if not line.startswith(('sources', 'checksums'))) + '\n')
    return path


@contextmanager
def disk(directory, kilobytes):
    """A file system of its own at a new directory, with so much room."""
    directory.mkdir()
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=%dk' % kilobytes, 'tmpfs', directory], check=True)
    try:
        yield
    finally:
        subprocess.run(['umount', directory], check=True)


def test_prefix_full(place):
    """Said with what to do."""
    with disk(place.eb.prefix, 1024):
        message = refused(place, place.easyconfig())
    assert 'No space left' in message and 'copy_image = False' in message


def test_disk_fills_up(place):
    """Where it is only seen while copying: nothing of it is left."""
    image = place.store / 'tool.sif'
    with disk(place.directory / 'disk', image.stat().st_size * 3 // 2 // 1024):
        image = shutil.copy(image, place.directory / 'disk')
        os.chown(image, place.user.pw_uid, place.user.pw_gid)
        place.eb.prefix = place.directory / 'disk' / 'prefix'
        assert 'No space left' in refused(place, place.easyconfig(), env={'HPC_IMAGE_SEARCH_PATH': str(
            place.directory / 'disk')})


def test_prefix_on_another_disk(place):
    """The image is copied."""
    with disk(place.eb.prefix, 100 * 1024):
        place.install(place.easyconfig())
        assert sha256(installed(place) / 'tool.sif') == sha256(place.store / 'tool.sif')


@pytest.fixture
def without_runtime(place):
    """A path on which there is neither singularity nor apptainer, as on some login nodes."""
    programs = place.directory / 'programs'
    programs.mkdir()
    for directory in ('/usr/bin', '/bin', '/usr/sbin', '/sbin'):
        for name in os.listdir(directory):
            if name not in ('singularity', 'apptainer', 'run-singularity') and not (programs / name).is_symlink():
                (programs / name).symlink_to(os.path.join(directory, name))
    return str(programs)


def test_without_runtime(place, without_runtime):
    """Installs, and says that nothing was checked in the container; refuses what cannot be done."""
    output = place.install(place.easyconfig("wrappers = ['sort']"), env={'PATH': without_runtime})
    assert 'nothing was checked in the container' in output
    place.give_to_user()
    output = place.as_user('sort; echo "status $?"', 'Tool', env={'PATH': without_runtime})
    assert 'neither singularity nor apptainer' in output and 'status 127' in output
    shutil.rmtree(place.eb.prefix)
    assert 'ignoring error' not in place.install(place.easyconfig('venv = True'), '-x', env={'PATH': without_runtime})
    message = refused(place, place.easyconfig('venv = True'), env={'PATH': without_runtime})
    assert 'Install on a node that has one' in message


# -- wrappers

WORDS = ['a b', "c'd", '"', '$HOME', '`id`', '$(id)', 'new\nline', '', '*', '\\', '-x', '--help', ';', 'ü', '!']


def test_wrappers_change_nothing(place):
    """Arguments, input, output, exit status and signals."""
    place.install(place.easyconfig("wrappers = ['cat']"))
    place.give_to_user()
    words = ' '.join(map(shlex.quote, WORDS))
    output = place.as_user('''
        inside() { run-in-container "$@" 2> /dev/null; }
        words=(%s)
        diff <(printf '<%%s>' "${words[@]}") <(inside printf '<%%s>' "${words[@]}") && echo same
        printf 'in\\0put' | cat 2> /dev/null | od -An -c
        inside bash -c 'exit 42'; echo "status $?"
        inside bash -c 'kill -TERM $$'; echo "status $?"
        run-in-container bash -c 'echo out; echo err >&2' 2>&1 > /dev/null | grep -c '^err$'
        waits='trap "echo caught; exit 3" TERM; echo ready; while :; do sleep 0.1; done'
        run-in-container bash -c "$waits" > log 2> errors &
        until grep -q ready log; do sleep 0.05; done
        kill -TERM $!; wait $!; echo "status $?"; /bin/cat log
    ''' % words, 'Tool')
    lines = output.splitlines()
    assert 'same' in lines, output
    assert '   i   n  \\0   p   u   t' in lines
    assert lines.count('status 42') == 1 and lines.count('status 143') == 1 and lines.count('status 3') == 1
    assert '1' in lines and 'caught' in lines


def test_image_deleted_while_in_use(place):
    """What runs runs on; what starts later says what happened; loading again finds the site's image."""
    place.install(place.easyconfig("wrappers = ['ls']"))
    place.give_to_user()
    output = place.as_user('''
        mkfifo go
        waits='echo started; read -r _ < go; ls /bin/mktemp; echo finished'
        run-in-container bash -c "$waits" > log 2> errors &
        until grep -q started log; do sleep 0.05; done
        rm "$SIF"
        ls; echo "status $?"
        echo > go; wait $!; echo "first $?"
        cat log
        module unload Tool; module load Tool
        ls /bin/mktemp; echo "second $?"
    ''', 'Tool')
    assert 'is gone: type module load Tool/1.0' in output and 'status 127' in output
    assert 'first 0' in output and 'finished' in output and 'second 0' in output


def test_in_a_container_with_nothing_but_coreutils(place):
    """The scripts for inside need no more, and those for outside say that they are."""
    place.install(place.easyconfig())
    place.give_to_user()
    output = place.as_user('''
        inside() { singularity -s exec "$SIF" "$@"; }
        inside get-master 'nid[003-005]'
        inside env GPU_CORES=1-7 cpu-mask
        inside conda-python-distributed x.py; echo "status $?"
        export SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0
        export SLURM_NODEID=0 SLURM_JOB_ID=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_STEP_NODELIST=n1
        inside conda-python-distributed x.py; echo "status $?"
        inside make-squashfs; inside run-in-container true; inside start-shell -c 'echo "shell in $0"'
        start-shell -c 'echo "shell from $0"' 2> /dev/null
        export image=cat.png module=last scripts=mine; run-in-container env | sort
        start-shell -c 'echo "a shell with $scripts"' 2> /dev/null
    ''', 'Tool', env=dict(TMPDIR=str(place.home)))
    assert 'nid003\n' in output and '0xfe\n' in output
    assert 'no launcher started this' in output and 'status 1\n' in output
    assert 'python: not found' in output and 'status 127' in output
    assert 'make-squashfs: run this outside' in output and 'works outside only: in the container' in output
    assert 'shell in ' in output and 'shell from ' in output
    assert 'a shell with mine\n' in output
    assert re.search('\nimage=cat.png\n(.*\n)*module=last\n(.*\n)*scripts=mine\n', output), "a user's own variables"
    assert not list(place.home.glob('conda-python*'))


def test_user_is_not_root(place):
    """The tests above mean what they say."""
    assert place.as_user('id -un').strip() == containers.USER
