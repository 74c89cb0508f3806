"""What the module of a container decides when it is loaded, in both syntaxes and with both modules tools."""
import os
import shutil
import subprocess

import pytest
from common import ModulesTool
from lumi.lumi_site import small_place
from containers import images as containers

pytestmark = pytest.mark.slow

# the modules tool, and the syntax of the module files
TOOLS = [('Lmod', 'Lua'), ('Lmod', 'Tcl'), ('Environment Modules', 'Tcl')]
OPTIONS = {'Lua': ['--module-syntax=Lua', '--modules-tool=Lmod'], 'Tcl': ['--module-syntax=Tcl', '--modules-tool=Lmod']}
# means nothing special to anybody
COLOUR = r'dark $blue [b] \x'
SHOW = r"""
show() { for name in SIF SIFTOOL RUNSCRIPTS RUNSCRIPTSTOOL CONTAINERROOT SINGULARITY_BINDPATH SINGULARITY_BIND \
                     APPTAINER_BINDPATH APPTAINER_BIND SINGULARITYENV_PREPEND_PATH APPTAINERENV_PREPEND_PATH \
                     SINGULARITYENV_COLOUR APPTAINERENV_COLOUR NCCL_SOCKET_IFNAME EBROOTTOOL; do
             printf '%s %s=%s\n' "$1" "$name" "${!name-UNSET}"
         done; }
"""


@pytest.fixture(scope='module', params=TOOLS, ids='-'.join)
def installed(request, small_image):
    """A place with the container installed, once for each kind of module file and tool, and the name of the tool."""
    tool, syntax = request.param
    with small_place(small_image) as place:
        (place.directory / 'project').mkdir()
        easyconfig = place.easyconfig("bind_paths = ['%s', '%s']\ncontainer_environment = {'COLOUR': %r}" % (
            place.directory / 'project', place.directory / 'scratch', COLOUR))
        place.install(easyconfig, *OPTIONS[syntax])
        # the module file alone, made from what is installed, is the same
        module = next(path for path in (place.eb.modules / 'Tool').iterdir())
        text = module.read_text()
        place.install(easyconfig, '--module-only', '--force', *OPTIONS[syntax])
        assert module.read_text() == text
        yield place, tool


@pytest.fixture
def shell(installed, small_image):
    """A function that runs a script in a shell that can load the module; everything is as just installed."""
    place, tool = installed
    root = place.eb.prefix / 'software' / 'Tool' / '1.0'
    place.store.mkdir(exist_ok=True)
    for path in (place.store, root):
        shutil.copy(small_image, path / 'tool.sif')
    subprocess.run(['rm', '-rf', place.directory / 'scratch', *root.glob('user-software*')], check=True)

    def run(script, status=0):
        return ModulesTool(tool).run('module use %s\n%s\n%s' % (place.eb.modules, SHOW, script),
                                     env=containers.FOR_ROOT, status=status)
    run.place, run.root = place, root
    return run


def values(output, mark):
    """What `show MARK` printed."""
    lines = [line[len(mark) + 1:] for line in output.splitlines() if line.startswith(mark + ' ') and '=' in line]
    assert lines, output
    return dict(line.split('=', 1) for line in lines)


