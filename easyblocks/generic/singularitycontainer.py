# Copyright 2024-2026 the hpc-pytorch team, GNU General Public License v2, without any warranty: see the file LICENSE
"""
EasyBuild support for a container image as a module, implemented as an easyblock: the image in the prefix, scripts for
use in the container, commands that work outside, and a module that decides when it is loaded what is mounted.

Needed because: EasyBuild has nothing that makes a module of an image, so sites write shell and Lua into easyconfigs.
Differs from upstream in: upstream has nothing like it.
Remove when: EasyBuild can do this itself.
"""
import difflib
import os
import re
import shlex
import shutil

from easybuild.easyblocks.generic.binary import Binary
from easybuild.framework.easyblock import EasyBlock
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.build_log import EasyBuildError, print_warning
from easybuild.tools.config import build_option, source_paths
from easybuild.tools.filetools import convert_name, copy, copy_file, mkdir, remove_file, symlink, write_file
from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import nub

from hpc_pytorch import HERE
from hpc_pytorch.machine.collection_files import named_file
from hpc_pytorch.machine.module_files import explain, override, set_for_system
from hpc_pytorch.machine.systems import current
from hpc_pytorch.packages import container_modules, images
from hpc_pytorch.packages.container_modules import SCRIPTS_INSIDE, USER_SOFTWARE, scripts_for, usage
from hpc_pytorch.packages.easybuild_errors import as_easybuild_error, stop

# What the scripts themselves call outside; a wrapper of that name would call itself for ever.
NO_WRAPPERS = ('bash', 'dirname', 'env', 'readlink', 'sh')
# What the settings of a system (`when` in its system.cfg) may count on in a container for accelerators.
FEATURES = ('container', 'gpu', 'nccl')
# Environment variable with the directories to search for images, instead of the system's own.
STORE_VARIABLE = 'HPC_IMAGE_SEARCH_PATH'
# Imports a package in the image, and compares its release with what is expected.
IMPORT = """import re, %s as package
found, expected = getattr(package, "__version__", ""), "%s"
if found and expected and re.match("[0-9.]*", found).group() != expected:
    raise SystemExit("the image has version %%s, the easyconfig says %%s; if that is right, set package_version in it"
                     %% (found, expected))"""


