"""
``./eb --survey [FILE] [--job] [--new-system NAME]``: compare this machine with its description in systems/NAME.

Call it once on a login node and once in a job (``--job`` submits it). Besides what inspection.py asks, the modules of
each easyconfig are loaded. The report has no user name and no path below $HOME, so it can be sent to somebody.
"""
import argparse
import contextlib
import json
import os
import re
import shlex
import tempfile
from collections import namedtuple
from pathlib import Path

from hpc_pytorch import UsersProblem, VERSION, parse
from hpc_pytorch.machine import batch_systems, new_system, systems
from hpc_pytorch.machine.modules import first_that_fails
from hpc_pytorch.machine.inspection import JOB, LOGIN, Machine, NotAsked, PROBES, easyconfigs_of, external_modules
from hpc_pytorch.machine.versions import in_words, known

# result is one of the words below; TOLD: systems/ has nothing to compare with
Finding = namedtuple('Finding', 'name result found expected')
SAME, DIFFERS, NOT_ASKED, TOLD = 'same', 'differs', 'not asked', 'told'


def ask(probe, machine):
    """Ask one question and compare."""
    expected = probe.expected(machine.system)
    try:
        if machine.job and probe.where == LOGIN:
            raise NotAsked("only on login nodes")
        if not machine.job and probe.where == JOB:
            raise NotAsked("only in jobs: --job")
        found = probe.ask(machine)
        result = compare(probe, found, expected)
    except (NotAsked, OSError, ValueError) as reason:
        # one strange answer does not cost the others
        found, result = str(reason), NOT_ASKED
    return Finding(probe.name, result, in_a_line(found), in_a_line(expected))


def compare(probe, found, expected):
    if expected in (None, []):
        return TOLD
    return SAME if probe.same(found, expected) else DIFFERS


def in_a_line(answer):
    if isinstance(answer, (list, dict)):
        return ' '.join(map(str, answer))
    return str(answer)


# -- versions and modules of each easyconfig

def versions_of(machine, path):
    """Return {software: version} that come together: what an easyconfig names, this machine's libfabric and driver."""
    text = Path(path).read_text(encoding='utf-8')
    found = re.findall(r"^ *\('([\w-]+)(?:', '|/)(\d[\w.-]*)'", text, re.M)
    found += re.findall(r'^(.+?)-(\d[\d.]*)', os.path.basename(path))
    with contextlib.suppress(NotAsked):
        driver = machine.read('/sys/module/nvidia/version')
        found.append(('driver', driver))
    with contextlib.suppress(NotAsked):
        answer = machine.output('fi_info', '--version')
        found += re.findall(r'^(libfabric): (\S+)', answer, re.M)
    return {name.lower(): version for name, version in found}


def about_versions(machine, path):
    """Report what pairs.cfg knows of versions that an easyconfig brings together."""
    for row in known(versions_of(machine, path), machine.system.words):
        result = DIFFERS if row['result'] == 'fails' else TOLD
        yield Finding('versions of', result, in_words(row), 'versions that go together')


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
        name, said = problem
        versions = shell.versions(name)
        found = "%s cannot be loaded; versions: %s" % (name, ' '.join(versions) or 'none')
        # one that is there has a reason of its own
        if name in versions:
            found = "%s cannot be loaded: %s" % (name, ' '.join(said.split())[:300])
        yield Finding('modules of', DIFFERS, found, wanted)
        return
    yield Finding('modules of', SAME, wanted, wanted)
    metadata = parse(os.path.join(machine.system.directory, 'external_modules.cfg'))
    for name in names:
        if name in metadata:
            yield from about_metadata(shell, name, metadata[name])


def about_metadata(shell, name, metadata):
    """Compare a loaded module with its version and prefix in external_modules.cfg."""
    version = metadata.get('version')
    loaded = [one for one in shell.loaded if one == name or one.startswith(name + '/')]
    if version and '/' not in name and loaded != [name + '/' + version]:
        yield Finding('version of ' + name, DIFFERS, ' '.join(loaded), version)
    # a directory, or a variable that names it and what lies below
    prefix = metadata.get('prefix', '/')
    variable = prefix.split('/')[0]
    place = shell.environ.get(variable, '') if variable else prefix
    if not os.path.isdir(place):
        found = 'no directory ' + place if place else 'not set'
        yield Finding('prefix of ' + name, DIFFERS, found, prefix)


def easystack_of(system):
    """Return the text of the easystack of today; None where a system has none."""
    path = os.path.join(system.directory, 'easystack.yaml')
    if not os.path.exists(path):
        return None
    with open(path) as handle:
        return handle.read()


