"""
A container image as a module: the image in the prefix, run scripts, commands that work outside the container, and a
module that decides when it is loaded which image and which bind mounts there are.

Needed because: EasyBuild has nothing that makes a module of an image, so sites write shell and Lua into easyconfigs.
Differs from upstream in: there is nothing upstream.
Can go when: EasyBuild can do this itself.
"""
import difflib
import errno
import fcntl
import os
import re
import shutil
import struct

from easybuild.framework.easyblock import EasyBlock
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.build_log import EasyBuildError, print_warning
from easybuild.tools.config import source_paths
from easybuild.tools.filetools import compute_checksum, convert_name, copy_file, mkdir, remove_dir, remove_file
from easybuild.tools.filetools import symlink, write_file
from easybuild.tools.run import run_shell_cmd

from hpc_pytorch import UsersProblem
from hpc_pytorch.machine.collection_files import named_file
from hpc_pytorch.machine.systems import current

# In the prefix, where all of them lie: True for those that have a use outside the container and are put on the path, or
# what is on the path in its place.
SCRIPTS = {
    'conda-python-distributed': False,
    'conda-python-simple': False,
    'cpu-mask': True,
    'get-master': True,
    'init-conda-venv': False,
    'list-packages': True,
    'make-squashfs': True,
    'pytorch-srun': 'run-in-container',
    'run-in-container': True,
    'start-shell': True,
    'torchrun': False,
    'unmake-squashfs': True,
    'with-environment': False,
}
# What the scripts themselves call outside; a wrapper of that name would call itself for ever.
NO_WRAPPERS = ('bash', 'dirname', 'env', 'readlink', 'sh')
SCRIPTS_INSIDE = '/runscripts'
USER_SOFTWARE = 'user-software'
# What the settings of a system (`when` in its system.cfg) may count on in a container for accelerators.
FEATURES = ('container', 'gpu', 'nccl')
# Singularity reads the first prefix. Apptainer reads both, and wants the second.
RUNTIME_PREFIXES = ('SINGULARITY', 'APPTAINER')
# Environment variable with the directories to search for images, instead of the system's own.
STORE_VARIABLE = 'HPC_IMAGE_SEARCH_PATH'

# For `module help`.
USAGE = """Environment variables:
 - $SIF and $SIF{variable}: the image. To give its space back, type: rm $SIF; after loading the module again they name
   the site's own copy, for as long as the site has it.
 - $CONTAINERROOT: where all of this is; installing it again replaces what is there.
 - $RUNSCRIPTS and $RUNSCRIPTS{variable}: scripts, in the container on the path and in {inside}: conda-python-simple,
   conda-python-distributed (one rank of a distributed run), with-environment (any command), get-master.
 - $SINGULARITY_BINDPATH, $SINGULARITY_BIND: what the container sees of this host.
In the container, $WITH_CONDA (if the image has it) activates the Python of the image.

Commands outside the container: {commands}.
"""
USAGE_OF_VENV = """
Packages that pip installs go to $CONTAINERROOT/{venv}. Packing them into one file with make-squashfs makes
their import fast on a parallel file system; unmake-squashfs unpacks them again. Load the module again afterwards.
"""

# What a module file asks and says while it is loaded, in each syntax.
MODULE_SYNTAX = {
    'Lua': {
        'loading': 'mode() == "load"',
        'unloading': 'mode() == "unload"',
        'file': 'isFile("%s")',
        'exists': '(isFile("%s") or isDir("%s"))',
        'fail': 'LmodError("%s")',
        'special': r'\\',
    },
    'Tcl': {
        'loading': 'module-info mode load',
        'unloading': 'module-info mode remove',
        'file': 'file isfile "%s"',
        'exists': 'file exists "%s"',
        'fail': 'error "%s"',
        'special': r'[\\$\[]',
    },
}

SIF_MAGIC = (32, b'SIF_MAGIC\0')
SQUASHFS_MAGIC = (0, b'hsqs')
# ioctl that makes a file share the blocks of another one, from linux/fs.h
FICLONE = 0x40049409


