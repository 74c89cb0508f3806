"""
``./eb --check [MODULE ...]``: the checks of checks/ on what is installed, without knowing ReFrame.

ReFrame's settings of a system are made from ``systems/NAME/system.cfg``. Each run leaves a report, and reports can be
compared. Words that are not known here are ReFrame's.
"""
import argparse
import contextlib
import fnmatch
import glob
import json
import os
import pprint
import re
import runpy
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from easybuild.tools.config import install_path

from hpc_pytorch import UsersProblem, VERSION, collection_path
from hpc_pytorch.jobs import status
from hpc_pytorch.jobs.bars import svg
from hpc_pytorch.machine import systems
from hpc_pytorch.machine.collection_files import locked_program
from hpc_pytorch.machine.module_files import installed

# by unit: how far a value may be from its reference; written into new files of references, where a site changes it
MARGINS = {'GB/s': 0.2, 'samples/s': 0.1, 's': 0.5}
# EasyBuild's options, which say where it installs; those of the first line want a value
WITH_VALUE = ('--prefix', '--installpath', '--sourcepath', '--tmpdir')
EASYBUILDS = WITH_VALUE + ('--installpath-', '--allow-use-as-root')
# by which what ReFrame has started here is found when ./eb is stopped
MARK = 'HPC_PYTORCH_CHECK'
# in a job's script, where the user's shell at login does not do it
MODULE_COMMAND = 'command -v module >/dev/null || . /usr/share/lmod/lmod/init/bash'


def partition(system):
    """The compute nodes, as ReFrame wants to know them."""
    node, scheduler, command = system.node, system.scheduler, system.launcher['command']
    kind, gpus, near = scheduler['kind'], node['gpus'] or 0, node['gpu_cores']
    cores = node['cores'] or os.cpu_count()
    options = {'slurm': ('--partition=', '--account=', '--qos='), 'pbs': ('-q ', '-A ', None), 'none': [None] * 3}[kind]
    values = scheduler['partition'], os.environ.get(scheduler['account_variable'] or ''), scheduler['qos']
    placing = {'srun': [], 'mpiexec': ['--ppn', '{ranks}'], 'mpirun': ['--map-by', 'ppr:{ranks}:node']}[command]
    binding = runpy.run_path(os.path.join(collection_path('scripts'), 'pytorch-jobscript'))['binding']
    placing += binding({'gpus': gpus, 'ranks': gpus or 1, 'cores': '{cores}'}, {
        'command': command, 'gpu_options': ' '.join(system.launcher['gpu_options'])})
    return {
        'name': 'compute', 'environs': ['builtin'], 'max_jobs': 1 if kind == 'none' else 8,
        # squeue: Slurm as it is without a record of jobs that have ended
        'scheduler': {'slurm': 'squeue', 'pbs': 'pbs', 'none': 'local'}[kind], 'launcher': command,
        'access': [option + value for option, value in zip(options, values) if option and value] + scheduler['options'],
        'prepare_cmds': [MODULE_COMMAND, 'unset SLURM_EXPORT_ENV'] + [
            'module use ' + path for path in reversed(os.environ.get('MODULEPATH', '').split(':')) if path],
        'processor': {'num_cpus': cores * (node['threads_per_core'] or 1),
                      'num_cpus_per_core': node['threads_per_core'] or 1},
        'devices': [{'type': 'gpu', 'arch': node['gpu_architecture'] or '', 'num_devices': gpus}][:gpus],
        'resources': [{'name': 'gpus', 'options': [(scheduler['gpus_option'] or 'ngpus=') + '{number}']}][:gpus],
        'features': ['hpc_pytorch'] + ['gpu'] * bool(gpus) + ['batch'] * (kind != 'none'),
        'extras': {'hpc_pytorch': {
            'ranks': gpus or 1, 'gpus': gpus, 'cores': cores, 'gpu_cores': near, 'launcher_options': placing,
            'cores_per_rank': (system.usable_cores or cores) // (gpus or 1),
            'interfaces': system.network['interfaces']}},
    }


def settings(system):
    """ReFrame's settings; the entry below `systems` can be pasted into a site's own."""
    tool = {'Lmod': 'lmod', 'EnvironmentModules': 'tmod4'}[os.environ['EASYBUILD_MODULES_TOOL']]
    return "# made by ./eb --check from systems/%s\nsite_configuration = %s\n" % (system.name, pprint.pformat({
        'systems': [{'name': system.name, 'descr': system.system['title'], 'modules_system': tool,
                     'hostnames': [fnmatch.translate(name) for name in system.system['host_names'] or ['*']],
                     'partitions': [partition(system)]}],
        'general': [{'use_login_shell': True, 'resolve_module_conflicts': False, 'remote_detect': False}],
        # not in a temporary directory that ./eb removes
        'logging': [{'handlers': [{'type': 'stream', 'name': 'stdout', 'level': 'info', 'format': '%(message)s'},
                                  {'type': 'file', 'name': 'reframe.log', 'level': 'debug2', 'append': False,
                                   'format': '[%(asctime)s] %(levelname)s: %(check_info)s: %(message)s'}]}],
    }, width=110))


