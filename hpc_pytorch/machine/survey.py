"""``./eb --survey [FILE] [--job] [--new-system NAME]``: compare this machine with its description in systems/NAME.

Call it once on a login node and once in a job (``--job`` submits it). Besides what inspection.py asks, the modules of
each easyconfig are loaded. FILE has no user name and no path below $HOME, so it can be sent to somebody.
"""
import argparse
import os
import re
import shlex
import signal
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

from hpc_pytorch import UsersProblem, VERSION, parse, say
from hpc_pytorch.machine import batch_systems, new_system, systems
from hpc_pytorch.machine.collection_files import easyconfig_path, external_modules
from hpc_pytorch.machine.inspection import JOB, LOGIN, Machine, NotAsked, PROBES, easyconfigs_of
from hpc_pytorch.machine.modules import first_that_fails
from ramgate.limits import human

# result is one of the words below; NOTED: systems/ has nothing to compare with
Finding = namedtuple('Finding', 'name result found expected')
SAME, DIFFERS, NOT_ASKED, NOTED = 'same', 'differs', 'not asked', 'noted'


def ask(probe, machine):
    expected = probe.expected(machine.system)
    try:
        if machine.job and probe.where == LOGIN:
            raise NotAsked("only on login nodes")
        if not machine.job and probe.where == JOB and machine.system.scheduler['kind'] != 'none':
            raise NotAsked("only in jobs: --job")
        found = probe.ask(machine)
        result = NOTED
        if expected not in (None, []):
            result = SAME if probe.same(found, expected) else DIFFERS
    except (NotAsked, OSError, ValueError) as reason:
        # one strange answer does not cost the others; in a job, GPUs that do not answer are missing
        found, result = str(reason), DIFFERS if machine.job and expected and probe.name == 'GPUs' else NOT_ASKED
    return Finding(probe.name, result, in_a_line(found), in_a_line(expected))


def in_a_line(answer):
    if isinstance(answer, int) and answer > 1 << 30:
        # only memory has so many
        return human(answer)
    if isinstance(answer, list) and all(isinstance(one, list) for one in answer):
        return ' '.join(map(new_system.core_word, answer))
    return ' '.join(map(str, answer)) if isinstance(answer, (list, dict)) else str(answer)


def about_modules(machine, path):
    """Report whether an easyconfig's modules load in their order, and errors in external_modules.cfg about them."""
    names = external_modules(path)
    if not names:
        return
    wanted = ' '.join(names)
    try:
        shell = machine.modules_shell()
    except NotAsked as reason:
        yield Finding('modules of', NOT_ASKED, str(reason), wanted)
        return
    problem = first_that_fails(shell, names)
    if problem:
        yield Finding('modules of', DIFFERS, ': '.join(problem), wanted)
        return
    yield Finding('modules of', SAME, wanted, wanted)
    metadata = parse(os.path.join(machine.system.directory, 'external_modules.cfg'))
    for name in filter(metadata.has_section, names):
        yield from about_metadata(shell, name, metadata[name])


def about_metadata(shell, name, metadata):
    """Compare a loaded module with its version and prefix in external_modules.cfg."""
    version = metadata.get('version')
    loaded = [one for one in shell.loaded if one == name or one.startswith(name + '/')]
    if version and '/' not in name and loaded not in ([name + '/' + version], [name]):
        yield Finding('version of ' + name, DIFFERS, ' '.join(loaded), version)
    # a directory, or a variable that names it and what lies below
    prefix = metadata.get('prefix', '/')
    variable = prefix.split('/')[0]
    place = shell.environ.get(variable, '') if variable else prefix
    if not os.path.isdir(place):
        yield Finding('prefix of ' + name, DIFFERS, 'no directory ' + place if place else 'not set', prefix)


def about_easyconfigs(machine):
    """Report once what holds for several easyconfigs; those for an earlier state of the system cannot differ."""
    files = {}
    for path in easyconfigs_of(machine.system):
        findings = list(about_modules(machine, path))
        if systems.is_retired(path, machine.system):
            findings = [one._replace(result=NOTED) if one.result == DIFFERS else one for one in findings]
        for finding in findings:
            files.setdefault(finding, []).append(os.path.basename(path))
    today = Path(machine.system.directory, 'easystack.yaml')
    for name in re.findall(r'^ *- ([\w.+-]+\.eb)\b', today.read_text() if today.exists() else '', re.M):
        if not easyconfig_path(name):
            yield Finding('easystack.yaml', DIFFERS, "there is no such easyconfig", name)
    for finding, names in files.items():
        if finding.name.endswith(' of'):
            finding = finding._replace(name='%s %s' % (finding.name, ', '.join(names)))
        yield finding


