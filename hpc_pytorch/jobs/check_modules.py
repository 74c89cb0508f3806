"""``./eb --check [MODULE ...]``: the checks of hpc_pytorch/reframe on what is installed, without knowing ReFrame.

Each call leaves a report, which later calls can be compared with. Words that are not known here are ReFrame's.
"""
import argparse
import contextlib
import difflib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import install_path
from easybuild.tools.environment import restore_env

from hpc_pytorch import UsersProblem, VERSION, collection_path, existing
from hpc_pytorch.jobs.reframe_settings import settings
from hpc_pytorch.machine import systems
from hpc_pytorch.machine.collection_files import locked_program
from hpc_pytorch.machine.module_files import CHECKED, installed, removed_by_hand
from hpc_pytorch.packages.easybuild_errors import with_prefix
from hpc_pytorch.packages.module_names import module_directory
from ramgate import processes

# by unit: how far a value may be from its reference; a site changes it in its file of references
MARGINS = {'GB/s': 0.2, 'samples/s': 0.1, 'tokens/s': 0.2, 's': 0.5}
# EasyBuild's options that may stand beside ours
EASYBUILDS = ('--prefix', '--installpath', '--installpath-modules', '--installpath-software', '--sourcepath',
              '--tmpdir')
ROOT = '--allow-use-as-root-and-accept-consequences'


def read_report(path):
    """Return a report, or the references that --update keeps, which are one."""
    try:
        report = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise UsersProblem("%s cannot be read: %s" % (path, error))
    if not isinstance(report, dict) or not {'modules', 'margins'} <= set(report):
        raise UsersProblem("%s is not a report of ./eb --check" % path)
    return report


def write(path, content):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    text = json.dumps(content, indent=1, sort_keys=True) + '\n'
    try:
        Path(path).write_text(text)
    except OSError as error:
        print("%s cannot be written. It would be:\n%s" % (path, text))
        # a full disk names no file
        error.filename = path
        raise


def need_modules(wanted):
    """Stop unless there are modules to check; ReFrame would take its time to say less."""
    found = installed(os.environ['MODULEPATH'])
    unknown = [name for name in wanted if name not in found]
    if unknown or not found:
        missing = ' '.join(unknown) or 'PyTorch'
        raise UsersProblem("%s is not installed by this collection, so nothing was checked. Found: %s, in %s. Is it in "
                           "another prefix? Then add --prefix=DIRECTORY; `module avail PyTorch` shows all."
                           % (missing, ' '.join(sorted(found)) or 'none', os.environ['MODULEPATH']))