def there(wanted):
    """Stop unless there are modules to check; ReFrame would take its time to say less."""
    found = installed(os.environ['MODULEPATH'])
    unknown = [name for name in wanted if name not in found]
    if unknown or not found:
        raise UsersProblem("%s is not installed by this collection, so no check was run. Found: %s, in %s. Is it in "
                           "another prefix? Then add --prefix=DIRECTORY; `module avail PyTorch` shows all." % (
                               ' '.join(unknown) or 'PyTorch', ' '.join(sorted(found)) or 'none',
                               os.environ['MODULEPATH']))


def end_ranks(mark):
    """Kill what this call has started on this machine and ReFrame has left."""
    for path in glob.glob('/proc/[0-9]*/environ'):
        with contextlib.suppress(OSError):
            with open(path, 'rb') as handle:
                if ('%s=%s' % (MARK, mark)).encode() in handle.read().split(b'\0'):
                    os.kill(int(path.split('/')[2]), signal.SIGKILL)


def let_run(command, place):
    """Start ReFrame and wait; whatever ends this call ends what it started, too."""
    def stop(number, _):
        raise KeyboardInterrupt(number)

    mark = uuid.uuid4().hex
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    process = subprocess.Popen(command, cwd=place, stdin=subprocess.DEVNULL, env=dict(os.environ, **{MARK: mark}))
    try:
        process.wait()
    except KeyboardInterrupt:
        # it cancels the jobs that it has submitted
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        end_ranks(mark)
        raise


def check(system, given, others):
    """Let ReFrame run; returns the report."""
    place = os.path.join(os.path.dirname(install_path('software')), 'hpc-pytorch-checks')
    os.makedirs(place, exist_ok=True)
    os.environ['MODULEPATH'] = ':'.join([install_path('modules') + '/all', os.environ.get('MODULEPATH', '')])
    there(given.check or [])
    path, found = os.path.join(place, 'settings.py'), os.path.join(place, 'report-%d.json' % os.getpid())
    Path(path).write_text(settings(system))
    command = [locked_program('reframe', 'checks'), '-C', path, '-c', collection_path('reframe'), '-r', '--system',
               system.name, '--prefix', place, '--report-file', found,
               '-S', 'SpeedCheck.references=' + ('' if given.update else given.references)]
    command += ['-E', 'module in %r' % given.check] * bool(given.check) + ['--nocolor'] * (not sys.stdout.isatty())
    let_run(command + others, place)
    if not os.path.exists(found):
        raise UsersProblem("no check was run; see above")
    checks = {}
    for case in read(found)['runs'][0]['testcases']:
        module = re.search(r'%module=(\S+)', case['display_name']).group(1)
        checks.setdefault(module, {})[re.sub(r' %module=\S+', '', case['display_name'])] = {
            'result': case['result'], 'reason': (case.get('fail_reason') or '').strip(),
            'values': {name.split(':')[-1]: [value[0], value[4]] for name, value in (case['perfvalues'] or {}).items()}}
    os.remove(found)
    return {'format': 1, 'system': system.name, 'title': system.system['title'], 'collection': VERSION,
            'rehearsal': 'HPC_PYTORCH_REHEARSAL' in os.environ, 'date': time.strftime('%Y-%m-%d', time.gmtime()),
            'modules': checks}


def update(path, report):
    """Values of checks that passed become references; margins stay as the site has them."""
    known = read(path) if os.path.exists(path) else {'margins': MARGINS, 'modules': {}}
    for module, checks in report['modules'].items():
        known['modules'].setdefault(module, {}).update({
            check: {name: value for name, (value, _) in one['values'].items()}
            for check, one in checks.items() if one['result'] == 'pass' and one['values']})
    write(path, known)


def read(path):
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise UsersProblem("%s cannot be read: %s" % (path, error))


def write(path, content):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, 'w') as handle:
        json.dump(content, handle, indent=1, sort_keys=True)
        handle.write('\n')


def read_report(path):
    report = read(path)
    if not isinstance(report, dict) or not {'modules', 'date', 'title'} <= set(report):
        raise UsersProblem("%s is not a report of ./eb --check" % path)
    return report


