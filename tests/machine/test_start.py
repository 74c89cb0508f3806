"""./eb as a user meets it: what it chooses, what it says, and what it says when it cannot."""
import errno
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stand_ins import test_rehearsal
from common import CHECKOUT, EB, FOR_ROOT, LMOD, clean_environment, needs_root, nightly, slow, stand_in

from hpc_pytorch import start
from hpc_pytorch.machine.modules import ModulesShell

WORKSTATION = 'PyTorch-2.13.0-workstation.eb'

ENVIRONMENTS = CHECKOUT / 'hpc_pytorch/environments'


def test_says_what_it_chose_and_why(eb):
    """One line, before anything else."""
    first = eb(WORKSTATION, '-D').stdout.splitlines()[0]
    assert first.startswith('eb: system workstation (')
    assert "the name of " + WORKSTATION in first


@pytest.mark.parametrize('arguments, env, reason', [
    (['--system', 'archer2'], {}, 'archer2 (chosen by --system'),
    (['--system=archer2'], {'HPC_SYSTEM': 'workstation'}, 'archer2 (chosen by --system'),
    ([], {'HPC_SYSTEM': 'archer2'}, 'archer2 (chosen by $HPC_SYSTEM'),
    ([], {}, 'workstation (the default'),
])
def test_order_of_choice(eb, arguments, env, reason):
    """--system, then $HPC_SYSTEM, then the rest."""
    assert eb(*arguments, '--version', env=env).stdout.startswith('eb: system ' + reason)