def about_easyconfigs(machine):
    """
    Report on all easyconfigs; what holds for several is one finding with all of their names. Those that are for an
    earlier state of the system are no reason for a failing exit status.
    """
    files = {}
    today = easystack_of(machine.system)
    for path in easyconfigs_of(machine.system):
        findings = [*about_versions(machine, path), *about_modules(machine, path)]
        if today and os.path.basename(path) not in today:
            findings = [finding._replace(result=TOLD) if finding.result == DIFFERS else finding for finding in findings]
        for finding in findings:
            files.setdefault(finding, []).append(os.path.basename(path))
    for finding, names in files.items():
        if finding.name.endswith(' of'):
            finding = finding._replace(name='%s %s' % (finding.name, ', '.join(names)))
        yield finding


# -- the report

def without_names(finding, environ):
    """Replace the user's name and $HOME in what is given away."""
    found = finding.found
    for name in ('HOME', 'USER'):
        if len(environ.get(name, '')) > 2:
            found = found.replace(environ[name], '$' + name)
    return finding._replace(found=found)


def table(findings):
    """Write the findings for people; those that differ come last, where they are seen."""
    order = [NOT_ASKED, TOLD, SAME, DIFFERS]
    text = ''
    for finding in sorted(findings, key=lambda finding: order.index(finding.result)):
        found = finding.found
        if finding.result == DIFFERS:
            found = "%s, expected: %s" % (found, finding.expected)
        elif len(found) >= 70:
            found = found[:66] + ' ...'
        text += '%-9s  %-22s  %s\n' % (finding.result, finding.name, found)
    return text


def job_script(path):
    command = os.environ['HPC_PYTORCH_COMMAND']
    file, log = shlex.quote(path), shlex.quote(path + '.txt')
    return "#!/bin/bash\nexec %s --survey=%s > %s 2>&1\n" % (command, file, log)


def submit(system, path):
    """Submit a job that surveys the node it runs on; returns its id."""
    asked = system.scheduler
    scheduler = batch_systems.SCHEDULERS.get(asked['kind'])
    if not scheduler:
        raise UsersProblem("--survey --job: %s has no batch system" % system.system['title'])
    request = batch_systems.Request(
        account=os.environ.get(asked['account_variable'] or ''),
        partition=asked['partition'],
        qos=asked['qos'],
        cores=1,
        memory=None,
        minutes=5,
        gpus=system.node['gpus'],
        gpus_option=asked['gpus_option'],
        exclusive=asked['nodes_exclusive'],
        options=system.node['local_storage_option'],
    )
    command = scheduler.command(request, 'survey', 'survey', path + '.log', [])
    with tempfile.NamedTemporaryFile('w', suffix='.sh') as script:
        script.write(job_script(path))
        script.flush()
        return scheduler.submit(command, script.name)


def main(arguments):
    """Ask, compare, print; returns 1 if something differs."""
    parser = argparse.ArgumentParser(prog='./eb', description=__doc__, allow_abbrev=False)
    parser.add_argument('--survey', nargs='?', metavar='FILE')
    parser.add_argument('--job', action='store_true')
    parser.add_argument('--new-system', metavar='NAME')
    given = parser.parse_known_args(arguments)[0]
    system = systems.load(os.environ['HPC_SYSTEM'])
    machine = Machine(system)
    path = os.path.abspath(given.survey or 'survey-%s.json' % system.name)
    if given.job:
        print("Job %s will write %s and %s.txt" % (submit(system, path), path, path))
        return 0
    if given.new_system is not None:
        paths = new_system.write_drafts(given.new_system, machine)
        print("Written; read and correct them:", *paths, sep='\n')
        return 0
    findings = [ask(probe, machine) for probe in PROBES]
    findings += about_easyconfigs(machine)
    findings = [without_names(finding, machine.environ) for finding in findings]
    if given.survey:
        write_report(path, machine, findings)
    return show(machine, findings)


def show(machine, findings):
    where = 'in a job' if machine.job else 'on a login node'
    print("%s, %s:\n" % (machine.system.system['title'], where))
    print(table(findings))
    results = [finding.result for finding in findings]
    differ = [finding.name for finding in findings if finding.result == DIFFERS]
    print("the same: %d; different: %d" % (results.count(SAME), len(differ)), *differ, sep=', ')
    return 1 if differ else 0


def write_report(path, machine, findings):
    report = {
        'format': 1,
        'collection': VERSION,
        'system': machine.system.name,
        'where': JOB if machine.job else LOGIN,
        'findings': [finding._asdict() for finding in findings],
    }
    Path(path).write_text(json.dumps(report, indent=1))
