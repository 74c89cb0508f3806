"""What the module of a container decides when it is loaded: which image there is, and what is mounted."""
import os

from hpc_pytorch.machine.module_files import ask, set_literally
from hpc_pytorch.packages.container_scripts import SCRIPTS_INSIDE, USER_SOFTWARE

# Singularity reads the first prefix. Apptainer reads both, and wants the second: where both are set, the second counts.
RUNTIME_PREFIXES = ('SINGULARITY', 'APPTAINER')
# Two of its members cannot be loaded together, as both would mount their files at the same places.
FAMILY = 'hpc_container'


def statements(*parts):
    """Parts of a module file, for a conditional statement."""
    return '\n'.join(part.rstrip() for part in parts)


def company(generator, conflicts):
    return ask(generator, 'family', FAMILY) + ''.join(ask(generator, 'conflict', name) for name in conflicts)


def inside(generator, venv, more):
    # what lies in ~/.local or was meant for another Python would be found before what is in the image
    path, variables = [SCRIPTS_INSIDE], {'PYTHONNOUSERSITE': '1'}
    if venv:
        path.append(os.path.join(venv, 'bin'))
        variables.update({
            'VIRTUAL_ENV': venv,
            'WITH_VENV': 'source %s/bin/activate' % venv,
            'WITH_CONDA_VENV': 'source %s/init-conda-venv' % SCRIPTS_INSIDE,
        })
    variables.update(more, PREPEND_PATH=':'.join(path))
    return ''.join(set_literally(generator, '%sENV_%s' % (prefix, name), value)
                   for name, value in sorted(variables.items()) for prefix in RUNTIME_PREFIXES)


def image(generator, variables, candidates, message):
    """Set these variables to the first image that is there. Without any, loading fails; unloading never looks."""
    text = generator.conditional_statement(ask(generator, 'loading'), ask(generator, 'fail', message))
    for position, path in reversed(list(enumerate(candidates))):
        conditions = [ask(generator, 'file', path)] + ([ask(generator, 'unloading')] if position == 0 else [])
        sets = statements(*[set_literally(generator, name, path) for name in variables])
        text = generator.conditional_statement(conditions, sets, else_body=text.rstrip(), cond_or=True)
    return text


def binds(generator, installdir, paths):
    """
    Bind mounts: of the system's directories those that are there, and what belongs to this installation.

    They all go to $..._BINDPATH, which the runtimes add to what the user says in $..._BIND. A user's
    $SINGULARITY_BINDPATH counts for Apptainer as well, as long as there is no $APPTAINER_BINDPATH: then none is made.
    """
    text = ''
    # APPTAINER's first: its condition asks what SINGULARITY's was before
    for prefix in reversed(RUNTIME_PREFIXES):
        variable = prefix + '_BINDPATH'
        body = binds_of(generator, variable, installdir, paths)
        if prefix == 'APPTAINER':
            body = generator.conditional_statement(
                [ask(generator, 'unloading'), ask(generator, 'set', variable),
                 ask(generator, 'not set', 'SINGULARITY_BINDPATH')], body.rstrip(), cond_or=True)
        text += body
    return text


def binds_of(generator, variable, installdir, paths):
    def bind(mount):
        return generator.update_paths(variable, [mount], prepend=False, allow_abs=True, delim=',').rstrip()

    def when(condition, path, body, **more):
        return generator.conditional_statement([ask(generator, condition, path)], body, **more)

    text = ''.join(generator.conditional_statement([ask(generator, 'exists', path.split(':')[0]),
                                                    ask(generator, 'unloading')], bind(path), cond_or=True)
                   for path in paths)
    text += bind(os.path.join(installdir, 'runscripts') + ':' + SCRIPTS_INSIDE) + '\n'
    directory, place = os.path.join(installdir, USER_SOFTWARE), '/' + USER_SOFTWARE
    unpacked = bind('%s:%s' % (directory, place))
    # the whole of the file; Lmod would cut the last character of image-src=/
    packed = bind('%s.squashfs:%s:image-src=.' % (directory, place))
    # both are there while jobs still use the one that is given up; a third file says that it is the packed one
    use_packed = when('file', directory + '.squashfs', packed,
                      else_body=when('exists', directory, unpacked).rstrip())
    what_is_there = generator.conditional_statement(
        [ask(generator, 'file', directory + '.unpacked'), ask(generator, 'exists', directory)], unpacked,
        else_body=use_packed.rstrip())
    return text + generator.conditional_statement([ask(generator, 'unloading')], packed + '\n' + unpacked,
                                                  else_body=what_is_there.rstrip())
