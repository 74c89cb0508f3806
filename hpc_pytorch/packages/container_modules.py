"""What the module of a container decides when it is loaded: which image there is, and what is mounted."""
import os

from hpc_pytorch.machine.module_files import ask
from hpc_pytorch.packages.container_scripts import SCRIPTS_INSIDE, USER_SOFTWARE

# Singularity reads the first prefix. Apptainer reads both, and prefers the second.
RUNTIME_PREFIXES = ('SINGULARITY', 'APPTAINER')
# Two of its members cannot be loaded together, as both would mount their files at the same places.
FAMILY = 'hpc_container'


def conflicts(generator, names):
    text = ask(generator, 'family', FAMILY)
    for name in names:
        text += ask(generator, 'conflict', name)
    return text


def environment_inside(generator, venv):
    """Set variables for the container; `venv` is None without a virtual environment."""
    # what lies in ~/.local or was meant for another Python would be found before what is in the image
    variables = {'PYTHONNOUSERSITE': '1', 'PREPEND_PATH': SCRIPTS_INSIDE}
    if venv:
        variables['PREPEND_PATH'] += ':%s/bin' % venv
        variables['VIRTUAL_ENV'] = venv
        variables['WITH_VENV'] = 'source %s/bin/activate' % venv
        variables['WITH_CONDA_VENV'] = 'source %s/init-conda-venv' % SCRIPTS_INSIDE
    text = ''
    for name, value in sorted(variables.items()):
        for prefix in RUNTIME_PREFIXES:
            text += generator.set_environment('%sENV_%s' % (prefix, name), value)
    return text


def image(generator, variables, candidates, message):
    """Set these variables to the first image that is there. Without any, loading fails; unloading never looks."""
    text = generator.conditional_statement(ask(generator, 'loading'), ask(generator, 'fail', message))
    for path in reversed(candidates):
        conditions = [ask(generator, 'file', path)]
        if path == candidates[0]:
            conditions.append(ask(generator, 'unloading'))
        body = [generator.set_environment(name, path).rstrip() for name in variables]
        text = generator.conditional_statement(conditions, '\n'.join(body), else_body=text.rstrip(), cond_or=True)
    return text


def binds(generator, installdir, paths):
    """
    Bind mounts: of the system's directories those that are there, and what belongs to this installation.

    They all go to $..._BINDPATH, which the runtimes add to what the user says in $..._BIND. A user's
    $SINGULARITY_BINDPATH counts for Apptainer as well, as long as there is no $APPTAINER_BINDPATH: then none is made.
    """
    for_singularity = binds_of(generator, 'SINGULARITY_BINDPATH', installdir, paths)
    for_apptainer = binds_of(generator, 'APPTAINER_BINDPATH', installdir, paths)
    conditions = [
        ask(generator, 'unloading'),
        ask(generator, 'set', 'APPTAINER_BINDPATH'),
        ask(generator, 'not set', 'SINGULARITY_BINDPATH'),
    ]
    # first, as its condition asks what SINGULARITY's was before
    return generator.conditional_statement(conditions, for_apptainer.rstrip(), cond_or=True) + for_singularity


def binds_of(generator, variable, installdir, paths):
    """Bind mounts for one runtime's variable."""
    def bind(mount):
        return generator.update_paths(variable, [mount], prepend=False, allow_abs=True, delim=',').rstrip()

    def if_there(kind, path, body, otherwise=None):
        condition = ask(generator, kind, path)
        return generator.conditional_statement(condition, body, else_body=otherwise).rstrip()

    unloading = ask(generator, 'unloading')
    text = ''
    for path in paths:
        there = ask(generator, 'exists', path.split(':')[0])
        text += generator.conditional_statement([there, unloading], bind(path), cond_or=True)
    text += bind('%s/runscripts:%s' % (installdir, SCRIPTS_INSIDE)) + '\n'
    directory = os.path.join(installdir, USER_SOFTWARE)
    place = '/' + USER_SOFTWARE
    unpacked = bind('%s:%s' % (directory, place))
    # the whole of the file; Lmod would cut the last character of image-src=/
    packed = bind('%s.squashfs:%s:image-src=.' % (directory, place))
    if_directory = if_there('exists', directory, unpacked)
    if_file = if_there('file', directory + '.squashfs', packed, if_directory)
    # both are there while jobs still use the one that is given up; a third file says that it is the packed one
    given_up = [ask(generator, 'file', directory + '.unpacked'), ask(generator, 'exists', directory)]
    what_is_there = generator.conditional_statement(given_up, unpacked, else_body=if_file).rstrip()
    return text + generator.conditional_statement(unloading, packed + '\n' + unpacked, else_body=what_is_there)