def without_names(text, environ):
    """Replace the user's name and $HOME in what is given away."""
    for name in ('HOME', 'USER'):
        if len(environ.get(name, '')) > 2:
            text = re.sub(r'(?<!\w)%s(?!\w)' % re.escape(environ[name]), '$' + name, text)
    return text


def table(findings):
    """Write the findings for people; those that differ come last, where they are seen."""
    order = [NOT_ASKED, NOTED, SAME, DIFFERS]
    text = ''
    for finding in sorted(findings, key=lambda finding: order.index(finding.result)):
        expected = ", expected: %s" % finding.expected if finding.result == DIFFERS else ''
        text += '%-9s  %-22s  %s%s\n' % (finding.result, finding.name, finding.found, expected)
    return text


def job_script(path):
    """Write the survey's job, which finds the modules that are found here, as those of --job do."""
    command = "exec %s --survey %s > /dev/null" % (os.environ['HPC_PYTORCH_COMMAND'], shlex.quote(path))
    return '\n'.join(['#!/bin/bash', *batch_systems.exports_for_jobs(), command])


def submit(system, path):
    """Submit a job that surveys the node it runs on; returns its id."""
    asked = system.scheduler
    scheduler = batch_systems.SCHEDULERS[asked['kind']]
    request = batch_systems.Request(
        account=os.environ.get(asked['account_variable'] or ''), partition=asked['partition'], qos=asked['qos'],
        cores=1, memory=None if asked['nodes_exclusive'] else 1 << 30, minutes=5,
        gpus=system.node['gpus'], gpus_option=asked['gpus_option'], exclusive=asked['nodes_exclusive'],
        options=asked['options'] + system.node['local_storage_option'], refused=asked['refused_options'])
    command = scheduler.command(request, 'survey', 'survey', path + '.log', [])
    with tempfile.NamedTemporaryFile('w', suffix='.sh') as script:
        print(job_script(path), file=script, flush=True)
        return scheduler.submit(command, script.name)


def stop(*_):
    """As Ctrl-C: a command that hangs ends, too."""
    say("the survey was stopped by SIGTERM")
    raise KeyboardInterrupt


def check_file(path):
    """Refuse a FILE that cannot be written, or is not to be lost."""
    if os.path.isdir(path) or not os.access(os.path.dirname(path), os.W_OK):
        raise UsersProblem("%s cannot be written: name a file in a directory of yours" % path)
    earlier = Path(path).read_text(errors='replace') if os.path.isfile(path) else '(hpc-pytorch '
    # those of jobs began with what ./eb says
    if path.endswith('.eb') or not re.match(r'(.*\n){,9}.*[(]hpc-pytorch ', earlier):
        raise UsersProblem("--survey writes its answers to FILE, and %s is no earlier survey" % path)


def main(arguments):
    parser = argparse.ArgumentParser(prog='./eb', description=__doc__, allow_abbrev=False)
    parser.add_argument('--survey', nargs='?', metavar='FILE')
    either = parser.add_mutually_exclusive_group()
    either.add_argument('--job', action='store_true')
    either.add_argument('--new-system', metavar='NAME')
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, stop)
    machine = Machine(systems.load(os.environ['HPC_SYSTEM']))
    path = os.path.abspath(given.survey or 'survey-%s.txt' % machine.system.name)
    if given.survey or given.job:
        check_file(path)
    if given.job:
        print("Job %s will write %s" % (submit(machine.system, path), path))
        return 0
    if given.new_system is not None:
        print("Written; read and correct them:", *new_system.write_drafts(given.new_system, machine), sep='\n')
        return 0
    findings = [ask(probe, machine) for probe in PROBES] + list(about_easyconfigs(machine))
    text = without_names(report(machine, findings), machine.environ)
    if given.survey:
        Path(path).write_text(text + '\n', encoding='utf-8')
    # in a terminal of Latin-1, titles and names may have more
    print(text.encode(sys.stdout.encoding, 'backslashreplace').decode(sys.stdout.encoding))
    return 1 if DIFFERS in [finding.result for finding in findings] else 0


def report(machine, findings):
    where = 'in a job' if machine.job else 'on a login node'
    results = [finding.result for finding in findings]
    differ = [finding.name for finding in findings if finding.result == DIFFERS]
    text = "%s, %s (hpc-pytorch %s):\n\n%s\n" % (machine.system.system['title'], where, VERSION, table(findings))
    return text + ', '.join(["the same: %d; different: %d" % (results.count(SAME), len(differ))] + differ)
