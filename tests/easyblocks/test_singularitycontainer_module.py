"""
What the module of a container decides when it is loaded (hpc_pytorch/packages/container_modules.py), in both syntaxes
and with both modules tools.
"""
import os
import shutil
import subprocess

import pytest
from common import ModulesTool, nightly
from lumi.lumi_site import small_place
from containers import images as containers

pytestmark = pytest.mark.slow

# the modules tool, and the syntax of the module files
TOOLS = [('Lmod', 'Lua'), nightly(('Lmod', 'Tcl')), ('Environment Modules', 'Tcl')]
OPTIONS = {'Lua': ['--module-syntax=Lua', '--modules-tool=Lmod'], 'Tcl': ['--module-syntax=Tcl', '--modules-tool=Lmod']}
# of variables, in which the runtimes look
FAMILIES = ('SINGULARITY', 'APPTAINER')
SHOW = r"""
show() { for name in SIF SIFTOOL RUNSCRIPTS RUNSCRIPTSTOOL CONTAINERROOT SINGULARITY_BINDPATH SINGULARITY_BIND \
                     APPTAINER_BINDPATH APPTAINER_BIND SINGULARITYENV_PREPEND_PATH APPTAINERENV_PREPEND_PATH \
                     NCCL_SOCKET_IFNAME NCCL_NET_GDR_LEVEL PYTHONPATH \
                     EBROOTTOOL; do
             printf '%s %s=%s\n' "$1" "$name" "${!name-UNSET}"
         done; }
"""


@pytest.fixture(scope='module', params=TOOLS, ids='-'.join)
def installed(request, small_image):
    """A place with the container installed, once for each kind of module file and tool, and the name of the tool."""
    tool, syntax = request.param
    with small_place(small_image) as place:
        for name in ('project', 'mine', 'removed'):
            (place.directory / name).mkdir()
        easyconfig = place.easyconfig("bind_paths = ['%s', '%s']\nmodextravars = {'NCCL_SOCKET_IFNAME': 'hsn7'}\n"
                                      "image_software = {'rocm': '6.2'}" % (
            place.directory / 'project', place.directory / 'scratch'))
        place.install(easyconfig, place.easyconfig(name='Other'), *OPTIONS[syntax])
        site_modules(place.directory / 'site')
        # the module file alone, made from what is installed, is the same
        module = next(path for path in (place.eb.modules / 'Tool').iterdir())
        text = module.read_text()
        place.install(easyconfig, '--module-only', '--force', *OPTIONS[syntax])
        assert module.read_text() == text
        yield place, tool


def site_modules(directory):
    """What a site has for containers of its own; a file that both tools read."""
    directory.mkdir()
    (directory / 'singularity-AI-bindings').write_text('#%Module\nsetenv SINGULARITY_BIND /usr/share\n')