class SingularityContainer(Binary):
    """Support for installing the image that is its source as a module."""

    @staticmethod
    def extra_options(extra_vars=None):
        return EasyBlock.extra_options(dict({
            'bind_paths': [[], "Directories of the host to bind, besides the system's bind_paths", CUSTOM],
            'copy_image': [True, "Copy the image into the prefix, so that it stays when the site removes its own",
                           CUSTOM],
            'image_software': [{}, "Versions of software in the image that are not in versionsuffix: {'rocm': '7.0'}; "
                               "they decide which settings of the system apply", CUSTOM],
            'import_name': [None, "Python package that the sanity check imports in the container", CUSTOM],
            'package_version': [None, "Its version in the image, where it is not the easyconfig's; '' for any", CUSTOM],
            'run_image': [False, "Use `singularity run`, for an image that initialises itself only there", CUSTOM],
            'venv': [False, "Make a virtual environment on top of the container's, outside the image", CUSTOM],
            'wrappers': [[], "Commands of the container to have outside, too", CUSTOM],
        }, **extra_vars or {}))

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        with as_easybuild_error():
            self.system = current(self.cfg.path or '')
        self.image_source = ''
        for source in self.cfg['sources'][:1]:
            self.image_source = source if isinstance(source, str) else source['filename']
        self.verb = 'run' if self.cfg['run_image'] else 'exec'
        self.variable = convert_name(self.name, upper=True)
        self.venv = None
        if self.cfg['venv']:
            # like a conda environment for it would be called
            self.venv = os.path.join('/', USER_SOFTWARE, 'venv', self.name.lower())
        self.scripts = scripts_for(self.cfg['import_name'])
        self.bind_paths = self.system.container['bind_paths'] + self.cfg['bind_paths']
        self.module_load_environment.replace({'PATH': ['bin']})
        launcher = self.system.launcher['command']
        text = usage(self.variable, self.verb, launcher, self.scripts, self.cfg['wrappers'], self.venv)
        self.cfg['usage'] = (self.cfg['usage'] or text) + explain(self.settings, self.applying(self.system.advice))
        # nothing is compiled, and under -x upstream stumbles over compiler wrappers and a checksums.json that it misses
        self.toolchain.options['rpath'] = False
        self.json_checksums = {} if self.dry_run else None

    def check_readiness_step(self):
        """Besides what EasyBuild looks at, stop at data that would break the module."""
        super().check_readiness_step()
        if not self.image_source:
            raise EasyBuildError("`sources` of %s names no image", self.cfg.path)
        self.log.info("image: %s", self.image_name)
        for path in self.bind_paths:
            # a comma separates them in $SINGULARITY_BINDPATH, the others mean something in a module file
            if not path.startswith('/') or re.search(r'[\s,"\'$\\\[\]{};]', path):
                raise EasyBuildError("expected absolute paths in bind_paths that can be bound, found %r", path)
        for name in self.cfg['wrappers']:
            where, _ = self.scripts.get(name, ('inside', ''))
            if name in NO_WRAPPERS or where != 'inside' or not re.match(r'[\w.+-]+$', name):
                raise EasyBuildError("%r in `wrappers` cannot be the name of a command outside the container", name)

    @property
    def runtime(self):
        return shutil.which('singularity') or shutil.which('apptainer')

    @property
    def image_name(self):
        if self.image_source.startswith('docker://'):
            with as_easybuild_error(easyblock=self):
                return images.file_of(self.image_source)
        return os.path.basename(self.image_source)

    @property
    def image_stores(self):
        given = list(filter(None, os.environ.get(STORE_VARIABLE, '').split(':')))
        return given or self.system.container['image_search_path']

    def obtain_file(self, filename, **kwargs):
        """Look for the image in the source path, in a store of the site, and in its registry."""
        if filename != self.image_source or self.dry_run or kwargs.get('force_download'):
            return super().obtain_file(filename, **kwargs)
        local = super().obtain_file(self.image_name, **dict(kwargs, no_download=True, warning_only=True))
        found = local or images.images_in(self.image_stores).get(self.image_name)
        if found:
            return found
        if filename.startswith('docker://'):
            return self.pull_image()
        if kwargs.get('urls') or self.cfg['source_urls']:
            return super().obtain_file(filename, **kwargs)
        raise EasyBuildError(self.nowhere())

    def nowhere(self):
        """Return the message for an image that was not found: where it was looked for, and similar names."""
        stores = [store if os.path.isdir(store) else store + " (no such directory)" for store in self.image_stores]
        names = images.images_in(self.image_stores)
        return ("the image %s is neither in the source path (%s) nor in an image store (%s). Similar names: %s. Set "
                "$%s to where it is, or copy it to the source path." % (
                    self.image_name, ':'.join(source_paths()), ', '.join(stores) or "none is known for this system",
                    ' '.join(difflib.get_close_matches(self.image_name, names)) or 'none', STORE_VARIABLE))

    def pull_image(self):
        if not self.runtime:
            raise EasyBuildError("fetching %s needs Singularity or Apptainer; neither was found", self.image_source)
        target = os.path.join(source_paths()[0], self.name[0].lower(), self.name, self.image_name)
        with as_easybuild_error():
            images.pull(self.runtime, self.image_source, target)
        return target

    @property
    def candidates(self):
        """Return where the module looks for the image when it is loaded, best first."""
        if self.cfg['copy_image']:
            own = os.path.join(self.installdir, self.image_name)
        elif self.src:
            own = self.src[0]['path']
        else:
            # --module-only fetches nothing
            own = super().obtain_file(self.image_name, no_download=True, warning_only=True)
        others = [images.images_in([store]).get(self.image_name, os.path.join(store, self.image_name))
                  for store in self.image_stores]
        return nub(filter(None, [own] + others))

    def checksum_step(self):
        """Besides the checksum, look whether this is an image, and whether it is whole."""
        super().checksum_step()
        if self.src and not self.dry_run:
            with as_easybuild_error():
                images.check_image(self.src[0]['path'])

    def extract_step(self):
        """Check what the installation needs before it touches the prefix; an image is used as it is."""
        if self.dry_run:
            fetched = self.image_source.startswith('docker://') or self.cfg['source_urls']
            below = [os.path.join(path, self.name[0].lower()) for path in source_paths()]
            if not fetched and self.image_name not in images.images_in(source_paths() + below + self.image_stores):
                stop(self, self.nowhere())
        elif self.venv and not self.runtime:
            raise EasyBuildError("making the virtual environment needs Singularity or Apptainer; neither was found. "
                                 "Install on a node that has one")

    def make_installdir(self, *args, **kwargs):
        """Remove the module file of an earlier installation first: what is half-made cannot be loaded."""
        if not (self.dry_run or build_option('module_only')):
            remove_file(self.module_generator.get_module_filepath())
        super().make_installdir(*args, **kwargs)

    def install_step(self):
        if self.cfg['copy_image'] and not self.dry_run:
            try:
                shutil.copyfile(self.src[0]['path'], self.path(self.image_name))
            except OSError as err:
                remove_file(self.path(self.image_name))
                raise EasyBuildError("the image could not be copied: %s. Choose another --prefix, or leave the image "
                                     "where it is with `copy_image = False`", err)
        self.install_scripts()
        # for the wrappers: where they find the image, how it is started, and what to load when it is not there
        write_file(self.path('share', 'container'), 'SIF%s %s %s\n' % (self.variable, self.verb, self.short_mod_name))
        copy(self.system.for_scripts, self.path('share'))
        if self.venv:
            self.install_venv()

    def path(self, *parts):
        return os.path.join(self.installdir, *parts)

    def install_scripts(self):
        mkdir(self.path('bin'), parents=True)
        programs = {name: 'run-in-container' for name in self.cfg['wrappers']}
        for name, (where, _) in self.scripts.items():
            copy_file(named_file(self.cfg.path, name), self.path('runscripts', name))
            if where != 'inside':
                programs[name] = name if where == 'outside' else 'run-in-container'
        if 'torchrun' in self.scripts:
            copy([os.path.join(HERE, 'scripts', 'examples')], self.installdir)
        for name, program in sorted(programs.items()):
            symlink('../runscripts/' + program, self.path('bin', name), use_abspath_source=False)

    def install_venv(self):
        """Make a virtual environment over the container's Python, in a directory that is bound to the same place."""
        mkdir(self.path(USER_SOFTWARE, 'venv'), parents=True)
        mounts = [self.path('runscripts') + ':' + SCRIPTS_INSIDE, self.path(USER_SOFTWARE) + ':/' + USER_SOFTWARE]
        # a dry run goes on without
        program = [self.runtime or 'singularity', self.verb, '--bind', ','.join(mounts), self.candidates[0]]
        scripts = [SCRIPTS_INSIDE + '/' + name for name in ('with-environment', 'make-container-venv')]
        run_shell_cmd(program + [scripts[0], 'python', scripts[1], self.venv], use_bash=False)

    @property
    def settings(self):
        """Return the settings of the system that apply; the easyconfig's own come before them."""
        own = self.cfg['modextravars']
        return [setting for setting in self.applying(self.system.settings) if setting.name not in own]

    def applying(self, variables):
        """Select what holds for the software in the image: rocm 7.0 of the versionsuffix -rocm-7.0-python-3.12."""
        named = re.findall(r'-([a-z]+)-(\d[\d.]*)(?=-|$)', self.cfg['versionsuffix'])
        return self.system.settings_for(FEATURES, dict(named, **self.cfg['image_software']), variables)

    def make_module_extra(self, *args, **kwargs):
        module = self.module_generator
        text = super().make_module_extra(*args, **kwargs)
        text += container_modules.conflicts(module, self.system.container['conflicts'])
        text += module.set_environment('CONTAINERROOT', '', relpath=True)
        for name in ('RUNSCRIPTS', 'RUNSCRIPTS' + self.variable):
            text += module.set_environment(name, 'runscripts', relpath=True)
        # the user's comes back when the module is unloaded
        text += override(module, self.name, 'PYTHONPATH', '')
        text += container_modules.environment_inside(module, self.venv)
        text += set_for_system(module, self.system, self.settings, self.cfg['modextravars'])
        gone = "%s cannot be loaded: its image %s is gone from %s. Install it again: eb %s --force" % (
            self.short_mod_name, self.image_name, ' and '.join(map(os.path.dirname, self.candidates)),
            shlex.quote(os.path.basename(self.cfg.path)))
        image = container_modules.image(module, ('SIF', 'SIF' + self.variable), self.candidates, gone)
        return '\n'.join([text, image, container_modules.binds(module, self.installdir, self.bind_paths)])

    def sanity_check_step(self, *args, **kwargs):
        """Check the files, and in the container, where something can run it, Python and commands."""
        wrappers = self.cfg['wrappers']
        files = ['runscripts/' + name for name in self.scripts]
        files += ['bin/' + name for name in wrappers]
        commands = ['run-in-container true']
        for name in wrappers:
            missing = "echo the image has no %s; exit 1" % name
            commands.append("run-in-container bash -c 'type -P %s || { %s; }'" % (name, missing))
        if self.cfg['import_name']:
            version = self.cfg['package_version']
            version = self.version if version is None else version
            commands.append("run-in-container python -c '%s'" % (IMPORT % (self.cfg['import_name'], version)))
        if not self.runtime:
            commands = []
            print_warning("Neither Singularity nor Apptainer was found: nothing was checked in the container",
                          log=self.log)
        kwargs['custom_paths'] = {'files': files, 'dirs': ['bin']}
        kwargs['custom_commands'] = commands
        super().sanity_check_step(*args, **kwargs)