def image_size(path):
    """The size that the header of an image promises, or None when this is neither a SIF nor a squashfs image."""
    with open(path, 'rb') as handle:
        header = handle.read(128)

    def has(magic):
        return header[magic[0]:magic[0] + len(magic[1])] == magic[1]

    if has(SIF_MAGIC) and len(header) == 128:
        # where the data objects start, and their length
        return sum(struct.unpack_from('<QQ', header, 112))
    if has(SQUASHFS_MAGIC) and len(header) >= 48:
        return struct.unpack_from('<Q', header, 40)[0]
    return None


def check_image(path):
    """Stop unless this is a whole image."""
    promised, size = image_size(path), os.path.getsize(path)
    if promised is None:
        raise EasyBuildError("%s is no container image: its header is neither that of a SIF nor of a squashfs file. "
                             "Was a web page or a pointer to the file downloaded instead?", path)
    if size < promised:
        raise EasyBuildError("the image %s is cut off: it has %d bytes, and its header speaks of %d. Fetch it again.",
                             path, size, promised)


def place_image(source, target):
    """Make the image appear at `target`, whole or not at all: blocks shared, a hard link, or a copy. Says which."""
    partial = target + '.partial'
    try:
        with open(source, 'rb') as original, open(partial, 'wb') as copy:
            try:
                fcntl.ioctl(copy.fileno(), FICLONE, original.fileno())
                how = 'reflink'
            except OSError:
                how = None
        if how is None and os.stat(source).st_uid == os.geteuid():
            # a link to somebody else's file would not be ours to give permissions to
            remove_file(partial)
            try:
                os.link(source, partial)
                how = 'hard link'
            except OSError:
                how = None
        if how is None:
            shutil.copyfile(source, partial)
            how = 'copy'
        os.rename(partial, target)
    except OSError as error:
        remove_file(partial)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_room(source, os.path.dirname(target))
        raise EasyBuildError("the image %s could not be copied to %s: %s", source, target, error.strerror)
    return how


def no_room(source, directory):
    """The error for an image that does not fit."""
    return EasyBuildError("no room for the image: it has %d MiB, and %s has %d MiB left, or your quota has less. "
                          "Free space there, choose another --prefix, or leave the image where it is with "
                          "`copy_image = False`", os.path.getsize(source) >> 20, directory, free_space(directory) >> 20)


def free_space(directory):
    """Bytes that can be written below a directory that need not exist yet."""
    found = os.statvfs(existing(directory))
    return found.f_bavail * found.f_frsize


def existing(directory):
    """This directory, or the nearest one above that exists."""
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    return directory


