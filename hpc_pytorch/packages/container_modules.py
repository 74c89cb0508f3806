"""The module of a container: its scripts and help, and what it decides when it is loaded (image, mounts)."""
import os
from pathlib import Path

from hpc_pytorch import HERE, parse
from hpc_pytorch.machine.module_files import snippet

SCRIPTS_INSIDE = '/runscripts'
USER_SOFTWARE = 'user-software'
# Singularity reads the first prefix. Apptainer reads both, and prefers the second.
RUNTIME_PREFIXES = ('SINGULARITY', 'APPTAINER')
# Two of its members cannot be loaded together, as both would mount their files at the same places.
FAMILY = 'hpc_container'


def scripts_for(import_name):
    """Return the scripts of a container with this Python package: {name: (where they are used, what for)}."""
    table = parse(HERE + '/packages/container_scripts.cfg')
    scripts = {}
    for section in table.sections():
        package, _, where = section.rpartition(': ')
        if package in ('', import_name):
            scripts.update((name, (where, what)) for name, what in table[section].items())
    return scripts


def usage(variable, verb, launcher, scripts, wrappers, venv):
    """For `module help`: how to train, each command in a line, the variables."""
    inside, outside = [], []
    for name, (where, what) in sorted(scripts.items()):
        lines = inside if where == 'inside' else outside
        lines.append(' - %s: %s' % (name, what.format(name=name, verb=verb)))
    if wrappers:
        outside.append(" - %s: those of the container" % ', '.join(wrappers))
    text, training, of_venv = Path(HERE, 'packages', 'container_usage.txt').read_text().split('---\n')
    if venv:
        text += of_venv.format(venv=venv.lstrip('/'))
    if 'torchrun' not in scripts:
        training = ''
    return text.format(
        variable=variable,
        inside=SCRIPTS_INSIDE,
        verb=verb,
        training=training.format(launcher=launcher, variable=variable),
        commands='\n'.join(outside),
        scripts='\n'.join(inside),
    )


def conflicts(generator, names):
    lines = [snippet(generator, 'family', FAMILY)] + [snippet(generator, 'conflict', name) for name in names]
    return '\n'.join(lines) + '\n'


def environment_inside(generator, venv):
    """Set variables for the container; `venv` is None without a virtual environment."""
    # what lies in ~/.local or was meant for another Python would be found before what is in the image
    path, variables = [SCRIPTS_INSIDE], {'PYTHONNOUSERSITE': '1'}
    if venv:
        path.append(os.path.join(venv, 'bin'))
        variables['VIRTUAL_ENV'] = venv
        variables['WITH_VENV'] = 'source %s/bin/activate' % venv
        variables['WITH_CONDA_VENV'] = 'source %s/init-conda-venv' % SCRIPTS_INSIDE
    variables['PREPEND_PATH'] = ':'.join(path)
    return ''.join(generator.set_environment('%sENV_%s' % (prefix, name), value)
                   for name, value in sorted(variables.items()) for prefix in RUNTIME_PREFIXES)


def image(generator, variables, candidates, message):
    """Set these variables to the first image that is there. Without any, loading fails; unloading never looks."""
    text = generator.conditional_statement(snippet(generator, 'loading'), snippet(generator, 'fail', message))
    for path in reversed(candidates):
        conditions = [snippet(generator, 'file', path)]
        if path == candidates[0]:
            conditions.append(snippet(generator, 'unloading'))
        body = '\n'.join(generator.set_environment(name, path).rstrip() for name in variables)
        text = generator.conditional_statement(conditions, body, else_body=text.rstrip(), cond_or=True)
    return text


def binds(generator, installdir, paths):
    """Mount those of the system's directories that exist, and what belongs to this installation."""
    # Runtimes add $..._BINDPATH to what the user says in $..._BIND. A user's $SINGULARITY_BINDPATH counts for Apptainer
    # as well, as long as there is no $APPTAINER_BINDPATH: then none is made.
    for_singularity = binds_of(generator, 'SINGULARITY_BINDPATH', installdir, paths)
    for_apptainer = binds_of(generator, 'APPTAINER_BINDPATH', installdir, paths)
    conditions = [snippet(generator, 'unloading'), snippet(generator, 'set', 'APPTAINER_BINDPATH'),
                  snippet(generator, 'not set', 'SINGULARITY_BINDPATH')]
    # first, as its condition asks what SINGULARITY's was before
    return generator.conditional_statement(conditions, for_apptainer.rstrip(), cond_or=True) + for_singularity


def binds_of(generator, variable, installdir, paths):
    def bind(mount):
        return generator.update_paths(variable, [mount], prepend=False, allow_abs=True, delim=',').rstrip()

    def if_any(conditions, body, otherwise=None):
        return generator.conditional_statement(conditions, body, else_body=otherwise, cond_or=True)

    unloading = snippet(generator, 'unloading')
    text = ''
    for path in paths:
        text += if_any([snippet(generator, 'exists', path.split(':')[0]), unloading], bind(path))
    text += bind('%s:%s' % (os.path.join(installdir, 'runscripts'), SCRIPTS_INSIDE)) + '\n'
    directory, place = os.path.join(installdir, USER_SOFTWARE), '/' + USER_SOFTWARE
    unpacked = bind('%s:%s' % (directory, place))
    # the whole of the file; Lmod would cut the last character of image-src=/
    packed = bind('%s.squashfs:%s:ro,image-src=.' % (directory, place))
    # both are there while jobs still use the one that is given up; a third file says that it is the packed one
    given_up = [snippet(generator, 'file', directory + '.unpacked'), snippet(generator, 'exists', directory)]
    if_directory = if_any([snippet(generator, 'exists', directory)], unpacked)
    if_file = if_any([snippet(generator, 'file', directory + '.squashfs')], packed, if_directory.rstrip())
    what_is_there = generator.conditional_statement(given_up, unpacked, else_body=if_file.rstrip())
    return text + if_any([unloading], packed + '\n' + unpacked, what_is_there.rstrip())