@pytest.fixture
def shell(installed, small_image):
    """A function that runs a script in a shell that can load the module; everything is as just installed."""
    place, tool = installed
    root = place.eb.prefix / 'software' / 'Tool' / '1.0'
    place.store.mkdir(exist_ok=True)
    for path in (place.store, root):
        shutil.copy(small_image, path / 'tool.sif')
    subprocess.run(['rm', '-rf', place.directory / 'scratch', *root.glob('*user-software*')], check=True)

    def run(script, status=0):
        use = 'module use %s %s\n' % (place.directory / 'site', place.eb.modules)
        return ModulesTool(tool).run('%s%s\n%s' % (use, SHOW, script), env=containers.FOR_ROOT, status=status)
    run.place, run.root, run.tool = place, root, tool
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
    mounts = '%s/runscripts:/runscripts' % root
    assert loaded['SIF'] == loaded['SIFTOOL'] == '%s/tool.sif' % root
    assert loaded['RUNSCRIPTS'] == loaded['RUNSCRIPTSTOOL'] == '%s/runscripts' % root
    assert loaded['CONTAINERROOT'] == loaded['EBROOTTOOL'] == str(root)
    assert (loaded['SINGULARITY_BIND'], loaded['APPTAINER_BIND']) == ('/usr/share', 'UNSET')
    assert mounts in loaded['SINGULARITY_BINDPATH'].split(',')
    assert str(place.directory / 'project') in loaded['SINGULARITY_BINDPATH'].split(',')
    assert str(place.directory / 'scratch') not in output
    assert all(os.path.exists(path.split(':')[0]) for path in loaded['SINGULARITY_BINDPATH'].split(','))
    assert loaded['APPTAINER_BINDPATH'] == loaded['SINGULARITY_BINDPATH']
    assert loaded['SINGULARITYENV_PREPEND_PATH'] == loaded['APPTAINERENV_PREPEND_PATH'] == '/runscripts'
    assert loaded['NCCL_SOCKET_IFNAME'] == 'hsn7', "what the easyconfig says, not the system"
    assert loaded['NCCL_NET_GDR_LEVEL'] == '3'
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
    """The file, once there is one, until it is unpacked; what is mounted elsewhere stays there in either case."""
    root = shell.root
    look = 'singularity -s exec "$SIF" cat /user-software/file'
    output = shell("""
        show before
        mkdir %s/user-software; echo unpacked > %s/user-software/file
        module load Tool; show unpacked; %s
        # what a kill -9 left
        mkdir $CONTAINERROOT/.make-squashfs.left
        make-squashfs || exit
        # as in a job that runs
        %s
        module unload Tool; show after
        module load Tool; show packed; %s
        chmod a-w $CONTAINERROOT/user-software.squashfs
        singularity exec "$SIF" cat /user-software/file 2>&1 | sed s/^/loud:/
        singularity -s exec "$SIF" touch /user-software/file 2>&1 | grep -o 'Read-only file system'
        make-squashfs; echo "second $?"
        rm -rf $CONTAINERROOT/user-software
        unmake-squashfs || exit
        %s
        module unload Tool; show later
        module load Tool; show again; %s
        unmake-squashfs; echo "third $?"
        echo changed > $CONTAINERROOT/user-software/file
        make-squashfs || exit
        module unload Tool; module load Tool; %s
        ls -A $CONTAINERROOT
    """ % (root, root, look, look, look, look, look, look))
    unpacked, packed = '%s/user-software:/user-software', '%s/user-software.squashfs:/user-software:ro,image-src=.'
    assert values(output, 'unpacked')['SINGULARITY_BINDPATH'].endswith(',' + unpacked % root)
    assert values(output, 'packed')['APPTAINER_BINDPATH'].endswith(',' + packed % root)
    assert values(output, 'again') == values(output, 'unpacked')
    assert values(output, 'after') == values(output, 'later') == values(output, 'before')
    assert [line for line in output.splitlines() if line.startswith('loud:')] == ['loud:unpacked']
    assert output.count('\nunpacked\n') == 5 and output.count('\nchanged\n') == 1, output
    assert 'Read-only file system' in output
    assert 'second 1' in output and 'it is packed' in output
    assert 'third 1' in output and 'it is unpacked' in output
    assert '.make-squashfs' not in output[output.rindex('changed'):]


def test_packed_by_others(shell):
    """By the site's own tools."""
    content = shell.place.directory / 'removed' / 'user-software'
    subprocess.run(['rm', '-rf', content], check=True)
    content.mkdir()
    (content / 'file').write_text('packed\n')
    packed = shell.root / 'user-software.squashfs'
    subprocess.run(['mksquashfs', content, packed, '-noappend', '-quiet', '-no-progress'], check=True,
                   stdout=subprocess.DEVNULL)
    # as each of the runtimes sees it
    look = ''.join('(unset -v $(compgen -v %s | grep -v CAPS)\n singularity -s exec "$SIF" cat /user-software/file '
                   '2>&1)\n' % family for family in FAMILIES)
    output = shell('module load Tool\n%sunmake-squashfs\nmodule unload Tool; module load Tool\n%s' % (look, look))
    assert output.count('packed\n') == 4, output


@pytest.mark.parametrize('name', ['BIND', 'BINDPATH'])
@pytest.mark.parametrize('family', FAMILIES)
def test_users_binds(shell, family, name):
    """They are mounted besides the module's, as Apptainer and as SingularityCE see it, and come through unloading."""
    mine, project = shell.place.directory / 'mine', shell.place.directory / 'project'
    after = '' if name == 'BINDPATH' else 'export %s_%s=%s:/after' % (family, name, mine)
    see = ('singularity -s exec "$SIF" bash -c \'for place in /mine /after /runscripts; do '
           'echo "$place $([ -e $place ] && echo yes)"; done; ls -d %s\'' % project)
    # SingularityCE knows one family
    alone = 'env -u APPTAINER_BIND -u APPTAINER_BINDPATH '
    output = shell("""
        export %s_%s=%s:/mine
        show before; module load Tool; show loaded
        echo as Apptainer; %s 2>&1
        echo as SingularityCE; %s 2>&1
        module unload Tool; show after; module load Tool; %s
        echo changed; %s 2>&1
        module unload Tool; show last
    """ % (family, name, mine, see, alone + see, after, see))
    assert values(output, 'after') == values(output, 'before')
    seen = output[output.index('as Apptainer'):output.index('as SingularityCE')]
    assert '/mine yes' in seen and '/runscripts yes' in seen and '\n%s\n' % project in seen, output
    seen = output[output.index('as SingularityCE'):output.index('after SIF=')]
    assert '/runscripts yes' in seen and '\n%s\n' % project in seen, output
    assert ('/mine yes' in seen) == (family == 'SINGULARITY'), output
    if after:
        seen = output[output.index('\nchanged\n'):]
        assert '/after yes' in seen and '/runscripts yes' in seen, output
        own = {'%s_%s' % (family, name): '%s:/after' % mine}
        assert values(output, 'last') == dict(values(output, 'before'), **own)