def test_life_of_a_module(shell):
    """Variables; the user's own image, the site's, none; what is not there is not bound; unloading leaves nothing."""
    root, place = shell.root, shell.place
    output = shell("""
        export SINGULARITY_BIND=/usr/share
        show before
        module load Tool; show loaded
        rm "$SIF"
        module unload Tool; show unloaded
        module load Tool; show central
        singularity -s exec "$SIF" true && echo "the central image runs"
        mv %s %s.away
        module unload Tool; show after
        module load Tool; echo "status $?"; show failed
        module unload Tool; echo "unload $?"
        mv %s.away %s
        module load Tool; show again
        mv %s %s.away
        module purge; show purged
    """ % ((place.store,) * 6))
    loaded = values(output, 'loaded')
    mounts = '/usr/share,%s/runscripts:/runscripts' % root
    assert loaded['SIF'] == loaded['SIFTOOL'] == '%s/tool.sif' % root
    assert loaded['RUNSCRIPTS'] == loaded['RUNSCRIPTSTOOL'] == '%s/runscripts' % root
    assert loaded['CONTAINERROOT'] == loaded['EBROOTTOOL'] == str(root)
    assert loaded['SINGULARITY_BIND'] == mounts
    assert loaded['APPTAINER_BIND'] == mounts.replace('/usr/share,', '')
    assert str(place.directory / 'project') in loaded['SINGULARITY_BINDPATH'].split(',')
    assert str(place.directory / 'scratch') not in output
    assert all(os.path.exists(path) for path in loaded['SINGULARITY_BINDPATH'].split(','))
    assert loaded['APPTAINER_BINDPATH'] == loaded['SINGULARITY_BINDPATH']
    assert loaded['SINGULARITYENV_PREPEND_PATH'] == loaded['APPTAINERENV_PREPEND_PATH'] == '/runscripts'
    assert loaded['SINGULARITYENV_COLOUR'] == loaded['APPTAINERENV_COLOUR'] == COLOUR
    assert loaded['NCCL_SOCKET_IFNAME'] == 'hsn0,hsn1,hsn2,hsn3'
    of_the_site = '%s/tool.sif' % place.store
    assert values(output, 'central') == dict(loaded, SIF=of_the_site, SIFTOOL=of_the_site)
    assert "the central image runs" in output
    before = values(output, 'before')
    for mark in ('unloaded', 'after', 'failed', 'purged'):
        assert values(output, mark) == before, mark
    assert "status 1" in output and "unload 0" in output
    message = output[output.index('cannot be loaded'):output.index('status 1')]
    assert 'its image tool.sif is gone' in ' '.join(message.split())
    assert values(output, 'again') == values(output, 'central')


def test_bind_paths_that_come_and_go(shell):
    """What is bound depends on what is there at that time, and unloading does not."""
    scratch = shell.place.directory / 'scratch'
    output = shell("""
        show before
        mkdir %s; module load Tool; show there
        rmdir %s; module unload Tool; show after
    """ % (scratch, scratch))
    assert str(scratch) in values(output, 'there')['SINGULARITY_BINDPATH'].split(',')
    assert values(output, 'after') == values(output, 'before')


def test_packed_or_unpacked(shell):
    """The directory, the file, or neither is mounted; changing it while the module is loaded does no harm."""
    root = shell.root
    look = 'singularity -s exec "$SIF" cat /user-software/file'
    output = shell("""
        show before
        mkdir %s/user-software; echo unpacked > %s/user-software/file
        module load Tool; show unpacked; %s
        make-squashfs || exit
        module unload Tool; show after
        module load Tool; show packed; %s
        singularity -s exec "$SIF" touch /user-software/file 2>&1 | grep -o 'Read-only file system'
        make-squashfs; echo "second $?"
        unmake-squashfs || exit
        module unload Tool; show later
        module load Tool; show again; %s
        unmake-squashfs; echo "third $?"
    """ % (root, root, look, look, look))
    assert values(output, 'unpacked')['SINGULARITY_BIND'].endswith(',%s/user-software:/user-software' % root)
    assert values(output, 'packed')['APPTAINER_BIND'].endswith(
        ',%s/user-software.squashfs:/user-software:image-src=/user-software' % root)
    assert values(output, 'again') == values(output, 'unpacked')
    assert values(output, 'after') == values(output, 'later') == values(output, 'before')
    assert output.count('\nunpacked\n') == 3, output
    assert 'Read-only file system' in output
    assert 'second 1' in output and 'there is no directory' in output
    assert 'third 1' in output and 'there is no file' in output
    assert not [name for name in os.listdir(root) if 'squashfs' in name]


def test_looking_at_a_module_whose_image_is_gone(shell):
    """`module show`, `help`, `whatis` and `avail` do not fail."""
    shutil.rmtree(shell.place.store)
    (shell.root / 'tool.sif').unlink()
    for command in ('show Tool/1.0', 'help Tool/1.0', 'whatis Tool/1.0', 'avail'):
        output = shell('module -t %s 2>&1' % command if command == 'avail' else 'module %s 2>&1' % command)
        assert 'Tool' in output
    assert '$SIFTOOL' in shell('module help Tool/1.0 2>&1')


def test_quiet(shell):
    """The runtime has nothing to complain of: no variable that it does not want, no mount that is there twice."""
    output = shell('module load Tool; singularity exec "$SIF" true 2>&1; echo "status $?"')
    complaints = [line for line in output.splitlines() if 'SINGULARITY' in line or 'mount' in line.lower()]
    assert not complaints and 'status 0' in output