def results(report):
    """{(module, check): result} and {(module, check, name): (value, unit)} of a report."""
    checks = {(module, check): one for module, found in report['modules'].items() for check, one in found.items()}
    return ({key: one['result'] for key, one in checks.items()},
            {key + (name,): value for key, one in checks.items() for name, value in one['values'].items()})


def compare(before, after, picture):
    """What both have measured, with how many times as good it is now; what ended otherwise; and a picture."""
    (first, old), (second, new) = results(before), results(after)
    lines = [(' '.join(key), old[key][0], value, unit, old[key][0] / value if unit == 's' else value / old[key][0])
             for key, (value, unit) in sorted(new.items()) if key in old and value and old[key][0]]
    for key in sorted(set(first) | set(second)):
        if first.get(key) != second.get(key):
            print('%s: %s, now %s' % (' '.join(key), first.get(key, 'not there'), second.get(key, 'not there')))
    if not lines:
        print("the reports have no measurement in common")
        return
    dates = [before['date'], after['date']] if before['date'] != after['date'] else ['before', 'after']
    print('%-70s %12s %12s %10s %6s' % ('', *dates, '', 'ratio'))
    for line in lines:
        print('%-70s %12.3f %12.3f %10s %6.2f' % line)
    if picture:
        with open(picture, 'w') as handle:
            handle.write(svg(lines, '%s, %s and %s: 1 is as fast as before' % (
                after['title'], before['date'], after['date'])))


def show(report):
    """How well training scales, and how many checks passed; returns the exit status."""
    ended, values = results(report)
    for (module, check, name), (value, _) in sorted(values.items()):
        nodes = int(check.split('=')[-1])
        one = values.get((module, check.replace('nodes=%d' % nodes, 'nodes=1'), name))
        if name == 'total' and nodes > 1 and one:
            print("%s trains on %d nodes with %.0f %% of the speed of as many single nodes" % (
                module, nodes, 100 * value / one[0] / nodes))
    for module in sorted(report['modules']):
        passed = [result == 'pass' for (of, _), result in ended.items() if of == module]
        print("%s: %d of %d checks passed" % (module, sum(passed), len(passed)))
    return 0 if ended and set(ended.values()) == {'pass'} else 1


def arguments(words):
    parser = argparse.ArgumentParser(prog='eb', description=__doc__, allow_abbrev=False)
    parser.add_argument('--check', nargs='*', metavar='MODULE', help="such as PyTorch/2.13.0-workstation; default: all")
    parser.add_argument('--settings', action='store_true', help="only print ReFrame's settings for this system")
    parser.add_argument('--references', metavar='FILE', help="default: checks/references/SYSTEM.json")
    parser.add_argument('--update', action='store_true', help="keep values that pass, for later runs to compare with")
    parser.add_argument('--report', metavar='FILE', help="default: check-SYSTEM-DATE.json")
    parser.add_argument('--compare', nargs=2, metavar=('BEFORE', 'AFTER'), help="only compare two reports")
    parser.add_argument('--picture', metavar='FILE', help="with --compare: also draw an SVG")
    for number in [number for number, word in enumerate(words[:-1]) if word in WITH_VALUE][::-1]:
        words[number:number + 2] = ['%s=%s' % tuple(words[number:number + 2])]
    # argparse takes options with blanks in them for modules, and modules behind other options for ReFrame's
    modules = [word for word in words if word.startswith('PyTorch/')]
    given, others = parser.parse_known_args([word for word in words if ' ' not in word and word not in modules])
    given.check = (given.check or []) + modules
    others += [word for word in words if ' ' in word]
    easybuilds = [word for word in others if word.startswith(EASYBUILDS)]
    return given, easybuilds, [word for word in others if word not in easybuilds]


def act(given, others):
    system = systems.load(os.environ['HPC_SYSTEM'])
    if given.settings:
        print(settings(system))
        return 0
    if given.compare:
        compare(read_report(given.compare[0]), read_report(given.compare[1]), given.picture)
        return 0
    given.references = os.path.abspath(given.references or os.path.join(
        collection_path('reframe'), 'references', system.name + '.json'))
    report = check(system, given, others)
    path = given.report or 'check-%s-%s.json' % (system.name, report['date'])
    write(path, report)
    if given.update:
        update(given.references, report)
    print("The report is %s" % path)
    return show(report)


def main(words):
    given, easybuilds, others = arguments(words)
    return status.run(easybuilds, lambda _: act(given, others))


if __name__ == '__main__':
    try:
        sys.exit(main(sys.argv[1:]))
    except UsersProblem as problem:
        sys.exit("ERROR: %s" % problem)