class SingularityContainer(EasyBlock):
    """Installs the first of its sources, an image, as a module; the others are its Docker definition files."""

    @staticmethod
    def extra_options():
        """What an easyconfig can say."""
        return EasyBlock.extra_options({
            'bind_paths': [[], "What the container must see of the host, besides the system's own bind_paths", CUSTOM],
            'container_environment': [{}, "Environment variables to set in the container", CUSTOM],
            'copy_image': [True, "Copy the image into the prefix, so that it stays when the site removes its own",
                           CUSTOM],
            'import_name': [None, "Python package that the sanity check imports in the container", CUSTOM],
            'venv': [False, "Make a virtual environment on top of the container's, outside the image", CUSTOM],
            'verify_signature': [False, "Refuse an image that `singularity verify` does not accept", CUSTOM],
            'wrappers': [[], "Commands of the container to have outside too", CUSTOM],
        })

    def __init__(self, *args, **kwargs):
        """Look up the system and check what the easyconfig says."""
        super().__init__(*args, **kwargs)
        try:
            self.system = current(self.cfg.path or '')
        except UsersProblem as problem:
            raise EasyBuildError("%s", problem)
        sources = self.cfg['sources']
        if not sources:
            raise EasyBuildError("`sources` of %s names no image", self.cfg.path)
        self.image_name = os.path.basename(sources[0] if isinstance(sources[0], str) else sources[0]['filename'])
        self.variable = convert_name(self.name, upper=True)
        # like a conda environment for it would be called
        self.venv = os.path.join('/', USER_SOFTWARE, 'venv', self.name.lower())
        self.module_load_environment.replace({'PATH': ['bin']})
        if not self.cfg['usage']:
            self.cfg['usage'] = (USAGE + (USAGE_OF_VENV if self.cfg['venv'] else '')).format(
                variable=self.variable, inside=SCRIPTS_INSIDE, venv=self.venv[1:],
                commands=', '.join(sorted([name for name in SCRIPTS if SCRIPTS[name]] + self.cfg['wrappers'])))
        for path in self.bind_paths:
            # a comma separates them in $SINGULARITY_BIND, the others mean something in a module file
            if not path.startswith('/') or re.search(r'[\s,"\'$\\\[\]{};]', path):
                raise EasyBuildError("%r in bind_paths is no absolute path that can be bound", path)
        for name in self.cfg['wrappers']:
            if SCRIPTS.get(name) or name in NO_WRAPPERS or not re.match(r'[\w.+-]+$', name):
                raise EasyBuildError("%r in `wrappers` cannot be the name of a command outside the container", name)

    # -- where the image is

    @property
    def bind_paths(self):
        """What the container is to see of the host, if it is there."""
        return self.system.container['bind_paths'] + self.cfg['bind_paths']

    @property
    def image_stores(self):
        """The directories in which the site keeps images."""
        given = os.environ.get(STORE_VARIABLE)
        return [path for path in given.split(':') if path] if given else self.system.container['image_search_path']

    def stored_image(self, name):
        """The path of an image in the first store that has it, or None."""
        paths = [os.path.join(store, name) for store in self.image_stores]
        return next((path for path in paths if os.path.isfile(path)), None)

    def obtain_file(self, filename, **kwargs):
        """Images may also be in a store of the site: it comes after the source path, and before anything is fetched."""
        if filename != self.image_name or self.dry_run:
            return super().obtain_file(filename, **kwargs)
        if kwargs.get('force_download'):
            return super().obtain_file(filename, **kwargs)
        local = super().obtain_file(filename, **dict(kwargs, no_download=True, warning_only=True))
        found = local or self.stored_image(filename)
        if found:
            return found
        if kwargs.get('urls') or self.cfg['source_urls']:
            return super().obtain_file(filename, **kwargs)
        raise EasyBuildError(self.image_not_found())

    def image_not_found(self):
        """One message for an image that is nowhere."""
        places, near = [], []
        for store in self.image_stores:
            try:
                names = os.listdir(store)
                places.append(store)
            except OSError as error:
                names = []
                places.append("%s (%s)" % (store, error.strerror.lower()))
            near += [os.path.join(store, name) for name in difflib.get_close_matches(self.image_name, names)]
        message = "the image %s is neither in the source path (%s) nor in an image store (%s)." % (
            self.image_name, ':'.join(source_paths()), ', '.join(places) or "none is known for %s" % self.system.name)
        if near:
            message += " The nearest: %s." % ', '.join(near)
        return message + " Set $%s to where it is, or copy it to the source path." % STORE_VARIABLE

    @property
    def candidates(self):
        """Where the module looks for the image when it is loaded, best first."""
        if self.cfg['copy_image']:
            own = os.path.join(self.installdir, self.image_name)
        elif self.src:
            own = self.src[0]['path']
        else:
            # --module-only fetches nothing
            own = super().obtain_file(self.image_name, no_download=True, warning_only=True)
        found = [own] + [os.path.join(store, self.image_name) for store in self.image_stores]
        return [path for index, path in enumerate(found) if path and path not in found[:index]]

    # -- steps

    def checksum_step(self):
        """Besides the checksum, look whether this is an image, and whether it is whole."""
        super().checksum_step()
        if self.dry_run or not self.src:
            return
        image = self.src[0]['path']
        check_image(image)
        if self.cfg['verify_signature']:
            self.verify_signature(image)

    def verify_signature(self, image):
        """Stop unless the signature of the image is good."""
        if not self.runtime:
            raise EasyBuildError("verify_signature needs singularity or apptainer, and neither is here")
        result = run_shell_cmd([self.runtime, 'verify', image], use_bash=False, fail_on_error=False, hidden=True)
        if result.exit_code:
            raise EasyBuildError("the signature of %s was not accepted: %s", image, result.output.strip())

    @property
    def runtime(self):
        """The program that runs containers here, or None."""
        return shutil.which('singularity') or shutil.which('apptainer')

    def extract_step(self):
        """An image is used as it is; before the prefix is touched, look whether all can be done."""
        if self.dry_run:
            return
        if self.cfg['venv'] and not self.runtime:
            raise EasyBuildError("a virtual environment is made with the Python of the container, and there is neither "
                                 "singularity nor apptainer here: install on a node that has one of them")
        image, here = self.src[0]['path'], existing(self.installdir)
        same_disk = os.stat(here).st_dev == os.stat(image).st_dev
        if self.cfg['copy_image'] and not same_disk and free_space(here) < os.path.getsize(image):
            raise no_room(image, here)

    def configure_step(self):
        """Nothing to configure."""

    def build_step(self):
        """Nothing to build."""

    def install_step(self):
        """The image, the run scripts, the wrappers, the Docker definition files and the virtual environment."""
        if self.cfg['copy_image'] and not self.dry_run:
            self.install_image()
        self.install_scripts()
        for source in self.src[1:]:
            copy_file(source['path'], os.path.join(self.installdir, 'share', 'docker-defs', source['name']))
        # for the wrappers: where they find the image, and what to load when it is not there
        write_file(os.path.join(self.installdir, 'share', 'container'), 'SIF%s %s\n' % (
            self.variable, self.short_mod_name))
        if self.cfg['venv']:
            self.install_venv()

    def install_image(self):
        """Copy the image into the prefix and look whether it arrived."""
        source, target = self.src[0], os.path.join(self.installdir, self.image_name)
        try:
            how = place_image(source['path'], target)
            self.log.info("image %s placed at %s: %s", source['path'], target, how)
            if how != 'hard link' and compute_checksum(target, 'sha256') != source.get('sha256'):
                raise EasyBuildError("the copy %s differs from %s: is a disk broken?", target, source['path'])
        except EasyBuildError:
            # half an installation is none
            remove_dir(self.installdir)
            raise

    def install_scripts(self):
        """The scripts for use in and around the container, and links for what is wanted on the path outside."""
        scripts, commands = [os.path.join(self.installdir, name) for name in ('runscripts', 'bin')]
        mkdir(commands, parents=True)
        for name, outside in sorted(SCRIPTS.items()):
            copy_file(named_file(self.cfg.path, name), os.path.join(scripts, name))
            if outside:
                symlink(os.path.join('..', 'runscripts', name if outside is True else outside),
                        os.path.join(commands, name), use_abspath_source=False)
        for name in self.cfg['wrappers']:
            symlink(os.path.join('..', 'runscripts', 'run-in-container'), os.path.join(commands, name),
                    use_abspath_source=False)

    def install_venv(self):
        """A virtual environment over the container's Python, in a directory that is bound to the same place inside."""
        mkdir(os.path.join(self.installdir, USER_SOFTWARE, 'venv'), parents=True)
        mounts = [':'.join([os.path.join(self.installdir, outside), inside])
                  for outside, inside in (('runscripts', SCRIPTS_INSIDE), (USER_SOFTWARE, '/' + USER_SOFTWARE))]
        run_shell_cmd([self.runtime, 'exec', '--bind', ','.join(mounts), self.candidates[0],
                       os.path.join(SCRIPTS_INSIDE, 'with-environment'), 'python', '-m', 'venv',
                       '--system-site-packages', self.venv], use_bash=False)

    # -- the module

    def make_module_extra(self, *args, **kwargs):
        """What the module sets, and what it decides when it is loaded."""
        module = self.module_generator
        text = super().make_module_extra(*args, **kwargs)
        text += module.set_environment('CONTAINERROOT', '', relpath=True)
        for name in ('RUNSCRIPTS', 'RUNSCRIPTS' + self.variable):
            text += module.set_environment(name, 'runscripts', relpath=True)
        for name, value in sorted(self.container_environment.items()):
            for prefix in RUNTIME_PREFIXES:
                text += self.set_literally('%sENV_%s' % (prefix, name), value)
        for setting in self.system.settings_for(FEATURES):
            text += module.comment(setting.reason)
            text += module.set_environment(setting.name, setting.value)
        if self.system.node['gpu_cores']:
            text += module.set_environment('GPU_CORES', ' '.join(
                ','.join(map(str, cores)) for cores in self.system.node['gpu_cores']))
        return '\n'.join([text, self.image_text(), self.bind_text()])

    @property
    def container_environment(self):
        """Environment variables inside the container."""
        path, values = [SCRIPTS_INSIDE], {}
        if self.cfg['venv']:
            path.append(os.path.join(self.venv, 'bin'))
            values = {
                'VIRTUAL_ENV': self.venv,
                'WITH_VENV': 'source %s/bin/activate' % self.venv,
                'WITH_CONDA_VENV': 'source %s/init-conda-venv' % SCRIPTS_INSIDE,
            }
        return dict(values, PREPEND_PATH=':'.join(path), **self.cfg['container_environment'])

    def set_literally(self, name, value):
        """A statement that sets a variable to exactly this; EasyBuild leaves to Tcl what means something to Tcl."""
        value = re.sub(MODULE_SYNTAX[self.module_generator.SYNTAX]['special'], r'\\\g<0>', value)
        return self.module_generator.set_environment(name, {'value': value, 'resolve_env_vars': False})

    def asks(self, name, path=''):
        """A condition in the syntax of the module file."""
        condition = MODULE_SYNTAX[self.module_generator.SYNTAX][name]
        return condition % ((path,) * condition.count('%s'))

    def image_text(self):
        """
        $SIF and $SIF<NAME>: the first image that is there. Without any, loading fails; unloading never looks.
        """
        module = self.module_generator
        text = module.conditional_statement(self.asks('loading'), self.asks('fail', (
            "%s cannot be loaded: its image %s is gone from %s. Install it again: eb %s --force" % (
                self.short_mod_name, self.image_name, ' and '.join(map(os.path.dirname, self.candidates)),
                os.path.basename(self.cfg.path)))))
        for position, path in reversed(list(enumerate(self.candidates))):
            conditions = [self.asks('file', path)] + ([self.asks('unloading')] if position == 0 else [])
            sets = ''.join(self.set_literally(name, path) for name in ('SIF', 'SIF' + self.variable))
            text = module.conditional_statement(conditions, sets.rstrip(), else_body=text.rstrip(), cond_or=True)
        return text

    def bind_text(self):
        """
        Bind mounts: of the system's directories those that are there, and what belongs to this installation.

        The runtimes read $SINGULARITY_BINDPATH and $SINGULARITY_BIND alike, add them up and warn of each mount that is
        in both: the system's directories go to the first, the installation's own to the second.
        """
        module, text = self.module_generator, ''
        for path in self.bind_paths:
            text += module.conditional_statement([self.asks('exists', path.split(':')[0]), self.asks('unloading')],
                                                 self.bind('BINDPATH', path), cond_or=True)
        text += self.bind('BIND', os.path.join(self.installdir, 'runscripts') + ':' + SCRIPTS_INSIDE) + '\n'
        directory, inside = os.path.join(self.installdir, USER_SOFTWARE), '/' + USER_SOFTWARE
        unpacked = self.bind('BIND', '%s:%s' % (directory, inside))
        # make-squashfs packs the directory as the only entry: Lmod would cut the last character of image-src=/
        packed = self.bind('BIND', '%s.squashfs:%s:image-src=%s' % (directory, inside, inside))
        what_is_there = module.conditional_statement(
            self.asks('file', directory + '.squashfs'), packed,
            else_body=module.conditional_statement(self.asks('exists', directory), unpacked).rstrip())
        return text + module.conditional_statement(self.asks('unloading'), packed + '\n' + unpacked,
                                                   else_body=what_is_there.rstrip())

    def bind(self, variable, mount):
        """Statements that add a bind mount for each runtime."""
        return ''.join(self.module_generator.update_paths('%s_%s' % (prefix, variable), [mount], prepend=False,
                                                          allow_abs=True, delim=',')
                       for prefix in RUNTIME_PREFIXES).rstrip()

    def sanity_check_step(self):
        """The files, and in the container, where something can run it, Python."""
        paths = {
            'files': [os.path.join('runscripts', name) for name in sorted(SCRIPTS)] +
                     [os.path.join('bin', name) for name in self.cfg['wrappers']] + ['share/container'],
            'dirs': ['bin'],
        }
        commands = []
        if self.runtime:
            name = self.cfg['import_name']
            commands.append("run-in-container " + ("python -c 'import %s'" % name if name else "true"))
        else:
            print_warning("neither singularity nor apptainer is here: nothing was checked in the container",
                          log=self.log)
        super().sanity_check_step(custom_paths=paths, custom_commands=commands)