def test_locale_that_is_not_installed(tmp_path):
    """ssh brings the one of the user's own computer; EasyBuild took bash's warning for a number."""
    done = subprocess.run([CHECKOUT / 'eb', '-x', WORKSTATION, '--prefix', tmp_path], text=True,
                          env=dict(clean_environment(), HOME=str(tmp_path), LC_ALL='xx_YY.UTF-8'),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and 'invalid literal' not in done.stdout, done.stdout


@pytest.mark.parametrize('arguments, refused', [([], True), (['--system=archer2'], False)])
def test_easyconfig_of_another_system(tmp_path, arguments, refused):
    """The host name decides, but no installation gets another system's settings without a word."""
    needs_root()
    command = ['unshare', '--uts', 'sh', '-c', 'hostname derecho1; exec "$@"', 'sh', CHECKOUT / 'eb', '-D']
    done = subprocess.run([*command, 'PyTorch-2.13.0-ARCHER2-whl.eb', *arguments], stdin=subprocess.DEVNULL, text=True,
                          env=dict(clean_environment(), HOME=str(tmp_path)), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert (('ERROR: PyTorch-2.13.0-ARCHER2-whl.eb is for archer2: add --system=archer2, or --system=derecho if '
             in done.stdout) is refused), done.stdout


@pytest.mark.parametrize('arguments, words', [
    (['--system', 'archer', WORKSTATION], ["'archer'", 'did you mean archer2?']),
    (['--system'], ['(from --system)', 'workstation']),
    # not what EasyBuild lacks: sbatch
    (['--system', 'workstation', WORKSTATION, '--job'], ['--job: ', 'has no batch system', 'Install without --job']),
    (['--job-status=113'], ['--job-status takes no value']),
    (['--system', 'workstation', '--survey', '--job'], ['--job: ', 'has no batch system']),
    # EasyBuild's own words
    (['PyTorch-2.13.0-workstaton.eb'], ['files not found', 'PyTorch-2.13.0-workstaton.eb', 'easyconfigs']),
    slow(['PyTorch-2.13.0-workstation', '--robot'], ['files not found', 'PyTorch-2.13.0-workstation']),
])
def test_bad_input(tmp_path, arguments, words):
    """One clear line and an exit status."""
    # the prefix and source path that the fixture appends would be taken for the missing name
    done = subprocess.run([str(CHECKOUT / 'eb'), *arguments], env=dict(clean_environment(), HOME=str(tmp_path)),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode
    error = next(line for line in done.stdout.splitlines() if line.startswith('ERROR: '))
    for word in words:
        assert word in error
    assert 'Traceback' not in done.stdout


@pytest.mark.parametrize('arguments', ['--version', '--survey'])
def test_closed_standard_output(tmp_path, arguments):
    """As some daemons start programs: nothing is printed, and nothing is written to a file instead."""
    done = subprocess.run(['bash', '-c', '"$0" --system=workstation %s >&-' % arguments, str(CHECKOUT / 'eb')],
                          env=dict(clean_environment(), HOME=str(tmp_path)), cwd=tmp_path, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert 'Traceback' not in done.stderr and 'eb: system workstation' in done.stderr and done.stdout == ''


def test_help_shows_both(eb):
    """Our options come before EasyBuild's."""
    output = eb('--help').stdout
    assert output.index('--rehearse') < output.index('--robot')


def test_root_is_told(eb):
    """As root the consent is given in one line; as another user it is not."""
    output = eb(WORKSTATION, '-D').stdout
    assert ('passing EasyBuild\'s --allow-use-as-root' in output) == (os.geteuid() == 0)


def test_byte_code_is_kept():
    """Else each call compiles all of EasyBuild, a second of it."""
    code = 'import sys, hpc_pytorch.start; sys.exit(sys.dont_write_bytecode)'
    subprocess.run([CHECKOUT / '.venv/bin/python', '-I', '-O', '-c', code], check=True)


def test_users_python_does_not_get_in(eb, tmp_path):
    """Neither $PYTHONPATH nor $PYTHONSTARTUP nor $PYTHONHOME reaches EasyBuild."""
    for name in ('easybuild', 'yaml', 'configparser'):
        (tmp_path / ('%s.py' % name)).write_text("raise SystemExit('the user\\'s %s was imported')" % name)
    eb(WORKSTATION, '-D', env={'PYTHONPATH': str(tmp_path), 'PYTHONSTARTUP': str(tmp_path / 'yaml.py')})


def test_users_configuration_wins(eb, tmp_path):
    """A configuration file of the user's is read after the system's."""
    mine = tmp_path / 'mine.cfg'
    mine.write_text('[config]\nbuildpath = %s\nmodule-syntax = Tcl\n' % (tmp_path / 'elsewhere'))
    output = eb('--show-config', env={'EASYBUILD_CONFIGFILES': str(mine)}).stdout
    assert str(tmp_path / 'elsewhere') in output
    assert re.search(r'module-syntax +\(.\) = Tcl\n', output), output
    mine.write_text('[config]\nmodules-tool = EnvironmentModules\nmodule-syntax = Tcl\n')
    output = eb('--show-config', env={'EASYBUILD_CONFIGFILES': str(mine)}).stdout
    assert re.search(r'modules-tool +\(.\) = EnvironmentModules\n', output), output


def test_commits_are_no_versions_of_easybuild():
    """Module files name EasyBuild's version; --check compares them with those of today, after each `git pull`."""
    # one that was not started beforehand
    output = subprocess.run([CHECKOUT / 'eb', '--version'], env=clean_environment(), text=True, check=True,
                            stdout=subprocess.PIPE).stdout
    assert re.search(r'This is EasyBuild \d+\.\d+\.\d+ \(', output), output


@pytest.mark.parametrize('text, words', [
    ('[config]\nbuildpath = /x\n[config]\n', ["section 'config' already exists"]),
    slow('buildpath = /x\n', ['File contains no section headers']),
    slow('[config]\nbuildpth = /x\n', ['no option', 'buildpth']),
    slow('[config]\nbuildpath = %(SCRATCH)s\n', ['SCRATCH']),
])
def test_broken_configuration(eb, tmp_path, text, words):
    """One sentence, with the file's name; EasyBuild shows a traceback."""
    mine = tmp_path / 'mine.cfg'
    mine.write_text(text)
    output = eb('--show-config', env={'EASYBUILD_CONFIGFILES': str(mine)}, status=1).stdout
    error = output.splitlines()[-1]
    for word in ["ERROR: EasyBuild's configuration cannot be read (", "%s): " % mine, *words]:
        assert word in error, output


def test_easyconfigs_elsewhere(eb, tmp_path):
    """Directories of the user's own do not hide the collection's easyconfigs, and come first."""
    mine = tmp_path / 'mine.cfg'
    mine.write_text('[basic]\nrobot-paths = %s\n' % tmp_path)
    own = tmp_path / 'own-1.0.eb'
    own.write_text(test_rehearsal.EASYCONFIG.split('dependencies')[0].replace("'toy'", "'own'"))
    for env in ({'EASYBUILD_ROBOT_PATHS': str(tmp_path)}, {'EASYBUILD_CONFIGFILES': str(mine)}):
        output = eb(WORKSTATION, 'own-1.0.eb', '-D', env=env).stdout
        assert 'PyTorch/2.13.0-workstation' in output and 'own/1.0' in output


@pytest.mark.parametrize('easyconfig, version, words', [
    ('torch_mpi-2.0.0-PyTorch-2.15.0-workstation.eb', '2.1.0', ['This collection has torch_mpi 2.0.0', 'says 2.1.0']),
    slow(WORKSTATION, '2.13.1', ['The lock file has torch 2.13.0', 'the easyconfig says 2.13.1']),
])
def test_other_version_in_a_dry_run(eb, easyconfig, version, words):
    """What would stop it is named; once it was "Easyconfig file is empty", or nothing."""
    output = eb(easyconfig, '--try-software-version=%s' % version, '-x').stdout
    for word in words:
        assert word in output.partition('Installing would stop:')[2], output


def test_missing_external_modules(eb, tmp_path):
    """The first that is missing, where it was looked for, and --rehearse."""
    easyconfig = tmp_path / 'toy-1.0.eb'
    easyconfig.write_text("""easyblock = 'Toolchain'
name = 'toy'
version = '1.0'
homepage = 'https://example.org'
description = 'toy'
toolchain = SYSTEM
dependencies = [('no-such-module/1.0', EXTERNAL_MODULE), ('nor-this/2', EXTERNAL_MODULE)]
""")
    output = eb(easyconfig, '-D', status=None, env={'MODULEPATH': str(tmp_path)})
    assert output.returncode != 0
    assert 'cannot be loaded: no-such-module/1.0; loaded before it: nothing; no version of it is here' in output.stdout
    assert str(tmp_path) in output.stdout
    assert './eb --rehearse toy-1.0.eb' in output.stdout
    # one that is there, and excludes what the user has loaded
    for name, text in (('no-such-module', 'conflict theirs\n'), ('theirs', '')):
        (tmp_path / name).mkdir()
        (tmp_path / name / '1.0').write_text('#%Module1.0\n' + text)
    loaded = ModulesShell(LMOD, dict(os.environ, MODULEPATH=str(tmp_path)))
    assert loaded.load(['theirs']) is None
    output = eb(easyconfig, '-D', status=None, env=loaded.environ).stdout
    assert 'it exists, but loading it fails' in output and 'name another version' not in output
    assert 'If it excludes a module that you have loaded (module list), unload that one' in output


@pytest.fixture
def read_only(tmp_path):
    """A directory that even root cannot write to."""
    place = tmp_path / 'read-only'
    place.mkdir()
    if os.geteuid() == 0:
        subprocess.run(['mount', '-t', 'tmpfs', '-o', 'ro,size=1M', 'none', str(place)], check=True)
        yield place
        subprocess.run(['umount', str(place)], check=True)
    else:
        place.chmod(0o555)
        yield place


def test_read_only_prefix(tmp_path, read_only):
    """Said at once, with the option to choose another."""
    output = EB(read_only / 'prefix')(WORKSTATION, '--robot', status=None)
    assert output.returncode != 0
    assert 'cannot be written to' in output.stdout and 'Choose another with --prefix' in output.stdout


@pytest.mark.slow
def test_read_only_home(eb, tmp_path, read_only):
    """The environment of ./eb is made, and a prefix elsewhere is all that an easyconfig needs."""
    home = {'HOME': str(read_only), 'XDG_CACHE_HOME': ''}
    # EasyBuild is built of its source, which pip would cache
    lock = tmp_path / 'lock'
    lock.write_text(re.search(r'easybuild-easyblocks==.*\n.*--hash.*\n', (ENVIRONMENTS / 'eb.txt').read_text()).group())
    done = subprocess.run([ENVIRONMENTS / 'make-environment', tmp_path / 'venv', lock], stdin=subprocess.DEVNULL,
                          env=dict(clean_environment(), **home), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    assert done.returncode == 0, done.stdout
    assert 'DRY RUN' in eb(WORKSTATION, '-x', env=home).stdout


def test_nothing_stays_in_tmp(eb, tmp_path):
    """EasyBuild itself leaves a directory there where it only prints."""
    place = tmp_path / 'temporary'
    place.mkdir()
    for word in ('--version', '--help'):
        eb(word, env={'TMPDIR': str(place)})
    assert not list(place.iterdir())


@pytest.fixture
def small_lock(tmp_path):
    """One package, in place of all that ./eb needs: how an environment is made is the same."""
    lock = tmp_path / 'eb.txt'
    lock.write_text(re.search(r'^uv==.*\n(?:.*--hash.*\n)+', (ENVIRONMENTS / 'eb.txt').read_text(), re.M).group())
    return lock


def run_make_environment(directory, lock=ENVIRONMENTS / 'eb.txt', **environment):
    """The script that makes the environment of ./eb, on a directory of the test's."""
    command = [ENVIRONMENTS / 'make-environment', directory, lock]
    return subprocess.run(command, env=dict(clean_environment(), **environment),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_too_old_python(tmp_path):
    """The first call says which Python is needed and which was found."""
    tools = tmp_path / 'bin'
    tools.mkdir()
    for name in ('bash', 'env', 'dirname', 'readlink', 'mkdir', 'flock', 'rm', 'touch'):
        (tools / name).symlink_to(shutil.which(name))
    old = tools / 'python3'
    old.write_text('#!/bin/bash\nif [ "$1" = -V ]; then echo "Python 3.6.8"; fi\nexit 1\n')
    old.chmod(0o755)
    done = run_make_environment(tmp_path / 'venv', PATH=str(tools))
    assert done.returncode == 1
    assert 'Python 3.9 or newer is needed; found: Python 3.6.8' in done.stdout
    assert not (tmp_path / 'venv').exists()
    old.unlink()
    assert 'needed; found: none. Install one' in run_make_environment(tmp_path / 'venv', PATH=str(tools)).stdout


@pytest.mark.parametrize('python, says', [(None, 'clone the collection to a directory of yours'),
                                          (sys.executable, 'ask them to type ./eb there once')])
def test_environment_of_somebody_else(read_only, python, says):
    """Whoever cannot run its Python, or finds it outdated, cannot mend it either, and is told so in a line."""
    subprocess.run(['mount', '-o', 'remount,rw', str(read_only)], check=not os.geteuid())
    read_only.chmod(0o755)
    (read_only / 'venv.lock').mkdir()
    (read_only / 'venv.lock/lock').touch()
    if python:
        (read_only / 'venv/bin').mkdir(parents=True)
        (read_only / 'venv/bin/python').symlink_to(python)
    subprocess.run(['mount', '-o', 'remount,ro', str(read_only)], check=not os.geteuid())
    (read_only / 'venv.lock/lock').chmod(0o444) if os.geteuid() else None
    done = run_make_environment(read_only / 'venv')
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 1, done.stdout
    assert says in done.stdout


def test_environment_of_a_colleague(tmp_path):
    """Where a group may write to the checkout, an outdated one is not replaced by one that its owner cannot replace."""
    needs_root()
    (tmp_path / 'venv/bin').mkdir(parents=True)
    (tmp_path / 'venv/bin/python').symlink_to(sys.executable)
    os.chown(tmp_path / 'venv', 65534, 65534)
    done = run_make_environment(tmp_path / 'venv')
    assert done.returncode == 1 and 'ask them to type ./eb there once' in done.stdout, done.stdout
    assert (tmp_path / 'venv/bin/python').exists()


@pytest.mark.parametrize('python', [
    # as those that EasyBuild builds do where their module is not loaded
    'echo "python: error while loading shared libraries: libpython3.so" >&2; exit 127',
    # after an upgrade of the system, it looks for packages in another directory
    'exec %s -I -S "$@"' % shlex.quote(sys.executable),
])
def test_environment_of_another_python(tmp_path, python):
    """Its Python does not start, or is not the one that its packages are for."""
    shutil.copy(CHECKOUT / 'eb', tmp_path)
    (tmp_path / '.venv/bin').mkdir(parents=True)
    (tmp_path / '.venv/bin/python').write_text('#!/bin/sh\n%s\n' % python)
    (tmp_path / '.venv/bin/python').chmod(0o755)
    (tmp_path / 'hpc_pytorch/environments').mkdir(parents=True)
    (tmp_path / 'hpc_pytorch/environments/eb.txt').touch()
    (tmp_path / '.venv/.complete').touch()
    os.utime(tmp_path / 'hpc_pytorch/environments/eb.txt', (1, 1))
    done = subprocess.run([tmp_path / 'eb', '--version'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 1
    assert done.stdout.endswith('load its module, or remove %s.\n' % (tmp_path / '.venv')), done.stdout


# an index that nobody listens at, and no other place to get packages from
NO_NETWORK = {'PIP_CONFIG_FILE': os.devnull, 'PIP_INDEX_URL': 'http://127.0.0.1:9/simple', 'PIP_RETRIES': '0',
              'PIP_FIND_LINKS': '', 'PIP_EXTRA_INDEX_URL': ''}


@pytest.mark.slow
def test_no_network_at_first_call(tmp_path, small_lock):
    """Says that the index could not be reached; the next call, with a network, ends well, whatever pip was told."""
    done = run_make_environment(tmp_path / 'venv', small_lock, **NO_NETWORK)
    assert done.returncode
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith('ERROR: the package index could not be reached')
    assert not (tmp_path / 'venv' / '.complete').exists()
    (tmp_path / 'versions').write_text('uv<0.1\n')
    done = run_make_environment(tmp_path / 'venv', small_lock, PIP_USER='1', PIP_REQUIRE_VIRTUALENV='1',
                                PIP_CONSTRAINT=str(tmp_path / 'versions'))
    assert done.returncode == 0, done.stdout
    assert (tmp_path / 'venv' / 'bin' / 'uv').exists()
    # its Python was 3.8 before the system was upgraded
    place = next(tmp_path.glob('venv/lib/python3*'))
    place.rename(place.with_name('python3.8'))
    assert 'Making ' in run_make_environment(tmp_path / 'venv', small_lock).stdout
    assert place.exists() and not place.with_name('python3.8').exists()


@pytest.mark.slow
@pytest.mark.parametrize('parts', [(0.4,), nightly((0.02, 0.15, 0.7, 0.95))])
def test_interrupted_first_call(tmp_path, small_lock, parts):
    """Killed at any moment, the environment is made anew by the next call, and never used half-made."""
    directory = tmp_path / 'venv'
    begin = time.monotonic()
    assert run_make_environment(directory, small_lock).returncode == 0
    duration = time.monotonic() - begin
    (directory / '.complete').unlink()
    for part in parts:
        running = subprocess.Popen([ENVIRONMENTS / 'make-environment', directory, small_lock], env=clean_environment(),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
        try:
            running.wait(timeout=part * duration)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        usable = (directory / '.complete').exists()
        assert not usable or subprocess.run([directory / 'bin/uv', '--version']).returncode == 0
        (directory / '.complete').unlink(missing_ok=True)
    assert run_make_environment(directory, small_lock).returncode == 0
    assert subprocess.run([directory / 'bin/uv', '--version']).returncode == 0


@pytest.mark.parametrize('number, name, advice', [
    (errno.ENOSPC, None, 'Make room, or choose another'), (errno.EACCES, '/a/b', 'Type this in a directory of yours'),
    (errno.EROFS, '/a/b', 'Type this in a directory of yours'),
])
def test_no_room(monkeypatch, capsys, number, name, advice):
    """A full disk, or a checkout of somebody else's, is one line; other errors are ours, and shown whole."""
    def fail(_):
        # as write_atomically calls what is not finished
        raise OSError(number, os.strerror(number), name and '%s.%d' % (name, os.getpid()))
    monkeypatch.setattr(start, 'prepare', fail)
    assert start.main() == 1
    said = 'ERROR: %s cannot be written: %s. %s' % (name or 'A file', os.strerror(number), advice)
    assert capsys.readouterr().err.startswith(said)
    number = errno.EIO
    with pytest.raises(OSError):
        start.main()


def test_ctrl_c_at_once(tmp_path):
    """While Python still imports: no traceback, whichever import it is."""
    running = EB(tmp_path / 'prefix').started('--version')
    maps = Path('/proc/%d/maps' % running.pid)
    while running.poll() is None and '_ctypes' not in maps.read_text():
        pass
    running.send_signal(signal.SIGINT)
    said = running.communicate()[0]
    # on a busy machine it may have ended before
    assert running.returncode in (0, 130, -signal.SIGINT) and 'Traceback' not in said, said


@FOR_ROOT
def test_mounted_elsewhere(tmp_path):
    """A read-only checkout that lies elsewhere than where it was made knows its own files by their new path."""
    place = tmp_path / 'mounted here'
    place.mkdir()
    subprocess.run(['mount', '--bind', CHECKOUT, place], check=True)
    try:
        subprocess.run(['mount', '-o', 'remount,bind,ro', place], check=True)
        output = EB(tmp_path / 'prefix', [place / 'eb'])('--system=archer2', '--show-config',
                                                         env={'HOME': str(tmp_path)}).stdout
        assert '%s/systems/archer2/external_modules.cfg' % place in output
    finally:
        subprocess.run(['umount', '--lazy', place], check=True)


@pytest.mark.slow
def test_two_first_calls_at_once(tmp_path, small_lock):
    """One makes the environment, the other waits for it."""
    command = [ENVIRONMENTS / 'make-environment', tmp_path / 'venv', small_lock]
    both = [subprocess.Popen(command, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum('Making' in output for output in outputs) == 1
    assert (tmp_path / 'venv' / 'bin' / 'uv').exists()


@pytest.mark.nightly
@pytest.mark.slow
def test_installed_with_pip(tmp_path):
    """`pip install .` beside EasyBuild: plain eb finds everything, and upstream's easyblocks still import."""
    environment = tmp_path / 'venv'
    assert run_make_environment(environment).returncode == 0
    source = tmp_path / 'source'
    shutil.copytree(CHECKOUT, source, ignore=shutil.ignore_patterns('.git', '.venv*', '.local', 'build', '__pycache__'))
    python = str(environment / 'bin' / 'python')
    # what builds it is in the tests' environment
    for command in ([sys.executable, '-m', 'pip', 'wheel', '--no-deps', '--no-build-isolation', '-w', tmp_path, source],
                    [python, '-m', 'pip', 'install', '--no-index', '--find-links', tmp_path, 'hpc-pytorch']):
        subprocess.run(command + ['--quiet'], env=clean_environment(), check=True, stdin=subprocess.DEVNULL)
    plain = dict(clean_environment(), EB_PYTHON=python, COLUMNS='10000', EASYBUILD_MODULES_TOOL='Lmod',
                 LMOD_CMD=LMOD, EASYBUILD_PREFIX=str(tmp_path / 'prefix'))
    if os.geteuid() == 0:
        plain['EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES'] = '1'

    def run(*command):
        done = subprocess.run(command, env=plain, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        return done.stdout

    command = str(environment / 'bin' / 'eb')
    assert '[ ]' in run(command, WORKSTATION, '-D')
    assert 'LockedWheels' in run(command, '--list-easyblocks')
    # a system's own modules, here those of its stand-in, are found by plain eb, too
    toy = tmp_path / 'toy-1.0-ARCHER2.eb'
    toy.write_text(test_rehearsal.EASYCONFIG)
    plain['MODULEPATH'] = stand_in('archer2-2023')
    assert '(module: toy/1.0-ARCHER2)' in run(command, str(toy), '-D', '--robot').replace('\n', ' ')
    run(python, '-c', 'from easybuild.easyblocks.generic.configuremake import ConfigureMake;'
                      'from easybuild.easyblocks.pytorch import EB_PyTorch;'
                      'from easybuild.easyblocks.generic.lockedwheels import LockedWheels;'
                      'from hpc_pytorch.machine.systems import names; assert "archer2" in names(), names()')


def test_bundle_passes_the_hooks(eb, tmp_path):
    """A Bundle makes copies of its easyconfig that have no path; the hooks once ended in a traceback there."""
    easyconfig = tmp_path / 'toys-1.0.eb'
    easyconfig.write_text("""easyblock = 'Bundle'
name = 'toys'
version = '1.0'
homepage = 'https://example.org'
description = 'toys'
toolchain = SYSTEM
components = [('toy', '1.0', {'easyblock': 'Tarball', 'sources': ['toy-1.0.tar.gz']})]
moduleclass = 'ai'
""")
    assert 'toys' in eb(easyconfig, '-x').stdout


def test_bare_call():
    """What ./eb adds to EasyBuild is shown to whoever types nothing else."""
    done = subprocess.run([str(CHECKOUT / 'eb')], env=clean_environment(), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert all(option in done.stdout for option in ('--system NAME', '--rehearse', '--survey'))


@pytest.mark.slow
def test_where_installations_belong(eb, tmp_path):
    """Said before anything is fetched, by the system's policy, which the site's goes before."""
    home = tmp_path / 'home'
    easyconfig = tmp_path / 'toy-1.0-ARCHER2.eb'
    easyconfig.write_text(test_rehearsal.EASYCONFIG.split('dependencies')[0] + "moduleclass = 'toolchain'\n")
    eb.prefix = home / 'easybuild'
    home.mkdir()
    output = eb(easyconfig, '-x', env={'HOME': str(home)}, cwd=tmp_path).stdout
    assert 'compute nodes do not see $HOME' in output[output.index('Installing would stop:'):]
    output = eb(easyconfig, env={'HOME': str(home)}, status=None, cwd=tmp_path)
    assert output.returncode and 'compute nodes do not see $HOME' in output.stdout
    assert '--prefix=/work/PROJECT/PROJECT/$USER/easybuild' in output.stdout
    site = tmp_path / 'site.cfg'
    site.write_text('[policy]\ninstall_path = allow\n')
    eb(easyconfig, env={'HOME': str(home), 'HPC_SITE_CONFIG': str(site)}, cwd=tmp_path)


@pytest.mark.parametrize('name', ['my collection', "o'brien", 'a&b'])
def test_rehearsal_in_a_path_with_blanks(monkeypatch, tmp_path, name):
    """Refused in our words, before modules are made that no modules tool reads."""
    monkeypatch.setattr(start, 'COLLECTION', tmp_path / name)
    monkeypatch.setattr(start.stand_in, 'make', None)
    with pytest.raises(start.UsersProblem, match='--rehearse needs a collection without blanks or quotes in its path'):
        start.configure_rehearsal('archer2', [])