def test_users_settings(shell):
    """What the user has set stays, also when the module is unloaded; a $PYTHONPATH does not get into the container."""
    output = shell("""
        export NCCL_NET_GDR_LEVEL=PHB PYTHONPATH=/mine
        show before; module load Tool; show loaded
        for family in %s %s; do
            (unset -v $(compgen -v $family | grep -v CAPS)
             run-in-container bash -c 'echo "inside <$PYTHONPATH> <$PYTHONNOUSERSITE>"')
        done
        module unload Tool; show after
        unset NCCL_NET_GDR_LEVEL; module load Tool; show default; module unload Tool; show unset
        export PYTHONPATH=/yours
        module load Tool; module load Other 2> /dev/null
        singularity -s exec "$SIF" bash -c 'echo "without a script <$PYTHONPATH>"'
        module purge; show exchanged
    """ % FAMILIES)
    assert values(output, 'loaded')['NCCL_NET_GDR_LEVEL'] == 'PHB'
    assert values(output, 'after') == values(output, 'before')
    assert output.count('inside <> <1>\n') == 2 and 'without a script <>' in output
    assert values(output, 'exchanged')['PYTHONPATH'] == '/yours'
    assert values(output, 'default')['NCCL_NET_GDR_LEVEL'] == '3'
    assert values(output, 'unset')['NCCL_NET_GDR_LEVEL'] == 'UNSET'


def test_one_container_at_a_time(shell):
    """Lmod puts the second in the place of the first, Environment Modules refuses it; and so the site's own module."""
    output = shell("""
        show before; module load Tool; module load Other 2> /dev/null; echo "status $?"; show both
        echo "binds $SINGULARITY_BINDPATH"
        module purge; show after
        module load singularity-AI-bindings; module load Tool 2>&1; echo "with the site's $?"
    """)
    other = 'prefix/software/Other/1.0' if shell.tool == 'Lmod' else 'prefix/software/Tool/1.0'
    binds = output[output.index('\nbinds '):].splitlines()[1]
    assert binds.count(':/runscripts') == 1 and other + '/runscripts:/runscripts' in binds, output
    both = values(output, 'both')
    assert other in both['SIF'] and both['APPTAINER_BINDPATH'] == both['SINGULARITY_BINDPATH']
    assert values(output, 'after') == values(output, 'before')
    assert "with the site's 1" in output
    # which it asked not to see
    texts = {name: next((shell.place.eb.modules / name).iterdir()).read_text() for name in ('Tool', 'Other')}
    assert all('"/scratch"' in text for text in texts.values())
    # nor does its help speak of a setting of the system's that the easyconfig has otherwise
    assert 'NCCL_SOCKET_IFNAME=hsn' in texts['Other'] and 'NCCL_SOCKET_IFNAME=hsn' not in texts['Tool']


def test_looking_at_a_module_whose_image_is_gone(shell):
    """`module show`, `help`, `whatis` and `avail` do not fail."""
    shutil.rmtree(shell.place.store)
    (shell.root / 'tool.sif').unlink()
    for command in ('show Tool/1.0', 'help Tool/1.0', 'whatis Tool/1.0', 'avail'):
        output = shell('module -t %s 2>&1' % command if command == 'avail' else 'module %s 2>&1' % command)
        assert 'Tool' in output
    text = shell('module help Tool/1.0 2>&1')
    assert '$SIFTOOL' in text and 'train.py' not in text and 'pytorch-srun: starts' not in text, "it has no PyTorch"


def test_quiet(shell):
    """The runtime has nothing to complain of: no variable that it does not want, no mount that is there twice."""
    output = shell('module load Tool; singularity exec "$SIF" true 2>&1; echo "status $?"')
    complaints = [line for line in output.splitlines() if 'SINGULARITY' in line or 'mount' in line.lower()]
    assert not complaints and 'status 0' in output