def wait_for_reframe(command, place):
    """Start ReFrame and wait; when this call is stopped, ReFrame cancels its jobs first."""
    mark = 'HPC_CHECK=%d.%d' % (os.getpid(), time.time())
    stopped = []

    def stop(number, _):
        stopped.append(number)
        process.terminate()

    environment = dict(os.environ, HPC_CHECK=mark.partition('=')[2])
    process = subprocess.Popen(command, cwd=place, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    process.wait()
    if stopped:
        kill_marked(mark.encode())


def kill_marked(mark):
    """Kill processes with this variable: ReFrame asks once, and a rank that just starts may not hear it."""
    def marked():
        return [pid for pid in processes.pids() if mark in processes.read(pid, 'environ')]

    processes.end_all(marked)
    for pid in marked():
        print("Process %d cannot be killed: it waits for a file or a device. Look at it: ps -fp %d" % (pid, pid))


def check(system, given, reframes):
    place = os.path.join(os.path.dirname(install_path('software')), 'hpc-pytorch-checks')
    if not os.access(existing(place), os.W_OK):
        raise UsersProblem("%s cannot be written to by you. Type: module use %s   and add --prefix=DIRECTORY with "
                           "a directory of yours, for reports and logs" % (place, module_directory()))
    os.makedirs(place, exist_ok=True)
    os.environ['MODULEPATH'] = ':'.join([module_directory(), os.environ.get('MODULEPATH', '')])
    need_modules(given.check)
    path = os.path.join(place, 'settings.py')
    report = os.path.join(tempfile.gettempdir(), 'report.json')
    # ReFrame would say it in tracebacks, if there were no room for its own files
    with tempfile.TemporaryFile(dir=place) as probe:
        probe.write(bytes(1 << 20))
    Path(path).write_text(settings(system))
    references = '' if given.update else given.references
    command = [locked_program('reframe', 'checks'), '-C', path, '-c', collection_path('reframe'), '-r']
    command += ['--system', system.name, '--prefix', place, '--report-file', report, '-S', 'references=' + references]
    if given.check:
        command += ['-E', 'module in %r' % given.check]
    if not sys.stdout.isatty():
        command.append('--nocolor')
    wait_for_reframe(command + reframes, place)
    if not os.path.exists(report):
        raise UsersProblem("nothing was checked; see above")
    return {'system': system.name, 'collection': VERSION, 'rehearsal': 'HPC_PYTORCH_REHEARSAL' in os.environ,
            'date': time.strftime('%Y-%m-%d', time.gmtime()), 'margins': MARGINS,
            'modules': summarize(json.loads(Path(report).read_text())['runs'][0]['testcases'])}


def summarize(cases):
    """Return ReFrame's report as {module: {check: result, reason and values}}."""
    modules = {}
    for case in cases:
        module = re.search(r'%module=(\S+)', case['display_name']).group(1)
        name = re.sub(r' %module=\S+', '', case['display_name'])
        reason = (case.get('fail_reason') or '').strip()
        values = {key.split(':')[-1]: [value[0], value[4]] for key, value in (case['perfvalues'] or {}).items()}
        modules.setdefault(module, {})[name] = {'result': case['result'], 'reason': reason, 'values': values}
    return modules


def update_references(path, report):
    """Keep the checks that passed; margins stay as the site has them."""
    known = read_report(path) if os.path.exists(path) else {'margins': MARGINS, 'modules': {}}
    for module, checks in report['modules'].items():
        passed = {name: one for name, one in checks.items() if one['result'] == 'pass'}
        known['modules'].setdefault(module, {}).update(passed)
    write(path, known)


def show_results(report):
    failed = not report['modules']
    for module, checks in sorted(report['modules'].items()):
        passed = [one['result'] == 'pass' for one in checks.values()]
        print("%s: %d of %d checks passed" % (module, sum(passed), len(passed)))
        failed = failed or not all(passed)
    return int(failed)


class Written(Exception):
    """The text of a module file, at the moment when EasyBuild would write it."""


def written_today(easyconfig, hidden):
    """Return the path and the text of the module file that --module-only would write; all hooks run."""
    from easybuild.framework.easyblock import get_easyblock_instance
    from easybuild.framework.easyconfig.easyconfig import process_easyconfig
    easyblock = get_easyblock_instance(process_easyconfig(easyconfig, hidden=hidden)[0])
    sites = easyblock.hooks.get('module_write_hook', lambda *_: None)

    def keep(*args):
        raise Written(sites(*args) or args[2])

    easyblock.hooks = dict(easyblock.hooks, module_write_hook=keep)
    try:
        # the build directory is gone since the installation
        easyblock.run_step('prepare', [lambda one: lambda: one.prepare_step(start_dir=False)])
        easyblock.run_step('module', [lambda one: one.make_module_step])
    except Written as written:
        return easyblock.mod_filepath, str(written)


def compare_module(name, root):
    """Print how a module file differs from what today's settings, hooks and EasyBuild would make of its easyconfig."""
    easyconfig, = map(str, Path(root, 'easybuild/provenance').glob('*.eb'))
    before, hidden = os.environ.copy(), '/.' in name
    try:
        # it prints which Python and MPI it finds
        with contextlib.redirect_stdout(io.StringIO()):
            path, text = written_today(easyconfig, hidden)
        lines = difflib.unified_diff(Path(path).read_text().splitlines(), text.splitlines(), lineterm='', n=0)
        changed = [line for line in list(lines)[2:] if not line.startswith('@@')]
        if changed:
            print("%s would not be written like this today:" % path, *changed, sep='\n  ')
            options = '--hidden --installpath=' if hidden else '--installpath='
            top = os.path.dirname(install_path('software'))
            print("To write it again: ./eb %s --module-only --force %s%s" % (easyconfig, options, top))
    except (EasyBuildError, UsersProblem, OSError) as problem:
        print("%s was not compared with what would be written today: %s" % (name, problem))
    finally:
        restore_env(before)


def parse(words):
    """(our options, EasyBuild's, ReFrame's)."""
    parser = argparse.ArgumentParser(prog='eb', description=__doc__, allow_abbrev=False)
    parser.add_argument('--check', nargs='*', metavar='MODULE', help="such as PyTorch/2.13.0-workstation; default: all")
    parser.add_argument('--settings', action='store_true', help="only print ReFrame's settings for this system")
    parser.add_argument('--references', metavar='FILE', help="compare with these, or with an earlier report; default:"
                        " those of --update, hpc_pytorch/reframe/references/SYSTEM.json")
    parser.add_argument('--update', action='store_true', help="write references from the checks that pass")
    parser.add_argument('--report', metavar='FILE', help="default: check-SYSTEM-DATE.json")
    own = {'dest': 'easybuilds', 'default': [], 'help': argparse.SUPPRESS}
    for option in EASYBUILDS:
        parser.add_argument(option, action='append', type=(option + '={}').format, **own)
    parser.add_argument(ROOT, action='append_const', const=ROOT, **own)
    given, others = parser.parse_known_args(words)
    # modules may stand behind ReFrame's options, and argparse takes ReFrame's options with blanks in them for modules
    others = (given.check or []) + others
    given.check = [word for word in others if set(word.split('/')[:2]) & set(CHECKED)]
    return given, given.easybuilds, [word for word in others if word not in given.check]


def act(given, reframes):
    system = systems.load(os.environ['HPC_SYSTEM'])
    if given.settings:
        print(settings(system))
        return 0
    if given.references and not given.update:
        read_report(given.references)
    own = os.path.join(collection_path('reframe'), 'references', system.name + '.json')
    given.references = os.path.abspath(given.references or own)
    if not given.update and not os.path.exists(given.references):
        print("There are no references yet (%s): speeds are not compared. To keep today's: --update" % given.references)
    if given.update and not os.access(existing(given.references), os.W_OK):
        raise UsersProblem("%s cannot be written to by you. Add --references=FILE" % given.references)
    removed = list(removed_by_hand(module_directory(), install_path('software')))
    for line in removed:
        print(line)
    report = check(system, given, reframes)
    status = show_results(report) or int(bool(removed))
    if system.scheduler['kind'] != 'none' and not system.network['interfaces']:
        print("Which network the ranks use was not compared: `interfaces` is missing in [network] of %s/system.cfg"
              % system.directory)
    for name, root in installed(module_directory()).items():
        if name in report['modules']:
            compare_module(name, root)
    path = given.report or 'check-%s-%s.json' % (system.name, report['date'])
    write(path, report)
    print("The report is %s" % path)
    if given.update:
        update_references(given.references, report)
    return status


def main(words):
    given, easybuilds, reframes = parse(words)
    return with_prefix(easybuilds + ['--module-only'], lambda _: act(given, reframes))
